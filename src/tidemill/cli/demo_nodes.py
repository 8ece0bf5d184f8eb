"""`tidemill demo --nodes`: three nodes share work through one file, the leader is killed, nothing is lost.

The nodes are real processes (`tidemill.testing.node`), the killing is a real SIGKILL, and the summary says
what was measured. What the nodes wrote is judged at the end by `tidemill.testing.work.violations`.
"""

import queue
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tidemill.cli.demo_scene import Line, Sight, Summary, Tone
from tidemill.cli.demo_screen import Lines, Picture, Screen
from tidemill.cli.output import Output
from tidemill.clock import SYSTEM, Clock
from tidemill.cluster import leases, nodes, partitions
from tidemill.cluster.states import PartitionState
from tidemill.errors import DemoFailed
from tidemill.store import Store, Tx, open_store
from tidemill.testing.node_process import NodeProcess, Told
from tidemill.testing.work import Plan, Work, violations

CLUSTER = "demo"
NAMES = ("n1", "n2", "n3")
PLAN = Plan(partitions=24, units=44, unit_s=0.25)
TTL_S = 3.0
KILL_AT = 0.4  # of the work
LOOK_EVERY_S = 0.1
LIMIT_S = 120.0


class Demo:
    """The run: start, share, kill, move, finish, judge. `watch` is shown what is, `tell` what happened."""

    def __init__(
        self, home: Path, *, watch: Callable[[Sight], None], tell: Callable[[Line], None], clock: Clock
    ) -> None:
        self.home = home
        self.clock = clock
        self.work = Work(CLUSTER)
        self.url = f"sqlite://{home.resolve()}/store.db"
        self.nodes: dict[str, NodeProcess] = {}
        self.killed: NodeProcess | None = None
        self._watch = watch
        self._tell = tell
        self._begun = clock.monotonic()
        self._news: queue.Queue[tuple[NodeProcess, Told]] = queue.Queue()

    def run(self, *, kept: bool) -> Summary:
        """The whole play; about a quarter of a minute."""
        with ExitStack() as stack:
            store = stack.enter_context(open_store(self.url, clock=self.clock))
            store.run(lambda tx: self.work.put_plan(tx, PLAN))
            for name in NAMES:
                self.nodes[name] = stack.enter_context(self._started(name))
            return self._play(store, kept=kept)

    def _started(self, name: str) -> NodeProcess:
        return NodeProcess(
            self.url,
            CLUSTER,
            name,
            ttl_s=TTL_S,
            slots=PLAN.partitions,
            arguments=("--until-done",),
            listen=lambda node, told: self._news.put((node, told)),
            stderr=self.home / f"{name}.log",
            clock=self.clock,
        )

    def _play(self, store: Store, *, kept: bool) -> Summary:
        sight = self._until(store, lambda sight: sight.in_hand() == PLAN.partitions, "all is in hand")
        shares = ", ".join(f"{name} has {len(sight.held_by(node.id))}" for name, node in self.nodes.items())
        self._say(f"all {PLAN.partitions} partitions are in hand: {shares}", tone="good")
        sight = self._until(store, lambda sight: sight.done_share(PLAN) >= KILL_AT, "some work is done")
        leader = next((node for node in self.nodes.values() if node.id == sight.leader_id()), None)
        if leader is None:
            raise DemoFailed("nobody led when the leader was to be killed")

        orphans = set(sight.held_by(leader.id))
        old_epoch = int(leader.events("LeaderElected")[-1]["epoch"])
        killed_at = self.clock.monotonic()
        leader.kill()
        self.killed = leader
        self._say(f"{leader.name}, the leader, is killed: kill -9 {leader.pid}", node=leader.name, tone="bad")

        others = [node for node in self.nodes.values() if node is not leader]
        self._until(store, lambda _: bool(_elections(others, old_epoch)), "another node leads")
        self._until(store, lambda _: orphans <= _taken(others, killed_at).keys(), "its work has moved")
        for node in others:
            names = sorted(orphans & _taken([node], killed_at).keys())
            text = f"{node.name} goes on with {_short(names)}, where {leader.name} stopped"
            self._say(text, node=node.name, tone="good")
        self._until(store, lambda sight: sight.finished, "all is done")
        self._until(store, lambda _: not any(node.running for node in others), "the nodes have left")
        for node in others:
            if node.wait(timeout_s=LIMIT_S) != 0:
                raise DemoFailed(f"{node.name} did not leave in good order")
        seconds = self.clock.monotonic() - self._begun
        self._until(store, lambda _: True, "a last look")

        wrong = violations(self.work.history(store), PLAN)
        taken = _taken(others, killed_at)
        checks = {
            "another_node_leads": bool(_elections(others, old_epoch)),
            "the_work_of_the_dead_moved": bool(orphans) and orphans <= taken.keys(),
            "every_partition_done_exactly_once": not wrong,
        }
        return Summary(
            ok=all(checks.values()),
            checks=checks,
            nodes=len(self.nodes),
            partitions=PLAN.partitions,
            units=PLAN.partitions * PLAN.units,
            ttl_s=TTL_S,
            failover_s=round(_elections(others, old_epoch)[0] - killed_at, 2),
            moved=len(orphans),
            moved_s=round(max(taken[name] for name in orphans) - killed_at, 2),
            seconds=round(seconds, 1),
            wrong=wrong,
            home=str(self.home) if kept else None,
        )

    # --- watching

    def _until(self, store: Store, ready: Callable[[Sight], bool], what: str) -> Sight:
        while True:
            self._tell_news()
            sight = store.run(self._look)
            self._watch(sight)
            if ready(sight):
                return sight
            dead = [node for node in self.nodes.values() if node is not self.killed and not node.running]
            if dead and not sight.finished:
                raise DemoFailed(f"{dead[0].name} ended before its time\n{dead[0]}")
            if self.clock.monotonic() - self._begun > LIMIT_S:
                raise DemoFailed(f"it took more than {LIMIT_S:g} s until {what}")
            self.clock.sleep(LOOK_EVERY_S)

    def _look(self, tx: Tx) -> Sight:
        keys = self.work.keys
        parts = partitions.read_all(tx, keys, self.work.group)
        return Sight(
            seconds=self.clock.monotonic() - self._begun,
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

    def _say(self, text: str, *, node: str = "", tone: Tone = "", at: float | None = None) -> None:
        seconds = (self.clock.monotonic() if at is None else at) - self._begun
        self._tell(Line(max(0.0, seconds), node, text, tone))

    def _tell_news(self) -> None:
        while not self._news.empty():
            node, told = self._news.get()
            at = float(told["t"])
            match told["type"]:
                case "NodeJoined":
                    self._say(f"{node.name} joins (pid {node.pid})", node=node.name, at=at)
                case "LeaderElected":
                    text = f"{node.name} is elected leader, epoch {told['epoch']}"
                    self._say(text, node=node.name, tone="good", at=at)
                case "PartitionHandedBack":
                    text = f"{node.name} gives {_short([told['partition']])} away, for balance"
                    self._say(text, node=node.name, at=at)
                case "PartitionLost" | "NodeLost" | "WriteRefused":
                    self._say(f"{node.name}: {told['type']}", node=node.name, tone="bad", at=at)
                case "WorkFinished":
                    self._say("all partitions are done", node=node.name, tone="good", at=at)
                case "NodeLeft":
                    self._say(f"{node.name} leaves", node=node.name, at=at)


def _short(partitions: list[str]) -> str:
    return " ".join(name[-2:] for name in partitions)


def _elections(nodes: list[NodeProcess], old_epoch: int) -> list[float]:
    """When these nodes were elected under an epoch above the old one."""
    told = [one for node in nodes for one in node.events("LeaderElected")]
    return sorted(float(one["t"]) for one in told if one["epoch"] > old_epoch)


def _taken(nodes: list[NodeProcess], since: float) -> dict[str, float]:
    """Which partitions these nodes have taken since a moment, and when first."""
    taken: dict[str, float] = {}
    for node in nodes:
        for told in node.events("PartitionTaken"):
            if told["t"] >= since:
                at = taken.get(told["partition"], float("inf"))
                taken[told["partition"]] = min(at, float(told["t"]))
    return taken


def show_nodes(output: Output, *, keep: bool) -> int:
    """Three nodes share work, the leader is killed, another leads and nothing is lost.

    Takes about a quarter of a minute. The nodes are processes of this machine and meet in one SQLite file in
    a temporary folder. The exit code is 0 only if everything that is shown was checked.
    """
    home = Path(tempfile.mkdtemp(prefix="tidemill-demo-"))
    console = output.people
    picture: Picture = Screen(console, PLAN, TTL_S) if Screen.fits(console) else Lines(console)
    try:
        with picture:
            play = Demo(home, watch=picture.show, tell=picture.tell, clock=SYSTEM)
            summary = play.run(kept=keep)
        picture.sum_up(summary)
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
    output.result(summary)
    return 0 if summary.ok else 1
