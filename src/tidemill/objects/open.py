"""Open object storage by its URL."""

import random
from pathlib import Path

from tidemill.clock import Clock
from tidemill.errors import BadUrl
from tidemill.objects.local import LocalObjects
from tidemill.objects.memory import MemoryObjects
from tidemill.objects.port import Objects
from tidemill.objects.probe import Probed, try_conditions
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
    """Open object storage; a bucket is probed first (STO-13), files and memory need no probe.

    Args:
        url: see `tidemill.objects.url`; never shown as it is.
        clock: for waiting and for times.
        chance: for nonces, etags and jitter; a fresh one unless given.
        probe: False for a bucket that is only read; its listings then go folder by folder.
        probed: what an earlier probe of this bucket found (`probe_bucket`), instead of another one.
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
        raise BadUrl(f"no object storage: {redact(url)!r:.200}", hint=HINT)
    return LocalObjects(Path(url).expanduser(), clock, chance)


def place_of(objects: Objects) -> "str | RemoteUrl":
    """What opens the same objects in another process. It may hold secrets, which its repr does not show."""
    where = getattr(objects, "where", None)
    return where if isinstance(where, RemoteUrl) else objects.url


def open_place(place: "str | RemoteUrl", *, clock: Clock) -> Objects:
    """Open objects that another process has open, without probing them once more."""
    if isinstance(place, str):
        return open_objects(place, clock=clock)
    return _remote(place, clock, random.Random(), _UNKNOWN)


def probe_bucket(url: str, *, clock: Clock, chance: random.Random | None = None) -> Probed | None:
    """Probe a bucket, to keep the answer; None for what needs no probe."""
    if scheme(url) not in KINDS:
        return None
    return _probe(parse_remote(url), clock, chance or random.Random())


def _probe(where: RemoteUrl, clock: Clock, chance: random.Random) -> Probed:
    return try_conditions(_remote(where, clock, chance, Probed(if_match=True, flat=True)), chance)


def _remote(where: RemoteUrl, clock: Clock, chance: random.Random, probed: Probed) -> Objects:
    from tidemill.objects.remote import RemoteObjects  # obstore loads only where it is used

    flat = where.listing == "flat" if where.listing else probed.flat
    return RemoteObjects(where, clock, chance, flat=flat, if_match=probed.if_match)
