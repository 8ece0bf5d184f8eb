"""Real processes: nodes that are killed, paused, have wrong clocks, or lose their store.

Every test ends with a check of what the nodes wrote (`tidemill.testing.work.violations`): nothing under an
old epoch, every unit of every partition once. Tests wait for conditions, never for a time; the long limits
are for busy machines.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.process import wait_until
from tidemill.cluster import leases, nodes, partitions
from tidemill.cluster.partitions import Partition
from tidemill.cluster.states import PartitionState
from tidemill.errors import StoreBusy
from tidemill.store import Store, Tx, open_store
from tidemill.store.sqlite import SqliteStore
from tidemill.testing.node_process import NodeEvent, NodeProcess
from tidemill.testing.threads import STUCK_S
from tidemill.testing.work import PartitionWork, WorkEntry, WorkPlan, violations

CLUSTER = "acceptance"
LONG_TTL_S = 600.0
OFTEN = ("--every-s", "0.5")
"""With leases that do not run out in a test, nodes look after each other as often as with short ones."""


class Fleet:
    """Some nodes on one store, and the tests' own look into it."""

    def __init__(self, url: str, folder: Path, stack: ExitStack, *, ttl_s: float) -> None:
        self.url = url
        self.ttl_s = ttl_s
        self.nodes: dict[str, NodeProcess] = {}
        self.store: Store = stack.enter_context(open_store(url))
        self.work = PartitionWork(CLUSTER)
        self.plan = WorkPlan(partitions=0, units=0, unit_s=0.0)
        self._folder = folder
        self._stack = stack

    def begin(self, *, partitions: int) -> None:
        """Give them work when all have joined, and wait until every one has some of it.

        It has no end before `finish` sets one: what a test does in the middle of it is in the middle of it,
        however slow the machine is.
        """
        for node in self.nodes.values():
            node.wait_for("NodeJoined", timeout_s=STUCK_S)
        self.plan = WorkPlan(partitions=partitions, units=10**9, unit_s=0.1)
        self.store.run(lambda tx: self.work.put_plan(tx, self.plan))
        self.wait(lambda: all(self.held().values()), "every node holds some partitions")

    def start(self, *names: str, arguments: tuple[str, ...] = (), slots: int = 12) -> None:
        for name in names:
            node = NodeProcess(
                self.url,
                CLUSTER,
                name,
                ttl_s=self.ttl_s,
                slots=slots,
                arguments=("--until-done", *arguments),
                stderr=self._folder / f"{name}.err",
            )
            self.nodes[name] = self._stack.enter_context(node)

    def wait(self, ready: Callable[[], bool], condition: str) -> None:
        if not wait_until(ready, timeout_s=STUCK_S):
            events = "\n\n".join(map(str, self.nodes.values()))
            pytest.fail(f"it took more than {STUCK_S:g} s until {condition}\n{events}")

    # --- looking

    def leader(self) -> NodeProcess:
        """Wait until one of the running nodes leads; which one."""
        leaders: list[NodeProcess] = []

        def one_leads() -> bool:
            row = self.store.run(lambda tx: leases.read(tx, self.work.keys.leader))
            leaders[:] = [
                node
                for node in self.nodes.values()
                if row is not None and row.expires_at > 0 and node.running and node.id == row.holder
            ]
            return bool(leaders)

        self.wait(one_leads, "one of them leads")
        return leaders[0]

    def parts(self) -> list[Partition]:
        return self.store.run(lambda tx: partitions.read_all(tx, self.work.keys, self.work.group))

    def epochs(self) -> dict[str, int]:
        return {part.id: part.epoch for part in self.parts()}

    def held(self) -> dict[str, list[str]]:
        """Which partitions each node holds by the store's word, by the node's name."""
        parts = self.parts()
        names = {node.id: name for name, node in self.nodes.items()}
        held: dict[str, list[str]] = {name: [] for name in self.nodes}
        for part in parts:
            if part.state is PartitionState.IN_PROGRESS and part.holder in names:
                held[names[part.holder]].append(part.id)
        return held

    def told(self, *kinds: str) -> list[NodeEvent]:
        return [event for node in self.nodes.values() for kind in kinds for event in node.events(kind)]

    def finish(self) -> list[WorkEntry]:
        """Wait until all is done and the nodes have left; the history, which is without fault."""
        self.plan = self.store.run(self._shorten)
        self.wait(lambda: self.store.run(self.work.is_finished), "all is done")
        self.wait(lambda: not any(node.running for node in self.nodes.values()), "the nodes have left")
        history = self.work.history(self.store)
        assert violations(history, self.plan) == []
        assert {part.state for part in self.parts()} == {PartitionState.DONE}
        return history

    def _shorten(self, tx: Tx) -> WorkPlan:
        """Let the work end soon behind the partition that is furthest."""
        progress = [
            msgspec.msgpack.decode(row.value, type=int) for row in tx.range(*self.work._progress.all())
        ]
        plan = WorkPlan(partitions=self.plan.partitions, units=max(progress, default=0) + 3, unit_s=0.1)
        self.work.put_plan(tx, plan)
        return plan


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["postgres", pytest.param("sqlite", marks=pytest.mark.crash)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/store.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.rule("CLU-9", "CLU-13", "CLU-26")
def test_when_the_leader_is_killed_another_leads_and_its_work_moves(
    url: str, tmp_path: Path, stack: ExitStack
) -> None:
    fleet = Fleet(url, tmp_path, stack, ttl_s=2.0)
    fleet.start("n1", "n2", "n3")
    fleet.begin(partitions=12)
    leader = fleet.leader()
    orphans = fleet.held()[leader.name]
    assert orphans
    epoch = leader.events("LeaderElected")[-1]["epoch"]
    leader.kill()

    successor = fleet.leader()
    elected = successor.wait_for("LeaderElected", timeout_s=STUCK_S)
    assert successor is not leader
    assert elected["epoch"] > epoch
    # how long that takes is measured by bench.store
    history = fleet.finish()
    for orphan in orphans:
        writers = [entry.node for entry in history if entry.partition == orphan]
        assert writers[-1] != leader.id
    assert all(node.wait(timeout_s=STUCK_S) == 0 for node in fleet.nodes.values() if node is not leader)


@pytest.mark.rule("CLU-4", "CLU-7", "CLU-26")
def test_a_node_paused_for_two_ttls_writes_nothing_under_its_old_epochs(
    tmp_path: Path, stack: ExitStack
) -> None:
    refused: list[str] = []
    for number in range(3):  # it may be stopped right behind its own check, and then the store refuses it
        folder = tmp_path / str(number)
        folder.mkdir()
        paused = paused_and_resumed(Fleet(f"sqlite://{folder}/store.db", folder, stack, ttl_s=1.5))
        refused += [event["why"] for event in paused.events("WriteRefused")]
        if any("deadline" in why for why in refused):
            return
    pytest.fail(f"it never stopped by itself: {refused}")


@pytest.mark.rule("CLU-7", "CLU-26")
def test_a_paused_node_that_never_looks_at_its_deadline_is_refused_by_the_store(
    postgres_url: str, tmp_path: Path, stack: ExitStack
) -> None:
    paused = paused_and_resumed(Fleet(postgres_url, tmp_path, stack, ttl_s=1.5), "--careless")
    assert all("no longer holds" in event["why"] for event in paused.events("WriteRefused")), (
        "the store refused it"
    )


def paused_and_resumed(fleet: Fleet, *arguments: str) -> NodeProcess:
    """Stop one of three nodes for two ttls, and see that what it held is over for it."""
    fleet.start("n1", arguments=arguments)
    fleet.start("n2", "n3")
    fleet.begin(partitions=9)
    paused = fleet.nodes["n1"]
    pause_outside_a_transaction(fleet, paused)
    had = {name: fleet.epochs()[name] for name in fleet.held()["n1"]}
    assert had
    paused_at = fleet.store.run(lambda tx: tx.now())

    def moved() -> bool:
        return (
            fleet.store.run(lambda tx: tx.now()) >= paused_at + 2 * fleet.ttl_s * 1_000_000
            and not (fleet.held()["n1"])
        )

    fleet.wait(moved, "two ttls are over and its partitions have moved")
    resumed_at = fleet.store.run(lambda tx: tx.now())
    paused.resume()
    fleet.wait(lambda: len(paused.events("WriteRefused")) >= len(had), "its writes are refused")
    paused.wait_for("NodeJoined", timeout_s=STUCK_S, count=2)

    history = fleet.finish()
    for name, old_epoch in had.items():
        of_partition = [entry for entry in history if entry.partition == name]
        late = [entry for entry in of_partition if entry.epoch == old_epoch and entry.at >= resumed_at]
        assert late == []
        successor = next(at for at, entry in enumerate(of_partition) if entry.epoch > old_epoch)
        assert all(entry.epoch > old_epoch for entry in of_partition[successor:])
    return paused


def pause_outside_a_transaction(fleet: Fleet, node: NodeProcess) -> None:
    """On SQLite a process that is stopped while it commits keeps the file locked; then stop it again."""
    for _ in range(20):
        node.pause()
        if not isinstance(fleet.store, SqliteStore):
            return
        with SqliteStore(fleet.store.path, patience_s=0.5) as probe:
            try:
                probe.run(lambda tx: tx.set(b"\x02probe\x00", b""))
            except StoreBusy:
                node.resume()
            else:
                return
    pytest.fail("it was in a transaction every time")


@pytest.mark.rule("CLU-6", "CLU-26")
def test_a_wall_clock_that_is_wrong_by_hours_changes_nothing(
    postgres_url: str, tmp_path: Path, stack: ExitStack
) -> None:
    fleet = Fleet(postgres_url, tmp_path, stack, ttl_s=LONG_TTL_S)
    fleet.start("late", arguments=(*OFTEN, "--wall-offset-s", "-21600"))
    assert fleet.leader().name == "late", "a leader whose clock is six hours behind"
    fleet.start("early", arguments=(*OFTEN, "--wall-offset-s", "21600"))
    fleet.start("right", arguments=OFTEN)
    fleet.begin(partitions=9)
    listed = fleet.store.run(lambda tx: nodes.read_all(tx, fleet.work.keys))
    now_us = fleet.store.run(lambda tx: tx.now())
    assert len(listed) == 3
    assert all(0 < node.expires_at - now_us <= LONG_TTL_S * 1_000_000 for node in listed)
    fleet.wait(lambda: len(fleet.work.history(fleet.store)) > 9 * 20, "much is done")
    assert len(fleet.told("LeaderElected")) == 1
    assert fleet.told("LeaderLost") == []  # at the end the leader leaves, and another may see it
    fleet.finish()
    assert fleet.told("NodeLost", "PartitionLost", "WriteRefused") == []


@pytest.mark.rule("CLU-8", "CLU-26")
def test_work_continues_when_postgres_restarts(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, stack: ExitStack
) -> None:
    fleet = Fleet(postgres_url, tmp_path, stack, ttl_s=4.0)
    fleet.start("n1", "n2", "n3")
    fleet.begin(partitions=9)
    before = len(fleet.work.history(fleet.store))
    postgres_server.restart_immediate()
    fleet.wait(lambda: len(fleet.work.history(fleet.store)) > before + 9, "work goes on")
    postgres_server.restart_immediate()
    history = fleet.finish()
    assert len(history) == 9 * (fleet.plan.units + 1)
    assert all(node.wait(timeout_s=STUCK_S) == 0 for node in fleet.nodes.values())


@pytest.mark.rule("CLU-17", "CLU-26")
def test_after_all_nodes_were_killed_at_once_a_new_one_finishes_everything(
    url: str, tmp_path: Path, stack: ExitStack
) -> None:
    fleet = Fleet(url, tmp_path, stack, ttl_s=2.0)
    fleet.start("n1", "n2", "n3")
    fleet.begin(partitions=9)
    victims = list(fleet.nodes.values())
    for node in victims:
        node.signal(9)
    for node in victims:
        node.kill()
    written = len(fleet.work.history(fleet.store))
    assert written
    leader = fleet.store.run(lambda tx: leases.read(tx, fleet.work.keys.leader))
    assert leader is not None
    fleet.start("n4")
    history = fleet.finish()
    assert {entry.node for entry in history[written:]} == {fleet.nodes["n4"].id}
    assert fleet.nodes["n4"].events("LeaderElected")[0]["epoch"] == leader.epoch + 1


@pytest.mark.rule("CLU-25")
def test_a_terminated_node_hands_over_and_leaves(url: str, tmp_path: Path, stack: ExitStack) -> None:
    """With a ttl of ten minutes: what moves in this test was handed back, and did not run out."""
    fleet = Fleet(url, tmp_path, stack, ttl_s=LONG_TTL_S)
    fleet.start("n1", "n2", arguments=(*OFTEN, "--grace-s", str(STUCK_S)))
    fleet.begin(partitions=8)
    leaver = fleet.nodes["n2"]
    had = set(fleet.held()["n2"])
    assert had
    leaver.terminate()
    assert leaver.wait(timeout_s=STUCK_S) == 0
    assert leaver.all_events[-1]["type"] == "NodeLeft"
    handed = {event["partition"] for event in leaver.events("PartitionHandedBack")}
    completed = {event["partition"] for event in leaver.events("PartitionDone")}
    assert had <= handed | completed
    assert not leaver.events("PartitionLost")
    listed = fleet.store.run(lambda tx: nodes.read_all(tx, fleet.work.keys))
    assert leaver.id not in {node.id for node in listed}
    begun = fleet.store.run(lambda tx: tx.now())
    history = fleet.finish()
    assert history[-1].at - begun < LONG_TTL_S * 1_000_000
    assert all(entry.node != leaver.id for entry in history if entry.at > begun)
