"""The child pool of a worker: runs jobs in child processes and handles messages from the children.

The child pool is the `Executor` of a worker process. The claim loop gives it jobs, and the pool reports their
outcomes to the ledger. Only the supervisor's loop calls the pool.
"""

import contextlib
import selectors
import signal
from collections.abc import Sequence

import msgspec

from tidemill.clock import Clock
from tidemill.cluster.nodes import Node
from tidemill.errors import FutureError
from tidemill.futures.actors.hosted import HostedActors
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Failure
from tidemill.futures.protocol.states import FutureState
from tidemill.futures.values.segments import Segments
from tidemill.futures.worker.children import ChildExit, WorkerChild, WorkerChildren
from tidemill.futures.worker.claim_loop import Executor, all_pages
from tidemill.futures.worker.events import ChildEnded
from tidemill.futures.worker.jobs import NOTHING, ClaimRequest, FutureJob
from tidemill.futures.worker.ledger import Ledger
from tidemill.futures.worker.placement import Placement, update_reservation
from tidemill.futures.worker.processes import RestartPause
from tidemill.futures.worker.settings import WorkerSettings
from tidemill.futures.worker.wakeup import LoopWakeup
from tidemill.futures.worker.watchdog import Watchdog
from tidemill.futures.worker.wire import (
    ChildHello,
    ChildMessage,
    InputsMissing,
    Keep,
    Ready,
    Recalled,
    Resuming,
    Status,
    TaskBroken,
    TaskDone,
    TaskWaiting,
)
from tidemill.futures.worker.zygote import Zygote

MISSES = 8
"""If this many queued jobs have found no child, the pool stops trying until the next round."""


