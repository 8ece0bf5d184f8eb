"""Every (state, edge) of the cluster's tables, and every (state, step) of their rows."""

import itertools
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest

from tests.unit.cluster_stage import GROUP, Stage, is_lost
from tidemill.cluster import leases, partitions
from tidemill.cluster.leases import Busy, Lease
from tidemill.cluster.partitions import Partition
from tidemill.cluster.states import (
    LEASE,
    MEMBER,
    PARTITION,
    LeaseEdge,
    LeaseState,
    MemberEdge,
    MemberState,
    PartitionEdge,
    PartitionState,
    step,
)
from tidemill.errors import IllegalTransition
from tidemill.store import Tx

ALLOWED: dict[tuple[StrEnum, StrEnum], StrEnum] = {
    (LeaseState.FREE, LeaseEdge.ACQUIRE): LeaseState.HELD,
    (LeaseState.HELD, LeaseEdge.RENEW): LeaseState.HELD,
    (LeaseState.HELD, LeaseEdge.RELEASE): LeaseState.FREE,
    (LeaseState.HELD, LeaseEdge.EXPIRE): LeaseState.FREE,
    (PartitionState.OUTSTANDING, PartitionEdge.TAKE): PartitionState.IN_PROGRESS,
    (PartitionState.IN_PROGRESS, PartitionEdge.HAND_BACK): PartitionState.OUTSTANDING,
    (PartitionState.IN_PROGRESS, PartitionEdge.EXPIRE): PartitionState.OUTSTANDING,
    (PartitionState.IN_PROGRESS, PartitionEdge.COMPLETE): PartitionState.DONE,
    (MemberState.OUT, MemberEdge.JOIN): MemberState.ACTIVE,
    (MemberState.OUT, MemberEdge.LEAVE): MemberState.GONE,
    (MemberState.ACTIVE, MemberEdge.LOSE): MemberState.OUT,
    (MemberState.ACTIVE, MemberEdge.DRAIN): MemberState.DRAINING,
    (MemberState.ACTIVE, MemberEdge.LEAVE): MemberState.GONE,
    (MemberState.DRAINING, MemberEdge.LOSE): MemberState.GONE,
    (MemberState.DRAINING, MemberEdge.LEAVE): MemberState.GONE,
}
MACHINES: list[tuple[dict[Any, dict[Any, Any]], type[StrEnum], type[StrEnum]]] = [
    (LEASE, LeaseState, LeaseEdge),
    (PARTITION, PartitionState, PartitionEdge),
    (MEMBER, MemberState, MemberEdge),
]
PAIRS = [
    (table, state, edge)
    for table, states, edges in MACHINES
    for state, edge in itertools.product(states, edges)
]


@pytest.mark.parametrize(
    ("table", "state", "edge"),
    PAIRS,
    ids=lambda argument: argument.value if isinstance(argument, StrEnum) else "",
)
def test_a_machine_has_the_edges_written_here_and_no_others(
    table: dict[Any, Any], state: StrEnum, edge: StrEnum
) -> None:
    before = {source: dict(edges) for source, edges in table.items()}
    if (state, edge) in ALLOWED:
        assert step(table, state, edge) is ALLOWED[state, edge]
    else:
        with pytest.raises(IllegalTransition, match=edge.value):
            step(table, state, edge)
    assert table == before


def test_every_state_has_a_row_and_every_edge_a_use() -> None:
    for table, states, edges in MACHINES:
        assert set(table) == set(states)
        assert {edge for row in table.values() for edge in row} == set(edges)


# --- the rows behave as the tables say ---------------------------------------------------------------------


def lease_in(stage: Stage, state: str) -> Lease:
    """A lease row that is in a state; the lease is the one its last holder was granted."""
    granted = stage.store.run(lambda tx: leases.acquire(tx, key(stage), "ann", stage.ttl_us))
    assert isinstance(granted, Lease)
    stage.clock.advance(1.0)
    if state == "released":
        assert stage.store.run(lambda tx: leases.release(tx, key(stage), granted))
    elif state == "expired":
        stage.clock.advance(stage.ttl_s)
    elif state == "taken":
        stage.clock.advance(stage.ttl_s)
        stage.store.run(lambda tx: leases.acquire(tx, key(stage), "bob", stage.ttl_us))
    return granted


