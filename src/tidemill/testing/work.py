"""Work that a test can check afterwards: each partition has numbered units, and each unit writes a history.

The plan is in the cluster's configuration, so that any node can be the leader and create the partitions
(CLU-17). A node that takes a partition continues where the last holder stopped. Every unit is one
transaction. It reads the partition's row, checks the partition's epoch, advances the progress and appends to
the history. `violations` then checks the history, in the order of the commits:

- no write has an older epoch than the partition's row had at that moment (an entry records both epochs);
- in each partition, epochs never decrease, and only one node writes under each epoch;
- each partition has every unit exactly once, in order, and then one end.
"""

from collections import defaultdict
from typing import Literal

import msgspec

from tidemill.cluster import config, nodes, partitions
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.partitions import Partition, PartitionMap
from tidemill.store import Space, Store, Tx

PAGE = 100
PLAN = "work"


class WorkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How many partitions there are, how many units each has, and how long a unit takes."""

    partitions: int
    units: int
    unit_s: float


class WorkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One write in the history, with the epoch and holder of the partition's row at that moment."""

    partition: str
    epoch: int
    node: str
    row_epoch: int
    row_holder: str
    at: int  # store time in microseconds
    kind: Literal["unit", "end"] = "unit"
    unit: int = 0


class PartitionWork:
    """The work of one group of partitions. The methods that take `tx` run inside a transaction."""

    def __init__(self, cluster: str, group: str = "work") -> None:
        self.keys = ClusterKeys(cluster)
        self.group = group
        space = Space(cluster, "testing-work", group)
        self.finished = space["finished"]
        self._progress = space.space("progress")
        self._history = space.space("history")

    # --- the plan

    def put_plan(self, tx: Tx, plan: WorkPlan) -> None:
        """Store the plan, for the leader."""
        config.put(tx, self.keys, PLAN, msgspec.json.encode(plan).decode())

    def plan(self, tx: Tx) -> WorkPlan | None:
        text = config.get(tx, self.keys, PLAN)
        return msgspec.json.decode(text, type=WorkPlan) if isinstance(text, str) else None

    def create(self, tx: Tx, leader_epoch: int) -> bool:
        """Create the next page of partitions, in the leader's transaction; return True when all exist."""
        plan = self.plan(tx)
        if plan is None:
            return False
        before = partitions.map_of(tx, self.keys, self.group)
        first = before.count if before is not None else 0
        ids = range(first, min(first + PAGE, plan.partitions))
        if ids:
            made_from = PartitionMap(nodes.version(tx, self.keys), leader_epoch, ids[-1] + 1)
            payloads = {f"{number:05d}": b"" for number in ids}
            partitions.create(tx, self.keys, self.group, payloads, made_from)
        return first + len(ids) == plan.partitions

    def finish(self, tx: Tx) -> bool:
        """Mark the work as finished, in the leader's transaction, if all partitions are done."""
        plan, current = self.plan(tx), partitions.map_of(tx, self.keys, self.group)
        all_exist = plan is not None and current is not None and current.count == plan.partitions
        if all_exist and not partitions.summaries(tx, self.keys, self.group):
            tx.set(self.finished, b"")
            return True
        return False

    def is_finished(self, tx: Tx) -> bool:
        return tx.get(self.finished) is not None

    # --- the holder's steps

    def write_unit(self, tx: Tx, part: Partition, node: str) -> int:
        """Do the next unit, if there is one, and return how many are done.

        Raise `LeaseLost` if the epoch is over.
        """
        row = partitions.read(tx, self.keys, part.group, part.id)
        partitions.check(tx, self.keys, part)
        plan = self.plan(tx)
        completed = self.progress(tx, part.id)
        if plan is None or completed >= plan.units:
            return completed
        tx.set(self._progress[part.id], msgspec.msgpack.encode(completed + 1))
        self._append(tx, part, node, row, unit=completed)
        return completed + 1

    def write_end(self, tx: Tx, part: Partition, node: str) -> None:
        """Append an end to the history, in the fenced transaction that completes the partition."""
        row = partitions.read(tx, self.keys, part.group, part.id)
        self._append(tx, part, node, row, kind="end")

    def progress(self, tx: Tx, part_id: str) -> int:
        raw = tx.get(self._progress[part_id])
        return 0 if raw is None else msgspec.msgpack.decode(raw, type=int)

    def _append(
        self,
        tx: Tx,
        part: Partition,
        node: str,
        row: Partition | None,
        *,
        unit: int = 0,
        kind: Literal["unit", "end"] = "unit",
    ) -> None:
        entry = WorkEntry(
            partition=part.id,
            epoch=part.epoch,
            node=node,
            row_epoch=row.epoch if row is not None else 0,
            row_holder=row.holder if row is not None else "",
            at=tx.now(),
            kind=kind,
            unit=unit,
        )
        tx.set_versioned(self._history.prefix, msgspec.msgpack.encode(entry))

    # --- looking

    def all_progress(self, tx: Tx) -> dict[str, int]:
        """Return how many units of each partition are done; omit partitions that have not begun."""
        rows = tx.range(*self._progress.all(), snapshot=True)
        return {
            str(self._progress.unpack(row.key)[0]): msgspec.msgpack.decode(row.value, type=int)
            for row in rows
        }

    def history(self, store: Store) -> list[WorkEntry]:
        """Return all entries in the order of the commits."""
        entries: list[WorkEntry] = []
        lo, hi = self._history.all()
        while True:
            rows = store.run(lambda tx, lo=lo: tx.range(lo, hi, limit=500, snapshot=True))  # type: ignore[misc]
            entries += [msgspec.msgpack.decode(row.value, type=WorkEntry) for row in rows]
            if len(rows) < 500:
                return entries
            lo = rows[-1].key + b"\x00"


