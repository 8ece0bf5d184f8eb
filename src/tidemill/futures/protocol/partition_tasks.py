"""Partition tasks: partitions that the leader creates and any worker runs as futures (CLU-12, CLU-15).

`WorkFinder` is a duty for applications that run their own cluster members. Pass it with the other duties:

    Member(context, node, duties={**future_duties(keys, cluster), "list files": WorkFinder(...)})

The leader finds pieces of work, such as the files of a bucket, and creates a partition for each: a row
(group, id) with the id of a durable future. The claim on that future is the partition's lease. The state of
the partition is derived from the state of the future (`PartitionTaskState`). The row pins the future, so that
the sweep does not delete it before the partition is removed.

A round creates at most as many partitions as the live workers have idle slots. So work that cannot start yet
does not fill the store; a later round finds it again. A round also removes completed partitions. The leader
does both in fenced transactions, so a former leader cannot create a partition. A partition whose id already
has a row is not created again.
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
    """The states of a partition, derived from its future (CLU-15)."""

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
    """A partition and its current state."""

    group: str
    id: str
    future: bytes
    state: PartitionTaskState
    holder: str = ""
    attempts: int = 0  # failed attempts so far: exceptions, crashes, out-of-memory errors, dead nodes


def create(
    tx: Tx,
    keys: FutureKeys,
    cluster: ClusterKeys,
    group: str,
    tasks: Mapping[str, Spec],
    leader_epoch: int,
) -> list[str]:
    """Create the partitions that do not exist yet, each with its future. Pass at most `PAGE` partitions.

    The group's map records the version of the node list (CLU-16). Return the ids of the new partitions.
    """
    created = []
    for part_id, spec in tasks.items():
        key = keys.task[group, part_id]
        if tx.get(key) is None:
            future = submit.submit_one(tx, keys, spec)
            tx.set(key, future)
            tx.set(keys.pin[future, PIN], b"")
            created.append(part_id)
    partition_map = partitions.PartitionMap(nodes.version(tx, cluster), leader_epoch, len(created))
    tx.set(cluster.map[group], msgspec.msgpack.encode(partition_map))
    return created


def list_tasks(
    tx: Tx, keys: FutureKeys, group: str, *, after: str = "", limit: int = 200
) -> list[PartitionTask]:
    """Return a page of a group's partitions, ordered by id. `after` is the last id of the previous page."""
    lo, hi = keys.task.under(group)
    page = tx.range(keys.task[group, after] + b"\x00" if after else lo, hi, limit=limit)
    ids = [row.value for row in page]
    return [
        _task(group, str(keys.task.unpack(row.key)[1]), row.value, state)
        for row, state in zip(page, edges.read_many(tx, keys, ids), strict=True)
    ]


def _task(group: str, part_id: str, future: bytes, row: AnyRow | None) -> PartitionTask:
    if row is None:  # the future was deleted, so its outcome is unknown
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
    """Return how many more tasks the live workers can run. `WorkFinder` creates no more than this."""
    live = nodes.alive(nodes.read_all(tx, cluster), tx.now())
    slots = sum(node.slots for node in live if node.kind == "worker" and not node.draining)
    return max(0, slots - open_tasks)


def remove_done(tx: Tx, keys: FutureKeys, tasks: list[PartitionTask]) -> list[str]:
    """Remove these partitions if they are still completed. Failed and quarantined partitions stay visible."""
    removed = []
    for task, row in zip(tasks, edges.read_many(tx, keys, [task.future for task in tasks]), strict=True):
        if row is not None and STATE_OF[row.state] is PartitionTaskState.DONE:
            tx.clear(keys.task[task.group, task.id])
            tx.clear(keys.pin[task.future, PIN])
            removed.append(task.id)
    return removed


FindWork = Callable[[int], Mapping[str, Spec]]
"""Takes a number, and returns at most that many pieces of outstanding work, each under an id that is never
reused."""

OnDone = Callable[[Tx, list[PartitionTask]], None]
"""Called in the transaction that removes completed partitions, to store what must outlive them."""


class WorkFinder:
    """A leader's duty: find work, create partitions while workers are idle, remove completed partitions.

    Args:
        keys: the keys of futures.
        cluster: the keys of nodes.
        group: the name of the partitions' group.
        find: finds outstanding work.
        on_done: called with completed partitions before they are removed.
        every_s: how long to wait between two rounds.
    """

    def __init__(
        self,
        keys: FutureKeys,
        cluster: ClusterKeys,
        group: str,
        find: FindWork,
        *,
        on_done: OnDone | None = None,
        every_s: float = 1.0,
    ) -> None:
        self.keys = keys
        self.cluster = cluster
        self.group = group
        self.find = find
        self.on_done = on_done
        self.every_s = every_s

    def __call__(self, tenure: Tenure) -> float:
        """Run one round. Return the seconds until the next round."""
        open_tasks = self._remove_completed(tenure)
        idle = tenure.run(lambda tx: idle_slots(tx, self.cluster, open_tasks))
        if idle:
            work = list(self.find(idle).items())[:idle]
            for at in range(0, len(work), PAGE):
                page = dict(work[at : at + PAGE])
                tenure.run(partial(self._create, page=page, epoch=tenure.epoch))
        return self.every_s

    def _create(self, tx: Tx, page: Mapping[str, Spec], epoch: int) -> list[str]:
        return create(tx, self.keys, self.cluster, self.group, page, epoch)

    def _remove_completed(self, tenure: Tenure) -> int:
        """Remove completed partitions, page by page. Return how many are still open."""
        open_tasks, after = 0, ""
        while True:
            page = tenure.run(partial(list_tasks, keys=self.keys, group=self.group, after=after, limit=PAGE))
            if not page:
                return open_tasks
            open_tasks += sum(task.state in OPEN for task in page)
            completed = [task for task in page if task.state is PartitionTaskState.DONE]
            if completed:
                tenure.run(partial(self._remove, completed=completed))
            after = page[-1].id

    def _remove(self, tx: Tx, completed: list[PartitionTask]) -> None:
        removed = set(remove_done(tx, self.keys, completed))
        if self.on_done is not None:
            self.on_done(tx, [task for task in completed if task.id in removed])


def failure_of(tx: Tx, keys: FutureKeys, task: PartitionTask) -> rows.Failure | None:
    """Return the failure of the task's latest failed attempt. It is kept after a later success (CLU-24)."""
    raw = tx.get(keys.error[task.future])
    return None if raw is None else rows.decode_failure(raw)
