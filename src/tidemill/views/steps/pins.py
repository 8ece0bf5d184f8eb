"""Pins: keep the files that a reader started with, while further steps replace them (DBSP-37).

Spark reads a DataFrame when an action runs, which may be long after the DataFrame was created. So the code
that creates the DataFrame pins the list of files to read, in the transaction that finds the current list.
The collector then finds either the pin, or that the list is still current. In both cases it keeps the files.
A pin expires by itself, so readers need no cleanup.
"""

from collections.abc import Iterable

import msgspec

from tidemill.store import Tx
from tidemill.views.steps.keys import StepKeys

SECOND_US = 1_000_000
PIN_US = 24 * 3600 * SECOND_US
"""How long a DataFrame of a view is guaranteed to be readable while the view changes."""

PAGE = 1000

_until = msgspec.msgpack.Decoder(int)


def take(tx: Tx, keys: StepKeys, pipeline: str, names: Iterable[str], ttl_us: int = PIN_US) -> None:
    """Pin the files that these manifests or version files list.

    A pin is renewed only when it would expire too early, so many readers of one list cost few writes.
    """
    now = tx.now()
    for name in names:
        key = keys.pin[pipeline, name]
        raw = tx.get(key)
        if raw is None or _until.decode(raw) < now + ttl_us:
            tx.set(key, msgspec.msgpack.encode(now + ttl_us + ttl_us // 8), quiet=True)


def pinned(tx: Tx, keys: StepKeys, pipeline: str, prefix: str) -> frozenset[str]:
    """Return the pinned names that start with a prefix."""
    now = tx.now()
    names: set[str] = set()
    lo, (_, hi) = keys.pin[pipeline, prefix], keys.pin.under(pipeline)
    while True:
        page = tx.range(lo, hi, limit=PAGE, snapshot=True)
        for row in page:
            name = str(keys.pin.unpack(row.key)[1])
            if not name.startswith(prefix):
                return frozenset(names)
            if _until.decode(row.value) > now:
                names.add(name)
        if len(page) < PAGE:
            return frozenset(names)
        lo = page[-1].key + b"\x00"


def remove_expired(tx: Tx, keys: StepKeys, pipeline: str, limit: int = PAGE) -> int:
    """Remove expired pins, and return how many there were."""
    now = tx.now()
    expired = [
        row.key
        for row in tx.range(*keys.pin.under(pipeline), limit=limit, snapshot=True)
        if _until.decode(row.value) <= now
    ]
    for key in expired:
        tx.clear(key, quiet=True)
    return len(expired)
