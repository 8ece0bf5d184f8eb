"""A lock and a semaphore for all processes that share a store.

A lock is a lease, and so is each permit of a semaphore. A waiting process sleeps until the holder's lease may
have expired, or until a watch reports that the lease was released. No process polls a held lock (CLU-5). The
`Keeper` that the caller passes renews the lease. A holder calls `held.check()` before every action that needs
the lease, and fences its writes with `held.fence(tx)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import Busy
from tidemill.errors import LockTimeout, UsageError


class Semaphore:
    """At most `permits` holders at the same time; each permit is a separate lease."""

    def __init__(self, keeper: Keeper, keys: ClusterKeys, name: str, permits: int) -> None:
        if permits < 1:
            raise UsageError(
                f"invalid number of permits for semaphore {name!r}: {permits}", hint="use 1 or more"
            )
        self.keeper = keeper
        self.name = name
        self._keys = [keys.lease["semaphore", name, number] for number in range(permits)]

    def acquire_nowait(self) -> HeldLease | Busy:
        """Try every permit once. Start with a random one, so that waiters do not all try the same permit."""
        start = self.keeper.chance.randrange(len(self._keys))
        wait_s = float("inf")
        for key in self._keys[start:] + self._keys[:start]:
            answer = self.keeper.acquire(key)
            if isinstance(answer, HeldLease):
                return answer
            wait_s = min(wait_s, answer.wait_s)
        return Busy(wait_s)

    def acquire(self, timeout_s: float | None = None) -> HeldLease | None:
        """Wait for a permit; return None after the timeout."""
        clock = self.keeper.clock
        end = None if timeout_s is None else clock.monotonic() + timeout_s
        with self.keeper.store.watch(self._keys) as watch:
            while True:
                answer = self.acquire_nowait()
                if isinstance(answer, HeldLease):
                    return answer
                wait_s = answer.wait_s + self.keeper.chance.random() * self.keeper.timing.retry_s
                if end is not None:
                    left = end - clock.monotonic()
                    if left <= 0:
                        return None
                    wait_s = min(wait_s, left)
                watch.wait(wait_s)

    def release(self, held: HeldLease) -> bool:
        """Release a permit; return False if it had expired."""
        return self.keeper.release(held)

    @contextmanager
    def holding(self, timeout_s: float | None = None) -> Iterator[HeldLease]:
        """Hold a permit in a `with` statement; raise `LockTimeout` if none is free in time."""
        held = self.acquire(timeout_s)
        if held is None:
            raise LockTimeout(f"{self.name!r} did not become free within {timeout_s:g} s")
        try:
            yield held
        finally:
            self.release(held)


class Lock(Semaphore):
    """A semaphore with one permit."""

    def __init__(self, keeper: Keeper, keys: ClusterKeys, name: str) -> None:
        super().__init__(keeper, keys, name, 1)
