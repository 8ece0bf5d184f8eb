"""Mutants of the cluster: each one is a plausible mistake in one function.

A mutant patches the real function while its context is open. The simulation must catch every mutant: it would
not notice a missed one in the real code either.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.simulation import Fault, World
from tests.simulation.cluster import queue
from tests.simulation.cluster.queue import CLAIM_PAGE, QueueClaim, QueueKeys
from tests.simulation.cluster.scenario import cluster_world
from tests.simulation.faults import draw_swarm
from tidemill.cluster import leases, nodes, partitions
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Tenure
from tidemill.cluster.leases import Lease
from tidemill.cluster.membership import Membership
from tidemill.cluster.partitions import Partition
from tidemill.cluster.states import PartitionState
from tidemill.errors import LeaseLost
from tidemill.store import Store, Tx
from tidemill.store.memory import MemoryStore, MemoryTx
from tidemill.store.retry import RetriedCall, RetryingStore
from tidemill.testing.holdings import HeldPartition, Holdings

Mutate = Callable[[pytest.MonkeyPatch], None]


class Mutant(NamedTuple):
    """A mistake, and the faults under which it shows; None for those that each seed draws."""

    mutate: Mutate
    under: tuple[Fault, ...] | None


MUTANTS: dict[str, Mutant] = {}


def mutant(*under: Fault) -> Callable[[Mutate], Mutate]:
    def register(mutate: Mutate) -> Mutate:
        MUTANTS[mutate.__name__.replace("_", " ")] = Mutant(mutate, under or None)
        return mutate

    return register


@contextmanager
def mutated(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name].mutate(patch)
        yield


def world_for(name: str, seed: int) -> World:
    """Return the world of a seed, with more frequent faults for a mutant that shows rarely."""
    under = MUTANTS[name].under
    if under is None:
        return cluster_world(seed)
    drawn = draw_swarm(random.Random(f"{seed}/mutants"))
    return cluster_world(seed, msgspec.structs.replace(drawn, faults=under, call_rate=0.1))


# --- the four that must be caught ---------------------------------------------------------------------------


@mutant()
def no_epoch_check(patch: pytest.MonkeyPatch) -> None:
    """A write is accepted as long as any node holds the lease."""

    def check(tx: Tx, keys: ClusterKeys, part: Partition) -> Partition:
        current = partitions.read(tx, keys, part.group, part.id)
        if (
            current is None
            or current.state is not PartitionState.IN_PROGRESS
            or current.expires_at <= tx.now()
        ):
            raise LeaseLost("not held")
        return current

    def is_ours(current: Lease | None, lease: Lease, now_us: int) -> bool:
        return current is not None and current.expires_at > now_us

    patch.setattr(partitions, "check", check)
    patch.setattr(leases, "is_ours", is_ours)


@mutant()
def the_nodes_wall_clock_instead_of_the_stores_time(patch: pytest.MonkeyPatch) -> None:
    def now(tx: MemoryTx) -> int:
        return int(tx._store.clock.wall() * 1_000_000)

    patch.setattr(MemoryTx, "now", now)


@mutant()
def unlock_without_checking_the_holder(patch: pytest.MonkeyPatch) -> None:
    def release(tx: Tx, key: bytes, lease: Lease) -> bool:
        current = leases.read(tx, key)
        if current is None:
            return False
        tx.set(key, leases.encode(msgspec.structs.replace(current, expires_at=0)))
        return True

    patch.setattr(leases, "release", release)


@mutant()
def take_and_claim_in_two_transactions(patch: pytest.MonkeyPatch) -> None:
    def claim(store: Store, keys: QueueKeys, claim: QueueClaim) -> list[int]:
        rows = store.run(lambda tx: tx.take(*keys.waiting.all(), CLAIM_PAGE), mode="take")
        return store.run(lambda tx: queue.write_claims(tx, keys, claim, rows), mode="take")

    patch.setattr(queue, "claim", claim)


# --- other mistakes -----------------------------------------------------------------------------------------


@mutant(Fault.RESTART, Fault.DRIFT)
def no_margin(patch: pytest.MonkeyPatch) -> None:
    """The holder assumes that its clock runs exactly as fast as the store's."""

    def deadline(keeper: Keeper, sent: float) -> float:
        return sent + keeper.timing.ttl_s

    patch.setattr(Keeper, "deadline", deadline)


