"""Open object storage by its URL, and test once whether a bucket supports conditional writes (STO-13).

Some servers accept `If-None-Match` and `If-Match`, respond with 200 and overwrite anyway. Two writers of one
key then both believe that they created it. The probe tries writes that must not succeed, first one after the
other and then from several threads at once. The probe writes its own objects, and deletes them afterwards. It
also finds out whether the server lists objects in key order. It makes about forty small requests. The result
is always the same for a bucket, so callers should store it.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import TypeVar

import msgspec

from tidemill.clock import Clock
from tidemill.errors import BadUrl, ConditionsIgnored, ObjectConflict, ObjectError, UsageError
from tidemill.objects.local import LocalObjects
from tidemill.objects.memory import MemoryObjects
from tidemill.objects.port import Objects, Put
from tidemill.objects.url import HINT, KINDS, RemoteUrl, is_path, local_path, parse_remote, redact, scheme
from tidemill.paths import expanded

T = TypeVar("T")

FOLDER = "tidemill-probe"
_THREADS = 2  # enough for a race; more would only wait for each other
_RACES = 4


class Probed(msgspec.Struct, frozen=True):
    """The result of a probe. A bucket that ignores conditions has no result: the probe raises an error."""

    if_match: bool
    """Whether `put_if_match` can be used; False if the server says that it does not support it."""
    flat: bool
    """Whether the bucket lists by key bytes, even if a listing starts after a given key."""


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
        chance: the random source for nonces, ETags and jitter; a new one if omitted.
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
            raise BadUrl("memory:// accepts no name and no options", hint="write memory://")
        return MemoryObjects(clock)
    if name == "file":
        return LocalObjects(expanded(local_path(url)), clock, chance)
    if name or not url or not is_path(url):
        raise BadUrl(f"invalid object storage URL: {redact(url)!r:.200}", hint=HINT)
    return LocalObjects(expanded(url), clock, chance)


def place_of(objects: Objects) -> "str | RemoteUrl":
    """Return what `open_place` needs in another process.

    It may contain secrets; its repr does not show them.
    """
    where = getattr(objects, "where", None)
    return where if isinstance(where, RemoteUrl) else objects.url


def open_place(place: "str | RemoteUrl", *, clock: Clock) -> Objects:
    """Open objects that another process has open, without another probe."""
    if isinstance(place, str):
        return open_objects(place, clock=clock)
    return _remote(place, clock, random.Random(), _UNKNOWN)


def probe_bucket(url: str, *, clock: Clock, chance: random.Random | None = None) -> Probed | None:
    """Probe a bucket and return the result, so that the caller can keep it; None if no probe is needed."""
    if scheme(url) not in KINDS:
        return None
    return _probe(parse_remote(url), clock, chance or random.Random())


def _probe(where: RemoteUrl, clock: Clock, chance: random.Random) -> Probed:
    return try_conditions(_remote(where, clock, chance, Probed(if_match=True, flat=True)), chance)


def _remote(where: RemoteUrl, clock: Clock, chance: random.Random, probed: Probed) -> Objects:
    from tidemill.objects.remote import RemoteObjects  # imports obstore only if it is needed

    flat = where.listing == "flat" if where.listing else probed.flat
    return RemoteObjects(where, clock, chance, flat=flat, if_match=probed.if_match)


def try_conditions(objects: Objects, chance: random.Random) -> Probed:
    """Try the conditional writes of a bucket, and delete the objects of the probe.

    Raise `ConditionsIgnored` if a conditional write succeeded that should have failed. Raise
    `ObjectUnavailable` if the bucket cannot be reached or written.

    Args:
        objects: the bucket, opened with `flat=True` to see the provider's own order.
        chance: for nonces.
    """
    folder = f"{FOLDER}/{chance.getrandbits(64):016x}"
    ordered = [f"{folder}/order/{name}" for name in ("a-1", "a/1", "a0")]
    races = [f"{folder}/race-{number}" for number in range(_RACES)]
    create, match = f"{folder}/create", f"{folder}/match"
    try:
        _try_create(objects, create, chance)
        for key in races:
            _race_create(objects, key, chance)
        return Probed(_has_if_match(objects, match, chance), _lists_by_key(objects, ordered))
    finally:
        objects.delete_many([create, match, *races, *ordered])


def _nonce(chance: random.Random) -> bytes:
    return f"{chance.getrandbits(128):032x}".encode()


def _try_create(objects: Objects, key: str, chance: random.Random) -> None:
    first, second = _nonce(chance), _nonce(chance)
    objects.put_if_absent(key, first, first)
    again = objects.put_if_absent(key, second, second)
    if again is not Put.OTHER or objects.get(key)[0] != first:
        raise ConditionsIgnored(f"{objects.url} overwrites existing objects despite If-None-Match")


def _race_create(objects: Objects, key: str, chance: random.Random) -> None:
    nonces = [_nonce(chance) for _ in range(_THREADS)]
    answers = _at_once([partial(objects.put_if_absent, key, nonce, nonce) for nonce in nonces])
    winners = [nonce for nonce, answer in zip(nonces, answers, strict=True) if answer is not Put.OTHER]
    if len(winners) != 1 or objects.get(key)[0] != winners[0]:
        raise ConditionsIgnored(
            f"{len(winners)} of {_THREADS} concurrent writers created the same object at {objects.url};"
            " only one should succeed"
        )


def _has_if_match(objects: Objects, key: str, chance: random.Random) -> bool:
    first = objects.put(key, _nonce(chance))
    try:
        second = objects.put_if_match(key, _nonce(chance), first.etag)
    except UsageError:
        return False  # the server says that it does not support it
    latest = _nonce(chance)
    third = objects.put_if_match(key, latest, second.etag)
    if _replaces(objects, key, _nonce(chance), first.etag) or objects.get(key)[0] != latest:
        raise ConditionsIgnored(f"{objects.url} replaces changed objects despite If-Match")
    bodies = [_nonce(chance) for _ in range(_THREADS)]
    won = sum(_at_once([partial(_replaces, objects, key, body, third.etag) for body in bodies]))
    if won != 1:
        raise ConditionsIgnored(
            f"{won} of {_THREADS} concurrent writers replaced the same object at {objects.url};"
            " only one should succeed"
        )
    return True


def _replaces(objects: Objects, key: str, body: bytes, etag: str) -> bool:
    try:
        objects.put_if_match(key, body, etag)
    except ObjectConflict:
        return False
    return True


def _lists_by_key(objects: Objects, keys: list[str]) -> bool:
    """Return whether a listing has `keys` in the order of their bytes, even if it starts after a key."""
    for key in keys:
        objects.put(key, b"")
    folder = keys[0].rpartition("/")[0] + "/"
    try:
        for index, after in enumerate([None, *keys]):
            if [info.key for info in objects.list(folder, after=after)] != keys[index:]:
                return False
    except ObjectError:
        return False  # out of order
    return True


def _at_once(calls: list[Callable[[], T]]) -> list[T]:
    barrier = Barrier(len(calls))

    def meet(call: Callable[[], T]) -> T:
        barrier.wait(timeout=60)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(meet, calls))
