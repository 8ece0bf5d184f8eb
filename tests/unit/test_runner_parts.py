"""Slots, and the presence that a child is child."""

import random
from pathlib import Path

import pytest

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import LeaseTiming
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, UsageError
from tidemill.futures.home import ClusterAddress
from tidemill.futures.values.signatures import ClusterKey
from tidemill.futures.worker.worker import WorkerOptions
from tidemill.publish.parts import PartClaim
from tidemill.runner import future_run
from tidemill.runner.presence import GivenPresence, OwnPresence
from tidemill.runner.slots import EPOCHS_PER_START, slot
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock

SECOND_US = 1_000_000
CHANCE = random.Random(7)


def test_the_first_free_slot_is_taken_and_every_start_has_later_epochs(tmp_path: Path) -> None:
    place = ClusterAddress.of_home(tmp_path)
    with slot(place, CHANCE) as first, slot(place, CHANCE) as second:
        assert (first.node_id, second.node_id) == ("runner-0", "runner-1")
    with slot(place, CHANCE) as again:
        assert again.node_id == "runner-0"
        assert again.epoch == first.epoch + EPOCHS_PER_START


@pytest.mark.rule("CLU-10", "FUT-37")
def test_a_runner_never_has_the_id_and_epoch_of_an_earlier_start(tmp_path: Path) -> None:
    """Even if the list has forgotten the earlier start, which rejoined several times."""
    store, keys = MemoryStore(clock=FakeClock()), ClusterKeys("c")
    identities: list[tuple[str, int]] = []
    for _ in range(4):
        with slot(ClusterAddress.of_home(tmp_path), CHANCE) as own_slot:
            node = Node(id=own_slot.node_id, epoch=own_slot.epoch)
            for _ in range(3):
                node = store.run(lambda tx: nodes.join(tx, keys, node, SECOND_US))  # noqa: B023
                identities.append((node.id, node.epoch))
        assert store.run(lambda tx: nodes.leave(tx, keys, node))  # noqa: B023
    assert len(set(identities)) == len(identities)
    assert identities == sorted(identities)


def test_an_invalid_slot_file_counts_from_1(tmp_path: Path) -> None:
    (tmp_path / "runners").mkdir()
    (tmp_path / "runners" / "0.lock").write_bytes(b"what\n")
    with slot(ClusterAddress.of_home(tmp_path), CHANCE) as first:
        assert first.epoch == EPOCHS_PER_START


def test_without_a_home_every_runner_has_a_unique_name() -> None:
    place = ClusterAddress(store="memory://", objects="", key=ClusterKey(b"k" * 32))
    with slot(place, CHANCE) as first, slot(place, CHANCE) as second:
        assert first.node_id != second.node_id
        assert first.epoch == 0


def test_a_worker_cannot_use_a_resource_name_of_runners() -> None:
    with pytest.raises(UsageError):
        WorkerOptions(named=("spark:shop",)).total()


class Given:
    """A node whose lease another process renews."""

    def __init__(self, ttl_s: float = 15.0) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock, chance=random.Random(7))
        self.keys = ClusterKeys("c")
        self.ttl_us = int(ttl_s * SECOND_US)
        self.node = self.join(Node(id="n", epoch=0))
        self.presence = GivenPresence(self.store, "c", self.node, clock=self.clock, timing=LeaseTiming(ttl_s))

    def join(self, node: Node) -> Node:
        return self.store.run(lambda tx: nodes.join(tx, self.keys, node, self.ttl_us))

    def beat(self) -> None:
        self.store.run(lambda tx: nodes.beat(tx, self.keys, self.node, self.ttl_us))


@pytest.mark.rule("CLU-4")
def test_a_given_presence_ends_before_the_lease_unless_it_was_renewed() -> None:
    child = Given()
    child.presence.read()
    assert child.presence.alive()
    child.clock.advance(10.0)
    child.beat()
    child.presence.read()
    child.clock.advance(11.9)
    assert child.presence.alive()
    child.clock.advance(0.2)  # three seconds before the store would give it to another node
    assert not child.presence.alive()
    child.beat()
    child.presence.read()
    assert not child.presence.alive()  # once lost, it stays lost


def test_a_given_presence_is_lost_with_its_epoch() -> None:
    child = Given()
    child.presence.read()
    child.join(child.node)
    child.presence.read()
    assert not child.presence.alive()
    with pytest.raises(LeaseLost):
        child.presence.start()


def test_a_given_presence_takes_nothing_new_while_its_node_drains() -> None:
    child = Given()
    child.presence.read()
    assert child.presence.accepts()
    draining = Node(id="n", epoch=child.node.epoch, draining=True)
    child.store.run(lambda tx: nodes.beat(tx, child.keys, draining, child.ttl_us))
    child.presence.read()
    assert child.presence.alive()
    assert not child.presence.accepts()


def test_begin_again_raises_the_epoch_without_leaving_the_list() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock, chance=random.Random(7))
    context = ClusterContext(store=store, cluster="c", clock=clock, chance=random.Random(7))
    presence = OwnPresence(context, "n", epoch=5)
    membership = presence.member.membership
    membership.tick()
    assert presence.node.epoch == 6
    membership.begin_again()
    membership.tick()
    assert presence.node.epoch == 7
    assert presence.alive()
    entry = store.run(lambda tx: nodes.read(tx, ClusterKeys("c"), "n"))
    assert entry is not None
    assert entry.epoch == 7


def test_future_run_functions_fail_outside_of_a_future() -> None:
    for ask in (future_run.current, future_run.tools, future_run.check):
        with pytest.raises(UsageError):
            ask()
    assert future_run.tag_of(PartClaim("ab12", 3)) == "tidemill-ab12-3"
