"""The probe of a bucket: checks once that it honours conditional writes (STO-13).

Some servers accept `If-None-Match` and `If-Match`, respond with 200 and overwrite anyway. Two writers of one
key then both believe that they created it. The probe makes writes that must not succeed, one after the other
and from several threads at once, on its own objects, and deletes these. It also finds out whether the server
lists by key.

It makes about forty small requests. Keep the result: it does not change for a bucket.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import TypeVar

import msgspec

from tidemill.errors import ConditionsIgnored, ObjectConflict, ObjectError, UsageError
from tidemill.objects.port import Objects, Put

T = TypeVar("T")

FOLDER = "tidemill-probe"
_THREADS = 2  # enough for a race; more would only wait for each other
_RACES = 4


class Probed(msgspec.Struct, frozen=True):
    """The result of a probe. A bucket that ignores conditions has no result; it is an error."""

    if_match: bool
    """Whether `put_if_match` can be used; False if the server says that it does not support it."""
    flat: bool
    """Whether it lists by key bytes, also after a given key."""


def try_conditions(objects: Objects, chance: random.Random) -> Probed:
    """Try the conditional writes of a bucket, and delete the objects of the probe.

    `ConditionsIgnored` if a conditional write succeeded that must not, `ObjectUnavailable` if the bucket
    cannot be reached or written.

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
        raise ConditionsIgnored(f"{objects.url} overwrites existing objects in spite of If-None-Match")


def _race_create(objects: Objects, key: str, chance: random.Random) -> None:
    nonces = [_nonce(chance) for _ in range(_THREADS)]
    answers = _at_once([partial(objects.put_if_absent, key, nonce, nonce) for nonce in nonces])
    winners = [nonce for nonce, answer in zip(nonces, answers, strict=True) if answer is not Put.OTHER]
    if len(winners) != 1 or objects.get(key)[0] != winners[0]:
        raise ConditionsIgnored(f"{objects.url} lets {len(winners)} of {_THREADS} writers create one object")


def _has_if_match(objects: Objects, key: str, chance: random.Random) -> bool:
    first = objects.put(key, _nonce(chance))
    try:
        second = objects.put_if_match(key, _nonce(chance), first.etag)
    except UsageError:
        return False  # the server says that it does not support it
    kept = _nonce(chance)
    third = objects.put_if_match(key, kept, second.etag)
    if _replaces(objects, key, _nonce(chance), first.etag) or objects.get(key)[0] != kept:
        raise ConditionsIgnored(f"{objects.url} replaces changed objects in spite of If-Match")
    bodies = [_nonce(chance) for _ in range(_THREADS)]
    won = sum(_at_once([partial(_replaces, objects, key, body, third.etag) for body in bodies]))
    if won != 1:
        raise ConditionsIgnored(
            f"{objects.url} lets {won} of {_THREADS} writers replace one object in spite of If-Match"
        )
    return True


def _replaces(objects: Objects, key: str, body: bytes, etag: str) -> bool:
    try:
        objects.put_if_match(key, body, etag)
    except ObjectConflict:
        return False
    return True


def _lists_by_key(objects: Objects, keys: list[str]) -> bool:
    """Return whether `keys`, sorted by bytes, are listed in that order, also after each of them."""
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
