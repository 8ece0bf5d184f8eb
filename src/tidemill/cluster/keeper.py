"""The keeper: leases this process holds, renewed together, and each with the deadline that stops its holder.

`tick` renews everything that is due in one transaction and says when to call again. A thread calls it in
real life (`start`), the scheduler in simulation. A renewal that fails because the store does not answer
changes nothing: the lease stays usable until its own deadline, and the next tick tries again (CLU-8). A
commit whose outcome is unknown is settled by `store.run` itself. Only the store's answer "it is not yours"
or the deadline end it.
"""

import random
import threading
from collections.abc import Callable

from tidemill.clock import Clock
from tidemill.cluster import leases
from tidemill.cluster.leases import DEFAULT_TIMING, Busy, Lease, LeaseTiming
from tidemill.errors import LeaseLost, StoreError
from tidemill.store import Store, Tx


class Held:
    """A lease in our hands. `check()` before every act that needs it; it raises once our time is over."""

    def __init__(self, key: bytes, lease: Lease, deadline: float, clock: Clock) -> None:
        self.key = key
        self.lease = lease
        self.deadline = deadline  # our monotonic clock, from before the request was sent, less the margin
        self.lost = False
        self._clock = clock

    @property
    def epoch(self) -> int:
        return self.lease.epoch

    def alive(self) -> bool:
        """Does our time run? Once the answer was no it stays no: a renewal on its way changes nothing."""
        if not self.lost and self._clock.monotonic() >= self.deadline:
            self.lost = True
        return not self.lost

    def check(self) -> None:
        """`LeaseLost` when we must not act under this lease any more."""
        if not self.alive():
            raise LeaseLost(f"epoch {self.epoch}: the holder's deadline has passed")

    def fence(self, tx: Tx) -> None:
        """Refuse the transaction unless the store agrees that the lease is ours."""
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
        self._held: dict[bytes, Held] = {}
        self._due = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, key: bytes) -> Held | Busy:
        """Try once; what is held is renewed from then on."""
        sent = self.clock.monotonic()
        lease = self.store.run(lambda tx: leases.acquire(tx, key, self.holder, self.timing.ttl_us))
        if isinstance(lease, Busy):
            return lease
        held = Held(key, lease, self.deadline(sent), self.clock)
        with self._lock:
            if not self._held:
                self._due = sent + self.timing.every_s
            self._held[key] = held
        return held

    def deadline(self, sent: float) -> float:
        """Until when a holder may act whose request left at `sent` (CLU-4)."""
        return self.timing.deadline(sent)

    def release(self, held: Held, also: Callable[[Tx], None] | None = None) -> bool:
        """Give the lease back, with what `also` writes; True when it was still ours."""
        held.lost = True
        self._forget(held)

        def give_back(tx: Tx) -> bool:
            ended = leases.release(tx, held.key, held.lease)
            if ended and also is not None:
                also(tx)
            return ended

        return self.store.run(give_back)

    def _forget(self, held: Held) -> None:
        with self._lock:  # another thread may hold the same key again by now, under a later epoch
            if self._held.get(held.key) is held:
                del self._held[held.key]

    def tick(self) -> float:
        """Renew what is due, in one transaction; the seconds until the next call makes sense."""
        with self._lock:
            held = list(self._held.values())
        now = self.clock.monotonic()
        running = [one for one in held if one.alive()]
        if running and now >= self._due:
            answered = self._renew(running)
            self._due = now + (self.timing.every_s if answered else self.timing.retry_s)
        for one in held:
            if not one.alive():
                one.lost = True
                self._forget(one)
        return max(0.0, self._due - self.clock.monotonic()) if self._held else self.timing.every_s

    def _renew(self, held: list[Held]) -> bool:
        """Extend them all in one write; False when the store did not answer."""

        def renew_all(tx: Tx) -> list[Lease | None]:
            renewed: list[Lease | None] = []
            for one in held:
                try:
                    renewed.append(leases.renew(tx, one.key, one.lease, self.timing.ttl_us))
                except LeaseLost:
                    renewed.append(None)
            return renewed

        sent = self.clock.monotonic()
        try:
            answers = self.store.run(renew_all)
        except StoreError:
            return False  # not lost: tried again soon, until the deadline
        for one, lease in zip(held, answers, strict=True):
            if lease is None:
                one.lost = True
            else:
                one.lease, one.deadline = lease, self.deadline(sent)
        return True

    def start(self) -> None:
        """Renew from a thread of our own until `stop`."""
        self._thread = threading.Thread(target=self._loop, name=f"keeper-{self.holder[:8]}", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop.is_set():
            self.clock.wait(self._stop, min(self.tick(), self.timing.every_s))

    def stop(self) -> None:
        """End the thread; leases run out by themselves unless they were released."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