@mutant(Fault.PAUSE, Fault.SLOW)
def the_deadline_from_after_the_answer(patch: pytest.MonkeyPatch) -> None:
    def deadline(keeper: Keeper, sent: float) -> float:
        return keeper.timing.deadline(keeper.clock.monotonic())

    patch.setattr(Keeper, "deadline", deadline)


@mutant()
def a_holder_without_a_deadline(patch: pytest.MonkeyPatch) -> None:
    """The holder has no deadline: it acts until a renewal reports that the lease is lost."""

    def alive(held: HeldPartition | HeldLease) -> bool:
        return not held.lost

    patch.setattr(HeldPartition, "alive", alive)


@mutant(Fault.PAUSE, Fault.SLOW)
def a_leaders_duty_without_its_fence(patch: pytest.MonkeyPatch) -> None:
    def run(tenure: Tenure, fn: Callable[[Tx], Any]) -> Any:
        tenure.check()
        return tenure.store.run(fn)

    patch.setattr(Tenure, "run", run)


@mutant(Fault.PAUSE)
def a_renewal_that_extends_an_expired_lease(patch: pytest.MonkeyPatch) -> None:
    def renew(tx: Tx, key: bytes, lease: Lease, ttl_us: int) -> Lease:
        current = leases.read(tx, key)
        if current is None or (current.holder, current.epoch) != (lease.holder, lease.epoch):
            raise LeaseLost("over")
        renewed = msgspec.structs.replace(current, expires_at=tx.now() + ttl_us)
        tx.set(key, leases.encode(renewed))
        return renewed

    patch.setattr(leases, "renew", renew)


@mutant()
def a_partition_handed_back_under_its_old_epoch(patch: pytest.MonkeyPatch) -> None:
    hand_back = partitions.hand_back
    write = partitions._write

    def same_epoch(tx: Tx, keys: ClusterKeys, part: Partition) -> Partition:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(
                partitions,
                "_write",
                lambda tx, keys, old, new: write(
                    tx, keys, old, msgspec.structs.replace(new, epoch=new.epoch - 1)
                ),
            )
            return hand_back(tx, keys, part)

    patch.setattr(partitions, "hand_back", same_epoch)


@mutant()
def a_partition_created_again_at_its_first_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partitions, "_last_epoch", lambda tx, keys, group: 0)


@mutant(Fault.PAUSE)
def a_former_task_that_is_never_ended(patch: pytest.MonkeyPatch) -> None:
    begin = Holdings._begin

    def forget_first(holdings: Holdings, part: Partition, sent: float) -> None:
        holdings.held.pop((part.group, part.id), None)
        begin(holdings, part, sent)

    patch.setattr(Holdings, "_begin", forget_first)


@mutant(Fault.UNKNOWN)
def an_unknown_commit_treated_as_lost(patch: pytest.MonkeyPatch) -> None:
    """It is repeated, so a committed one is committed twice."""
    patch.setattr(RetryingStore, "_settle", lambda store, operation, give_up, doubt: 0)


@mutant(Fault.UNKNOWN, Fault.RESTART)
def an_unknown_commit_looked_up_and_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """It is not visible yet, and arrives later."""

    def look(store: MemoryStore, operation: RetriedCall[Any]) -> int:
        row = store._at(operation.key(store._now_us()), store._version)
        return 0 if row is None else operation.attempt

    patch.setattr(MemoryStore, "_fence", look)


@mutant(Fault.PAUSE, Fault.SLOW)
def a_store_that_sees_no_conflicts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTx, "conflicts_with", lambda tx, commit: False)


@mutant()
def a_leader_that_cleans_live_nodes_off_the_list(patch: pytest.MonkeyPatch) -> None:
    clean = nodes.clean

    def hasty(tx: Tx, keys: ClusterKeys, grace_us: int, limit: int) -> list[nodes.Node]:
        return clean(tx, keys, 0, limit)

    patch.setattr(nodes, "clean", hasty)


@mutant()
def a_leader_that_never_cleans_the_node_list(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nodes, "clean", lambda tx, keys, grace_us, limit: [])


@mutant()
def an_index_that_keeps_the_old_expiry(patch: pytest.MonkeyPatch) -> None:
    write = partitions._write

    def forgetful(tx: Tx, keys: ClusterKeys, old: Partition | None, new: Partition) -> None:
        write(tx, keys, None, new)

    patch.setattr(partitions, "_write", forgetful)


@mutant(Fault.DRAIN)
def a_drain_that_continues_to_take(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "accepts", Membership.alive)