def key(stage: Stage) -> bytes:
    return stage.keys.lease["x"]


LEASE_STEPS: dict[LeaseEdge, Callable[[Stage, Lease], bool]] = {
    LeaseEdge.ACQUIRE: lambda stage, _: (
        not isinstance(stage.store.run(lambda tx: leases.acquire(tx, key(stage), "ann", stage.ttl_us)), Busy)
    ),
    LeaseEdge.RENEW: lambda stage, lease: (
        not is_lost(stage.store, lambda tx: leases.renew(tx, key(stage), lease, stage.ttl_us))
    ),
    LeaseEdge.RELEASE: lambda stage, lease: stage.store.run(lambda tx: leases.release(tx, key(stage), lease)),
}


@pytest.mark.parametrize("edge", LEASE_STEPS)
@pytest.mark.parametrize("state", ["held", "released", "expired", "taken"])
@pytest.mark.rule("CLU-2", "CLU-3")
def test_a_lease_row_takes_the_edges_of_its_state_or_stays_as_it_is(state: str, edge: LeaseEdge) -> None:
    stage = Stage()
    lease = lease_in(stage, state)
    visible = LeaseState.FREE if state in ("released", "expired") else LeaseState.HELD
    # "taken": held, but by somebody else, who alone may renew and release
    allowed = edge in LEASE[visible] and state != "taken"
    before = stage.rows()
    assert LEASE_STEPS[edge](stage, lease) is allowed
    assert (stage.rows() != before) is allowed


def partition_in(stage: Stage, state: str) -> Partition:
    stage.make_partitions(1)
    if state == "outstanding":
        return stage.parts()[0]
    part = stage.store.run(lambda tx: partitions.take(tx, stage.keys, GROUP, "p000", "ann", stage.ttl_us))
    assert part is not None
    stage.clock.advance(1.0)
    if state == "done":
        stage.store.run(lambda tx: partitions.complete(tx, stage.keys, part))
    elif state == "expired":
        stage.clock.advance(stage.ttl_s)
    elif state == "taken":
        stage.clock.advance(stage.ttl_s)
        stage.store.run(lambda tx: partitions.take(tx, stage.keys, GROUP, "p000", "bob", stage.ttl_us))
    elif state == "handed back":
        stage.store.run(lambda tx: partitions.hand_back(tx, stage.keys, part))
    return part


def take(tx: Tx, stage: Stage, _: Partition) -> bool:
    return partitions.take(tx, stage.keys, GROUP, "p000", "eve", stage.ttl_us) is not None


def renew(tx: Tx, stage: Stage, part: Partition) -> bool:
    return bool(partitions.renew(tx, stage.keys, part, stage.ttl_us))


def hand_back(tx: Tx, stage: Stage, part: Partition) -> bool:
    return bool(partitions.hand_back(tx, stage.keys, part))


def complete(tx: Tx, stage: Stage, part: Partition) -> bool:
    return bool(partitions.complete(tx, stage.keys, part))


def ask(tx: Tx, stage: Stage, _: Partition) -> bool:
    return partitions.request(tx, stage.keys, GROUP, "p000", "eve")


PARTITION_STEPS = [take, renew, hand_back, complete, ask]
HOLDS = {renew, hand_back, complete}
PARTITION_ALLOWED: dict[str, set[Any]] = {
    "outstanding": {take},
    "handed back": {take},
    "in progress": HOLDS | {ask},
    "expired": {take, ask},
    "taken": {ask},
    "done": set(),
}


@pytest.mark.parametrize("act", PARTITION_STEPS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("state", PARTITION_ALLOWED)
@pytest.mark.rule("CLU-2", "CLU-7")
def test_a_partition_row_takes_the_steps_of_its_state_or_stays_as_it_is(
    state: str, act: Callable[[Tx, Stage, Partition], bool]
) -> None:
    stage = Stage()
    part = partition_in(stage, state)
    before = stage.rows()
    results: list[bool] = []
    refused = is_lost(stage.store, lambda tx: results.append(act(tx, stage, part)))
    allowed = act in PARTITION_ALLOWED[state]
    assert (not refused and results[-1]) is allowed
    assert (stage.rows() != before) is allowed
