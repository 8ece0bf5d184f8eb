"""The floor of a worker: child processes, the jobs they have, and what they say.

Everything here is local: jobs come in as claims that were loaded, and go out as results (`done`) and errands
(`books`). Only the supervisor's loop calls it.
"""

import contextlib
import random
import selectors
import signal

import msgspec

from tidemill.clock import Clock, backoff
from tidemill.cluster.nodes import Node
from tidemill.errors import FutureError
from tidemill.events import Emit
from tidemill.futures.actors.hosted import Hosting
from tidemill.futures.protocol.finish import Done
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import AnyRow, Blocked, Failure, Realized, Unclaimed
from tidemill.futures.values.segments import Segments
from tidemill.futures.worker.children import Child, Children, End
from tidemill.futures.worker.events import ChildEnded, TaskFailed
from tidemill.futures.worker.jobs import Job, Wish
from tidemill.futures.worker.ledger import Books, Loaded, result_of
from tidemill.futures.worker.placement import NOTHING, Placement, settle
from tidemill.futures.worker.settings import Settings
from tidemill.futures.worker.wakeup import Wakeup
from tidemill.futures.worker.watchdog import Care
from tidemill.futures.worker.wire import (
    Broken,
    Hello,
    Keep,
    Missing,
    Ready,
    Recalled,
    Resuming,
    Status,
    Up,
    Waiting,
)
from tidemill.futures.worker.wire import Done as Made
from tidemill.futures.worker.zygote import Zygote

MISSES = 8
"""How many jobs in a row may find no child before the rest of them waits."""


