"""Run the cluster demo: three nodes share work through one file, and the leader is killed.

The nodes are real processes (`tidemill.testing.node`), and the demo kills one with SIGKILL. At the end
`tidemill.testing.work.violations` checks what the nodes wrote.
"""

import queue
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tidemill.cli.demo.cluster_screen import ClusterDisplay, ClusterLines, ClusterScreen
from tidemill.cli.demo.cluster_snapshot import ClusterSnapshot, ClusterSummary, LogLine, Tone
from tidemill.cli.output import CommandOutput
from tidemill.clock import SYSTEM, Clock
from tidemill.cluster import leases, nodes, partitions
from tidemill.cluster.states import PartitionState
from tidemill.errors import DemoFailed
from tidemill.store import Store, Tx, open_store
from tidemill.testing.node_process import NodeEvent, NodeProcess
from tidemill.testing.work import PartitionWork, WorkPlan, violations

CLUSTER = "demo"
NAMES = ("n1", "n2", "n3")
PLAN = WorkPlan(partitions=24, units=44, unit_s=0.25)
TTL_S = 3.0
KILL_AT = 0.4  # kill the leader when this share of the work is done
POLL_S = 0.1
LIMIT_S = 120.0


@dataclass(frozen=True)
class LeaderKill:
    """The leader that was killed: its epoch, its partitions, and the time of the kill (monotonic seconds)."""

    leader: NodeProcess
    epoch: int
    partitions: frozenset[str]
    at: float


class ClusterDemo:
    """One run of the demo. `show` receives snapshots of the cluster, `log` receives events."""

    def __init__(
        self,
        home: Path,
        *,
        show: Callable[[ClusterSnapshot], None],
        log: Callable[[LogLine], None],
        clock: Clock,
    ) -> None:
        self.home = home
        self.clock = clock
        self.work = PartitionWork(CLUSTER)
        self.url = f"sqlite://{home.resolve()}/store.db"
        self.nodes: dict[str, NodeProcess] = {}
        self.killed: NodeProcess | None = None
        self._show = show
        self._log = log
        self._started_at = clock.monotonic()
        self._events: queue.Queue[tuple[NodeProcess, NodeEvent]] = queue.Queue()

    def run(self, *, keep: bool) -> ClusterSummary:
        """Start the nodes, kill the leader, wait for the end, and check the result. Takes 15 seconds."""
        with ExitStack() as stack:
            store = stack.enter_context(open_store(self.url, clock=self.clock))
            store.run(lambda tx: self.work.put_plan(tx, PLAN))
            for name in NAMES:
                self.nodes[name] = stack.enter_context(self._start(name))
            return self._run(store, keep=keep)

    def _start(self, name: str) -> NodeProcess:
        return NodeProcess(
            self.url,
            CLUSTER,
            name,
            ttl_s=TTL_S,
            slots=PLAN.partitions,
            arguments=("--until-done",),
            listen=lambda node, event: self._events.put((node, event)),
            stderr=self.home / f"{name}.log",
            clock=self.clock,
        )

    def _run(self, store: Store, *, keep: bool) -> ClusterSummary:
        self._wait_until_shared(store)
        kill = self._kill_leader(store)
        survivors = [node for node in self.nodes.values() if node is not kill.leader]
        self._wait_for_takeover(store, kill, survivors)
        self._wait(store, lambda snapshot: snapshot.finished, "all work was done")
        self._wait(store, lambda _: not any(node.running for node in survivors), "the nodes left")
        for node in survivors:
            if node.wait(timeout_s=LIMIT_S) != 0:
                raise DemoFailed(f"{node.name} exited with an error")
        seconds = self.clock.monotonic() - self._started_at
        self._wait(store, lambda _: True, "the last snapshot")
        return self._summary(store, kill, survivors, seconds, keep=keep)

    def _wait_until_shared(self, store: Store) -> None:
        snapshot = self._wait(
            store, lambda snapshot: snapshot.held() == PLAN.partitions, "every partition was held"
        )
        shares = ", ".join(
            f"{name} has {len(snapshot.held_by(node.id))}" for name, node in self.nodes.items()
        )
        self._add_line(f"all {PLAN.partitions} partitions are held: {shares}", tone="good")

    def _kill_leader(self, store: Store) -> LeaderKill:
        snapshot = self._wait(
            store, lambda snapshot: snapshot.done_share(PLAN) >= KILL_AT, "enough work was done"
        )
        leader = next((node for node in self.nodes.values() if node.id == snapshot.leader_id()), None)
        if leader is None:
            raise DemoFailed("the cluster had no leader to kill")
        kill = LeaderKill(
            leader=leader,
            epoch=int(leader.events("LeaderElected")[-1]["epoch"]),
            partitions=frozenset(snapshot.held_by(leader.id)),
            at=self.clock.monotonic(),
        )
        leader.kill()
        self.killed = leader
        self._add_line(
            f"{leader.name}, the leader, is killed: kill -9 {leader.pid}", node=leader.name, tone="bad"
        )
        return kill

    def _wait_for_takeover(self, store: Store, kill: LeaderKill, survivors: list[NodeProcess]) -> None:
        self._wait(store, lambda _: bool(_elections(survivors, kill.epoch)), "another node became the leader")
        self._wait(
            store,
            lambda _: kill.partitions <= _first_taken(survivors, kill.at).keys(),
            "other nodes held its partitions",
        )
        for node in survivors:
            names = sorted(kill.partitions & _first_taken([node], kill.at).keys())
            text = f"{node.name} resumes {_short(names)} where {kill.leader.name} stopped"
            self._add_line(text, node=node.name, tone="good")

    def _summary(
        self, store: Store, kill: LeaderKill, survivors: list[NodeProcess], seconds: float, *, keep: bool
    ) -> ClusterSummary:
        problems = violations(self.work.history(store), PLAN)
        elections = _elections(survivors, kill.epoch)
        first_taken = _first_taken(survivors, kill.at)
        checks = {
            "another_node_leads": bool(elections),
            "partitions_moved": bool(kill.partitions) and kill.partitions <= first_taken.keys(),
            "every_partition_once": not problems,
        }
        return ClusterSummary(
            ok=all(checks.values()),
            checks=checks,
            nodes=len(self.nodes),
            partitions=PLAN.partitions,
            units=PLAN.partitions * PLAN.units,
            ttl_s=TTL_S,
            failover_s=round(elections[0] - kill.at, 2),
            moved=len(kill.partitions),
            moved_s=round(max(first_taken[name] for name in kill.partitions) - kill.at, 2),
            seconds=round(seconds, 1),
            violations=problems,
            home=str(self.home) if keep else None,
        )

    # --- watching

    def _wait(self, store: Store, ready: Callable[[ClusterSnapshot], bool], goal: str) -> ClusterSnapshot:
        while True:
            self._log_events()
            snapshot = store.run(self._read)
            self._show(snapshot)
            if ready(snapshot):
                return snapshot
            dead = [node for node in self.nodes.values() if node is not self.killed and not node.running]
            if dead and not snapshot.finished:
                raise DemoFailed(f"{dead[0].name} exited too early\n{dead[0]}")
            if self.clock.monotonic() - self._started_at > LIMIT_S:
                raise DemoFailed(f"gave up after {LIMIT_S:g} s, before {goal}")
            self.clock.sleep(POLL_S)

    def _read(self, tx: Tx) -> ClusterSnapshot:
        keys = self.work.keys
        parts = partitions.read_all(tx, keys, self.work.group)
        return ClusterSnapshot(
            seconds=self.clock.monotonic() - self._started_at,
            now_us=tx.now(),
            pids={name: node.pid for name, node in self.nodes.items()},
            ids={name: node.id for name, node in self.nodes.items()},
            dead=self.killed.name if self.killed is not None else "",
            leader=leases.read(tx, keys.leader),
            nodes={node.id: node for node in nodes.read_all(tx, keys)},
            holders={part.id: part.holder for part in parts},
            done={part.id for part in parts if part.state is PartitionState.DONE},
            expired={part.id for part in parts if partitions.is_expired(part, tx.now())},
            progress=self.work.all_progress(tx),
            finished=self.work.is_finished(tx),
        )

    def _add_line(self, text: str, *, node: str = "", tone: Tone = "", at: float | None = None) -> None:
        seconds = (self.clock.monotonic() if at is None else at) - self._started_at
        self._log(LogLine(max(0.0, seconds), node, text, tone))

    def _log_events(self) -> None:
        while not self._events.empty():
            node, event = self._events.get()
            at = float(event["t"])
            match event["type"]:
                case "NodeJoined":
                    self._add_line(f"{node.name} joins (pid {node.pid})", node=node.name, at=at)
                case "LeaderElected":
                    text = f"{node.name} is elected leader, epoch {event['epoch']}"
                    self._add_line(text, node=node.name, tone="good", at=at)
                case "PartitionHandedBack":
                    text = f"{node.name} hands over {_short([event['partition']])}, to balance the load"
                    self._add_line(text, node=node.name, at=at)
                case "PartitionLost" | "NodeLost" | "WriteRefused":
                    self._add_line(f"{node.name}: {event['type']}", node=node.name, tone="bad", at=at)
                case "WorkFinished":
                    self._add_line("all partitions are done", node=node.name, tone="good", at=at)
                case "NodeLeft":
                    self._add_line(f"{node.name} leaves", node=node.name, at=at)


