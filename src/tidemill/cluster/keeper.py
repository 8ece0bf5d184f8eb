"""Hold the leases of one process, and renew them together.

When a renewal is due, `tick` renews all leases in one transaction. It returns the seconds until the next
call. A thread (`start`) or the scheduler of a simulation calls `tick`. If the store does not answer a
renewal, the leases are still valid until their deadlines, and the next tick retries (CLU-8). If the outcome
of a commit is unknown, `store.run` determines it. A lease ends only at its deadline, or when a renewal finds
that it is no longer ours.
"""

import random
import threading
from collections.abc import Callable

from tidemill.clock import Clock
from tidemill.cluster import leases
from tidemill.cluster.leases import DEFAULT_TIMING, Busy, Lease, LeaseTiming
from tidemill.errors import LeaseLost, StoreError
from tidemill.store import Store, Tx


class HeldLease:
    """A lease that we hold. Call `check()` before every action that needs the lease."""

    def __init__(self, key: bytes, lease: Lease, deadline: float, clock: Clock) -> None:
        self.key = key
        self.lease = lease
        self.deadline = deadline  # on our monotonic clock, counted from before the request was sent
        self.lost = False
        self._clock = clock

    @property
    def epoch(self) -> int:
        return self.lease.epoch

    def alive(self) -> bool:
        """Return whether we may still act. Once False, it stays False, even if a renewal succeeds later."""
        if not self.lost and self._clock.monotonic() >= self.deadline:
            self.lost = True
        return not self.lost

    def check(self) -> None:
        """Raise `LeaseLost` if we must no longer act under this lease."""
        if not self.alive():
            raise LeaseLost(
                f"this process no longer holds its lease (epoch {self.epoch}): its deadline has passed"
            )

    def fence(self, tx: Tx) -> None:
        """Abort the transaction unless the stored lease is ours."""
        leases.check(tx, self.key, self.lease)


class Keeper:
    """Acquires, renews and releases the leases of one holder."""

    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        clock: Clock,
        chance: random.Random,
        timing: LeaseTiming = DEFAULT_TIMING,
    ) -> None:
        self.store = store
        self.holder = holder
        self.clock = clock
        self.chance = chance
        self.timing = timing
        self._held: dict[bytes, HeldLease] = {}
        self._due = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, key: bytes) -> HeldLease | Busy:
        """Try once to acquire a lease. The keeper then renews it."""
        sent = self.clock.monotonic()
        lease = self.store.run(lambda tx: leases.acquire(tx, key, self.holder, self.timing.ttl_us))
        if isinstance(lease, Busy):
            return lease
        held = HeldLease(key, lease, self.deadline(sent), self.clock)
        with self._lock:
            if not self._held:
                self._due = sent + self.timing.every_s
            self._held[key] = held
        return held

    def deadline(self, sent: float) -> float:
        """Return the time until which a holder may act if it sent its request at `sent` (CLU-4)."""
        return self.timing.deadline(sent)

    def release(self, held: HeldLease, also: Callable[[Tx], None] | None = None) -> bool:
        """Release the lease; return whether it was still ours. If so, call `also` in the same transaction."""
        held.lost = True
        self._forget(held)

        def give_back(tx: Tx) -> bool:
            ended = leases.release(tx, held.key, held.lease)
            if ended and also is not None:
                also(tx)
            return ended

        return self.store.run(give_back)

    def _forget(self, held: HeldLease) -> None:
        with self._lock:  # another thread may hold the same key by now, under a later epoch
            if self._held.get(held.key) is held:
                del self._held[held.key]

    def tick(self) -> float:
        """Renew all leases in one transaction, if it is time; return the seconds until the next call."""
        with self._lock:
            all_held = list(self._held.values())
        now = self.clock.monotonic()
        running = [held for held in all_held if held.alive()]
        if running and now >= self._due:
            answered = self._renew(running)
            self._due = now + (self.timing.every_s if answered else self.timing.retry_s)
        for held in all_held:
            if not held.alive():
                held.lost = True
                self._forget(held)
        return max(0.0, self._due - self.clock.monotonic()) if self._held else self.timing.every_s

    def _renew(self, running: list[HeldLease]) -> bool:
        """Extend the leases in one write; return False if the store did not answer."""

        def renew_all(tx: Tx) -> list[Lease | None]:
            renewed: list[Lease | None] = []
            for held in running:
                try:
                    renewed.append(leases.renew(tx, held.key, held.lease, self.timing.ttl_us))
                except LeaseLost:
                    renewed.append(None)
            return renewed

        sent = self.clock.monotonic()
        try:
            answers = self.store.run(renew_all)
        except StoreError:
            return False  # not lost: retried until the deadline
        for held, lease in zip(running, answers, strict=True):
            if lease is None:
                held.lost = True
            else:
                held.lease, held.deadline = lease, self.deadline(sent)
        return True

    def start(self) -> None:
        """Start a thread that renews the leases until `stop` is called."""
        self._thread = threading.Thread(target=self._loop, name=f"keeper-{self.holder[:8]}", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop.is_set():
            self.clock.wait(self._stop, min(self.tick(), self.timing.every_s))

    def stop(self) -> None:
        """End the thread. Leases that were not released will expire."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