class Floor:
    """All that runs on one worker.

    Args:
        hello: what children are told.
        settings: of the worker.
        books: where ends are written.
        segments: where large results are kept.
        zygote: makes children.
        wakeup: ends the wait for children.
    """

    def __init__(
        self,
        hello: Hello,
        settings: Settings,
        books: Books,
        segments: Segments | None,
        zygote: Zygote,
        wakeup: Wakeup,
        *,
        clock: Clock,
        chance: random.Random,
        emit: Emit,
    ) -> None:
        self.hello = hello
        self.settings = settings
        self.books = books
        self.segments = segments
        self.clock = clock
        self.chance = chance
        self.emit = emit
        self.placement = Placement(settings.slots, settings.total)
        self.hosting = Hosting()
        self._selector = selectors.DefaultSelector()
        self.children = Children(self._selector, zygote, clock)
        self._wakeup = wakeup
        self._selector.register(wakeup.reader, selectors.EVENT_READ)
        self.care = Care(self)
        self.jobs: dict[bytes, Job] = {}  # all that we hold a claim on
        self.done: list[tuple[Job, Done]] = []
        self.heard = True  # there may be something to claim that was not there, or did not fit, before
        self.draining = False
        self.node_epoch = 0
        self._start_at = 0.0  # no child is started before: the last ones did not live to say a word
        self._stillborn = 0

    # --- children

    def keep_children(self) -> None:
        """There are as many children as slots, even while nothing is to do."""
        plain = sum(not child.actor for child in self.children.all)
        while plain < self.settings.slots and self.start_child() is not None:
            plain += 1

    def start_child(self, actor: bytes = b"") -> Child | None:
        """Start a process; what it is sent before it is up waits in its line.

        None for a while after children that could not be started, or did not live to say a word.
        """
        if self.draining or not self.may_start():
            return None
        try:
            hello = msgspec.structs.replace(self.hello, node_epoch=self.node_epoch)
            return self.children.start(hello, actor=actor)
        except (FutureError, OSError) as error:
            self._unborn(str(error))
            return None

    def may_start(self) -> bool:
        """Can a child be started now?"""
        return self.children.zygote.ready and self.clock.monotonic() >= self._start_at

    def _unborn(self, why: str) -> None:
        self._stillborn += 1
        pause_s = backoff(self._stillborn, self.chance, first_s=0.1, most_s=5.0)
        self._start_at = self.clock.monotonic() + pause_s
        self.emit(ChildEnded(node=self.hello.node, pid=0, kind="unborn", message=why))

    # --- hearing

    def hear(self, timeout_s: float, node: Node) -> None:
        """Wait for a word of a child, or to be woken, and act upon all that was said."""
        said: dict[Child, None] = {}
        for key, mask in self._selector.select(timeout_s):
            child = key.data
            if child is None:
                self._wakeup.hush()
                continue
            if child is self.children.zygote:
                self.children.hear_zygote()
                self.heard = True
                continue
            if mask & selectors.EVENT_WRITE:
                self.children.watch_writes(child)
            said[child] = None
        for child in said:
            messages, gone = child.receive()
            for message in messages:
                self._on(child, message, node)
            if gone:
                self._on_end(child, self.children.bury(child))

    def _on(self, child: Child, message: Up, node: Node) -> None:
        match message:
            case Made():
                job = self._over(child, message.number)
                if job is not None:
                    self._made(job, message, node)
            case Broken():
                job = self._over(child, message.number)
                if job is not None:
                    self._broken(job, message)
            case Missing():
                job = self._over(child, message.number)
                if job is not None:
                    self.books.block(job, [loss.id for loss in message.losses], message.losses)
            case Waiting():
                self.care.wait(child, message)
            case Resuming():
                self.care.resume(child, message.number)
            case Recalled():
                self.care.recalled(child, message)
            case Keep():
                if self.segments is not None:
                    self.segments.keep(message.segment)
            case Ready():
                child.ready = True
                self._stillborn = 0
            case Status():
                if (job := child.jobs.get(message.number)) is not None:
                    job.said = True
                    self.books.say(job.id, message.text)

    def _over(self, child: Child, number: int) -> Job | None:
        """A child has ended a job; None for one that is not ours any more."""
        job = child.jobs.pop(number, None)
        if not child.jobs or job is None or job.waiting or job.needs is not NOTHING:
            settle(child)  # else it has others, and this one asked for nothing: it takes what it took
        if job is not None:
            job.child = None
            if job.needs is not NOTHING or job.claim.row.limited:
                self.heard = True  # what did not fit beside it may fit now
        if not child.jobs:
            child.idle_since = self.clock.monotonic()
        return job

    def _made(self, job: Job, message: Made, node: Node) -> None:
        self.placement.saw(message.took_us / 1e6)
        where = message.result.location
        if where.kind == "segment" and self.segments is not None:
            self.segments.keep(where.name)
            job.segment = where.name
        self.done.append((job, result_of(job, message.result, node)))

    def _broken(self, job: Job, message: Broken) -> None:
        failure = message.failure
        if failure.kind == "cancelled" and job.ending:
            self.books.cancelled(job)
            return
        if failure.kind == "cancelled":  # nobody asked: it is an exception like any other
            failure = msgspec.structs.replace(failure, kind="exception")
        self.fail(job, failure, ram_used=message.ram_used)

    def fail(self, job: Job, failure: Failure, *, ram_used: int = 0) -> None:
        """An attempt failed."""
        self.emit(
            TaskFailed(
                node=self.hello.node,
                future=job.id.hex(),
                name=job.spec.name,
                kind=failure.kind,
                message=failure.message[:500],
            )
        )
        self.books.fail(job, failure, ram_used=ram_used)

    # --- a child's end

    def _on_end(self, child: Child, end: End) -> None:
        """A child is dead: only the job that it was executing is to blame (FUT-20)."""
        if self.segments is not None:
            self.segments.child_gone(child.pid)
        if not child.ready and not child.killed_for and end.code != -signal.SIGKILL:
            self._unborn(end.message)  # else somebody kills them, and that is no reason to wait
        if not child.killed_for:
            self.emit(ChildEnded(node=self.hello.node, pid=child.pid, kind=end.kind, message=end.message))
        jobs = dict(child.jobs)
        child.jobs.clear()
        self.heard = True
        self.care.forget(jobs.values())
        if child.actor:
            self._actor_gone(child, end, jobs)
            return
        now_us = int(self.clock.monotonic() * 1e6)
        for number, job in reversed(jobs.items()):
            job.child, job.since_us = None, now_us
            if number == end.running:
                self._judge(job, end)
            elif job.ending:
                self.books.cancelled(job)
            else:
                self.placement.here.appendleft(job)

    def _judge(self, job: Job, end: End) -> None:
        match end.kind:
            case "parked":
                self.books.block(job, job.awaits)
            case "cancelled" | "deadline":
                self.books.cancelled(job)
            case "drain":
                self.books.relinquish(job)
            case "lost":
                self.jobs.pop(job.id, None)
            case _:
                failure = Failure(kind=end.kind, message=end.message, traceback=end.evidence)
                self.fail(job, failure, ram_used=end.ram_used)

    def _actor_gone(self, child: Child, end: End, jobs: dict[int, Job]) -> None:
        """An actor's process has ended: it is dead, and every call that has not ended fails (FUT-47)."""
        calls = self.hosting.remove(child.actor)
        if end.kind == "lost":
            return
        for job in [*jobs.values(), *calls]:
            job.child = None
            if job.spec.actor == job.id:  # it was being created
                self._judge(job, end)
                return
            self.jobs.pop(job.id, None)  # ended by the actor's death, below
        message = f"the actor's process ended: {end.message}"
        failure = Failure(kind="actor", type="ActorDied", message=message, traceback=end.evidence)
        self.books.actor_died(child.actor, failure)

    # --- jobs

    def add(self, loaded: Loaded) -> None:
        """Take over what was claimed."""
        now_us = int(self.clock.monotonic() * 1e6)
        for job in loaded.jobs:
            job.since_us = now_us
            self.jobs[job.id] = job
            if not job.spec.actor or job.spec.actor == job.id:
                self.placement.here.append(job)
            elif (actor := self.hosting.actors.get(job.spec.actor)) is not None:
                actor.add(job)
            else:
                message = "the actor does not live on this node any more"
                self.fail(job, Failure(kind="actor", type="ActorDied", message=message))
        for job, missing in loaded.unready:
            self.jobs[job.id] = job
            self.books.block(job, missing)

    def written(self, job: Job, row: AnyRow | None) -> None:
        """The store knows how this claim ended; None when it had ended before."""
        self.jobs.pop(job.id, None)
        if job.segment and not isinstance(row, Realized):
            self._unwanted(job)
        self._ended(job, again=isinstance(row, Unclaimed | Blocked))

    def _unwanted(self, job: Job) -> None:
        """A result that the store refused: nobody knows of its segment."""
        if self.segments is not None:
            self.segments.delete(job.segment)

    def recall_call(self, child: Child, job: Job) -> None:
        """A call that was sent ahead to its actor waits for its turn again."""
        actor = self.hosting.of(child)
        if actor is not None:
            actor.add(job)
            actor.ended(job, again=True)

    def drop(self) -> int:
        """The node's lease is over: end everything that was begun under it; how many jobs that were."""
        dropped = len(self.jobs)
        for child in self.children.all:
            if child.jobs or child.actor:
                child.jobs.clear()
                child.kill("lost")
                settle(child)
        for job, _ in self.done:
            if job.segment:
                self._unwanted(job)
        self.jobs.clear()
        self.done.clear()
        self.placement.drop()
        return dropped

    def realized(self, job: Job) -> None:
        """The store has its result."""
        self.jobs.pop(job.id, None)
        if job.said or job.spec.actor:
            self._ended(job, again=False)

    def _ended(self, job: Job, *, again: bool) -> None:
        if job.said:
            self.books.hush(job.id)
        if job.spec.actor and job.id != job.spec.actor:
            actor = self.hosting.actors.get(job.spec.actor)
            if actor is not None:
                actor.ended(job, again=again)

    # --- what there is room for

    def free(self) -> Capacity:
        """What no job has reserved, net of results that lie in memory (FUT-36)."""
        return self.placement.free(self.children.all)

    def wish(self, awaited: tuple[bytes, ...] = ()) -> Wish | None:
        """What could be taken on now."""
        return self.placement.wish(self.children.all, awaited, startable=self.may_start())

    def old_segments(self, age_s: float) -> list[str]:
        """Segments that have been there for a while: whoever made them has told the store by now."""
        if self.segments is None:
            return []
        before = self.clock.wall() - age_s
        ours = {job.segment.rpartition("/")[2] for job in self.jobs.values()}
        found = []
        for name in self.segments.names() - ours:
            with contextlib.suppress(OSError):
                if (self.segments.folder / name).stat().st_mtime < before:
                    found.append(name)
        return found

    # --- giving out work

    def place(self) -> None:
        """Resumed tasks go first, then calls of actors, then what was claimed, in its order."""
        placement, children = self.placement, self.children.all
        placement.resume(children)
        batches: dict[Child, list[Job]] = {}
        for actor in self.hosting.actors.values():
            while (job := actor.ready()) is not None and placement.may_call(actor.child, children):
                actor.begin(job)
                self._take(actor.child, job, batches)
        if placement.here and not self.draining:
            self._place_here(batches)
        for child, jobs in batches.items():
            child.give(jobs)
            self.children.watch_writes(child)
            if len(child.jobs) > 1:
                self.care.look_soon()

    def _place_here(self, batches: dict[Child, list[Job]]) -> None:
        here = self.placement.here
        missed: list[Job] = []
        while here and len(missed) < MISSES:
            job = here.popleft()
            child = self._child_for(job)
            if child is None:
                missed.append(job)  # perhaps a smaller one fits
            else:
                self._take(child, job, batches)
        here.extendleft(reversed(missed))

    def _take(self, child: Child, job: Job, batches: dict[Child, list[Job]]) -> None:
        child.take(job)
        if not child.slotted or job.needs is not NOTHING:
            settle(child)
        batches.setdefault(child, []).append(job)
        if job.spec.progress_timeout_s or job.needs.ram:
            self.care.look_soon()

    def _child_for(self, job: Job) -> Child | None:
        """The child to give a job to; an actor, or a slot that a waiting task has left, gets a new one."""
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
        """End all processes."""
        self.children.close()
        self._selector.close()
