"""A program that runs one node of a cluster, for tests with real processes and for the demo.

    python -m tidemill.testing.node --store sqlite:///tmp/x/store.db --cluster c --slots 4 --ttl-s 2

The node joins the cluster, takes part in elections, and works on the partitions of a plan in the store
(`tidemill.testing.work`), each in a separate thread. It prints one JSON object per event. The field
`t` is the machine's monotonic time in seconds, which is the same for all processes of the machine. SIGTERM
drains the node, and a second SIGTERM ends it.

`--careless` makes the node a bad lease holder on purpose: it ignores its deadline and does not stop when its
lease is over. Then only the store protects the data, by refusing writes under old epochs. Tests show that
this is enough.
"""

import argparse
import os
import random
import signal
import sys
import threading
from collections.abc import Callable

import msgspec

from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.leader import Tenure
from tidemill.cluster.leases import LeaseTiming
from tidemill.cluster.member import Member, random_id
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import MemberState
from tidemill.errors import LeaseLost, StoreError, TidemillError
from tidemill.events import Emit, Event
from tidemill.futures.worker.processes import die_with_parent
from tidemill.store import Store, Tx, open_store
from tidemill.testing.fake_clock import ShiftedClock
from tidemill.testing.holdings import HeldPartition, PartitionMember
from tidemill.testing.work import PartitionWork, WorkPlan

STORE_VARIABLE = "TIDEMILL_STORE"
ENDING = {signal.SIGTERM, signal.SIGINT}


class Started(Event, frozen=True):
    """The program has started. Next it joins the cluster."""

    node: str
    pid: int


class WriteRefused(Event, frozen=True):
    """The store refused a write under an old epoch; nothing was committed."""

    node: str
    partition: str
    epoch: int
    why: str


class NodeStoreAway(Event, frozen=True):
    """The store did not answer. The thread that works on the partition retries while its lease lasts."""

    node: str
    partition: str
    error: str


class WorkFinished(Event, frozen=True):
    """All partitions are done. The leader emits this event."""

    node: str


class PartitionThread:
    """A partition, and the thread that works on it."""

    def __init__(self, held: HeldPartition) -> None:
        self.held = held
        self.stopping = threading.Event()


class PartitionHost:
    """A `Host` that runs one thread for each partition that the node holds."""

    def __init__(
        self, store: Store, work: PartitionWork, *, clock: Clock, emit: Emit, careless: bool = False
    ) -> None:
        self.store = store
        self.work = work
        self.clock = clock
        self.emit = emit
        self.careless = careless
        self.member: PartitionMember | None = None
        self._jobs: dict[HeldPartition, PartitionThread] = {}

    def start(self, held: HeldPartition) -> None:
        job = self._jobs[held] = PartitionThread(held)
        threading.Thread(target=self._run, args=(job,), name=f"part-{held.part.id}", daemon=True).start()

    def stop(self, held: HeldPartition) -> None:
        job = self._jobs.get(held)
        if job is not None:
            job.stopping.set()

    def abort(self, held: HeldPartition) -> None:
        if not self.careless:
            self.stop(held)

    def _run(self, job: PartitionThread) -> None:
        assert self.member is not None
        try:
            while self._continue(job, self.member):
                pass
        except LeaseLost as lost:
            part = job.held.part
            self.emit(WriteRefused(node=self.member.id, partition=part.id, epoch=part.epoch, why=str(lost)))
        finally:
            self._jobs.pop(job.held, None)
            self.member.wake()

    def _continue(self, job: PartitionThread, member: PartitionMember) -> bool:
        """Do one unit of work; return False if it was the last one.

        If the store does not answer, wait and return True. Raise `LeaseLost` if the lease is over.
        """
        held = job.held
        try:
            if not self.careless:
                held.check()
            if job.stopping.is_set():
                member.holdings.hand_back(held)
                return False
            plan = self.store.run(self.work.plan)
            count = self.store.run(lambda tx: self.work.write_unit(tx, held.part, member.id))
            if plan is not None and count >= plan.units:
                member.holdings.complete(held, lambda tx: self.work.write_end(tx, held.part, member.id))
                return False
        except StoreError as error:
            self.emit(NodeStoreAway(node=member.id, partition=held.part.id, error=error.message))
            plan = None
        self.clock.wait(job.stopping, plan.unit_s if plan is not None else 0.1)
        return True


