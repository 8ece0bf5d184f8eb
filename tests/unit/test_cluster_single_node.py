"""One node alone, on the embedded file: the same API, leader and follower in one process."""

import ast
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemill.cluster
from tests.unit.cluster_stage import GROUP, RecordingHost
from tidemill.cluster import config, nodes, partitions
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Tenure
from tidemill.cluster.leases import Lease, read
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import PartitionMap
from tidemill.cluster.states import MemberState, PartitionState
from tidemill.errors import StoreLocation
from tidemill.store import Store, Tx
from tidemill.store.sqlite import SqliteStore
from tidemill.store.sqlite.location import MachineId
from tidemill.testing.fake_clock import FakeClock
from tidemill.testing.holdings import PartitionMember

KEYS = ClusterKeys("home")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "store.db", clock=clock) as store:
        yield store


def member(
    store: Store, clock: FakeClock, name: str, *, slots: int = 4
) -> tuple[PartitionMember, RecordingHost]:
    host = RecordingHost()

    def make(tenure: Tenure) -> float:
        def step(tx: Tx) -> None:
            made_from = PartitionMap(nodes.version(tx, KEYS), tenure.epoch, 4)
            partitions.create(tx, KEYS, GROUP, {f"p{n}": b"" for n in range(4)}, made_from)

        tenure.run(step)
        return 60.0

    context = ClusterContext(store=store, cluster="home", clock=clock, chance=random.Random(name))
    node = Node(id=name, epoch=0, slots=slots)
    member = PartitionMember(context, node, [GROUP], host, duties={"make": make})
    host.holdings = member.holdings
    return member, host


def play(clock: FakeClock, *members: PartitionMember, rounds: int = 30) -> None:
    for _ in range(rounds):
        clock.advance(max(0.01, min(member.tick() for member in members)))


def states(store: Store) -> set[PartitionState]:
    return {part.state for part in store.run(lambda tx: partitions.read_all(tx, KEYS, GROUP))}


@pytest.mark.rule("CLU-18")
def test_one_process_leads_and_follows_on_one_file(store: SqliteStore, clock: FakeClock) -> None:
    alone, host = member(store, clock, "n1")
    play(clock, alone)
    assert alone.tenure is not None
    assert alone.tenure.alive()
    assert len(host.started) == 4, "what it made as leader it took as follower"
    for held in host.started:
        alone.holdings.complete(held)
    assert states(store) == {PartitionState.DONE}
    alone.drain(5.0)
    play(clock, alone, rounds=3)
    assert alone.state is MemberState.GONE


@pytest.mark.rule("CLU-18", "CLU-17")
def test_its_work_is_still_there_after_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "home" / "store.db"
    with SqliteStore(path, clock=clock) as store:
        store.run(lambda tx: config.put(tx, KEYS, "name", "shop"))
        first, host = member(store, clock, "n1")
        play(clock, first)
        first.holdings.complete(host.started[0])
    clock.advance(60.0)
    with SqliteStore(path, clock=clock) as store:
        assert store.run(lambda tx: config.get(tx, KEYS, "name")) == "shop"
        second, host = member(store, clock, "n2")
        play(clock, second)
        assert len(host.started) == 3, "one was done"
        leader = store.run(lambda tx: read(tx, KEYS.leader))
        assert isinstance(leader, Lease)
        assert (leader.holder, leader.epoch) == ("n2", 2)


@pytest.mark.rule("CLU-18")
def test_several_processes_of_a_machine_share_the_file(store: SqliteStore, clock: FakeClock) -> None:
    """Two handles of one file, as two processes have them; the acceptance tests do it with processes."""
    with SqliteStore(store.path, clock=clock) as other:
        first, _ = member(store, clock, "n1")
        second, _ = member(other, clock, "n2")
        play(clock, first, second, rounds=60)
        assert sorted(bool(each.tenure) for each in (first, second)) == [False, True]
        assert (len(first.holdings.held), len(second.holdings.held)) == (2, 2)


@pytest.mark.rule("CLU-18")
def test_a_second_machine_is_refused(store: SqliteStore, clock: FakeClock) -> None:
    with pytest.raises(StoreLocation):
        SqliteStore(store.path, clock=clock, machine=MachineId("another", "another-boot"))


class NoSocket:
    def __init__(self, *arguments: object, **options: object) -> None:
        raise AssertionError("a node opened a socket")


@pytest.mark.rule("CLU-1")
def test_nodes_meet_share_and_part_without_any_socket(
    store: SqliteStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", NoSocket)
    monkeypatch.setattr(socket, "create_connection", NoSocket)
    monkeypatch.setattr(socket, "socketpair", NoSocket)
    with SqliteStore(store.path, clock=clock) as other:
        first, _ = member(store, clock, "n1", slots=4)
        second, host = member(other, clock, "n2", slots=4)
        play(clock, first, second, rounds=60)
        assert len(host.started) == 2
        first.drain(5.0)
        play(clock, first, second, rounds=60)
        assert first.state is MemberState.GONE
        assert second.tenure is not None
        assert len(second.holdings.held) == 4


@pytest.mark.rule("CLU-1")
def test_the_room_imports_nothing_that_could_talk_to_another_node() -> None:
    talkative = {"socket", "ssl", "http", "urllib", "asyncio", "select", "selectors", "multiprocessing"}
    for source in Path(str(tidemill.cluster.__file__)).parent.glob("*.py"):
        for statement in ast.walk(ast.parse(source.read_text())):
            names = []
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom):
                names = [statement.module or ""]
            roots = {name.partition(".")[0] for name in names}
            assert not roots & talkative, f"{source.name} imports {roots & talkative}"
            assert roots <= {"tidemill", "msgspec", *sys.stdlib_module_names}
