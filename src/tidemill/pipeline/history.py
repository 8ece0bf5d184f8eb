"""Read tables as they were at a position or at a time, and all tables as of one step.

A dataset at a position has the lots that were current there. A view at a step is its present table without
the changes of later steps: changes are exact, and they are kept as long as `changes()` can read them. So a
view can be read at any step within its retention, although its earlier files are merged and deleted.

A snapshot is the state at one step of the pipeline's step log, which all groups of views have committed.
Every view in it is the result of its query over the other tables in it. A dataset that a view reads has the
lots that belong to the steps up to there; arcs and views across arcs have no common steps, so a table that
only arcs read is as it is now.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from tidemill.errors import GroupUnknown, NothingYet, UsageError
from tidemill.lots import events, expiry
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import changes, reader
from tidemill.pipeline.reader import TableReader
from tidemill.store import Tx
from tidemill.views.spark.dataset_contents import dataset_frame
from tidemill.views.steps import commits, failed_views, groups, pins, records
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.keys import group_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.pipeline.pipeline import Pipeline

SECOND_US = 1_000_000


def table_as_of(pipeline: "Pipeline", name: str, as_of: int | datetime) -> "DataFrame":
    """Return a table as it was at a position or at a time. Raise `HistoryExpired` if it no longer can be
    read.
    """
    with pipeline.context.spark() as spark:
        tables = TableReader(pipeline, spark)
        if name in pipeline.views:
            try:
                group = tables.group(name)
            except GroupUnknown:
                raise NothingYet(f"the view {name} has not been computed yet") from None
            to = _step_at(pipeline, group, as_of)
            return _view_at(tables, name, group, to)
        row = reader.stored_dataset(pipeline, name)
        return _dataset_at(tables, row.id, _position_at(pipeline, row.id, as_of), name)


class _Moment(NamedTuple):
    """What a snapshot consists of: a step, the position of each dataset there, and the groups of the
    views.
    """

    step: int
    positions: dict[DatasetId, int]
    groups: dict[str, ViewGroup]


def snapshot(pipeline: "Pipeline") -> "dict[str, DataFrame]":
    """Return all declared tables that exist, as of the same step, without views that are set aside."""
    with pipeline.context.spark() as spark:
        tables = TableReader(pipeline, spark)
        present = tables.present([name for name in pipeline.names if name not in pipeline.views])
        moment = _moment(pipeline, [row.id for row in present.values()])
        frames = {
            name: _dataset_at(tables, row.id, moment.positions[row.id], name) for name, row in present.items()
        }
        for view, group in moment.groups.items():
            frames[view] = _view_at(tables, view, group, moment.step)
        return frames


def _moment(pipeline: "Pipeline", datasets: list[DatasetId]) -> _Moment:
    """Find the last step that all groups have committed, in one transaction. Pin the tables of the views."""
    context, name = pipeline.context, pipeline.name

    def read(tx: Tx) -> _Moment:
        declared = groups.listed(tx, context.keys, name)
        aside = {
            view for view, row in failed_views.listed_all(tx, context.keys, name).items() if row.is_aside
        }
        of_view = {
            view: group
            for group in declared
            for view in group.tables
            if view in pipeline.views and view not in aside
        }
        step = min((group.step for group in of_view.values()), default=0)
        heads = events.heads(tx, context.keys.lots, datasets)
        bases = {dataset for group in of_view.values() for dataset in group.spec.bases} & set(datasets)
        at = records.positions_at(tx, context.keys, name, sorted(bases), step)
        pins.take(tx, context.keys, name, [group.tables[view] for view, group in of_view.items()])
        return _Moment(step, heads | at, of_view)

    return context.store.run(read)


# --- one table


def _dataset_at(tables: TableReader, dataset: DatasetId, position: int, name: str) -> "DataFrame":
    row = tables.dataset(name)
    slices = tables.inputs.remaining_at(dataset, position)
    return dataset_frame(tables.spark, tables.context.storage, row, slices)


def _view_at(tables: TableReader, view: str, group: ViewGroup, step: int) -> "DataFrame":
    """Return a view at a step that its group has committed."""
    context, name = tables.context, tables.pipeline.name
    table = group.tables.get(view)
    if table is None:
        raise NothingYet(f"the view {view} has not been computed yet")
    context.store.run(lambda tx: pins.take(tx, context.keys, name, [table]))
    later = changes.steps_of(tables, group, view, step)
    return tables.tables.content_without(tables.spark, table, view, later)


# --- positions


def _position_at(pipeline: "Pipeline", dataset: DatasetId, as_of: int | datetime) -> int:
    """Return the position of a dataset at a time, or check that it has this position."""
    keys = pipeline.context.keys.lots

    def published_at(tx: Tx, position: int) -> int:
        event = events.first_unseen(tx, keys, dataset, position - 1)
        return 0 if event is None else event.wall_at  # an expired event is earlier than all others

    def read(tx: Tx) -> int:
        head = events.head(tx, keys, dataset)
        if isinstance(as_of, datetime):
            return _last(range(1, head + 1), _micros(as_of), lambda position: published_at(tx, position))
        return _checked(as_of, head, dataset.name)

    return pipeline.context.store.run(read)


def _step_at(pipeline: "Pipeline", group: ViewGroup, as_of: int | datetime) -> int:
    """Return the step of a group at a time, or check that it has committed this step."""
    keys, name = pipeline.context.keys, group.spec.name

    def committed_at(tx: Tx, step: int) -> int:
        rows = commits.before(tx, keys, pipeline.name, name, step, 1)
        return rows[0].wall_at if rows else 0

    def read(tx: Tx) -> int:
        if isinstance(as_of, datetime):
            return _last(range(1, group.step + 1), _micros(as_of), lambda step: committed_at(tx, step))
        return _checked(as_of, group.step, f"group {name}")

    step = pipeline.context.store.run(read)
    source = group_source(pipeline.name, name)
    pipeline.context.store.run(lambda tx: expiry.check_position(tx, keys.lots, source, step, name))
    return step


def _last(numbers: range, limit: int, key: Callable[[int], int]) -> int:
    """Return the last number whose key is at most the limit; 0 if there is none. Keys do not decrease."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if key(numbers[middle]) <= limit:
            low = middle + 1
        else:
            high = middle
    return numbers[low - 1] if low else 0


def _checked(position: int, head: int, what: str) -> int:
    if not 0 <= position <= head:
        raise UsageError(
            f"as_of={position} is not a position of {what}",
            hint=f"use a number from 0 to {head}, or a datetime",
        )
    return position


def _micros(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise UsageError(
            f"as_of={moment.isoformat()} has no time zone",
            hint="pass an aware datetime, such as datetime(2026, 5, 1, 12, tzinfo=UTC)",
        )
    return int(moment.astimezone(UTC).timestamp() * SECOND_US)
