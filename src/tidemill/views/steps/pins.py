"""Pins: what a reader has begun with stays for a while, though steps go on (DBSP-37).

A frame is read when an action runs, which may be long after it was made. Whoever makes one pins the list of
what it will read, in the transaction that says which list is current: so a collector sees the pin, or sees
the list itself as current. A pin ends by itself; nobody has to come back.
"""

from collections.abc import Iterable

import msgspec

from tidemill.store import Tx
from tidemill.views.steps.keys import StepKeys

SECOND_US = 1_000_000
PIN_US = 24 * 3600 * SECOND_US
"""How long a frame can be used for sure while its view goes on."""

PAGE = 1000

_until = msgspec.msgpack.Decoder(int)


def take(tx: Tx, keys: StepKeys, pipeline: str, names: Iterable[str], ttl_us: int = PIN_US) -> None:
    """Keep what these manifests or version files list; many readers of one list cost few writes."""
    now = tx.now()
    for name in names:
        key = keys.pin[pipeline, name]
        raw = tx.get(key)
        if raw is None or _until.decode(raw) < now + ttl_us:
            tx.set(key, msgspec.msgpack.encode(now + ttl_us + ttl_us // 8), quiet=True)


def release(tx: Tx, keys: StepKeys, pipeline: str, names: Iterable[str]) -> None:
    """Keep these no longer; whoever else has pinned them loses them too."""
    for name in names:
        tx.clear(keys.pin[pipeline, name], quiet=True)


def pinned(tx: Tx, keys: StepKeys, pipeline: str, start: str) -> frozenset[str]:
    """What is pinned now, of the names that begin so."""
    now = tx.now()
    found: set[str] = set()
    lo, (_, hi) = keys.pin[pipeline, start], keys.pin.under(pipeline)
    while True:
        page = tx.range(lo, hi, limit=PAGE, snapshot=True)
        for row in page:
            name = str(keys.pin.unpack(row.key)[1])
            if not name.startswith(start):
                return frozenset(found)
            if _until.decode(row.value) > now:
                found.add(name)
        if len(page) < PAGE:
            return frozenset(found)
        lo = page[-1].key + b"\x00"


def forget_ended(tx: Tx, keys: StepKeys, pipeline: str, limit: int = PAGE) -> int:
    """Remove pins that have ended; how many."""
    now = tx.now()
    ended = [
        row.key
        for row in tx.range(*keys.pin.under(pipeline), limit=limit, snapshot=True)
        if _until.decode(row.value) <= now
    ]
    for key in ended:
        tx.clear(key, quiet=True)
    return len(ended)
