"""Leases: who may do something now, and the number that proves it later.

A lease is a row {holder, epoch, expires_at}. The holder is a random token; the epoch grows by one with
every acquisition and never falls, because a lease that ends keeps its row (CLU-7). Whoever writes under a
lease calls `check` in the same transaction, so a write under an old epoch is refused whatever the holder
believed when it began.

Expiry is judged by the store's time alone (CLU-6). The holder, who cannot know that time, stops at a
deadline of its own monotonic clock, taken from *before* it sent the renewal, less a margin (CLU-4,
`tidemill.cluster.keeper`). Clocks may thus be off by hours; only their rates must agree.

Rejected: extending a lease that is past its expiry although nobody took it. It would be safe, but then
"expired" would mean two things, and a paused node could write after its time (CLU-26).
"""

import msgspec

from tidemill.cluster.states import LEASE, LeaseEdge, LeaseState, step
from tidemill.errors import LeaseLost
from tidemill.store import Tx

SECOND_US = 1_000_000
TTL_S = 15.0


class LeaseTiming(msgspec.Struct, frozen=True):
    """How long a lease lasts, and every time that follows from it.

    The margin covers the drift of the holder's clock and the time that a stop takes.
    """

    ttl_s: float = TTL_S
    renew_s: float = 0.0  # 0 for a fifth of the ttl

    @property
    def every_s(self) -> float:
        """How often a holder renews."""
        return self.renew_s or self.ttl_s / 5

    @property
    def retry_s(self) -> float:
        """How soon a holder tries again when the store did not answer a renewal."""
        return self.every_s / 3

    @property
    def margin_s(self) -> float:
        """How long before its lease ends a holder stops (CLU-4)."""
        return self.ttl_s / 5

    @property
    def ttl_us(self) -> int:
        """The ttl in microseconds, as the store counts."""
        return int(self.ttl_s * SECOND_US)

    def deadline(self, sent: float) -> float:
        """Until when a holder may act whose renewal left at `sent`; both by its monotonic clock (CLU-4)."""
        return sent + self.ttl_s - self.margin_s


DEFAULT_TIMING = LeaseTiming()


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """What is stored under a lease's key; `expires_at` is store time in microseconds, 0 when released."""

    holder: str
    epoch: int
    expires_at: int


class Busy(msgspec.Struct, frozen=True):
    """Somebody else holds it; asking again before `wait_s` is over makes no sense (CLU-5)."""

    wait_s: float


def encode(lease: Lease) -> bytes:
    """A lease as stored."""
    return msgspec.msgpack.encode(lease)


def decode(raw: bytes) -> Lease:
    """A lease from its stored bytes."""
    return msgspec.msgpack.decode(raw, type=Lease)


def lease_state(lease: Lease | None, now_us: int) -> LeaseState:
    """Held while its time runs; free when it is absent, released or expired."""
    return LeaseState.HELD if lease is not None and lease.expires_at > now_us else LeaseState.FREE


def read(tx: Tx, key: bytes) -> Lease | None:
    """The lease under a key."""
    raw = tx.get(key)
    return None if raw is None else decode(raw)


def acquire(tx: Tx, key: bytes, holder: str, ttl_us: int) -> Lease | Busy:
    """Take a free lease under the next epoch; `Busy` while somebody holds it, ourselves included."""
    now = tx.now()
    old = read(tx, key)
    if old is not None and lease_state(old, now) is LeaseState.HELD:
        return Busy((old.expires_at - now) / SECOND_US)
    step(LEASE, LeaseState.FREE, LeaseEdge.ACQUIRE)
    lease = Lease(holder, (old.epoch if old else 0) + 1, now + ttl_us)
    tx.set(key, encode(lease))
    return lease


def is_ours(current: Lease | None, lease: Lease, now_us: int) -> bool:
    """Is the stored lease the very one we were granted, and still running?"""
    return (
        current is not None
        and current.holder == lease.holder
        and current.epoch == lease.epoch
        and lease_state(current, now_us) is LeaseState.HELD
    )


def check(tx: Tx, key: bytes, lease: Lease) -> Lease:
    """The fence: `LeaseLost` unless the lease is ours at this moment. Returns it as stored."""
    current = read(tx, key)
    if current is None or not is_ours(current, lease, tx.now()):
        raise LeaseLost(f"epoch {lease.epoch} is over")
    return current


def renew(tx: Tx, key: bytes, lease: Lease, ttl_us: int) -> Lease:
    """Extend our lease; `LeaseLost` when it is no longer ours."""
    current = check(tx, key, lease)
    step(LEASE, LeaseState.HELD, LeaseEdge.RENEW)
    renewed = msgspec.structs.replace(current, expires_at=max(current.expires_at, tx.now() + ttl_us))
    tx.set(key, encode(renewed))
    return renewed


def release(tx: Tx, key: bytes, lease: Lease) -> bool:
    """End our lease now. False, and nothing changed, when it is not ours any more (CLU-3)."""
    current = read(tx, key)
    if current is None or not is_ours(current, lease, tx.now()):
        return False
    step(LEASE, LeaseState.HELD, LeaseEdge.RELEASE)
    tx.set(key, encode(msgspec.structs.replace(current, expires_at=0)))
    return True
