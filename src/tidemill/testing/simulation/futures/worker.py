"""A simulated worker: the supervisor's loop over the real books, dealings and member, without processes.

It takes its turns as `futures.worker.supervisor.Supervisor` does: hear what ran, settle with the store,
give out work, read the mail. Tasks are threads of the node that say after a while what came of them; nobody
kills them when their claim is over, and their late results are tried on the store's fence.
"""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidemill.cluster.member import Member, random_id
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import MemberState
from tidemill.crash import Crashed
from tidemill.errors import LeaseLost, StoreError
from tidemill.events import Event
from tidemill.futures.protocol import finish, inbox
from tidemill.futures.protocol.finish import Done
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.leader_duties import future_duties
from tidemill.futures.protocol.rows import Failure, Location, Realized, Result
from tidemill.futures.worker.jobs import Job, Wish
from tidemill.futures.worker.ledger import Books, Loaded, result_of
from tidemill.futures.worker.store_session import CLAIM_MARGIN_S, Dealings, Pauses
from tidemill.futures.worker.wire import Loss
from tidemill.store import Tx
from tidemill.store.memory import MemoryWatch
from tidemill.testing.simulation.futures.plan import value_of
from tidemill.testing.simulation.node import SimNode
from tidemill.testing.simulation.scheduler import Actor, Next, Wait

if TYPE_CHECKING:
    from tidemill.testing.simulation.futures.scenario import FutureWork

FETCH_TTLS = 0.02  # how long a task tries to fetch an input that is not there
AHEAD = 1  # claimed beyond what can run at once


