"""Changes of a table behind a position, each with the lots it was made from (LOT-36).

Beside the table's columns a row has

    _weight     how often it comes (above 0) or goes (below)
    _position   of the lot it came with; of a view: the step
    _inputs     the lots that were made into it: what an arc had read, what a view's step had taken in; none
                for rows that came from outside; NULL where they are more than 1,000

What is published while the frame is used does not join it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidemill.errors import QueryError
from tidemill.lots import events, lots
from tidemill.lots.datasets import Dataset, Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot
from tidemill.pipeline.reader import Reader
from tidemill.spark.lot_reader import POSITION, read_positioned
from tidemill.spark.operations import WEIGHT, stored_schema
from tidemill.spark.queries import quoted
from tidemill.store import Tx
from tidemill.views.steps import commits, records
from tidemill.views.steps.commits import StepRow
from tidemill.views.steps.groups import GroupSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.pipeline.pipeline import Pipeline

INPUTS: Final = "_inputs"
INPUTS_TYPE: Final = "array<struct<dataset:string,version:string,lot:string,generation:int>>"
MOST: Final = 1000
"""Lots that are named for one position: each of its rows carries them."""
PAGE: Final = 100

_arrow: Final = pa.list_(
    pa.struct(
        [("dataset", pa.string()), ("version", pa.string()), ("lot", pa.string()), ("generation", pa.int32())]
    )
)
Lots = Mapping[int, Sequence[InputLot] | None]


def changes(pipeline: "Pipeline", name: str, after: int) -> "DataFrame":
    """What was published behind a position, in no order."""
    with pipeline.site.spark() as spark:
        reader = Reader(pipeline, spark)
        if name in pipeline.views:
            return _of_view(reader, name, after)
        return _of_dataset(reader, name, after)


def _of_dataset(reader: Reader, name: str, after: int) -> "DataFrame":
    from pyspark.sql import functions as sf

    dataset, site = reader.declared(name), reader.site
    if dataset.kind is Kind.KEYED:
        raise QueryError(
            f"the changes of {name}, which has a key, are seen by views",
            hint=f"keep a view of all its columns: the changes of that are those of {name}",
        )
    head = site.store.run(lambda tx: events.head(tx, site.keys.lots, dataset.id))
    exchange = reader.inputs.between(dataset.id, after, head)
    schema = stored_schema(dataset.schema, dataset.kind)
    frames = []
    for slices, sign in ((exchange.plus, 1), (exchange.minus, -1)):
        if not slices and sign < 0:
            continue
        rows = [(one.position, one.objects) for one in slices]
        frame = read_positioned(reader.spark, site.storage, schema, rows)
        weight = sf.col(WEIGHT) * sign if dataset.kind is Kind.CHANGES else sf.lit(sign).cast("bigint")
        frames.append(frame.withColumn(WEIGHT, weight))
    found = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    positions = {one.position for one in (*exchange.plus, *exchange.minus)}
    return _with_inputs(found, dict(_lots_of(reader, dataset, sorted(positions))))


def _lots_of(
    reader: Reader, dataset: Dataset, positions: Sequence[int]
) -> Iterator[tuple[int, Sequence[InputLot]]]:
    """Of what was published at these positions, what it was made from: its manifest says it."""
    keys = reader.site.keys.lots

    def rows(tx: Tx, page: Sequence[int]) -> list[lots.LotRow]:
        found = [events.first_unseen(tx, keys, dataset.id, position - 1) for position in page]
        return [
            lots.resolve(tx, keys, dataset.id, one.lot, one.generation) for one in found if one is not None
        ]

    for first in range(0, len(positions), PAGE):
        page = positions[first : first + PAGE]
        for row in reader.site.store.run(lambda tx, page=page: rows(tx, page)):  # type: ignore[misc]
            yield row.position, reader.inputs.manifests.load(row.manifest).inputs if row.manifest else ()


def _of_view(reader: Reader, view: str, after: int) -> "DataFrame":
    group, site = reader.group(view), reader.site
    found: list[StepRow] = []
    at = after
    while page := site.store.run(
        lambda tx, at=at: commits.rows(  # type: ignore[misc]
            tx, site.keys, reader.pipeline.name, group.spec.name, at, group.step
        )
    ):
        found += page
        at = page[-1].step
    frame = reader.tables.changes(reader.spark, reader.view_table(view), view, found)
    bases = _bases(group.spec, view)
    there = [row for row in found if any(one.view == view and one.changes for one in row.outputs)]
    return _with_inputs(frame, {row.step: _taken_in(reader, row, bases) for row in there})


def _bases(spec: GroupSpec, view: str) -> frozenset[DatasetId]:
    """The datasets a view is made from, through other views of its group as well."""
    views = {one.name: one for one in spec.views}
    found: set[DatasetId] = set()
    left = [view]
    while left:
        one = views[left.pop()]
        found |= set(one.reads)
        left += one.uses
    return frozenset(found)


def _taken_in(reader: Reader, row: StepRow, bases: frozenset[DatasetId]) -> list[InputLot] | None:
    """The lots that one commit of a group took in, of these datasets; None if they are too many to name."""
    site, pipeline = reader.site, reader.pipeline.name
    steps = site.store.run(lambda tx: records.read(tx, site.keys, pipeline, row.after, row.step - row.after))
    ranges = [one for record in steps for one in record.ranges if one.dataset in bases]
    if len(steps) < row.step - row.after or sum(one.to - one.after for one in ranges) > MOST:
        return None
    newest: dict[tuple[DatasetId, str], int] = {}
    for one in ranges:
        for event in _events(reader, one):
            newest[one.dataset, event.lot] = event.generation
    return [
        InputLot(dataset=dataset.name, version=dataset.version, lot=lot, generation=generation)
        for (dataset, lot), generation in newest.items()
    ]


def _events(reader: Reader, one: records.Range) -> Iterable[events.LotEvent]:
    keys, after = reader.site.keys.lots, one.after
    while after < one.to:
        page = reader.site.store.run(
            lambda tx, after=after: events.read(tx, keys, one.dataset, after, min(PAGE, one.to - after))  # type: ignore[misc]
        )
        if not page:
            return
        yield from page
        after = page[-1].position


def _with_inputs(frame: "DataFrame", inputs: Lots) -> "DataFrame":
    """The frame with what each position was made from, looked up by the position."""
    from pyspark.sql import functions as sf

    if not any(inputs.values()) and None not in inputs.values():
        return frame.withColumn(INPUTS, sf.array().cast(INPUTS_TYPE))
    named = [
        None
        if lots is None
        else [
            {"dataset": one.dataset, "version": one.version, "lot": one.lot, "generation": one.generation}
            for one in lots
        ]
        for lots in inputs.values()
    ]
    table = frame.sparkSession.createDataFrame(
        pa.table({POSITION: pa.array(inputs, pa.int64()), INPUTS: pa.array(named, _arrow)})
    )
    columns = [sf.col(quoted(name)) for name in frame.columns]
    return frame.join(sf.broadcast(table), POSITION, "left").select(*columns, sf.col(INPUTS))