def violations(entries: list[WorkEntry], plan: WorkPlan | None = None) -> list[str]:
    """Return the errors in a history. If a plan is given, also report units and ends that are missing."""
    wrong: list[str] = []
    by_partition: dict[str, list[WorkEntry]] = defaultdict(list)
    for entry in entries:
        by_partition[entry.partition].append(entry)
    for name, written in sorted(by_partition.items()):
        wrong += [f"partition {name}: {problem}" for problem in _broken_epochs(written)]
        wrong += [f"partition {name}: {problem}" for problem in _broken_order(written)]
    if plan is not None:
        for number in range(plan.partitions):
            name = f"{number:05d}"
            ends = sum(entry.kind == "end" for entry in by_partition[name])
            units = len(by_partition[name]) - ends
            if (units, ends) != (plan.units, 1):
                wrong.append(f"partition {name}: {units} of {plan.units} units, ended {ends} times")
    return wrong


def _broken_epochs(written: list[WorkEntry]) -> list[str]:
    wrong = []
    highest = 0
    owners: dict[int, str] = {}
    for entry in written:
        # completing increases the row's epoch by one, in the same transaction
        expected = entry.epoch + (entry.kind == "end")
        if entry.row_epoch != expected or entry.row_holder != entry.node:
            wrong.append(
                f"{entry.node} wrote under epoch {entry.epoch}, but the row had epoch {entry.row_epoch}"
            )
        if entry.epoch < highest:
            wrong.append(f"{entry.node} wrote under epoch {entry.epoch} after epoch {highest}")
        highest = max(highest, entry.epoch)
        owner = owners.setdefault(entry.epoch, entry.node)
        if owner != entry.node:
            wrong.append(f"epoch {entry.epoch} belonged to {owner}, but {entry.node} wrote under it")
    return wrong


def _broken_order(written: list[WorkEntry]) -> list[str]:
    wrong = []
    units = [entry.unit for entry in written if entry.kind == "unit"]
    if units != list(range(len(units))):
        wrong.append(f"the units were written in the order {units}")
    ends = [at for at, entry in enumerate(written) if entry.kind == "end"]
    if len(ends) > 1 or (ends and ends[0] != len(written) - 1):
        wrong.append(f"it ended {len(ends)} times, at {ends} of {len(written)} writes")
    return wrong
