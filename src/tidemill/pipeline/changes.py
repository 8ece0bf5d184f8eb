"""Read the changes of a table after a position, each with the lots it was computed from (LOT-36).

Each row has the columns of the table, and also these columns:

    _weight     how many times the row is inserted (above 0) or deleted (below 0)
    _position   the position of the row's lot; for a view, the number of the step
    _inputs     the lots that the arc or the view's step read to compute the row; empty for rows that users or
                sources wrote; NULL if there are more than 1,000 lots

Lots that are published after the call do not appear in the DataFrame.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidemill.errors import QueryError, ViewRefused
from tidemill.lots import events, expiry, lots
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot
from tidemill.pipeline import view_rebuilds
from tidemill.pipeline.reader import TableReader
from tidemill.spark.lot_reader import POSITION, read_positioned
from tidemill.spark.operations import WEIGHT, stored_schema
from tidemill.spark.queries import quoted
from tidemill.store import Tx
from tidemill.views.steps import commits, records
from tidemill.views.steps.commits import StepRow
from tidemill.views.steps.groups import GroupSpec, ViewGroup
from tidemill.views.steps.keys import group_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.pipeline.pipeline import Pipeline

INPUTS: Final = "_inputs"
INPUTS_TYPE: Final = "array<struct<dataset:string,version:string,lot:string,generation:int>>"
MAX_INPUTS: Final = 1000
"""The maximum number of lots in `_inputs`. The list must be short, because every row of a position has it."""
PAGE: Final = 100

_arrow: Final = pa.list_(
    pa.struct(
        [("dataset", pa.string()), ("version", pa.string()), ("lot", pa.string()), ("generation", pa.int32())]
    )
)
Lots = Mapping[int, Sequence[InputLot] | None]


def changes(pipeline: "Pipeline", name: str, after: int) -> "DataFrame":
    """Return the changes after a position, in no particular order."""
    with pipeline.context.spark() as spark:
        reader = TableReader(pipeline, spark)
        if name in pipeline.views:
            return _of_view(reader, name, after)
        return _of_dataset(reader, name, after)


def _of_dataset(reader: TableReader, name: str, after: int) -> "DataFrame":
    from pyspark.sql import functions as sf

    dataset, context = reader.dataset(name), reader.context
    if dataset.kind is Kind.KEYED:
        raise QueryError(
            f"{name} has a key, so its changes cannot be read directly",
            hint="declare a view of all its columns and read the changes of the view",
        )
    head = context.store.run(lambda tx: events.head(tx, context.keys.lots, dataset.id))
    exchange = reader.inputs.between(dataset.id, after, head)
    schema = stored_schema(dataset.schema, dataset.kind)
    frames = []
    for slices, sign in ((exchange.plus, 1), (exchange.minus, -1)):
        if not slices and sign < 0:
            continue
        rows = [(part.position, part.objects) for part in slices]
        frame = read_positioned(reader.spark, context.storage, schema, rows)
        weight = sf.col(WEIGHT) * sign if dataset.kind is Kind.CHANGES else sf.lit(sign).cast("bigint")
        frames.append(frame.withColumn(WEIGHT, weight))
    changed = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    positions = {part.position for part in (*exchange.plus, *exchange.minus)}
    return _with_inputs(changed, dict(_inputs_of(reader, dataset, sorted(positions))))


def _inputs_of(
    reader: TableReader, dataset: DatasetRow, positions: Sequence[int]
) -> Iterator[tuple[int, Sequence[InputLot]]]:
    """Yield the input lots of each of these positions, from the manifests."""
    keys = reader.context.keys.lots

    def rows(tx: Tx, page: Sequence[int]) -> list[lots.LotRow]:
        published = [events.first_unseen(tx, keys, dataset.id, position - 1) for position in page]
        return [
            lots.resolve(tx, keys, dataset.id, event.lot, event.generation)
            for event in published
            if event is not None
        ]

    for first in range(0, len(positions), PAGE):
        page = positions[first : first + PAGE]
        for row in reader.context.store.run(lambda tx, page=page: rows(tx, page)):  # type: ignore[misc]
            yield row.position, reader.inputs.manifests.load(row.manifest).inputs if row.manifest else ()


def steps_of(reader: TableReader, group: ViewGroup, view: str, after: int) -> list[StepRow]:
    """Return the commits of a group after a step.

    Raises an error if the changes of a view in them are expired, or do not fit its rows at that step.
    """
    context = reader.context
    source = group_source(reader.pipeline.name, group.spec.name)
    steps: list[StepRow] = []
    last = after
    while page := context.store.run(
        lambda tx, last=last: commits.rows(  # type: ignore[misc]
            tx, context.keys, reader.pipeline.name, group.spec.name, last, group.step
        )
    ):
        steps += page
        last = page[-1].step
    context.store.run(lambda tx: expiry.check_position(tx, context.keys.lots, source, after, view))
    _check_continuous(reader, group, view, after, steps)
    return steps


def _of_view(reader: TableReader, view: str, after: int) -> "DataFrame":
    group = reader.group(view)
    steps = steps_of(reader, group, view, after)
    frame = reader.tables.changes(reader.spark, reader.view_table(view), view, steps)
    bases = _base_datasets(group.spec, view)
    changed = [row for row in steps if any(output.view == view and output.changes for output in row.outputs)]
    return _with_inputs(frame, {row.step: _step_inputs(reader, row, view, bases) for row in changed})


def _check_continuous(
    reader: TableReader, group: ViewGroup, view: str, after: int, steps: Sequence[StepRow]
) -> None:
    """Raise `ViewRefused` if the changes of these steps do not fit the rows of the view at `after`."""
    context, pipeline, name = reader.context, reader.pipeline.name, group.spec.name
    hint = f"read the complete view with df(), and then its changes after position {group.step}"
    oldest = context.store.run(lambda tx: commits.oldest(tx, context.keys, pipeline, name))
    if oldest is not None and 0 < after <= oldest.after:  # the group had no table at these positions
        raise ViewRefused(
            f"the group of view {view} was declared again after position {after}; only the changes after"
            f" position {oldest.after} can be read",
            hint=hint,
        )
    before, at = None, after
    while before is None and at:
        before, at = context.store.run(
            lambda tx, at=at: view_rebuilds.last_output(tx, context.keys, pipeline, name, view, at)  # type: ignore[misc]
        )
    rebuilt = view_rebuilds.rebuild_step(view, before, steps)
    if rebuilt is not None:
        raise ViewRefused(
            f"view {view} was rebuilt from scratch at position {rebuilt}, because its columns changed or it"
            f" was declared again; its changes cannot be applied to the rows that you read at position"
            f" {after}",
            hint=hint,
        )


def _base_datasets(spec: GroupSpec, view: str) -> frozenset[DatasetId]:
    """Return the datasets that a view reads, directly or through other views of its group."""
    views = {member.name: member for member in spec.views}
    bases: set[DatasetId] = set()
    names = [view]
    while names:
        member = views[names.pop()]
        bases |= set(member.reads)
        names += member.uses
    return frozenset(bases)


def _step_inputs(
    reader: TableReader, row: StepRow, view: str, bases: frozenset[DatasetId]
) -> list[InputLot] | None:
    """Return the lots of these datasets that a view processed in one commit; None if there are too many."""
    context, pipeline = reader.context, reader.pipeline.name
    after = row.after_of(view)
    count = row.step - after
    if count > MAX_INPUTS:
        return None
    steps = context.store.run(lambda tx: records.read(tx, context.keys, pipeline, after, count))
    ranges = [range_ for record in steps for range_ in record.ranges if range_.dataset in bases]
    if len(steps) < count or sum(range_.to - range_.after for range_ in ranges) > MAX_INPUTS:
        return None
    newest: dict[tuple[DatasetId, str], int] = {}
    for range_ in ranges:
        for event in _events(reader, range_):
            newest[range_.dataset, event.lot] = event.generation
    return [
        InputLot(dataset=dataset.name, version=dataset.version, lot=lot, generation=generation)
        for (dataset, lot), generation in newest.items()
    ]


def _events(reader: TableReader, range_: records.PositionRange) -> Iterable[events.LotEvent]:
    keys, after = reader.context.keys.lots, range_.after
    while after < range_.to:
        limit = min(PAGE, range_.to - after)
        page = reader.context.store.run(
            lambda tx, after=after, limit=limit: events.read(tx, keys, range_.dataset, after, limit)  # type: ignore[misc]
        )
        if not page:
            return
        yield from page
        after = page[-1].position


def _with_inputs(frame: "DataFrame", inputs: Lots) -> "DataFrame":
    """Add the column `_inputs` to a DataFrame: the input lots for the position of each row."""
    from pyspark.sql import functions as sf

    if not any(inputs.values()) and None not in inputs.values():
        return frame.withColumn(INPUTS, sf.array().cast(INPUTS_TYPE))
    values = [
        None
        if lots is None
        else [
            {"dataset": lot.dataset, "version": lot.version, "lot": lot.lot, "generation": lot.generation}
            for lot in lots
        ]
        for lots in inputs.values()
    ]
    table = frame.sparkSession.createDataFrame(
        pa.table({POSITION: pa.array(inputs, pa.int64()), INPUTS: pa.array(values, _arrow)})
    )
    columns = [sf.col(quoted(name)) for name in frame.columns]
    return frame.join(sf.broadcast(table), POSITION, "left").select(*columns, sf.col(INPUTS))
