"""A simulated worker: the real claim loop, ledger and member, with planned events instead of processes.

A task is a planned event that says after a while how it ended. The event happens even if the task's claim is
over by then: its late result tests the store's fence.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.futures.plan import value_of
from tests.simulation.scheduler import Next, SimNode, SimulatedThread, Wait
from tidemill.cluster.member import Member, random_id
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import MemberState
from tidemill.crash import Crashed
from tidemill.errors import LeaseLost, StoreError
from tidemill.events import Event
from tidemill.futures.protocol import finish
from tidemill.futures.protocol.finish import Completion
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.leader_duties import future_duties
from tidemill.futures.protocol.rows import Failure, Location, Result
from tidemill.futures.protocol.states import FutureState
from tidemill.futures.worker.claim_loop import ClaimLoop, Executor, all_pages
from tidemill.futures.worker.jobs import ClaimRequest, FutureJob
from tidemill.futures.worker.ledger import Ledger, result_of
from tidemill.futures.worker.store_session import Pauses
from tidemill.futures.worker.wire import Loss
from tidemill.store import Tx
from tidemill.store.memory import MemoryWatch

if TYPE_CHECKING:
    from tests.simulation.futures.scenario import FutureWork

FETCH_TTLS = 0.02  # how long a task tries to fetch a missing input
AHEAD = 1  # claimed in addition to the free slots
WRITTEN_LATE = ("made", "exception", "crash")


def planned_failure(kind: str) -> Failure:
    return Failure(kind=kind, type="Planned", message=kind)


class SimulatedTasks(Executor):
    """Runs jobs as planned events of a simulated node."""

    def __init__(self, work: "FutureWork", node: SimNode, ledger: Ledger) -> None:
        self.ledger = ledger
        self.slots = work.plan.slots
        self.waiting: deque[FutureJob] = deque()  # claimed, not begun
        self.running: dict[bytes, FutureJob] = {}
        self.draining = False
        self.ended: deque[tuple[FutureJob, str, list[Loss]]] = deque()
        self.late: deque[tuple[FutureJob, str]] = deque()  # ended after their claim, with this outcome
        self.entries: dict[int, Node] = {}  # our entry in the node list, by epoch
        self.thread: SimulatedThread | None = None  # woken when a task has ended
        self._work = work
        self._node = node
        self._ttl_s = work.world.swarm.ttl_s

    # --- how tasks end

    def collect(self) -> None:
        """Report the tasks that have ended to the ledger."""
        while self.ended:
            job, outcome, losses = self.ended.popleft()
            if self.running.get(job.id) is not job:
                if outcome in WRITTEN_LATE:
                    self.late.append((job, outcome))
                continue
            del self.running[job.id]
            self.room_changed = True
            match outcome:
                case "made":
                    self.ledger.finished(job, self.result(job))
                case "cancelled":
                    self.ledger.cancelled(job)
                case "missing":
                    self.ledger.block(job, [loss.id for loss in losses], losses)
                case kind:
                    self.ledger.failed(job, planned_failure(kind))

    def result(self, job: FutureJob) -> Result:
        """Return the result of a task, in the row or in a segment of its node."""
        inputs = [msgspec.msgpack.decode(result.head, type=int) for _, result in job.inputs]
        head = msgspec.msgpack.encode(value_of(job.spec.name, inputs))
        location = Location(kind="inline")
        if self._work.calls[job.spec.name].big:
            job.segment = self._work.keep_segment(self._node)
            location = Location(kind="segment", name=job.segment)
        return Result(version=0, at=0, size=len(head), location=location, head=head)

    def _end_later(self, job: FutureJob, outcome: str, losses: list[Loss], after_s: float) -> None:
        def end() -> Next:
            if outcome == "kill" and self.running.get(job.id) is job:
                self._work.kills[job.spec.name] += 1
                raise Crashed(f"by {job.spec.name}")
            self.ended.append((job, outcome, losses))
            assert self.thread is not None
            self._node.wake(self.thread)
            return None

        self._node.spawn(f"task {job.spec.name}", end, after_s)

    # --- the executor

    def request(self) -> ClaimRequest | None:
        limit = self.slots + AHEAD - len(self.running) - len(self.waiting)
        return ClaimRequest(limit, Capacity(cpu=float(limit))) if limit > 0 else None

    def start(self, jobs: Sequence[FutureJob]) -> None:
        self.waiting.extend(jobs)

    def place(self) -> None:
        while self.waiting and len(self.running) < self.slots and not self.draining:
            job = self.waiting.popleft()
            self.running[job.id] = job
            call, tally = self._work.calls[job.spec.name], job.claim.row.tally
            losses = [
                Loss(up, result.version, result.location.node, self._node.chance.random() < 0.7)
                for up, result in job.inputs
                if self._work.is_lost(result)
            ]
            outcome = "made"
            if losses:
                outcome = "missing"
            elif self._work.kills[job.spec.name] < call.kills:
                outcome = "kill"
            elif tally.crashes < call.crashes:
                outcome = "crash"
            elif tally.exceptions < call.raises:
                outcome = "exception"
            after_s = self._ttl_s * FETCH_TTLS if losses else call.takes_s
            self._end_later(job, outcome, losses, after_s)

    def settled(self, job: FutureJob, state: FutureState | None) -> None:
        if job.segment and state is not FutureState.REALIZED:
            self.delete_result(job.segment)  # the store refused it

    def interrupt(self, job: FutureJob) -> None:
        if job in self.waiting:
            self.waiting.remove(job)
            self.ledger.cancelled(job)
        elif job.id in self.running:
            self._end_later(job, "cancelled", [], self._ttl_s * 0.1 * self._node.chance.random())

    def drain(self, by: float) -> None:
        self.draining = True
        while self.waiting:
            self.ledger.relinquish(self.waiting.popleft())
        if self._node.clock.monotonic() >= by:
            for job in self.running.values():
                self.ledger.relinquish(job)
            self.running.clear()

    def drop(self) -> None:
        self.waiting.clear()
        self.running.clear()

    def recover(self, node: Node) -> int:
        self.entries[node.epoch] = node
        return all_pages(lambda: self.ledger.reclaim(node))

    def delete_result(self, name: str) -> None:
        self._work.drop_segment(name)


class SimulatedWorker:
    """One run of a worker node."""

    thread: SimulatedThread
    member_thread: SimulatedThread

    def __init__(self, work: "FutureWork", node: SimNode) -> None:
        self.work = work
        self.node = node
        self.clock = node.clock
        self.ttl_s = work.world.swarm.ttl_s
        total = Capacity(cpu=float(work.plan.slots))
        node_id = random_id(node.chance)
        node.tokens.add(node_id)
        context = ClusterContext(
            store=work.store,
            cluster=work.keys.cluster,
            clock=self.clock,
            chance=node.chance,
            emit=self._emit,
            timing=work.world.swarm.timing,
        )
        self.member = Member(
            context,
            Node(
                id=node_id,
                epoch=0,
                kind="worker",
                address=f"m{node.machine}",
                slots=work.plan.slots,
                total=total.to_node(),
                free=total.to_node(),
            ),
            duties=future_duties(work.keys, work.cluster, ttl_s=self.ttl_s, busy_s=self.ttl_s / 3),
            busy=lambda: not self.idle,
        )
        ledger = Ledger(work.store, work.keys.cluster, node_id, node.chance, emit=self._emit)
        self.tasks = SimulatedTasks(work, node, ledger)
        ttl_s = self.ttl_s
        pauses = Pauses(ttl_s / 4, 2 * ttl_s, ttl_s / 50, ttl_s / 10, ttl_s / 30)
        self.claims = ClaimLoop(ledger, self.member.membership, self.tasks, self.clock, pauses)
        self.idle = False
        self._leaving = False
        watch = work.store.watch([work.keys.bell, work.keys.inbox[node_id]])
        assert isinstance(watch, MemoryWatch)
        self._bell = watch.event
        node.at_end.append(watch.close)
        self.member_thread = node.spawn("member", self._tick)
        self.thread = self.tasks.thread = node.spawn("worker", self._step)

    @property
    def jobs(self) -> dict[bytes, FutureJob]:
        return self.claims.ledger.jobs

    def _emit(self, event: Event) -> None:
        self.work.world.record(self.node.name, type(event).__name__)

    def drain(self, grace_s: float) -> None:
        if self.claims.drain_by is None:
            self.claims.drain(self.clock.monotonic() + grace_s)
            self.node.wake(self.thread)

    def _tick(self) -> Next:
        wait_s = self.member.tick()
        if self.member.state is MemberState.GONE:
            self.work.world.leave(self.node)
            return None
        return wait_s

    def _step(self) -> Next:
        if self._bell.is_set():
            self._bell.clear()
            self.claims.on_work()
            self.claims.on_mail()
        self.tasks.collect()
        by = self.claims.drain_by
        if by is not None and not self._leaving:
            self._leaving = True
            self.member.drain(max(0.0, by - self.clock.monotonic()) + self.ttl_s)
            self.node.wake(self.member_thread)
        self._write_late()
        self.claims.run_once()
        if self._leaving and self.claims.is_drained:
            self.idle = True
            self.node.wake(self.member_thread)
            return None
        pause_s = self.claims.pause_s()
        if by is not None:
            pause_s = min(pause_s, max(by - self.clock.monotonic(), 0.05))
        return Wait(self._bell, 0.0 if self.tasks.ended else pause_s)

    def _write_late(self) -> None:
        """Write results and failures whose claim is over, as a stale node would. The store refuses them."""
        while self.tasks.late and self.member.membership.alive():
            job, outcome = self.tasks.late.popleft()
            node = self.tasks.entries[job.claim.row.node_epoch]
            try:
                if outcome != "made":
                    self.work.store.run(partial(self._fail, node=node, job=job, kind=outcome))
                    continue
                completion = result_of(job, self.tasks.result(job), node)
                if not self.claims.ledger.round(node, [completion], None).written[0]:
                    self.work.store.run(partial(self._realize, node=node, completion=completion))
            except (LeaseLost, StoreError):
                continue

    def _fail(self, tx: Tx, node: Node, job: FutureJob, kind: str) -> None:
        finish.fail(tx, self.work.keys, self.work.cluster, node, job.claim, planned_failure(kind), jitter=0.5)

    def _realize(self, tx: Tx, node: Node, completion: Completion) -> None:
        finish.realize(tx, self.work.keys, self.work.cluster, node, completion)
