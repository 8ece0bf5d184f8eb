"""The supervisor: a node that claims futures and has child processes run them. It never runs user code.

One thread does everything in turns: hear the children, look after them, settle with the store, give out
work. Nothing else touches jobs and children. Two more threads only wait: one renews the node's lease and
carries out a leader's duties (`cluster.Member`), and one guards the lease: when its time is over the
children are killed even if the loop is stuck in the store.

A lost lease ends everything that was begun under it (FUT-55): the children are killed, what they made is
dropped, and the node joins again under a higher epoch. Should a result slip through, the store refuses it.
"""

import os
import random
import selectors
import signal
import threading

import msgspec

from tidemill.clock import SYSTEM, Clock, backoff
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import RENEW_EVERY_S, TTL_S
from tidemill.cluster.member import Member
from tidemill.cluster.nodes import Node
from tidemill.errors import CommitUnknown, FutureError, LeaseLost, StoreError
from tidemill.events import Emit, ignore
from tidemill.futures import inbox
from tidemill.futures.books import Books, result_of
from tidemill.futures.care import Care
from tidemill.futures.children import Child, Children, End
from tidemill.futures.claim import Claim
from tidemill.futures.duties import future_duties
from tidemill.futures.finish import Done
from tidemill.futures.hosting import Hosting
from tidemill.futures.jobs import Job
from tidemill.futures.keys import FutureKeys
from tidemill.futures.lanes import Capacity
from tidemill.futures.placement import NOTHING, Placement, settle
from tidemill.futures.rows import AnyRow, Blocked, Failure, Unclaimed
from tidemill.futures.segments import Segments
from tidemill.futures.wakeup import Wakeup
from tidemill.futures.wire import Broken, Hello, Keep, Missing, Ready, Recalled, Resuming, Status, Up, Waiting
from tidemill.futures.wire import Done as Made
from tidemill.futures.worker_events import (
    ChildEnded,
    ClaimsGivenBack,
    StoreAway,
    TaskFailed,
    WorkDropped,
    WorkerEnded,
    WorkerStarted,
)
from tidemill.futures.zygote import Zygote
from tidemill.store import Store

POLL_S = 1.0
INBOX_S = 0.020
AUDIT_S = 30.0
CLAIM_MARGIN_S = 2.6
"""How much of its lease a node must have left to claim (`claim.LEAST_LEFT_US`, and the way there)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is set up."""

    slots: int = 1
    total: Capacity = Capacity()
    address: str = ""  # where nobody else can be: what earlier boots there still hold is given back
    ttl_s: float = TTL_S
    every_s: float = RENEW_EVERY_S
    grace_s: float = 30.0  # for running tasks when the worker is asked to leave
    cancel_grace_s: float = 5.0  # for a task that was asked to end
    max_waiting: int = 32  # tasks that await others and keep their process meanwhile


