"""The watchdog of a child pool: acts on tasks that run long, hang, wait, use too much memory or must end."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.errors import StoreError
from tidemill.futures.worker import memory
from tidemill.futures.worker.children import WorkerChild
from tidemill.futures.worker.events import TaskParked
from tidemill.futures.worker.jobs import FutureJob
from tidemill.futures.worker.placement import LONG_S, update_reservation
from tidemill.futures.worker.wire import Recalled, TaskWaiting

if TYPE_CHECKING:
    from tidemill.futures.worker.child_pool import ChildPool

CHECK_EVERY_S = 0.5
RAM_EVERY_S = 0.05
"""How often the memory of a task with a `ram` limit is checked."""

LINGER_S = 0.1
"""How long a claimed job may wait for a child before its claim is released to other nodes."""

IDLE_S = 10.0
"""How long an idle child is kept if there are more children than slots."""

STARVED_S = 1.0
"""If the futures that waiting tasks need find no room for this long, the worker ends one of these tasks."""

AWAITED = 200


class Watchdog:
    """Checks the children of a pool a few times a second, and handles their requests."""

    def __init__(self, pool: "ChildPool") -> None:
        self._pool = pool
        self._clock = pool.clock
        self.next_check_at = 0.0
        self._starved_since = 0.0

    def check_soon(self) -> None:
        """Check again after `LONG_S` at the latest."""
        self._check_by(self._clock.monotonic() + LONG_S)

    # --- periodic checks

    def check(self) -> bool:
        """Check everything that depends on time. Return False if the next check is not due yet."""
        now = self._clock.monotonic()
        pool = self._pool
        if now < self.next_check_at:
            return False
        self.next_check_at = now + CHECK_EVERY_S
        for child in list(pool.children.all):
            self._check_child(child, now)
        pool.children.reap_orphans()
        pool.children.restart_zygote()
        self._release_lingering(now)
        self._end_idle(now)
        self._check_actors(now)
        if self._starved_since and now - self._starved_since > STARVED_S:
            self._starved_since = 0.0
            self._park()
        if pool.segments is not None:
            pool.placement.stored_bytes = pool.segments.used_bytes
        return True

    def _check_by(self, at: float) -> None:
        self.next_check_at = min(self.next_check_at, at)

    def _check_child(self, child: WorkerChild, now: float) -> None:
        number = child.page.running
        job = child.jobs.get(number)
        if job is None or child.killed_for:
            if len(child.jobs) > 1:
                self._check_by(now + LONG_S)
            return
        ran_s = now - child.page.began_us / 1e6
        if len(child.jobs) > 1 and not child.recalling:
            if ran_s >= LONG_S:
                self._pool.placement.record_long(ran_s)
                child.recall()
            else:
                self._check_by(now + LONG_S - ran_s)
        if job.ending and not child.actor:
            if now * 1e6 >= job.end_by_us:
                child.kill(job.ending)
                return
            self._check_by(job.end_by_us / 1e6)
        if job.needs.ram:
            used = memory.used_bytes(child.pid) - child.page.used_bytes
            if memory.is_over(used, job.needs.ram):
                child.ram_used = used
                child.kill("oom")
                return
            self._check_by(now + RAM_EVERY_S)
        timeout_s = job.spec.progress_timeout_s
        if timeout_s and not job.waiting:
            silent_s = now - child.page.progress_us / 1e6
            if silent_s > timeout_s:
                child.kill("hang")
                return
            self._check_by(now + timeout_s - silent_s)

    def _release_lingering(self, now: float) -> None:
        """Release the claims of jobs that have found no child: other nodes may have a free child."""
        queued = self._pool.placement.queued
        late_us = (now - LINGER_S) * 1e6
        if queued:
            self._check_by(now + LINGER_S)
        for job in [job for job in queued if job.since_us < late_us]:
            queued.remove(job)
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

    def _check_actors(self, now: float) -> None:
        """Read from the store whether the call that an actor waits for has ended elsewhere."""
        for actor in self._pool.hosting.actors.values():
            if not actor.stuck or actor.child.jobs:
                continue
            try:
                actor.next = self._pool.ledger.next_call(actor.id, actor.next)
            except StoreError:
                return
            self._check_by(now + 0.1)

    # --- waiting tasks

    def on_waiting(self, child: WorkerChild, message: TaskWaiting) -> None:
        """Free the slot of a task that waits for futures. Those futures are claimed first (FUT-41)."""
        job = child.jobs.get(message.number)
        if job is None:
            return
        job.waiting, job.awaits = True, message.ids
        waiting = self._pool.placement.waiting
        waiting.append(job)
        update_reservation(child)
        if len(child.jobs) > 1:
            child.recall()
        self._pool.room_changed = True
        if len(waiting) > self._pool.settings.max_waiting:
            self._park()

    def on_resuming(self, child: WorkerChild, number: int) -> None:
        """Give the next free slot to a task that wants to resume."""
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
        """Return the futures that our waiting tasks need and that this node has not claimed.

        The futures that the innermost task needs come first.
        """
        awaited: dict[bytes, None] = {}
        for job in reversed(self._pool.placement.waiting):
            for future_id in job.awaits:
                if future_id not in self._pool.ledger.jobs:
                    awaited[future_id] = None
            if len(awaited) >= AWAITED:
                break
        return tuple(awaited)[:AWAITED]

    def record_starved(self, starved: bool) -> None:
        """Record, after each round, whether there was no room for a future that a waiting task needs."""
        if not starved or any(child.slotted for child in self._pool.children.all):
            self._starved_since = 0.0
        elif not self._starved_since:
            self._starved_since = self._clock.monotonic()
            self._check_by(self._starved_since + STARVED_S + 0.01)

    def _park(self) -> None:
        """End the innermost waiting task. It restarts when the futures it waits for are realized."""
        for job in reversed(self._pool.placement.waiting):
            child = job.child
            if child is not None and not child.actor and not child.killed_for and not job.ending:
                self._pool.ledger.emit(
                    TaskParked(node=self._pool.hello.node, future=job.id.hex(), name=job.spec.name)
                )
                child.kill("parked")
                return

    def forget(self, jobs: Iterable[FutureJob]) -> None:
        """Forget that jobs wait: their child has ended."""
        placement = self._pool.placement
        for job in jobs:
            if job.waiting:
                job.waiting = False
                if job in placement.waiting:
                    placement.waiting.remove(job)
                if job in placement.resuming:
                    placement.resuming.remove(job)

    # --- recalls, cancellation and drain

    def on_recalled(self, child: WorkerChild, message: Recalled) -> None:
        """Return jobs to the queue: their child has confirmed that it will not start them."""
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
                self._pool.placement.queued.appendleft(job)
        update_reservation(child)
        self._check_by(now_us / 1e6 + LINGER_S)

    def interrupt(self, job: FutureJob) -> None:
        """End a cancelled task (FUT-56): send a message first, and SIGKILL after a grace period."""
        job.end_by_us = int((self._clock.monotonic() + self._pool.settings.cancel_grace_s) * 1e6)
        child = job.child
        if child is None:
            if self._pool.placement.remove(job) or self._pool.hosting.withdraw(job):
                self._pool.ledger.cancelled(job)
            return
        child.cancel(job.number)
        if child.page.running != job.number and not child.recalling:
            child.recall()
        self.check_soon()

    def drain(self, now: float, by: float) -> None:
        """Recall and release jobs that have not started. At the time `by`, kill the others too (CLU-25)."""
        pool = self._pool
        if not pool.draining:
            pool.draining = True
            for child in pool.children.all:
                if len(child.jobs) > 1 and not child.recalling:
                    child.recall()
        while pool.placement.queued:
            pool.ledger.relinquish(pool.placement.queued.popleft())
        for actor in pool.hosting.actors.values():
            for job in list(actor.pending.values()):
                del actor.pending[job.spec.ordinal]
                pool.ledger.relinquish(job)
        if now >= by:
            for child in pool.children.all:
                if child.jobs and not child.killed_for:
                    child.kill("drain")
        self._check_by(now + min(0.05, max(0.0, by - now)))
