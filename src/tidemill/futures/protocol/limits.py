"""The limits of a queue: how many futures run at once, and how many start per second (FUT-57).

Futures above the limit wait; none is dropped. A claim locks the row of the limit and counts the futures that
it starts, in the same transaction. Without the lock, concurrent `take` transactions would not see each
other's claims, and would exceed the limit.
"""

import msgspec

from tidemill.futures.protocol.keys import FutureKeys
from tidemill.store import Tx
from tidemill.store.port import read_counter


class Limit(msgspec.Struct, frozen=True, array_like=True):
    """A queue's limit and its token bucket.

    `running` limits how many futures run at once, `per_s` how many start per second; 0 means no limit.
    """

    running: int = 0
    per_s: float = 0.0
    burst: float = 1.0
    tokens: float = 0.0
    filled_at: int = 0


def set_limit(tx: Tx, keys: FutureKeys, queue: str, *, running: int = 0, per_s: float = 0.0) -> None:
    """Set the limit of a queue."""
    burst = max(1.0, per_s)
    limit = Limit(running, per_s, burst, burst, tx.now())
    tx.set(keys.limit[queue], msgspec.msgpack.encode(limit))


def clear_limit(tx: Tx, keys: FutureKeys, queue: str) -> None:
    """Remove the limit of a queue."""
    tx.clear(keys.limit[queue])


def read(tx: Tx, keys: FutureKeys, queue: str) -> Limit | None:
    """Read a queue's limit and lock it until the commit.

    If the queue has no limit, nothing is locked: a lock on a missing row would make all claims wait for each
    other.
    """
    key = keys.limit[queue]
    if key not in tx.touched and not tx.range(key, key + b"\x00", snapshot=True):
        return None
    raw = tx.get(key, lock=True)
    return None if raw is None else msgspec.msgpack.decode(raw, type=Limit)


def refill(limit: Limit, now_us: int) -> Limit:
    """Return the token bucket at this time."""
    gained = max(0, now_us - limit.filled_at) / 1_000_000 * limit.per_s
    return msgspec.structs.replace(limit, tokens=min(limit.burst, limit.tokens + gained), filled_at=now_us)


def allowed(tx: Tx, keys: FutureKeys, queue: str, count: int) -> int:
    """Return how many of `count` futures of a queue may start now."""
    limit = read(tx, keys, queue)
    if limit is None:
        return count
    if limit.running:
        running = read_counter(tx.get(keys.running[queue], lock=True))
        count = min(count, max(0, limit.running - running))
    if limit.per_s:
        count = min(count, int(refill(limit, tx.now()).tokens))
    return count


def count_start(tx: Tx, keys: FutureKeys, queue: str) -> bool:
    """Count one start. Return True if the end of the claim must be counted too."""
    limit = read(tx, keys, queue)
    if limit is None:
        return False
    if limit.per_s:
        bucket = refill(limit, tx.now())
        bucket = msgspec.structs.replace(bucket, tokens=bucket.tokens - 1)
        tx.set(keys.limit[queue], msgspec.msgpack.encode(bucket))
    tx.add(keys.running[queue], 1)
    return True