def _short(partitions: list[str]) -> str:
    return " ".join(name[-2:] for name in partitions)


def _elections(nodes: list[NodeProcess], old_epoch: int) -> list[float]:
    """Return the times at which these nodes were elected leader, after the leader of `old_epoch`."""
    events = [event for node in nodes for event in node.events("LeaderElected")]
    return sorted(float(event["t"]) for event in events if event["epoch"] > old_epoch)


def _first_taken(nodes: list[NodeProcess], since: float) -> dict[str, float]:
    """Return, for each partition, when one of these nodes first took it after the time `since`."""
    times: dict[str, float] = {}
    for node in nodes:
        for event in node.events("PartitionTaken"):
            if event["t"] >= since:
                at = times.get(event["partition"], float("inf"))
                times[event["partition"]] = min(at, float(event["t"]))
    return times


def show_cluster(output: CommandOutput, *, keep: bool) -> int:
    """Run the demo in a temporary folder; return its exit code."""
    home = Path(tempfile.mkdtemp(prefix="tidemill-demo-"))
    console = output.people
    display: ClusterDisplay = (
        ClusterScreen(console, PLAN, TTL_S) if ClusterScreen.fits(console) else ClusterLines(console)
    )
    try:
        with display:
            demo = ClusterDemo(home, show=display.show, log=display.log, clock=SYSTEM)
            summary = demo.run(keep=keep)
        display.print_summary(summary)
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
    output.result(summary)
    return 0 if summary.ok else 1
