"""A lock and a semaphore for whoever shares a store.

Both are leases. Waiting is asleep until the holder's lease can have run out, or until a hint says that it
was released; nobody polls a held lock (CLU-5). The lease is renewed by the `Keeper` that was passed in; a
holder asks `held.check()` before acts that need it and fences its writes with `held.fence(tx)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.cluster.keeper import Held, Keeper
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import Busy
from tidemill.errors import LockTimeout, UsageError


class Semaphore:
    """At most `permits` holders at once; each permit is a lease of its own."""

    def __init__(self, keeper: Keeper, keys: ClusterKeys, name: str, permits: int) -> None:
        if permits < 1:
            raise UsageError(
                f"semaphore {name!r} with {permits} permits", hint="at least one permit is needed"
            )
        self.keeper = keeper
        self.name = name
        self._keys = [keys.lease["semaphore", name, number] for number in range(permits)]

    def acquire_nowait(self) -> Held | Busy:
        """Try every permit once, from a random one on, so that waiters do not run after the same one."""
        start = self.keeper.chance.randrange(len(self._keys))
        wait_s = float("inf")
        for key in self._keys[start:] + self._keys[:start]:
            answer = self.keeper.acquire(key)
            if isinstance(answer, Held):
                return answer
            wait_s = min(wait_s, answer.wait_s)
        return Busy(wait_s)

    def acquire(self, timeout_s: float | None = None) -> Held | None:
        """Wait for a permit; None when the time is over."""
        clock = self.keeper.clock
        end = None if timeout_s is None else clock.monotonic() + timeout_s
        with self.keeper.store.watch(self._keys) as watch:
            while True:
                answer = self.acquire_nowait()
                if isinstance(answer, Held):
                    return answer
                wait_s = answer.wait_s + self.keeper.chance.random() * self.keeper.timing.retry_s
                if end is not None:
                    left = end - clock.monotonic()
                    if left <= 0:
                        return None
                    wait_s = min(wait_s, left)
                watch.wait(wait_s)

    def release(self, held: Held) -> bool:
        """Give a permit back; False when it had run out."""
        return self.keeper.release(held)

    @contextmanager
    def holding(self, timeout_s: float | None = None) -> Iterator[Held]:
        """`with lock.holding() as held: ...`; raises LockTimeout when it cannot be had in time."""
        held = self.acquire(timeout_s)
        if held is None:
            raise LockTimeout(f"{self.name!r} was not free within {timeout_s:g} s")
        try:
            yield held
        finally:
            self.release(held)


class Lock(Semaphore):
    """A semaphore of one permit."""

    def __init__(self, keeper: Keeper, keys: ClusterKeys, name: str) -> None:
        super().__init__(keeper, keys, name, 1)