def duties(
    work: PartitionWork, emit: Emit, node_id: str, every_s: float
) -> dict[str, Callable[[Tenure], float]]:
    """Return the leader's duties: create the partitions of the plan, and report when all of them are done."""

    def create(tenure: Tenure) -> float:
        return every_s if tenure.run(lambda tx: work.create(tx, tenure.epoch)) else every_s / 4

    def finish(tenure: Tenure) -> float:
        def step(tx: Tx) -> bool:
            return not work.is_finished(tx) and work.finish(tx)

        if tenure.run(step):
            emit(WorkFinished(node=node_id))
        return every_s / 2

    return {"create partitions": create, "finish": finish}


class Printer:
    """Prints events as JSON lines on standard output, each with the time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        line = {"t": round(self._clock.monotonic(), 4), **msgspec.to_builtins(event)}
        with self._lock:
            try:
                sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                pass  # no one reads the events any more; the work continues


def run(options: argparse.Namespace) -> int:
    """Run a node until it is drained, or until all work is done."""
    if options.parent:
        die_with_parent(options.parent)
    clock: Clock = ShiftedClock(SYSTEM, wall_s=options.wall_offset_s) if options.wall_offset_s else SYSTEM
    emit = Printer(clock)
    chance = random.Random()
    work = PartitionWork(options.cluster)
    timing = LeaseTiming(options.ttl_s, options.every_s)
    node = Node(
        id=f"{options.name}-{random_id(chance)[:8]}", epoch=0, address=options.name, slots=options.slots
    )
    with open_store(options.store, clock=clock) as store:
        if options.partitions:
            plan = WorkPlan(partitions=options.partitions, units=options.units, unit_s=options.unit_s)
            store.run(lambda tx: work.put_plan(tx, plan))
        host = PartitionHost(store, work, clock=clock, emit=emit, careless=options.careless)
        context = ClusterContext(
            store=store, cluster=options.cluster, clock=clock, chance=chance, emit=emit, timing=timing
        )
        member = PartitionMember(
            context,
            node,
            [work.group],
            host,
            duties=duties(work, emit, node.id, timing.every_s),
            pause_s=timing.every_s / 4,
        )
        host.member = member
        emit(Started(node=node.id, pid=os.getpid()))
        _drain_on_signals(member, options.grace_s)
        if options.until_done:
            _drain_when_done(store, work, member, options)
        member.run()
    return 0


def _drain_on_signals(member: Member, grace_s: float) -> None:
    """Handle signals in a thread. A signal handler could interrupt the main thread while it holds a lock."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)

    def wait() -> None:
        signal.sigwait(ENDING)
        member.drain(grace_s)
        signal.sigwait(ENDING)
        os._exit(130)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _drain_when_done(store: Store, work: PartitionWork, member: Member, options: argparse.Namespace) -> None:
    def wait() -> None:
        with store.watch([work.finished]) as watch:
            while member.state is not MemberState.GONE:
                try:
                    if store.run(work.is_finished):
                        break
                except StoreError:
                    pass  # retried below
                watch.wait(options.ttl_s / 4)
        member.drain(options.grace_s)

    threading.Thread(target=wait, name="done", daemon=True).start()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(
        prog="python -m tidemill.testing.node", description="One node of a cluster."
    )
    arguments.add_argument(
        "--store",
        default=os.environ.get(STORE_VARIABLE),
        help=f"the URL of the store; default: ${STORE_VARIABLE}",
    )
    arguments.add_argument("--cluster", required=True, help="the cluster's name")
    arguments.add_argument("--name", default="node", help="the beginning of the node's id")
    arguments.add_argument(
        "--slots", type=int, default=4, help="how many partitions the node works on at the same time"
    )
    arguments.add_argument("--ttl-s", type=float, default=15.0, help="how long leases last without renewal")
    arguments.add_argument(
        "--every-s", type=float, default=0.0, help="how often the node renews its leases; default: ttl / 5"
    )
    arguments.add_argument("--grace-s", type=float, default=5.0, help="how long a drain may take")
    arguments.add_argument(
        "--wall-offset-s", type=float, default=0.0, help="how much to shift its wall clock"
    )
    arguments.add_argument("--careless", action="store_true", help="ignore the deadline of its leases")
    arguments.add_argument("--until-done", action="store_true", help="end when all partitions are done")
    arguments.add_argument("--parent", type=int, default=0, help="end when this parent process ends")
    arguments.add_argument("--partitions", type=int, default=0, help="store a plan with this many partitions")
    arguments.add_argument("--units", type=int, default=10, help="units of work in each partition")
    arguments.add_argument("--unit-s", type=float, default=0.05, help="how many seconds a unit takes")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run the program. Return 0, or print the error and return 1."""
    arguments = parser()
    options = arguments.parse_args(argv)
    if not options.store:
        arguments.error(f"--store or ${STORE_VARIABLE} is needed")
    try:
        return run(options)
    except TidemillError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
