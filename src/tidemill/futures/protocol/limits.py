"""Limits of a queue: how many run at once, and how many start per second (FUT-57). Work is never dropped.

The claim reads the limit's row under a lock and counts what it starts in the same transaction: a shared
budget cannot be kept by transactions that skip each other's rows.
"""

import msgspec

from tidemill.futures.protocol.keys import FutureKeys
from tidemill.store import Tx
from tidemill.store.port import read_counter


class Limit(msgspec.Struct, frozen=True, array_like=True):
    """A queue's limit: `running` at once, `per_s` starts a second (0: any number), and the bucket."""

    running: int = 0
    per_s: float = 0.0
    burst: float = 1.0
    tokens: float = 0.0
    filled_at: int = 0


def set_limit(tx: Tx, keys: FutureKeys, queue: str, *, running: int = 0, per_s: float = 0.0) -> None:
    """Limit a queue from now on."""
    burst = max(1.0, per_s)
    limit = Limit(running, per_s, burst, burst, tx.now())
    tx.set(keys.limit[queue], msgspec.msgpack.encode(limit))


def clear_limit(tx: Tx, keys: FutureKeys, queue: str) -> None:
    """Let a queue run free."""
    tx.clear(keys.limit[queue])


def read(tx: Tx, keys: FutureKeys, queue: str) -> Limit | None:
    """A queue's limit, protected until the commit.

    One that has none is only looked at: to lock a row that is not there would make all claims wait in line.
    """
    key = keys.limit[queue]
    if key not in tx.touched and not tx.range(key, key + b"\x00", snapshot=True):
        return None
    raw = tx.get(key, lock=True)
    return None if raw is None else msgspec.msgpack.decode(raw, type=Limit)


def filled(limit: Limit, now_us: int) -> Limit:
    """The bucket at this time."""
    gained = max(0, now_us - limit.filled_at) / 1_000_000 * limit.per_s
    return msgspec.structs.replace(limit, tokens=min(limit.burst, limit.tokens + gained), filled_at=now_us)


def allowed(tx: Tx, keys: FutureKeys, queue: str, wanted: int) -> int:
    """How many of a queue may start now."""
    limit = read(tx, keys, queue)
    if limit is None:
        return wanted
    if limit.running:
        now = read_counter(tx.get(keys.running[queue], lock=True))
        wanted = min(wanted, max(0, limit.running - now))
    if limit.per_s:
        wanted = min(wanted, int(filled(limit, tx.now()).tokens))
    return wanted


def started(tx: Tx, keys: FutureKeys, queue: str) -> bool:
    """Count one start; True when the claim must be counted off again at its end."""
    limit = read(tx, keys, queue)
    if limit is None:
        return False
    if limit.per_s:
        bucket = filled(limit, tx.now())
        taken = msgspec.structs.replace(bucket, tokens=bucket.tokens - 1)
        tx.set(keys.limit[queue], msgspec.msgpack.encode(taken))
    tx.add(keys.running[queue], 1)
    return True
