"""Partitions whose work is a future: created by the leader, run by any worker (CLU-12, CLU-15).

The leader finds pieces of work, such as files of a bucket, and creates a partition for each: a row (group,
id) that names a durable future. The partition's lease is the claim on that future. Its attempts and its end
are those of the future; `PartitionTaskState` gives them names. The row pins the future, so that it is not
swept before the partition is removed.

A round creates no more partitions than the idle slots of the live workers can take. Further work stays where
it was found instead of filling the store. A round also removes completed partitions. Both are fenced
transactions of the leader: a deposed leader creates nothing. An id that has a row is not created again.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial

import msgspec

from tidemill.cluster import nodes, partitions
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Tenure
from tidemill.futures.protocol import edges, rows, submit
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Claimed, Spec
from tidemill.futures.protocol.states import FutureState
from tidemill.store import Tx

PAGE = 50
PIN = "partition"


class PartitionTaskState(StrEnum):
    """What a partition's future means for the partition (CLU-15)."""

    OUTSTANDING = "outstanding"
    IN_PROGRESS = "in progress"
    DONE = "done"
    FAILED = "failed"
    QUARANTINED = "quarantined"


STATE_OF: dict[FutureState, PartitionTaskState] = {
    FutureState.BLOCKED: PartitionTaskState.OUTSTANDING,
    FutureState.UNCLAIMED: PartitionTaskState.OUTSTANDING,
    FutureState.UNSATISFIABLE: PartitionTaskState.OUTSTANDING,
    FutureState.CLAIMED: PartitionTaskState.IN_PROGRESS,
    FutureState.REALIZED: PartitionTaskState.DONE,
    FutureState.FAILED: PartitionTaskState.FAILED,
    FutureState.CANCELLED: PartitionTaskState.FAILED,
    FutureState.QUARANTINED: PartitionTaskState.QUARANTINED,
}

OPEN = frozenset({PartitionTaskState.OUTSTANDING, PartitionTaskState.IN_PROGRESS})


class PartitionTask(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as it stands now."""

    group: str
    id: str
    future: bytes
    state: PartitionTaskState
    holder: str = ""
    attempts: int = 0  # exceptions, crashes, out-of-memories and dead nodes so far


def create(
    tx: Tx,
    keys: FutureKeys,
    cluster: ClusterKeys,
    group: str,
    tasks: Mapping[str, Spec],
    leader_epoch: int,
) -> list[str]:
    """Make the partitions that are not there yet, each with its future; at most `PAGE` at once.

    The group's map names the node list they were made for (CLU-16). Returns the ids that are new.
    """
    made = []
    for part_id, spec in tasks.items():
        key = keys.task[group, part_id]
        if tx.get(key) is None:
            future = submit.submit_one(tx, keys, spec)
            tx.set(key, future)
            tx.set(keys.pin[future, PIN], b"")
            made.append(part_id)
    made_from = partitions.PartitionMap(nodes.version(tx, cluster), leader_epoch, len(made))
    tx.set(cluster.map[group], msgspec.msgpack.encode(made_from))
    return made


def standing(
    tx: Tx, keys: FutureKeys, group: str, *, after: str = "", limit: int = 200
) -> list[PartitionTask]:
    """The partitions of a group by id, as they stand; `after` the last id of the page before."""
    lo, hi = keys.task.under(group)
    found = tx.range(keys.task[group, after] + b"\x00" if after else lo, hi, limit=limit)
    ids = [row.value for row in found]
    return [
        _task(group, str(keys.task.unpack(row.key)[1]), row.value, state)
        for row, state in zip(found, edges.read_many(tx, keys, ids), strict=True)
    ]


def _task(group: str, part_id: str, future: bytes, row: AnyRow | None) -> PartitionTask:
    if row is None:  # somebody deleted the future: what became of it is not known
        return PartitionTask(group=group, id=part_id, future=future, state=PartitionTaskState.FAILED)
    tally = row.tally
    return PartitionTask(
        group=group,
        id=part_id,
        future=future,
        state=STATE_OF[row.state],
        holder=row.holder if isinstance(row, Claimed) else "",
        attempts=tally.exceptions + tally.crashes + tally.ooms + tally.strange + tally.reaps,
    )


def idle_slots(tx: Tx, cluster: ClusterKeys, open_tasks: int) -> int:
    """How many more tasks the live workers can take: back-pressure on whoever finds work."""
    live = nodes.alive(nodes.read_all(tx, cluster), tx.now())
    slots = sum(node.slots for node in live if node.kind == "worker" and not node.draining)
    return max(0, slots - open_tasks)


def remove_done(tx: Tx, keys: FutureKeys, done: list[PartitionTask]) -> list[str]:
    """Drop completed partitions, if they still are; failed and quarantined ones stay for people to see."""
    removed = []
    for task, row in zip(done, edges.read_many(tx, keys, [task.future for task in done]), strict=True):
        if row is not None and STATE_OF[row.state] is PartitionTaskState.DONE:
            tx.clear(keys.task[task.group, task.id])
            tx.clear(keys.pin[task.future, PIN])
            removed.append(task.id)
    return removed


Find = Callable[[int], Mapping[str, Spec]]
"""Up to so many pieces of outstanding work, each under an id of its own that never means anything else."""

Settled = Callable[[Tx, list[PartitionTask]], None]
"""Called in the transaction that removes completed partitions, to keep what must outlive them."""


class WorkFinder:
    """A leader's duty: find work, make partitions of it as far as workers are idle, remove what is done."""

    def __init__(
        self,
        keys: FutureKeys,
        cluster: ClusterKeys,
        group: str,
        find: Find,
        *,
        settled: Settled | None = None,
        every_s: float = 1.0,
    ) -> None:
        self.keys = keys
        self.cluster = cluster
        self.group = group
        self.find = find
        self.settled = settled
        self.every_s = every_s

    def __call__(self, tenure: Tenure) -> float:
        """One round."""
        open_tasks = self._settle(tenure)
        idle = tenure.run(lambda tx: idle_slots(tx, self.cluster, open_tasks))
        if idle:
            found = list(self.find(idle).items())[:idle]
            for at in range(0, len(found), PAGE):
                page = dict(found[at : at + PAGE])
                tenure.run(partial(self._create, page=page, epoch=tenure.epoch))
        return self.every_s

    def _create(self, tx: Tx, page: Mapping[str, Spec], epoch: int) -> list[str]:
        return create(tx, self.keys, self.cluster, self.group, page, epoch)

    def _settle(self, tenure: Tenure) -> int:
        """Remove what is done, in pages; how many are still open."""
        open_tasks, after = 0, ""
        while True:
            page = tenure.run(partial(standing, keys=self.keys, group=self.group, after=after, limit=PAGE))
            if not page:
                return open_tasks
            open_tasks += sum(task.state in OPEN for task in page)
            done = [task for task in page if task.state is PartitionTaskState.DONE]
            if done:
                tenure.run(partial(self._remove, done=done))
            after = page[-1].id

    def _remove(self, tx: Tx, done: list[PartitionTask]) -> None:
        removed = set(remove_done(tx, self.keys, done))
        if self.settled is not None:
            self.settled(tx, [task for task in done if task.id in removed])


def failure_of(tx: Tx, keys: FutureKeys, task: PartitionTask) -> rows.Failure | None:
    """Why the task's latest attempt failed, and on which node: kept after a later success (CLU-24)."""
    raw = tx.get(keys.error[task.future])
    return None if raw is None else rows.decode_failure(raw)
