"""Leases: exclusive rights that expire, with an epoch that fences late writes.

A lease is a row {holder, epoch, expires_at}. The holder is a random token. The epoch grows by one with every
acquisition and never falls, because the row stays when the lease ends (CLU-7). A writer calls `check` in the
transaction that writes, so the store refuses every write under an old epoch.

Only the store's time decides whether a lease has expired (CLU-6). The holder does not know that time. It
stops at a deadline by its monotonic clock: the time *before* it sent the renewal, plus the duration of the
lease, minus a margin (CLU-4, `LeaseTiming.deadline`). So clocks may differ by hours, but must run at the
same rate.

Rejected: extending an expired lease that no other node has taken. This would be safe, but then "expired"
would mean two things, and a paused node could write after its lease has expired (CLU-26).
"""

import msgspec

from tidemill.cluster.states import LEASE, LeaseEdge, LeaseState, step
from tidemill.errors import LeaseLost
from tidemill.store import Tx

SECOND_US = 1_000_000
TTL_S = 15.0


class LeaseTiming(msgspec.Struct, frozen=True):
    """How long a lease lasts, and all times that are derived from that.

    The margin covers the drift of the holder's clock, and the time that the holder needs to stop.
    """

    ttl_s: float = TTL_S
    renew_s: float = 0.0  # 0 for a fifth of the ttl

    @property
    def every_s(self) -> float:
        """How often a holder renews."""
        return self.renew_s or self.ttl_s / 5

    @property
    def retry_s(self) -> float:
        """How soon a holder retries a renewal that the store did not answer."""
        return self.every_s / 3

    @property
    def margin_s(self) -> float:
        """How long before the expiry a holder stops (CLU-4)."""
        return self.ttl_s / 5

    @property
    def ttl_us(self) -> int:
        """The ttl in microseconds, the unit of the store's time."""
        return int(self.ttl_s * SECOND_US)

    def deadline(self, sent: float) -> float:
        """Return the time until which a holder may act if it sent its renewal at `sent`.

        Both times are by the holder's monotonic clock.
        """
        return sent + self.ttl_s - self.margin_s


DEFAULT_TIMING = LeaseTiming()


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """The row of a lease; `expires_at` is store time in microseconds, 0 when released."""

    holder: str
    epoch: int
    expires_at: int


class Busy(msgspec.Struct, frozen=True):
    """Another holder has the lease; do not retry before `wait_s` has passed (CLU-5)."""

    wait_s: float


def encode(lease: Lease) -> bytes:
    """Encode a lease for the store."""
    return msgspec.msgpack.encode(lease)


def decode(raw: bytes) -> Lease:
    """Decode a stored lease."""
    return msgspec.msgpack.decode(raw, type=Lease)


def lease_state(lease: Lease | None, now_us: int) -> LeaseState:
    """Return the state of a lease: held until it expires; free if it is absent, released or expired."""
    return LeaseState.HELD if lease is not None and lease.expires_at > now_us else LeaseState.FREE


def read(tx: Tx, key: bytes) -> Lease | None:
    """Read the lease under a key."""
    raw = tx.get(key)
    return None if raw is None else decode(raw)


def acquire(tx: Tx, key: bytes, holder: str, ttl_us: int) -> Lease | Busy:
    """Take a free lease under the next epoch. Return `Busy` while the lease is held, even by us."""
    now = tx.now()
    old = read(tx, key)
    if old is not None and lease_state(old, now) is LeaseState.HELD:
        return Busy((old.expires_at - now) / SECOND_US)
    step(LEASE, LeaseState.FREE, LeaseEdge.ACQUIRE)
    lease = Lease(holder, (old.epoch if old else 0) + 1, now + ttl_us)
    tx.set(key, encode(lease))
    return lease


def is_ours(current: Lease | None, lease: Lease, now_us: int) -> bool:
    """Return whether the stored lease is the one we acquired, and has not expired."""
    return (
        current is not None
        and current.holder == lease.holder
        and current.epoch == lease.epoch
        and lease_state(current, now_us) is LeaseState.HELD
    )


def check(tx: Tx, key: bytes, lease: Lease) -> Lease:
    """Fence the transaction: raise `LeaseLost` unless we hold the lease now. Return the stored lease."""
    current = read(tx, key)
    if current is None or not is_ours(current, lease, tx.now()):
        raise LeaseLost(
            f"this process no longer holds its lease (epoch {lease.epoch}); another process can take over"
        )
    return current


def renew(tx: Tx, key: bytes, lease: Lease, ttl_us: int) -> Lease:
    """Extend our lease; raise `LeaseLost` if it is no longer ours."""
    current = check(tx, key, lease)
    step(LEASE, LeaseState.HELD, LeaseEdge.RENEW)
    renewed = msgspec.structs.replace(current, expires_at=max(current.expires_at, tx.now() + ttl_us))
    tx.set(key, encode(renewed))
    return renewed


def release(tx: Tx, key: bytes, lease: Lease) -> bool:
    """End our lease now. Return False and change nothing if it is no longer ours (CLU-3)."""
    current = read(tx, key)
    if current is None or not is_ours(current, lease, tx.now()):
        return False
    step(LEASE, LeaseState.HELD, LeaseEdge.RELEASE)
    tx.set(key, encode(msgspec.structs.replace(current, expires_at=0)))
    return True
