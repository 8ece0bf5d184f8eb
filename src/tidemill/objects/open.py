"""Opening object storage by its URL."""

import random
from pathlib import Path

from tidemill.clock import Clock
from tidemill.errors import BadUrl
from tidemill.objects.bucket_probe import Probed, try_conditions
from tidemill.objects.local import LocalObjects
from tidemill.objects.memory import MemoryObjects
from tidemill.objects.port import Objects
from tidemill.objects.url import HINT, KINDS, RemoteUrl, is_path, local_path, parse_remote, redact, scheme

_UNKNOWN = Probed(if_match=True, flat=False)


def open_objects(
    url: str,
    *,
    clock: Clock,
    chance: random.Random | None = None,
    probe: bool = True,
    probed: Probed | None = None,
) -> Objects:
    """Open object storage. A bucket is probed first (STO-13); files and memory need no probe.

    Args:
        url: see `tidemill.objects.url`; it is never shown with its secrets.
        clock: for waiting and for times.
        chance: for nonces, ETags and jitter; a new one if omitted.
        probe: False for a bucket that is only read. It is then listed by folders.
        probed: the result of an earlier probe of this bucket (`probe_bucket`), instead of a new one.
    """
    chance = chance or random.Random()
    name = scheme(url)
    if name in KINDS:
        where = parse_remote(url)
        if probed is None:
            probed = _probe(where, clock, chance) if probe else _UNKNOWN
        return _remote(where, clock, chance, probed)
    if name == "memory":
        if url.rstrip("/") != "memory:":
            raise BadUrl("memory:// has no name and no options", hint="write memory://")
        return MemoryObjects(clock)
    if name == "file":
        return LocalObjects(Path(local_path(url)), clock, chance)
    if name or not url or not is_path(url) or "\0" in url:
        raise BadUrl(f"{redact(url)!r:.200} is not the URL of an object storage", hint=HINT)
    return LocalObjects(Path(url).expanduser(), clock, chance)


def place_of(objects: Objects) -> "str | RemoteUrl":
    """Return what `open_place` needs in another process. It may hold secrets; its repr does not show them."""
    where = getattr(objects, "where", None)
    return where if isinstance(where, RemoteUrl) else objects.url


def open_place(place: "str | RemoteUrl", *, clock: Clock) -> Objects:
    """Open objects that another process has open, without another probe."""
    if isinstance(place, str):
        return open_objects(place, clock=clock)
    return _remote(place, clock, random.Random(), _UNKNOWN)


def probe_bucket(url: str, *, clock: Clock, chance: random.Random | None = None) -> Probed | None:
    """Probe a bucket, to keep the result; None for a storage that needs no probe."""
    if scheme(url) not in KINDS:
        return None
    return _probe(parse_remote(url), clock, chance or random.Random())


def _probe(where: RemoteUrl, clock: Clock, chance: random.Random) -> Probed:
    return try_conditions(_remote(where, clock, chance, Probed(if_match=True, flat=True)), chance)


def _remote(where: RemoteUrl, clock: Clock, chance: random.Random, probed: Probed) -> Objects:
    from tidemill.objects.remote import RemoteObjects  # imports obstore only if it is needed

    flat = where.listing == "flat" if where.listing else probed.flat
    return RemoteObjects(where, clock, chance, flat=flat, if_match=probed.if_match)
