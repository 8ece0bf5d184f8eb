"""The watchdog of a child pool: tasks that run long, hang, wait for others, must end or make room."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.errors import StoreError
from tidemill.futures.worker import memory
from tidemill.futures.worker.children import WorkerChild
from tidemill.futures.worker.events import TaskParked
from tidemill.futures.worker.jobs import FutureJob
from tidemill.futures.worker.placement import LONG_S, settle
from tidemill.futures.worker.wire import Recalled, TaskWaiting

if TYPE_CHECKING:
    from tidemill.futures.worker.child_pool import ChildPool

LOOK_EVERY_S = 0.5
RAM_EVERY_S = 0.05
"""How often the memory of a task is looked at that asked for some."""

LINGER_S = 0.1
"""How long a claimed job may be with us before somebody else gets it."""

IDLE_S = 10.0
"""How long a child that there is no slot for is kept."""

STARVED_S = 1.0
"""How long tasks may wait for futures that do not fit beside them before one makes room."""

AWAITED = 200


class Watchdog:
    """Checks the children of a pool, a few times a second or when one of them asks for something."""

    def __init__(self, pool: "ChildPool") -> None:
        self._pool = pool
        self._clock = pool.clock
        self.look_at = 0.0
        self._starved_since = 0.0

    def look_soon(self) -> None:
        """Something may have to be done within the time that a short task takes."""
        self.look_at = min(self.look_at, self._clock.monotonic() + LONG_S)

    # --- from time to time

    def look(self) -> bool:
        """Look at everything that has a time; False when it was not time to."""
        now = self._clock.monotonic()
        pool = self._pool
        if now < self.look_at:
            return False
        self.look_at = now + LOOK_EVERY_S
        for child in list(pool.children.all):
            self._look_at(child, now)
        pool.children.reap_orphans()
        pool.children.revive_zygote()
        self._give_back_lingering(now)
        self._end_idle(now)
        self._look_at_actors(now)
        if self._starved_since and now - self._starved_since > STARVED_S:
            self._starved_since = 0.0
            self._park()
        if pool.segments is not None:
            pool.placement.stored_bytes = pool.segments.used_bytes
        return True

    def _again(self, at: float) -> None:
        self.look_at = min(self.look_at, at)

    def _look_at(self, child: WorkerChild, now: float) -> None:
        number = child.page.running
        job = child.jobs.get(number)
        if job is None or child.killed_for:
            if len(child.jobs) > 1:
                self._again(now + LONG_S)
            return
        ran_s = now - child.page.began_us / 1e6
        if len(child.jobs) > 1 and not child.recalling:
            if ran_s >= LONG_S:
                self._pool.placement.saw_long(ran_s)
                child.recall()
            else:
                self._again(now + LONG_S - ran_s)
        if job.ending and not child.actor:
            if now * 1e6 >= job.end_by_us:
                child.kill(job.ending)
                return
            self._again(job.end_by_us / 1e6)
        if job.needs.ram:
            used = memory.used_bytes(child.pid) - child.page.used_bytes
            if memory.is_over(used, job.needs.ram):
                child.ram_used = used
                child.kill("oom")
                return
            self._again(now + RAM_EVERY_S)
        timeout_s = job.spec.progress_timeout_s
        if timeout_s and not job.waiting:
            silent_s = now - child.page.progress_us / 1e6
            if silent_s > timeout_s:
                child.kill("hang")
                return
            self._again(now + timeout_s - silent_s)

    def _give_back_lingering(self, now: float) -> None:
        """Jobs that found no child: others may have one. What is awaited here stays."""
        here = self._pool.placement.here
        late_us = (now - LINGER_S) * 1e6
        if here:
            self._again(now + LINGER_S)
        for job in [job for job in here if job.since_us < late_us]:
            here.remove(job)
            self._pool.ledger.relinquish(job)

    def _end_idle(self, now: float) -> None:
        idle = [
            child for child in self._pool.children.all if not child.jobs and not child.actor and child.ready
        ]
        surplus = sum(not child.actor for child in self._pool.children.all) - self._pool.settings.slots
        for child in idle:
            if surplus > 0 and now - child.idle_since > IDLE_S:
                child.kill("idle")
                surplus -= 1

    def _look_at_actors(self, now: float) -> None:
        """A call that is awaited may have ended without us: the store knows."""
        for actor in self._pool.hosting.actors.values():
            if not actor.stuck or actor.child.jobs:
                continue
            try:
                actor.next = self._pool.ledger.next_call(actor.id, actor.next)
            except StoreError:
                return
            self._again(now + 0.1)

    # --- waiting tasks

    def wait(self, child: WorkerChild, message: TaskWaiting) -> None:
        """A task awaits futures: its slot is free, and those futures go first (FUT-41)."""
        job = child.jobs.get(message.number)
        if job is None:
            return
        job.waiting, job.awaits = True, message.ids
        waiting = self._pool.placement.waiting
        waiting.append(job)
        settle(child)
        if len(child.jobs) > 1:
            child.recall()
        self._pool.room_changed = True
        if len(waiting) > self._pool.settings.max_waiting:
            self._park()

    def resume(self, child: WorkerChild, number: int) -> None:
        """What a task awaited is there: it gets the next slot."""
        job = child.jobs.get(number)
        placement = self._pool.placement
        if job is None or job not in placement.waiting:
            return
        placement.waiting.remove(job)
        placement.resuming.append(job)
        for other in self._pool.children.all:
            if other.slotted and len(other.jobs) > 1 and not other.recalling:
                other.recall()

    def awaited(self) -> tuple[bytes, ...]:
        """What our waiting tasks await and we have not claimed yet, the innermost tasks' first."""
        found: dict[bytes, None] = {}
        for job in reversed(self._pool.placement.waiting):
            for one in job.awaits:
                if one not in self._pool.ledger.jobs:
                    found[one] = None
            if len(found) >= AWAITED:
                break
        return tuple(found)[:AWAITED]

    def starved(self, starved: bool) -> None:
        """Told after each claim: was there something awaited that did not fit beside those who wait?"""
        if not starved or any(child.slotted for child in self._pool.children.all):
            self._starved_since = 0.0
        elif not self._starved_since:
            self._starved_since = self._clock.monotonic()
            self._again(self._starved_since + STARVED_S + 0.01)

    def _park(self) -> None:
        """End the innermost waiting task; it starts again when what it awaits is there."""
        for job in reversed(self._pool.placement.waiting):
            child = job.child
            if child is not None and not child.actor and not child.killed_for and not job.ending:
                self._pool.ledger.emit(
                    TaskParked(node=self._pool.hello.node, future=job.id.hex(), name=job.spec.name)
                )
                child.kill("parked")
                return

    def forget(self, jobs: Iterable[FutureJob]) -> None:
        """Their child is dead."""
        placement = self._pool.placement
        for job in jobs:
            if job.waiting:
                job.waiting = False
                if job in placement.waiting:
                    placement.waiting.remove(job)
                if job in placement.resuming:
                    placement.resuming.remove(job)

    # --- ending

    def recalled(self, child: WorkerChild, message: Recalled) -> None:
        """Jobs that a child will not begin are with us again."""
        child.recalling = False
        now_us = int(self._clock.monotonic() * 1e6)
        for number in range(message.high - 1, message.low - 1, -1):
            job = child.jobs.pop(number, None)
            if job is None:
                continue
            job.child, job.since_us = None, now_us
            if job.ending:
                self._pool.ledger.cancelled(job)
            elif child.actor:
                self._pool.recall_call(child, job)
            else:
                self._pool.placement.here.appendleft(job)
        settle(child)
        self._again(now_us / 1e6 + LINGER_S)

    def end(self, job: FutureJob) -> None:
        """End a task that was asked to end (FUT-56): a message first, and SIGKILL after a grace."""
        job.end_by_us = int((self._clock.monotonic() + self._pool.settings.cancel_grace_s) * 1e6)
        child = job.child
        if child is None:
            if self._pool.placement.remove(job) or self._pool.hosting.withdraw(job):
                self._pool.ledger.cancelled(job)
            return
        child.cancel(job.number)
        if child.page.running != job.number and not child.recalling:
            child.recall()
        self.look_soon()

    def drain(self, now: float, by: float) -> None:
        """Leave: recall what has not begun, wait for the rest, and at last give it back (CLU-25)."""
        pool = self._pool
        if not pool.draining:
            pool.draining = True
            for child in pool.children.all:
                if len(child.jobs) > 1 and not child.recalling:
                    child.recall()
        while pool.placement.here:
            pool.ledger.relinquish(pool.placement.here.popleft())
        for actor in pool.hosting.actors.values():
            for job in list(actor.pending.values()):
                del actor.pending[job.spec.ordinal]
                pool.ledger.relinquish(job)
        if now >= by:
            for child in pool.children.all:
                if child.jobs and not child.killed_for:
                    child.kill("drain")
        self._again(now + min(0.05, max(0.0, by - now)))
