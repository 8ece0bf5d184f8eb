"""A stage for tests of steps: groups of views that are computed from their batch alone, without Spark."""

from typing import Any

from tests.unit.lots_stage import Stage
from tidemill.cluster.nodes import Node
from tidemill.lots import events, layout
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import ManifestState
from tidemill.publish import attempts
from tidemill.publish.attempts import Published
from tidemill.store import Store, Tx
from tidemill.triggers.runs import Ticket
from tidemill.views.steps import commits, groups, records
from tidemill.views.steps.commits import StepBatch, StepOutput, StepRow
from tidemill.views.steps.groups import GroupSpec, ViewGroup, ViewSpec
from tidemill.views.steps.keys import (
    StepKeys,
    changes_of,
    group_id,
    group_source,
    step_log,
    step_lot,
    table_of,
)
from tidemill.views.steps.records import StepRecord
from tidemill.views.steps.stepper import Compute, RunSummary, Stepper

P = "shop"


class StepStage(Stage):
    """One pipeline, `shop`."""

    def __init__(self, store: Store | None = None, *, scan: bool = True) -> None:
        self.keys = StepKeys("c")
        self.computed: list[tuple[StepBatch, str]] = []
        super().__init__(store, scan=scan)

    def check(self) -> None:
        super().check()
        self.store.run(lambda tx: check_steps(tx, self.keys))

    def declare(self, *specs: GroupSpec, circuit: str = "1") -> None:
        for spec in specs:
            self.run(groups.declare, self.keys, P, spec)
        self.run(groups.declare_circuit, self.keys, P, circuit, "declarer")

    def group(self, name: str) -> ViewGroup:
        return self.store.run(lambda tx: groups.read(tx, self.keys, P, name))

    def records(self, after: int = 0) -> list[StepRecord]:
        return self.store.run(lambda tx: records.read(tx, self.keys, P, after, 1000))

    def rows_of_group(self, name: str) -> list[StepRow]:
        return self.store.run(lambda tx: commits.rows(tx, self.keys, P, name, 0, 10**9, 1000))

    def head(self, source: DatasetId) -> int:
        return self.store.run(lambda tx: events.head(tx, self.lots, source))

    def compute(self, batch: StepBatch, attempt: str) -> tuple[StepOutput, ...]:
        self.computed.append((batch, attempt))
        return outputs(batch, attempt)

    def stepper(self, *, compute: Compute | None = None, most: int = 1, **fields: Any) -> Stepper:
        return Stepper(self.scope(**fields), P, compute or self.compute, most=most)

    def begin(self, node: Node, group: str) -> Ticket | None:
        self.page_all()
        name = group_id(P, group)
        if not any(due.name == name for due in self.due()):
            return None
        return self.start(node, name)

    def step(self, node: Node, group: str, **fields: Any) -> RunSummary | None:
        """One run of a group, if it is due."""
        ticket = self.begin(node, group)
        return None if ticket is None else self.stepper(**fields).run(ticket)

    def settle(self, node: Node, *names: str) -> None:
        """Run the groups until none of them is due."""
        for _ in range(100):
            if not [name for name in names if self.step(node, name) is not None]:
                return
        raise AssertionError("a group is always due")


def spec(name: str, *reads: DatasetId, code: str = "c", **fields: Any) -> GroupSpec:
    """A group of one view that bears its name."""
    return GroupSpec(name=name, views=(ViewSpec(name=name, code=code, reads=reads),), **fields)


def outputs(batch: StepBatch, attempt: str) -> tuple[StepOutput, ...]:
    """Manifests that name what they were made from, so that a mix-up shows."""
    fields = (batch.lot, ManifestState.COMPLETE, 0, attempt)
    return tuple(
        StepOutput(
            view=view.name,
            changes=layout.manifest_key(*changes_of(P, view.name).parts, *fields),
            table=layout.manifest_key(*table_of(P, view.name).parts, *fields, root=True),
            rows=1,
        )
        for view in batch.spec.views
    )


def check_steps(tx: Tx, keys: StepKeys, pipeline: str = P) -> None:
    """Records without gaps; ranges, and commits, that follow each other; heads at the last."""
    log = records.read(tx, keys, pipeline, 0, 10_000)
    assert [record.number for record in log] == list(range(1, len(log) + 1))
    assert records.last(tx, keys, pipeline).number == len(log)
    assert [record.now for record in log] == sorted(record.now for record in log)
    assert [record.epoch for record in log] == sorted(record.epoch for record in log)
    at: dict[DatasetId, int] = {}
    by_step: list[dict[DatasetId, int]] = [{}]
    for record in log:
        for each in record.ranges:
            assert each.after == at.get(each.dataset, 0) < each.to <= events.head(tx, keys.lots, each.dataset)
            at[each.dataset] = each.to
        by_step.append(dict(at))
    assert records.assigned(tx, keys, pipeline, list(at)) == at
    if log:
        assert events.head(tx, keys.lots, step_log(pipeline)) == len(log)
    for group in groups.listed(tx, keys, pipeline):
        bases = group.spec.bases
        for step, positions_then in enumerate(by_step):
            positions = records.positions_at(tx, keys, pipeline, bases, step)
            assert positions == {each: positions_then.get(each, 0) for each in bases}
        _check_group(tx, keys, pipeline, group, log)


def _check_group(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup, log: list[StepRecord]) -> None:
    name = group.spec.name
    rows = commits.rows(tx, keys, pipeline, name, 0, 10**9, 10_000)
    assert all(row.after < row.step for row in rows)
    assert [row.after for row in rows[1:]] == [row.step for row in rows[:-1]]
    assert not rows or rows[-1].step == group.step <= len(log)
    assert events.head(tx, keys.lots, group_source(pipeline, name)) == group.step
    assert [(row.epoch, row.fence) for row in rows] == sorted((row.epoch, row.fence) for row in rows)
    by_author = set()
    for row in rows:
        if not row.attempt:
            assert not row.outputs
            continue
        attempt = attempts.read(tx, keys, row.attempt)
        assert isinstance(attempt, Published)
        assert attempt.draft.author == group_id(pipeline, name)
        by_author.add(row.attempt)
        for output in row.outputs:
            for key in (output.changes, output.table):  # a row names what its own attempt wrote
                parsed = layout.parse_key(key)
                assert (parsed["attempt"], parsed["lot"]) == (row.attempt, step_lot(row.step))
    # No attempt is published without the row that names it.
    for stored in tx.range(*keys.attempt.all(), snapshot=True):
        attempt = attempts.read(tx, keys, str(keys.attempt.unpack(stored.key)[0]))
        if isinstance(attempt, Published) and attempt.draft.author == group_id(pipeline, name):
            assert attempt.draft.id in by_author