class Worker:
    """One life of a worker node."""

    actor: Actor
    member_actor: Actor

    def __init__(self, work: "FutureWork", node: SimNode) -> None:
        self.work = work
        self.node = node
        self.clock = node.clock
        self.ttl_s = work.world.swarm.ttl_s
        self.slots = work.plan.slots
        total = Capacity(cpu=float(self.slots))
        node_id = random_id(node.chance)
        node.tokens.add(node_id)
        self.member = Member(
            work.store,
            work.keys.cluster,
            node=Node(
                id=node_id,
                epoch=0,
                kind="worker",
                address=f"m{node.machine}",
                slots=self.slots,
                total=total.to_node(),
                free=total.to_node(),
            ),
            duties=future_duties(work.keys, work.cluster, ttl_s=self.ttl_s, busy_s=self.ttl_s / 3),
            busy=lambda: bool(self.jobs) or not self.idle,
            clock=self.clock,
            chance=node.chance,
            emit=self._emit,
            ttl_s=self.ttl_s,
            every_s=work.world.swarm.every_s,
        )
        self.books = Books(work.store, work.keys.cluster, node.chance)
        self.jobs: dict[bytes, Job] = {}
        self.here: deque[Job] = deque()
        self.running: dict[bytes, Job] = {}
        self.done: list[tuple[Job, Done]] = []
        self._dealings = Dealings(
            self.books,
            node_id,
            clock=self.clock,
            chance=node.chance,
            emit=self._emit,
            pauses=Pauses(self.ttl_s / 4, 2 * self.ttl_s, self.ttl_s / 50, self.ttl_s / 10),
        )
        self.said: deque[tuple[Job, str, list[Loss]]] = deque()
        self.idle = False
        self._late: deque[Job] = deque()
        self._lives: dict[int, Node] = {}  # our entry in the list, by epoch
        self._drain_by: float | None = None
        self._leaving = False
        self._epoch = 0
        self._heard = self._mail = True
        self._rung = self._hungry = False
        watch = work.store.watch([work.keys.bell, work.keys.inbox[node_id]])
        assert isinstance(watch, MemoryWatch)
        self._bell = watch.event
        node.at_end.append(watch.close)
        self.member_actor = node.spawn("member", self._tick)
        self.actor = node.spawn("worker", self._turn)

    def _emit(self, event: Event) -> None:
        self.work.world.tell(self.node.name, type(event).__name__)

    def drain(self, grace_s: float) -> None:
        if self._drain_by is None:
            self._drain_by = self.clock.monotonic() + grace_s
            self.node.wake(self.actor)

    # --- its threads

    def _tick(self) -> Next:
        wait_s = self.member.tick()
        if self.member.state is MemberState.GONE:
            self.work.world.leave(self.node)
            return None
        return wait_s

    def _turn(self) -> Next:
        if self._bell.is_set():
            self._bell.clear()
            self._heard = self._rung = self._mail = True
        self._hear()
        if self._drain_by is not None:
            self._drain(self._drain_by)
            if self.idle:
                return None
        self._settle()
        self._place()
        self._read_mail()
        return Wait(self._bell, self._pause_s())

    def _pause_s(self) -> float:
        now = self.clock.monotonic()
        if now < self._dealings.retry_at:
            return self._dealings.retry_at - now
        if self.said or self.done or self.books.errands or self.books.telling or self._dealings.unloaded:
            return 0.0
        if (self._heard or self._hungry) and self._wish() is not None:
            return 0.0
        at = (
            self._dealings.poll_at
            if self._drain_by is None
            else min(self._dealings.poll_at, max(self._drain_by, now + 0.05))
        )
        return max(0.0, at - now)

    # --- what tasks say

    def _hear(self) -> None:
        while self.said:
            job, outcome, losses = self.said.popleft()
            if self.running.get(job.id) is not job:
                if outcome == "made":
                    self._late.append(job)
                continue
            del self.running[job.id]
            self._heard = True
            match outcome:
                case "made":
                    self.done.append((job, result_of(job, self._result(job), self.member.node)))
                case "cancelled":
                    self.books.cancelled(job)
                case "missing":
                    self.books.block(job, [loss.id for loss in losses], losses)
                case kind:
                    self.books.fail(job, Failure(kind=kind, type="Planned", message=kind))

    def _write_late(self) -> None:
        """What a task made after its claim was over, as one would write who does not know: it is refused."""
        while self._late:
            job = self._late.popleft()
            node = self._lives[job.claim.row.node_epoch]
            done = result_of(job, self._result(job), node)
            try:
                if not self.books.round(node, [done], None).made[0]:
                    self.work.store.run(partial(self._realize, node=node, done=done))
            except (LeaseLost, StoreError):
                continue

    def _realize(self, tx: Tx, node: Node, done: Done) -> None:
        finish.realize(tx, self.work.keys, self.work.cluster, node, done)

    def _result(self, job: Job) -> Result:
        inputs = [msgspec.msgpack.decode(result.head, type=int) for _, result in job.inputs]
        head = msgspec.msgpack.encode(value_of(job.spec.name, inputs))
        location = Location(kind="inline")
        if self.work.calls[job.spec.name].big:
            job.segment = self.work.keep_segment(self.node)
            location = Location(kind="segment", name=job.segment)
        return Result(version=0, at=0, size=len(head), location=location, head=head)

    # --- the store

    def _may_claim(self) -> bool:
        membership = self.member.membership
        left_s = membership.deadline + self.ttl_s / 5 - self.clock.monotonic()
        return membership.accepts() and self._drain_by is None and left_s > CLAIM_MARGIN_S

    def _wish(self) -> Wish | None:
        limit = self.slots + AHEAD - len(self.running) - len(self.here) - len(self._dealings.unloaded)
        if limit < 1 or not self._may_claim():
            return None
        return Wish(limit, Capacity(cpu=float(limit)))

    def _settle(self) -> None:
        node, now = self.member.node, self.clock.monotonic()
        if now < self._dealings.retry_at:
            return
        alive = self.member.membership.alive()
        if self._epoch and (not alive or node.epoch != self._epoch):
            self._lose()
        if not alive:
            self._dealings.retry_at = now + self.ttl_s / 30
            return
        self._dealings.settle(node, lambda: self._deal(node), self._refused)

    def _deal(self, node: Node) -> None:
        dealings = self._dealings
        self._write_late()
        if self._epoch != node.epoch:
            self._joined(node)
        if dealings.is_poll_due():
            self._heard = self._mail = True
        self._round(node)
        if dealings.unloaded:
            self._add(dealings.load())
        self._run_errands(node)
        if dealings.is_audit_due():
            dealings.tell_given_back(dealings.strays(node, self.jobs))
            dealings.audit_later()

    def _refused(self, stands: bool) -> None:
        """The store refused us: our lease is over, or too little of it was left to claim."""
        self._dealings.retry_at = self.clock.monotonic() + self.ttl_s / 30
        if not stands:
            self._lose()
            self.node.wake(self.member_actor)

    def _joined(self, node: Node) -> None:
        given = self._dealings.all_of(lambda: self.books.reclaim(node))
        self._dealings.tell_given_back(given + self._dealings.strays(node, ()))
        self._lives[node.epoch] = node
        self._dealings.audit_later()
        self._epoch = node.epoch

    def _lose(self) -> None:
        """Our lease is over. What was said under it is forgotten with the jobs."""
        self._epoch = 0
        self._dealings.unloaded.clear()
        self.jobs.clear()
        self.here.clear()
        self.running.clear()
        self.done.clear()
        self.books.drop()

    def _round(self, node: Node) -> None:
        rung = self._rung
        wish = self._wish() if self._heard or self._hungry else None
        if wish is not None:
            self._heard = self._rung = False
        elif not self.done:
            return
        done, self.done = self.done, []
        try:
            found = self.books.round(node, [item for _, item in done], wish)
        except (LeaseLost, StoreError):
            self.done = done + self.done
            self._heard = True
            raise
        for (job, item), ok in zip(done, found.made, strict=True):
            if ok:
                self.jobs.pop(job.id, None)
            else:
                self.books.realize(job, item)
        self._hungry = wish is not None and len(found.claims) >= wish.limit
        if found.claims:
            self._dealings.claimed(found)
        elif rung and self.books.forget_lanes():
            self._heard = True

    def _add(self, loaded: Loaded) -> None:
        for job in loaded.jobs:
            self.jobs[job.id] = job
            self.here.append(job)
        for job, missing in loaded.unready:
            self.jobs[job.id] = job
            self.books.block(job, missing)

    def _run_errands(self, node: Node) -> None:
        while self.books.errands:
            for job, row in self.books.run_errands(node):
                self.jobs.pop(job.id, None)
                if job.segment and not isinstance(row, Realized):
                    self.work.drop_segment(job.segment)  # the store refused it
        if self.books.telling:
            self.books.tell_dependents()

    def _read_mail(self) -> None:
        node = self.member.node
        if not self._mail or self.clock.monotonic() < self._dealings.retry_at or node.epoch != self._epoch:
            return
        self._mail = False
        try:
            commands = self.books.commands(node)
        except StoreError as error:
            self._mail = True
            self._dealings.failed(error)
            return
        for command in commands:
            match command:
                case inbox.End():
                    self._end(command)
                case inbox.Free():
                    self.work.drop_segment(command.name)

    def _end(self, command: inbox.End) -> None:
        job = self.jobs.get(command.id)
        if job is None or job.claim.epoch != command.epoch or job.ending:
            return
        job.ending = command.why
        if job in self.here:
            self.here.remove(job)
            self.books.cancelled(job)
        elif job.id in self.running:
            self._say_later(job, "cancelled", [], self.ttl_s * 0.1 * self.node.chance.random())

    # --- tasks

    def _place(self) -> None:
        while self.here and len(self.running) < self.slots and self._drain_by is None:
            job = self.here.popleft()
            self.running[job.id] = job
            call, tally = self.work.calls[job.spec.name], job.claim.row.tally
            losses = [
                Loss(up, result.version, result.location.node, self.node.chance.random() < 0.7)
                for up, result in job.inputs
                if self.work.is_lost(result)
            ]
            outcome = "made"
            if losses:
                outcome = "missing"
            elif self.work.kills[job.spec.name] < call.kills:
                outcome = "kill"
            elif tally.crashes < call.crashes:
                outcome = "crash"
            elif tally.exceptions < call.raises:
                outcome = "exception"
            after_s = self.ttl_s * FETCH_TTLS if losses else call.takes_s
            self._say_later(job, outcome, losses, after_s)

    def _say_later(self, job: Job, outcome: str, losses: list[Loss], after_s: float) -> None:
        def say() -> Next:
            if outcome == "kill" and self.running.get(job.id) is job:
                self.work.kills[job.spec.name] += 1
                raise Crashed(f"by {job.spec.name}")
            self.said.append((job, outcome, losses))
            self.node.wake(self.actor)
            return None

        self.node.spawn(f"task {job.spec.name}", say, after_s)

    # --- leaving

    def _drain(self, by: float) -> None:
        if not self._leaving:
            self._leaving = True
            grace_s = max(0.0, by - self.clock.monotonic()) + self.ttl_s
            self.member.drain(grace_s)
            self.node.wake(self.member_actor)
        while self.here:
            self.books.relinquish(self.here.popleft())
        if self.clock.monotonic() >= by:
            for job in self.running.values():
                self.books.relinquish(job)
            self.running.clear()
        if not self.jobs and not self.done and not self.books.errands and not self._dealings.unloaded:
            self.idle = True
            self.node.wake(self.member_actor)