class Supervisor:
    """One worker node.

    Args:
        store: shared by all threads here; children open their own.
        hello: what children are told; its `node` is our identity, new with every start.
        settings: see there.
        zygote: makes children; started here unless it was before.
        segments: where results are kept that are too large for a row.
    """

    def __init__(
        self,
        store: Store,
        hello: Hello,
        settings: Settings,
        *,
        zygote: Zygote | None = None,
        segments: Segments | None = None,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
        emit: Emit = ignore,
    ) -> None:
        self.store = store
        self.hello = hello
        self.settings = settings
        self.segments = segments
        self.clock = clock
        self.chance = chance if chance is not None else random.Random()
        self.emit = emit
        keys = FutureKeys(hello.cluster)
        self.member = Member(
            store,
            hello.cluster,
            node=Node(
                id=hello.node,
                epoch=0,
                kind="worker",
                address=settings.address,
                slots=settings.slots,
                total=settings.total.to_node(),
                free=settings.total.to_node(),
            ),
            duties=future_duties(keys, ClusterKeys(hello.cluster), emit=emit, ttl_s=settings.ttl_s),
            busy=lambda: bool(self.jobs) or not self._idle.is_set(),
            clock=clock,
            chance=self.chance,
            emit=emit,
            ttl_s=settings.ttl_s,
            every_s=settings.every_s,
        )
        self.books = Books(store, hello.cluster, self.chance)
        self.placement = Placement(settings.slots, settings.total)
        self.hosting = Hosting()
        self.selector = selectors.DefaultSelector()
        self.children = Children(self.selector, zygote if zygote is not None else Zygote(), clock)
        self.wakeup = Wakeup()
        self.selector.register(self.wakeup.reader, selectors.EVENT_READ)
        self.care = Care(self)
        self.jobs: dict[bytes, Job] = {}  # all that we hold a claim on
        self.done: list[tuple[Job, Done]] = []
        self.draining = False
        self._drain_by = 0.0
        self._idle = threading.Event()  # drained: nothing is left to write
        self._ended = threading.Event()
        self._epoch = 0  # of the node, under which everything here was claimed
        self._heard = True  # there may be something to claim
        self._rung = False  # somebody said so
        self._mail = True  # there may be a command
        self._hungry = False  # the last claim was as large as it could be
        self._poll_at = self._inbox_at = self._audit_at = self._retry_at = 0.0
        self._failures = 0  # of the store, in a row
        self._start_at = 0.0  # no child is started before: the last ones did not live to say a word
        self._stillborn = 0

    # --- running

    def run(self) -> None:
        """Work until drained."""
        keys = self.books.keys
        beats = threading.Thread(target=self.member.run, name="member", daemon=True)
        guard = threading.Thread(target=self._guard, name="guard", daemon=True)
        beats.start()
        guard.start()
        bell = self.store.watch([keys.bell])
        mail = self.store.watch([keys.inbox[self.member.id]])
        hush = [bell.notify(self._on_bell), mail.notify(self._on_mail)]
        self.emit(WorkerStarted(node=self.member.id, pid=os.getpid(), slots=self.settings.slots))
        try:
            while not self._idle.is_set():
                self._keep_children()
                self._hear()
                self.care.look()
                self._settle()
                self._place()
                self._read_mail()
        finally:
            self._idle.set()
            self._ended.set()
            self.children.close()
            self.member.drain(0.0)
            for end in hush:
                end()
            bell.close()
            mail.close()
            beats.join(self.settings.every_s + 5.0)
            guard.join(5.0)
            self.wakeup.close()
            self.selector.close()
            self.emit(WorkerEnded(node=self.member.id))

    def drain(self, grace_s: float | None = None) -> None:
        """Take nothing new, finish what runs within the grace, give the rest back, leave (CLU-25).

        May be called from any thread and by a signal's handler; a second call ends the grace.
        """
        grace_s = self.settings.grace_s if grace_s is None else grace_s
        self._drain_by = self.clock.monotonic() + (0.0 if self.draining else grace_s)
        self.draining = True
        self.wakeup.ring()

    @property
    def drain_by(self) -> float:
        """When the grace is over, by our clock."""
        return self._drain_by

    def _guard(self) -> None:
        """Kill what runs when our lease's time is over, whatever the loop is doing."""
        while not self.clock.wait(self._ended, self.settings.ttl_s / 20):
            if self._epoch and not self.member.membership.alive() and self.jobs:
                self.children.kill_all("lost")

    def _on_bell(self) -> None:
        self._heard = self._rung = True
        self.wakeup.ring()

    def _on_mail(self) -> None:
        self._mail = True
        self.wakeup.ring()

    def look_for_work(self) -> None:
        """There may be something to claim that was not there, or did not fit, before."""
        self._heard = True

    # --- children

    def _keep_children(self) -> None:
        """There are as many children as slots, even while nothing is to do."""
        if self.draining:
            return
        plain = sum(not child.actor for child in self.children.all)
        while plain < self.settings.slots and self.start_child() is not None:
            plain += 1

    def start_child(self, actor: bytes = b"") -> Child | None:
        """Start a process; what it is sent before it is up waits in its line.

        None for a while after children that could not be started, or did not live to say a word.
        """
        if not self._may_start():
            return None
        try:
            return self.children.start(
                msgspec.structs.replace(self.hello, node_epoch=self._epoch), actor=actor
            )
        except (FutureError, OSError) as error:
            self._unborn(str(error))
            return None

    def _unborn(self, why: str) -> None:
        self._stillborn += 1
        self._start_at = self.clock.monotonic() + backoff(
            self._stillborn, self.chance, first_s=0.1, most_s=5.0
        )
        self.emit(ChildEnded(node=self.member.id, pid=0, kind="unborn", message=why))

    # --- hearing

    def _hear(self) -> None:
        pause_s = self._pause_s()
        said: dict[Child, None] = {}
        for key, mask in self.selector.select(pause_s):
            child = key.data
            if child is None:
                self.wakeup.hush()
                continue
            if child is self.children.zygote:
                self.children.hear_zygote()
                self._heard = True
                continue
            if mask & selectors.EVENT_WRITE:
                self.children.watch_writes(child)
            said[child] = None
        for child in said:
            messages, gone = child.receive()
            for message in messages:
                self._on(child, message)
            if gone:
                self._on_end(child, self.children.bury(child))

    def _pause_s(self) -> float:
        now = self.clock.monotonic()
        if now < self._retry_at:
            return min(self._retry_at - now, 0.1)
        if self.done or self.books.errands or self.books.telling:
            return 0.0
        if (self._heard or self._hungry) and self._could_take():
            return 0.0
        at = min(self._poll_at, self.care.look_at)
        if self._mail:
            at = min(at, self._inbox_at)
        return max(0.0, at - now)

    def _could_take(self) -> bool:
        return (
            self._may_claim()
            and self.placement.wish(self.children.all, startable=self._may_start()) is not None
        )

    def _may_start(self) -> bool:
        return self.children.zygote.ready and self.clock.monotonic() >= self._start_at

    def _on(self, child: Child, message: Up) -> None:
        match message:
            case Made():
                job = self._over(child, message.number)
                if job is not None:
                    self.placement.saw(message.took_us / 1e6)
                    if self.segments is not None and message.result.location.kind == "segment":
                        self.segments.keep(message.result.location.name)
                    self.done.append((job, result_of(job, message.result, self.member.node)))
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
                self.books.say(child.jobs.get(message.number), message.text)

    def _over(self, child: Child, number: int) -> Job | None:
        """A child has ended a job; None for one that is not ours any more."""
        job = child.jobs.pop(number, None)
        if not child.jobs or job is None or job.waiting or job.needs is not NOTHING:
            settle(child)  # else it has others, and this one asked for nothing: it takes what it took
        if job is not None:
            job.child = None
            if job.needs is not NOTHING or job.claim.row.limited:
                self._heard = True  # what did not fit beside it may fit now
        if not child.jobs:
            child.idle_since = self.clock.monotonic()
        return job

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
                node=self.member.id,
                future=job.id.hex(),
                name=job.spec.name,
                kind=failure.kind,
                message=failure.message[:500],
            )
        )
        self.books.fail(job, failure, ram_used=ram_used)

    def _on_end(self, child: Child, end: End) -> None:
        """A child is dead: only the job that it was executing is to blame (FUT-20)."""
        if self.segments is not None:
            self.segments.child_gone(child.pid)
        if not child.ready and not child.killed_for and end.code != -signal.SIGKILL:
            self._unborn(end.message)  # else somebody kills them, and that is no reason to wait
        if not child.killed_for:
            self.emit(ChildEnded(node=self.member.id, pid=child.pid, kind=end.kind, message=end.message))
        jobs = dict(child.jobs)
        child.jobs.clear()
        self._heard = True
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
                self.fail(job, Failure(kind=end.kind, message=end.message, traceback=end.evidence))

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

    # --- the store

    def _may_claim(self) -> bool:
        membership = self.member.membership
        left_s = membership.deadline + self.settings.ttl_s / 5 - self.clock.monotonic()
        return membership.accepts() and not self.draining and left_s > CLAIM_MARGIN_S

    def _settle(self) -> None:
        now = self.clock.monotonic()
        if now < self._retry_at:
            return
        node = self.member.node
        if not self.member.membership.alive() or (self._epoch and node.epoch != self._epoch):
            self._lose()
            if not self.member.membership.alive():
                self._retry_at = now + 0.02
                return
        try:
            if self._epoch != node.epoch:
                self._joined(node)
            if now >= self._poll_at:
                self._heard = self._mail = True
                self.books.forget_lanes()
                self._poll_at = now + POLL_S * (0.5 + 0.5 * self.chance.random())
            self._round(node)
            self._run_errands(node)
            if now >= self._audit_at:
                self._audit(node)
            self._failures = 0
        except CommitUnknown as error:
            self._audit_at = 0.0  # there may be claims of ours that we do not know of
            self._store_failed(error)
        except StoreError as error:
            self._store_failed(error)

    def _store_failed(self, error: StoreError) -> None:
        self._failures += 1
        self._retry_at = self.clock.monotonic() + backoff(
            self._failures, self.chance, first_s=0.05, most_s=2.0
        )
        self.emit(StoreAway(node=self.member.id, error=error.message))

    def _joined(self, node: Node) -> None:
        """We are in the list, for the first time or again."""
        while self.settings.address and self.books.reclaim(node):
            pass
        while self.books.strays(node, ()):
            pass
        if self._epoch:
            self.emit(ClaimsGivenBack(node=node.id, why="the node's lease was lost"))
        self._audit_at = self.clock.monotonic() + AUDIT_S
        self._epoch = node.epoch

    def _audit(self, node: Node) -> None:
        """Claims of ours and the jobs we have are the same (FUT-38)."""
        if not self.books.strays(node, self.jobs):
            self._audit_at = self.clock.monotonic() + AUDIT_S

    def _lose(self) -> None:
        """Our lease is over: stop everything, write nothing (FUT-55)."""
        if self.jobs or self.hosting.actors or self.done or self.books.errands:
            self.emit(WorkDropped(node=self.member.id, tasks=len(self.jobs)))
        for child in self.children.all:
            if child.jobs or child.actor:
                child.jobs.clear()
                child.kill("lost")
                settle(child)
        self.jobs.clear()
        self.done.clear()
        self.books.drop()
        self.placement.drop()

    def _read_mail(self) -> None:
        """Take our commands, after work was given out: they only hurry what rows say, and somebody waits."""
        now = self.clock.monotonic()
        node = self.member.node
        if not self._mail or now < max(self._inbox_at, self._retry_at) or node.epoch != self._epoch:
            return
        self._mail = False
        self._inbox_at = now + INBOX_S
        try:
            self._obey(node)
        except StoreError as error:
            self._store_failed(error)

    def _obey(self, node: Node) -> None:
        for command in self.books.commands(node):
            match command:
                case inbox.End():
                    self.care.end(command)
                case inbox.Free():
                    if self.segments is not None:
                        self.segments.delete(command.name)

    def _round(self, node: Node) -> None:
        """Write what is done and claim what fits, in one transaction."""
        wish, rung = None, self._rung
        if (self._heard or self._hungry) and self._may_claim():
            wish = self.placement.wish(self.children.all, self.care.awaited(), startable=self._may_start())
        if wish is not None:
            self._heard = self._rung = False
        elif not self.done:
            return
        done, self.done = self.done, []
        began = self.clock.monotonic()
        try:
            made, claims, specs, starved = self.books.round(node, [item for _, item in done], wish)
        except LeaseLost:
            self.done = done + self.done
            self._heard = True
            if not self.books.stands(node):
                self._lose()
                self.member.wake()
            return  # else: too little time was left to claim, and the next beat brings more
        except StoreError:
            self.done = done + self.done
            self._heard = True
            raise
        for (job, item), ok in zip(done, made, strict=True):
            if ok:
                self._written(job, None)
            else:
                self.books.realize(job, item)
        self._hungry = wish is not None and len(claims) >= wish.limit
        self.care.starved(starved)
        if claims:
            self._load(claims, specs)
        elif rung and self.books.forget_lanes():
            self._heard = True  # it rang, and there was nothing: perhaps in a lane that is new
        self.placement.round_s += 0.1 * (self.clock.monotonic() - began - self.placement.round_s)

    def _load(self, claims: list[Claim], specs: list[bytes | None]) -> None:
        loaded = self.books.load(claims, specs)
        now_us = int(self.clock.monotonic() * 1e6)
        for job in loaded.jobs:
            job.since_us = now_us
            self.jobs[job.id] = job
            if job.spec.actor and job.spec.actor != job.id:
                self._add_call(job)
            else:
                self.placement.here.append(job)
        for job, missing in loaded.unready:
            self.jobs[job.id] = job
            self.books.block(job, missing)

    def _add_call(self, job: Job) -> None:
        actor = self.hosting.actors.get(job.spec.actor)
        if actor is not None:
            actor.add(job)
        else:
            message = "the actor does not live on this node any more"
            self.fail(job, Failure(kind="actor", type="ActorDied", message=message))

    def _run_errands(self, node: Node) -> None:
        while self.books.errands:
            for job, row in self.books.run_errands(node):
                self._written(job, row)
        if self.books.telling:
            self.books.tell_dependents()

    def _written(self, job: Job, row: AnyRow | None) -> None:
        """The store knows how this claim ended."""
        self.jobs.pop(job.id, None)
        if job.spec.actor:
            actor = self.hosting.actors.get(job.spec.actor)
            if actor is not None and job.id != job.spec.actor:
                actor.ended(job, again=isinstance(row, Unclaimed | Blocked))

    def recall_call(self, child: Child, job: Job) -> None:
        """A call that was sent ahead to its actor waits for its turn again."""
        actor = self.hosting.of(child)
        if actor is not None:
            actor.add(job)
            actor.ended(job, again=True)

    def drained(self) -> None:
        """Everything is written: actors die with their node, and then it can go."""
        for actor in list(self.hosting.actors.values()):
            failure = Failure(kind="actor", type="ActorDied", message="the actor's worker has left")
            self.books.actor_died(actor.id, failure)
            self.hosting.remove(actor.id)
            actor.child.kill("lost")
        if not self.books.errands:
            self._idle.set()

    # --- giving out work

    def _place(self) -> None:
        """Resumed tasks go first, then calls of actors, then what was claimed, in its order."""
        placement, children = self.placement, self.children.all
        placement.resume(children)
        batches: dict[Child, list[Job]] = {}
        for actor in self.hosting.actors.values():
            while (job := actor.ready()) is not None and placement.may_call(actor.child, children):
                actor.begin(job)
                self._take(actor.child, job, batches)
        here = placement.here
        while here and not self.draining:
            child = self._child_for(here[0])
            if child is None:
                break
            self._take(child, here.popleft(), batches)
        for child, jobs in batches.items():
            child.give(jobs)
            self.children.watch_writes(child)
            if len(child.jobs) > 1:
                self.care.look_soon()

    def _take(self, child: Child, job: Job, batches: dict[Child, list[Job]]) -> None:
        child.take(job)
        if not child.slotted or job.needs is not NOTHING:
            settle(child)
        batches.setdefault(child, []).append(job)
        if job.spec.progress_timeout_s:
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