class ChildPool(Executor):
    """Runs jobs in child processes.

    Args:
        hello: the first message to each child.
        settings: the worker's settings.
        ledger: records the outcomes of jobs.
        segments: stores large results.
        zygote: forks the children.
        clock: the source of time.
    """

    def __init__(
        self,
        hello: ChildHello,
        settings: WorkerSettings,
        ledger: Ledger,
        segments: Segments | None,
        zygote: Zygote,
        clock: Clock,
    ) -> None:
        self.hello = hello
        self.settings = settings
        self.ledger = ledger
        self.segments = segments
        self.clock = clock
        self.wakeup = LoopWakeup()  # ends the wait for children
        self.placement = Placement(settings.slots, settings.total)
        self.hosting = HostedActors()
        self._selector = selectors.DefaultSelector()
        self.children = WorkerChildren(self._selector, zygote, clock, ledger.chance)
        self._selector.register(self.wakeup.reader, selectors.EVENT_READ)
        self.watchdog = Watchdog(self)
        self.draining = False
        self._node_epoch = 0
        self._start_pause = RestartPause(clock, ledger.chance, most_s=5.0)

    # --- children

    def keep_children(self) -> None:
        """Start children until there is one for each slot, even without jobs."""
        plain = sum(not child.actor for child in self.children.all)
        while plain < self.settings.slots and self.start_child() is not None:
            plain += 1

    def start_child(self, actor: bytes = b"") -> WorkerChild | None:
        """Start a child process. Messages that are sent before the child is ready wait in its socket.

        After children have failed to start, or ended before they were ready, return None until a delay has
        passed.
        """
        if self.draining or not self.may_start():
            return None
        try:
            hello = msgspec.structs.replace(self.hello, node_epoch=self._node_epoch)
            return self.children.start(hello, actor=actor)
        except (FutureError, OSError) as error:
            self._start_failed(str(error))
            return None

    def may_start(self) -> bool:
        """Return whether a child can be started now."""
        return self.children.zygote.ready and not self._start_pause.left_s

    def _start_failed(self, why: str) -> None:
        self._start_pause.failed()
        self.ledger.emit(ChildEnded(node=self.hello.node, pid=0, kind="unborn", message=why))

    # --- messages of children

    def receive(self, timeout_s: float) -> None:
        """Wait for messages from children, or for a wakeup, and handle all messages."""
        readable: dict[WorkerChild, None] = {}
        for key, mask in self._selector.select(timeout_s):
            child = key.data
            if child is None:
                self.wakeup.clear()
                continue
            if child is self.children.zygote:
                self.children.read_zygote()
                self.room_changed = True
                continue
            if mask & selectors.EVENT_WRITE:
                self.children.watch_writes(child)
            readable[child] = None
        for child in readable:
            messages, closed = child.receive()
            for message in messages:
                self._on_message(child, message)
            if closed:
                self._on_exit(child, self.children.reap(child))

    def _on_message(self, child: WorkerChild, message: ChildMessage) -> None:
        match message:
            case TaskDone():
                job = self._remove_job(child, message.number)
                if job is not None:
                    self._on_done(job, message)
            case TaskBroken():
                job = self._remove_job(child, message.number)
                if job is not None:
                    self.ledger.failed(job, message.failure, ram_used=message.ram_used)
            case InputsMissing():
                job = self._remove_job(child, message.number)
                if job is not None:
                    self.ledger.block(job, [loss.id for loss in message.losses], message.losses)
            case TaskWaiting():
                self.watchdog.on_waiting(child, message)
            case Resuming():
                self.watchdog.on_resuming(child, message.number)
            case Recalled():
                self.watchdog.on_recalled(child, message)
            case Keep():
                if self.segments is not None:
                    self.segments.keep(message.segment)
            case Ready():
                child.ready = True
                self._start_pause.succeeded()
            case Status():
                if (job := child.jobs.get(message.number)) is not None:
                    job.has_status = True
                    self.ledger.set_status(job.id, message.text)

    def _remove_job(self, child: WorkerChild, number: int) -> FutureJob | None:
        """Remove a job that has ended in a child. Return None if this node no longer holds the job."""
        job = child.jobs.pop(number, None)
        # If the child has other jobs and this one needed no resources, the reservation stays the same.
        if not child.jobs or job is None or job.waiting or job.needs is not NOTHING:
            update_reservation(child)
        if job is not None:
            job.child = None
            if job.needs is not NOTHING or job.claim.row.limited:
                self.room_changed = True
        if not child.jobs:
            child.idle_since = self.clock.monotonic()
        return job

    def _on_done(self, job: FutureJob, message: TaskDone) -> None:
        self.placement.record_duration(message.took_us / 1e6)
        where = message.result.location
        if where.kind == "segment" and self.segments is not None:
            self.segments.keep(where.name)
            job.segment = where.name
        self.ledger.finished(job, message.result)

    # --- a child's exit

    def _on_exit(self, child: WorkerChild, end: ChildExit) -> None:
        """Handle the end of a child. Only the job that the child was running counts as failed (FUT-20)."""
        if self.segments is not None:
            self.segments.child_gone(child.pid)
        if not child.ready and not child.killed_for and end.code != -signal.SIGKILL:
            self._start_failed(end.message)  # after a kill, the next start needs no delay
        if not child.killed_for:
            self.ledger.emit(
                ChildEnded(node=self.hello.node, pid=child.pid, kind=end.kind, message=end.message)
            )
        jobs = dict(child.jobs)
        child.jobs.clear()
        self.room_changed = True
        self.watchdog.forget(jobs.values())
        if child.actor:
            self._on_actor_exit(child, end, jobs)
            return
        now_us = int(self.clock.monotonic() * 1e6)
        for number, job in reversed(jobs.items()):
            job.child, job.since_us = None, now_us
            if number == end.running:
                self._record_exit(job, end)
            elif job.ending:
                self.ledger.cancelled(job)
            else:
                self.placement.queued.appendleft(job)

    def _record_exit(self, job: FutureJob, end: ChildExit) -> None:
        """Record the outcome of the job that a child was running when it ended."""
        match end.kind:
            case "parked":
                self.ledger.block(job, job.awaits)
            case "cancelled" | "deadline":
                self.ledger.cancelled(job)
            case "drain":
                self.ledger.relinquish(job)
            case "lost":
                self.ledger.forget(job)
            case _:
                failure = Failure(kind=end.kind, message=end.message, traceback=end.evidence)
                self.ledger.failed(job, failure, ram_used=end.ram_used)

    def _on_actor_exit(self, child: WorkerChild, end: ChildExit, jobs: dict[int, FutureJob]) -> None:
        """Handle the end of an actor's process: the actor is dead, and its unfinished calls fail (FUT-47)."""
        calls = self.hosting.remove(child.actor)
        if end.kind == "lost":
            return
        for job in [*jobs.values(), *calls]:
            job.child = None
            if job.spec.actor == job.id:  # the actor was being created
                self._record_exit(job, end)
                return
            self.ledger.forget(job)  # `actor_died`, below, ends this call
        message = f"the actor's process ended: {end.message}"
        failure = Failure(kind="actor", type="ActorDied", message=message, traceback=end.evidence)
        self.ledger.actor_died(child.actor, failure)

    # --- jobs

    def start(self, jobs: Sequence[FutureJob]) -> None:
        now_us = int(self.clock.monotonic() * 1e6)
        for job in jobs:
            job.since_us = now_us
            if not job.spec.actor or job.spec.actor == job.id:
                self.placement.queued.append(job)
            elif (actor := self.hosting.actors.get(job.spec.actor)) is not None:
                actor.add(job)
            else:
                message = "the actor is no longer on this node"
                self.ledger.failed(job, Failure(kind="actor", type="ActorDied", message=message))

    def settled(self, job: FutureJob, state: FutureState | None) -> None:
        if job.segment and state is not FutureState.REALIZED:
            self.delete_result(job.segment)  # the store refused the result
        if job.has_status:
            self.ledger.clear_status(job.id)
        if job.spec.actor and job.id != job.spec.actor:
            actor = self.hosting.actors.get(job.spec.actor)
            if actor is not None:
                actor.ended(job, again=state in (FutureState.UNCLAIMED, FutureState.BLOCKED))

    def interrupt(self, job: FutureJob) -> None:
        self.watchdog.interrupt(job)

    def recall_call(self, child: WorkerChild, job: FutureJob) -> None:
        """Return a call to its actor's queue, because the actor's process will not start it."""
        actor = self.hosting.of(child)
        if actor is not None:
            actor.add(job)
            actor.ended(job, again=True)

    def drop(self) -> None:
        for child in self.children.all:
            if child.jobs or child.actor:
                child.jobs.clear()
                child.kill("lost")
                update_reservation(child)
        for job, _ in self.ledger.results:
            if job.segment:
                self.delete_result(job.segment)
        self.placement.drop()
        self.hosting.actors.clear()

    def drain(self, by: float) -> None:
        """Release jobs that have not started, and kill those that have not ended by this time (CLU-25).

        Actors die with their node, after the last job has ended.
        """
        self.watchdog.drain(self.clock.monotonic(), by)
        if self.ledger.is_clear:
            for actor_id in list(self.hosting.actors):
                message = "the actor's worker has left the cluster"
                self.ledger.actor_died(actor_id, Failure(kind="actor", type="ActorDied", message=message))
                self.hosting.remove(actor_id)

    def recover(self, node: Node) -> int:
        self._node_epoch = node.epoch
        return all_pages(lambda: self.ledger.reclaim(node)) if self.settings.address else 0

    # --- free capacity

    def free(self) -> Capacity:
        """Return the capacity that no job has reserved, minus the memory that results use (FUT-36)."""
        return self.placement.free(self.children.all)

    def request(self) -> ClaimRequest | None:
        awaited = self.watchdog.awaited()
        return self.placement.request(self.children.all, awaited, startable=self.may_start())

    def claimed(self, *, starved: bool, took_s: float) -> None:
        self.watchdog.record_starved(starved)
        self.placement.round_s += 0.1 * (took_s - self.placement.round_s)

    def delete_result(self, name: str) -> None:
        if self.segments is not None:
            self.segments.delete(name)

    def old_results(self, age_s: float) -> list[str]:
        """Return the segments that are older than `age_s` and belong to no unfinished job.

        If a future still uses such a segment, the store has its record by now.
        """
        if self.segments is None:
            return []
        before = self.clock.wall() - age_s
        in_use = {job.segment.rpartition("/")[2] for job in self.ledger.jobs.values()}
        old = []
        for name in self.segments.names() - in_use:
            with contextlib.suppress(OSError):
                if (self.segments.folder / name).stat().st_mtime < before:
                    old.append(name)
        return old

    # --- placement

    def place(self) -> None:
        """Give slots to tasks that resume, then to actor calls, then to queued jobs in order."""
        placement, children = self.placement, self.children.all
        placement.resume(children)
        batches: dict[WorkerChild, list[FutureJob]] = {}
        for actor in self.hosting.actors.values():
            while (job := actor.ready()) is not None and placement.may_call(actor.child, children):
                actor.begin(job)
                self._assign(actor.child, job, batches)
        if placement.queued and not self.draining:
            self._place_queued(batches)
        for child, jobs in batches.items():
            child.send_jobs(jobs)
            self.children.watch_writes(child)
            if len(child.jobs) > 1:
                self.watchdog.check_soon()

    def _place_queued(self, batches: dict[WorkerChild, list[FutureJob]]) -> None:
        queued = self.placement.queued
        missed: list[FutureJob] = []
        while queued and len(missed) < MISSES:
            job = queued.popleft()
            child = self._child_for(job)
            if child is None:
                missed.append(job)  # a smaller job may fit
            else:
                self._assign(child, job, batches)
        queued.extendleft(reversed(missed))

    def _assign(
        self, child: WorkerChild, job: FutureJob, batches: dict[WorkerChild, list[FutureJob]]
    ) -> None:
        child.assign(job)
        if not child.slotted or job.needs is not NOTHING:
            update_reservation(child)
        batches.setdefault(child, []).append(job)
        if job.spec.progress_timeout_s or job.needs.ram:
            self.watchdog.check_soon()

    def _child_for(self, job: FutureJob) -> WorkerChild | None:
        """Return the child for a job; None if there is no room for the job now.

        Start a new child for a new actor, or if there is a free slot but no idle child.
        """
        children = self.children.all
        if job.spec.actor:
            actor = self.start_child(job.spec.actor) if self.placement.fits_now(job, children) else None
            if actor is not None:
                actor.base = job.needs
                self.hosting.host(job.spec.actor, actor)
            return actor
        chosen, slot = self.placement.choose(job, children)
        if chosen is None and slot:
            return self.start_child()
        return chosen

    def close(self) -> None:
        """Kill all processes."""
        self.children.close()
        self._selector.close()
