"""Looking after children: tasks that take long, hang, wait, must end or make room."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.errors import StoreError
from tidemill.futures import inbox
from tidemill.futures.children import Child
from tidemill.futures.jobs import Job
from tidemill.futures.placement import LONG_S, settle
from tidemill.futures.wire import Recalled, Waiting
from tidemill.futures.worker_events import TaskParked

if TYPE_CHECKING:
    from tidemill.futures.supervisor import Supervisor

LOOK_EVERY_S = 0.5
LINGER_S = 0.1
"""How long a claimed job may be with us before somebody else gets it."""

IDLE_S = 10.0
"""How long a child that there is no slot for is kept."""

STARVED_S = 1.0
"""How long tasks may wait for futures that do not fit beside them before one makes room."""

AWAITED = 200


class Care:
    """What has to be seen to from time to time, or on a word of a child."""

    def __init__(self, supervisor: "Supervisor") -> None:
        self._all = supervisor
        self._clock = supervisor.clock
        self.look_at = 0.0
        self._starved_since = 0.0
        self._drained = False

    def look_soon(self) -> None:
        """Something may have to be done within the time that a short task takes."""
        self.look_at = min(self.look_at, self._clock.monotonic() + LONG_S)

    # --- from time to time

    def look(self) -> None:
        """Look at everything that has a time."""
        now = self._clock.monotonic()
        all_ = self._all
        if all_.draining:
            self._drain(now)
        if now < self.look_at:
            return
        self.look_at = now + LOOK_EVERY_S
        for child in list(all_.children.all):
            self._look_at(child, now)
        all_.children.reap_orphans()
        self._give_back_lingering(now)
        self._end_idle(now)
        self._look_at_actors(now)
        if self._starved_since and now - self._starved_since > STARVED_S:
            self._starved_since = 0.0
            self._park()
        if all_.segments is not None:
            all_.placement.stored_bytes = all_.segments.used_bytes
        all_.member.membership.report(all_.placement.free(all_.children.all).to_node())

    def _again(self, at: float) -> None:
        self.look_at = min(self.look_at, at)

    def _look_at(self, child: Child, now: float) -> None:
        number = child.page.running
        job = child.jobs.get(number)
        if job is None or child.killed_for:
            if len(child.jobs) > 1:
                self._again(now + LONG_S)
            return
        ran_s = now - child.page.began_us / 1e6
        if len(child.jobs) > 1 and not child.recalling:
            if ran_s >= LONG_S:
                self._all.placement.saw_long(ran_s)
                child.recall()
            else:
                self._again(now + LONG_S - ran_s)
        if job.ending and not child.actor:
            if now * 1e6 >= job.end_by_us:
                child.kill(job.ending)
                return
            self._again(job.end_by_us / 1e6)
        timeout_s = job.spec.progress_timeout_s
        if timeout_s and not job.waiting:
            silent_s = now - child.page.progress_us / 1e6
            if silent_s > timeout_s:
                child.kill("hang")
                return
            self._again(now + timeout_s - silent_s)

    def _give_back_lingering(self, now: float) -> None:
        """Jobs that found no child: others may have one. What is awaited here stays."""
        here = self._all.placement.here
        late_us = (now - LINGER_S) * 1e6
        if here:
            self._again(now + LINGER_S)
        for job in [job for job in here if job.since_us < late_us]:
            here.remove(job)
            self._all.books.relinquish(job)

    def _end_idle(self, now: float) -> None:
        idle = [
            child for child in self._all.children.all if not child.jobs and not child.actor and child.ready
        ]
        surplus = sum(not child.actor for child in self._all.children.all) - self._all.settings.slots
        for child in idle:
            if surplus > 0 and now - child.idle_since > IDLE_S:
                child.kill("idle")
                surplus -= 1

    def _look_at_actors(self, now: float) -> None:
        """A call that is awaited may have ended without us: the store knows."""
        for actor in self._all.hosting.actors.values():
            if not actor.stuck or child_busy(actor.child):
                continue
            try:
                actor.next = self._all.books.next_call(actor.id, actor.next)
            except StoreError:
                return
            self._again(now + 0.1)

    # --- waiting tasks

    def wait(self, child: Child, message: Waiting) -> None:
        """A task awaits futures: its slot is free, and those futures go first (FUT-41)."""
        job = child.jobs.get(message.number)
        if job is None:
            return
        job.waiting, job.awaits = True, message.ids
        waiting = self._all.placement.waiting
        waiting.append(job)
        settle(child)
        if len(child.jobs) > 1:
            child.recall()
        self._all.look_for_work()
        if len(waiting) > self._all.settings.max_waiting:
            self._park()

    def resume(self, child: Child, number: int) -> None:
        """What a task awaited is there: it gets the next slot."""
        job = child.jobs.get(number)
        placement = self._all.placement
        if job is None or job not in placement.waiting:
            return
        placement.waiting.remove(job)
        placement.resuming.append(job)
        for other in self._all.children.all:
            if other.slotted and len(other.jobs) > 1 and not other.recalling:
                other.recall()

    def awaited(self) -> tuple[bytes, ...]:
        """What our waiting tasks await and we have not claimed yet, the innermost tasks' first."""
        found: dict[bytes, None] = {}
        for job in reversed(self._all.placement.waiting):
            for one in job.awaits:
                if one not in self._all.jobs:
                    found[one] = None
            if len(found) >= AWAITED:
                break
        return tuple(found)[:AWAITED]

    def starved(self, starved: bool) -> None:
        """Told after each claim: was there something awaited that did not fit beside those who wait?"""
        if not starved or any(child.slotted for child in self._all.children.all):
            self._starved_since = 0.0
        elif not self._starved_since:
            self._starved_since = self._clock.monotonic()
            self._again(self._starved_since + STARVED_S + 0.01)

    def _park(self) -> None:
        """End the innermost waiting task; it starts again when what it awaits is there."""
        for job in reversed(self._all.placement.waiting):
            child = job.child
            if child is not None and not child.actor and not child.killed_for and not job.ending:
                self._all.emit(TaskParked(node=self._all.member.id, future=job.id.hex(), name=job.spec.name))
                child.kill("parked")
                return

    def forget(self, jobs: Iterable[Job]) -> None:
        """Their child is dead."""
        placement = self._all.placement
        for job in jobs:
            if job.waiting:
                job.waiting = False
                if job in placement.waiting:
                    placement.waiting.remove(job)
                if job in placement.resuming:
                    placement.resuming.remove(job)

    # --- ending

    def recalled(self, child: Child, message: Recalled) -> None:
        """Jobs that a child will not begin are with us again."""
        child.recalling = False
        now_us = int(self._clock.monotonic() * 1e6)
        for number in range(message.high - 1, message.low - 1, -1):
            job = child.jobs.pop(number, None)
            if job is None:
                continue
            job.child, job.since_us = None, now_us
            if job.ending:
                self._all.books.cancelled(job)
            elif child.actor:
                self._all.recall_call(child, job)
            else:
                self._all.placement.here.appendleft(job)
        settle(child)
        self._again(now_us / 1e6 + LINGER_S)

    def end(self, command: inbox.End) -> None:
        """Somebody asked for the end of a task (FUT-56): a word first, and its process after a grace."""
        job = self._all.jobs.get(command.id)
        if job is None or job.claim.epoch != command.epoch or job.ending:
            return
        job.ending = command.why
        job.end_by_us = int((self._clock.monotonic() + self._all.settings.cancel_grace_s) * 1e6)
        child = job.child
        if child is None:
            if self._all.placement.remove(job) or self._all.hosting.withdraw(job):
                self._all.books.cancelled(job)
            return
        child.cancel(job.number)
        if child.page.running != job.number and not child.recalling:
            child.recall()
        self.look_soon()

    def _drain(self, now: float) -> None:
        """Leave: recall what has not begun, wait for the rest, and at last give it back (CLU-25)."""
        all_ = self._all
        if not self._drained:
            self._drained = True
            all_.member.drain(max(0.0, all_.drain_by - now) + all_.settings.every_s)
            for child in all_.children.all:
                if len(child.jobs) > 1 and not child.recalling:
                    child.recall()
        while all_.placement.here:
            all_.books.relinquish(all_.placement.here.popleft())
        for actor in all_.hosting.actors.values():
            for job in list(actor.pending.values()):
                del actor.pending[job.spec.ordinal]
                all_.books.relinquish(job)
        if now >= all_.drain_by:
            for child in all_.children.all:
                if child.jobs and not child.killed_for:
                    child.kill("drain")
        self._again(now + min(0.05, max(0.0, all_.drain_by - now)))
        if not all_.jobs and not all_.done and not all_.books.errands:
            all_.drained()


def child_busy(child: Child) -> bool:
    """Has it jobs?"""
    return bool(child.jobs)
