"""The choice of the next partition of a node, tested by cases and by properties."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import PartitionSummary
from tidemill.cluster.shares import (
    Choice,
    RequestPartition,
    Share,
    TakePartition,
    WaitForChange,
    choose,
    fair_share,
)

NOW_US = 1_000_000_000
TTL_S = 15.0
TTL_US = 15_000_000


def node(name: str, slots: int = 4, *, draining: bool = False) -> Node:
    return Node(id=name, epoch=1, slots=slots, draining=draining)


def part(
    name: str,
    holder: str = "",
    *,
    left_us: int = TTL_US,
    free_for_us: int = 0,
    wanted_by: str = "",
    wanted_for_us: int = 0,
) -> PartitionSummary:
    return PartitionSummary(
        name,
        holder,
        NOW_US + left_us if holder else 0,
        0 if holder else NOW_US - free_for_us,
        wanted_by,
        NOW_US - wanted_for_us if wanted_by else 0,
    )


def chosen(
    summaries: list[PartitionSummary], nodes: list[Node], me: str = "a", free_slots: int = 4
) -> Choice:
    return choose(
        summaries,
        nodes,
        me,
        free_slots=free_slots,
        now_us=NOW_US,
        ttl_s=TTL_S,
        pause_s=0.2,
        chance=random.Random(1),
    )


A, B, C = node("a"), node("b"), node("c")
CASES: dict[str, tuple[list[PartitionSummary], list[Node], Choice]] = {
    "free ones are taken": ([part("p1"), part("p2")], [A, B], TakePartition("p1")),
    "an expired one comes before a free one": (
        [part("p1"), part("p2", "b", left_us=0)],
        [A, B],
        TakePartition("p2"),
    ),
    "an expired one is taken even above the share": (
        [part("p1", "a"), part("p2", "a"), part("p3", "b", left_us=-1)],
        [A, B],
        TakePartition("p3"),
    ),
    "an expired one comes before balance": (
        [part("p1", "b"), part("p2", "b"), part("p3", "b"), part("p4", "dead", left_us=-5)],
        [A, B],
        TakePartition("p4"),
    ),
    "our own expired one is like any other": ([part("p1", "a", left_us=0)], [A], TakePartition("p1")),
    "above the share free ones are left to others": (
        [part("p1", "a"), part("p2", "a"), part("p3"), part("p4")],
        [A, B],
        WaitForChange(0.0),
    ),
    "what stays free for a ttl is anybody's": (
        [part("p1", "a"), part("p2", "a"), part("p3", free_for_us=TTL_US), part("p4")],
        [A, B],
        TakePartition("p3"),
    ),
    "the fullest is asked": (
        [part(f"p{n}", "b") for n in range(3)] + [part(f"q{n}", "c") for n in range(6)],
        [A, B, C],
        RequestPartition("q0"),
    ),
    "one steal at a time": (
        [part("p1", "b", wanted_by="c"), part("p2", "b"), part("p3", "b")],
        [A, B, C],
        WaitForChange(0.0),
    ),
    "a request nobody followed up for two ttls does not count": (
        [part("p1", "b", wanted_by="c", wanted_for_us=2 * TTL_US), part("p2", "b"), part("p3", "b")],
        [A, B, C],
        RequestPartition("p1"),
    ),
    "a holder that does not let go keeps it while its time runs": (
        [part("p1", "b"), part("p2", "b", wanted_by="a", wanted_for_us=TTL_US), part("p3", "b")],
        [A, B],
        WaitForChange(0.0),
    ),
    "and then it is the asker's": (
        [part("p1", "b"), part("p2", "b", left_us=0, wanted_by="a", wanted_for_us=TTL_US), part("p3", "b")],
        [A, B],
        TakePartition("p2"),
    ),
    "an expired one that another asked for is left to it for a moment": (
        [part("p1", "b", left_us=0, wanted_by="b"), part("p2", "b")],
        [A, B],
        WaitForChange(0.0),
    ),
    "and then it is anybody's": (
        [part("p1", "b", left_us=-TTL_US // 2, wanted_by="b"), part("p2", "b")],
        [A, B],
        TakePartition("p1"),
    ),
    "nothing is stolen for a difference of one": (
        [part("p1", "a"), part("p2", "b"), part("p3", "b")],
        [A, B],
        WaitForChange(0.0),
    ),
    "what was handed back for another is left to it for a moment": (
        [part("p1", "a"), part("p2", "b"), part("p3", wanted_by="b"), part("p4", "b")],
        [A, B],
        WaitForChange(0.0),
    ),
    "and then it is like any other": (
        [
            part("p1", "a"),
            part("p2", "b"),
            part("p3", wanted_by="b", free_for_us=TTL_US // 2),
            part("p4", "b"),
        ],
        [A, B],
        TakePartition("p3"),
    ),
    "what was handed back for us comes first": (
        [part("p1"), part("p2", "b"), part("p3", wanted_by="a")],
        [A, B],
        TakePartition("p3"),
    ),
    "a difference of two is moved": ([part("p1", "b"), part("p2", "b")], [A, B], RequestPartition("p1")),
    "a node that drains is not asked: it hands back by itself": (
        [part("p1", "a"), part("p2", "b"), part("p3", "b"), part("p4", "b")],
        [A, node("b", draining=True)],
        WaitForChange(0.0),
    ),
    "a dead holder is waited for": (
        [part("p1", "dead"), part("p2", "dead"), part("p3", "dead")],
        [A, B],
        WaitForChange(0.0),
    ),
    "slots count: a small node has its share": (
        [part(f"p{n}", "big") for n in range(7)] + [part("q", "a")],
        [node("a", 1), node("big", 7)],
        WaitForChange(0.0),
    ),
    "slots count: a large one far below its share takes from many small ones": (
        [part(f"p{n}", f"s{n}") for n in range(6)],
        [node("a", 4), *(node(f"s{n}", 1) for n in range(8))],
        RequestPartition("p5"),
    ),
    "there is nothing": ([], [A, B], WaitForChange(0.0)),
}


@pytest.mark.rule("CLU-13")
@pytest.mark.parametrize("case", CASES)
def test_a_node_chooses(case: str) -> None:
    summaries, nodes, expected = CASES[case]
    choice = chosen(summaries, nodes)
    if isinstance(expected, WaitForChange):
        assert isinstance(choice, WaitForChange)
        assert choice.wait_s > 1.0, "and does not ask again at once"
    else:
        assert choice == expected


@pytest.mark.rule("CLU-13")
def test_a_node_without_a_free_slot_takes_nothing() -> None:
    assert chosen([part("p1"), part("p2", "b", left_us=-1)], [A, B], free_slots=0) == WaitForChange(TTL_S)


@pytest.mark.rule("CLU-13")
def test_where_a_node_begins_follows_from_its_rank_and_their_number() -> None:
    parts = [part(f"p{n}") for n in range(9)]
    firsts = {node.id: chosen(parts, [C, A, B], me=node.id) for node in (A, B, C)}
    assert firsts == {"a": TakePartition("p0"), "b": TakePartition("p3"), "c": TakePartition("p6")}


@pytest.mark.rule("CLU-5")
def test_with_nothing_to_do_a_node_rests_until_a_lease_can_be_over_and_a_little_longer_by_chance() -> None:
    parts = [part("p1", "b", left_us=4_000_000), part("p2", "a"), part("p3", "c")]
    waits = set()
    for seed in range(20):
        rest = choose(
            parts,
            [A, B, C],
            "a",
            free_slots=3,
            now_us=NOW_US,
            ttl_s=TTL_S,
            pause_s=0.2,
            chance=random.Random(seed),
        )
        assert isinstance(rest, WaitForChange)
        assert 4.0 <= rest.wait_s <= 4.2
        waits.add(rest.wait_s)
    assert len(waits) == 20


def test_shares_depend_on_the_slots_and_exclude_draining_nodes() -> None:
    nodes = [node("a", 1), node("b", 3), node("c", 4, draining=True)]
    assert [fair_share(nodes, name, 10) for name in "abcx"] == [
        Share(2, 3),
        Share(7, 8),
        Share(0, 0),
        Share(0, 0),
    ]
    assert fair_share([node("c", 4, draining=True)], "c", 10) == Share(0, 0)
    assert fair_share([node("a", 2), node("b", 2)], "a", 8) == Share(4, 4)


# --- played to the end ------------------------------------------------------------------------------------


class Play:
    """Nodes that choose in turn, and holders that obey: what the store would do, without one."""

    def __init__(self, nodes: list[Node], holders: list[str | None], *, seed: int) -> None:
        self.nodes = nodes
        self.chance = random.Random(seed)
        self.now_us = NOW_US
        self.alive = {node.id for node in nodes}
        self.parts = {
            f"p{n:02d}": part(
                f"p{n:02d}",
                holder or "",
                left_us=TTL_US if holder in self.alive else -1,  # those of the dead are over
            )
            for n, holder in enumerate(holders)
        }
        self.steals = 0
        self.acts = 0

    def held(self, name: str) -> int:
        return sum(part.holder == name for part in self.parts.values())

    def round(self) -> None:
        """Every node acts once, in an order of chance; then holders give up what was asked of them."""
        for node in self.chance.sample(self.nodes, len(self.nodes)):
            self.act(node)
        for name, summary in list(self.parts.items()):
            if summary.holder and summary.wanted_by:
                self.parts[name] = PartitionSummary(
                    name, "", 0, self.now_us, summary.wanted_by, summary.wanted_at
                )
        self.now_us += 3_000_000
        for name, summary in list(self.parts.items()):
            if summary.holder in self.alive:  # renewed
                self.parts[name] = PartitionSummary(name, summary.holder, self.now_us + TTL_US, 0, "", 0)

    def act(self, node: Node) -> None:
        free_slots = node.slots - self.held(node.id)
        summaries = list(self.parts.values())
        choice = choose(
            summaries,
            self.nodes,
            node.id,
            free_slots=free_slots,
            now_us=self.now_us,
            ttl_s=TTL_S,
            pause_s=0.2,
            chance=self.chance,
        )
        expired = {each.id for each in summaries if each.holder and each.expires_at <= self.now_us}
        if expired and free_slots:
            assert isinstance(choice, TakePartition), "expired before balance"
            assert choice.id in expired
        if isinstance(choice, WaitForChange):
            return
        self.acts += 1
        old = self.parts[choice.id]
        if isinstance(choice, TakePartition):
            assert free_slots > 0
            assert not old.holder or choice.id in expired, "nothing is taken from a holder in its time"
            self.parts[choice.id] = PartitionSummary(choice.id, node.id, self.now_us + TTL_US, 0, "", 0)
        else:
            self.steals += 1
            assert not any(each.wanted_by for each in summaries), "one at a time"
            assert old.holder not in ("", node.id)
            self.parts[choice.id] = PartitionSummary(
                choice.id, old.holder, old.expires_at, 0, node.id, self.now_us
            )


@st.composite
def plays(draw: st.DrawFn) -> Play:
    slots = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    nodes = [node(f"n{n}", each) for n, each in enumerate(slots)]
    count = draw(st.integers(0, sum(slots)))
    room = {node.id: node.slots for node in nodes}
    holders: list[str | None] = []
    for _ in range(count):
        holder = draw(st.sampled_from([None, "dead", *room]))
        if holder in room:
            room[holder] -= 1
            if room[holder] < 0:
                holder = None
        holders.append(holder)
    return Play(nodes, holders, seed=draw(st.integers(0, 2**32)))


@pytest.mark.slow
@pytest.mark.rule("CLU-13")
@settings(max_examples=300)
@given(play=plays())
def test_everything_is_assigned_each_gets_its_share_and_then_nothing_moves(play: Play) -> None:
    count = len(play.parts)
    for _ in range(3 * count + 8):
        play.round()
    assert all(part.holder for part in play.parts.values()), "everything is assigned"
    for part in play.nodes:
        share = fair_share(play.nodes, part.id, count)
        assert share.least <= play.held(part.id) <= share.most
        assert abs(play.held(part.id) - count * part.slots / sum(n.slots for n in play.nodes)) < 1
    assert play.steals <= count, "no partition needs to be stolen twice"
    acts = play.acts
    for _ in range(10):
        play.round()
    assert play.acts == acts, "balance has come to rest"
