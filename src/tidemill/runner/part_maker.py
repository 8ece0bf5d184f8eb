"""Compute a part of a lot: run the user's function on Spark, in a worker thread of a runner.

`make_part` reads only the objects that the task lists, calls the function, and checks that each result has
the columns of its output table. It writes each result into a folder that only this claim uses. It returns the
list of files, which becomes the manifest.

The function of a linear arc over a table with inserts and deletes never sees a weight (LOT-41). It is called
once with the inserted rows and once with the deleted rows. Each row is repeated as many times as its weight
says. The result for the deleted rows is then deleted from the output table. This is correct only if the
function maps each row separately. Tidemill tests this when it plans the pipeline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill import crash
from tidemill.errors import ArcResult, BadSchema, CodeDiffers
from tidemill.lots.checks import quarantine_of
from tidemill.lots.datasets import Drift
from tidemill.publish.parts import PartClaim, PartSink, PartTask, SinkWritten
from tidemill.runner import future_run
from tidemill.runner.program import ArcProgram, Program
from tidemill.schemas.type_table import is_wider
from tidemill.spark import schema
from tidemill.spark.frame_checks import LotFolders, write_checked
from tidemill.spark.lot_reader import read_objects
from tidemill.spark.operations import WEIGHT, is_frame
from tidemill.spark.outages import outages
from tidemill.spark.sessions import repinned, tagged
from tidemill.spark.storage import Storage
from tidemill.views.spark import weighted_rows as view_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The session, storage and program that the threads of a runner share."""

    spark: "SparkSession"
    storage: Storage
    program: Program


def make_part(task: PartTask) -> Sequence[SinkWritten]:
    """Process one part. Futures refer to this function by name, and a worker thread of a runner calls it."""
    tools: Tools = future_run.tools()
    place = future_run.current()
    with tagged(tools.spark, future_run.tag_of(place)), outages():
        if task.kind == "source":
            return _ingest(tools, task, place)
        return _compute(tools, task, place)


def _compute(tools: Tools, task: PartTask, place: PartClaim) -> list[SinkWritten]:
    arc = tools.program.arc(task.author)
    if arc is None or arc.spec.code != task.code:
        raise CodeDiffers(
            f"this runner has no code for {task.author}"
            if arc is None
            else f"this runner's code for {task.author} differs from the code of the runner that started"
            " the work"
        )
    frames = [
        read_objects(tools.spark, tools.storage, tools.program.schema(part.dataset), part.objects)
        for part in task.inputs
    ]
    crash.point("runner.function.before")
    with repinned(tools.spark):
        results = _call(arc, frames)
    written = []
    for sink, frame in zip(task.sinks, results, strict=True):
        future_run.check()
        dataset = tools.program.dataset(sink.dataset)
        columns = tools.program.schema(sink.dataset)
        evolves = dataset.drift is Drift.EVOLVE
        quarantine = PartSink(dataset=sink.quarantine or quarantine_of(sink.dataset))
        result = write_checked(
            select_columns(arc, sink.dataset.name, frame, columns, evolves=evolves),
            tools.storage,
            LotFolders(
                rows=place.data_prefix(task, sink),
                bad=place.data_prefix(task, quarantine),
                partition_by=tuple(sink.partition_by),
            ),
            arc.checks.get(sink.dataset.name, ()),
            table=sink.dataset.name,
            kind=dataset.kind,
        )
        written.append(
            SinkWritten(
                dataset=sink.dataset,
                objects=result.rows.objects,
                rows=result.rows.rows,
                checks=result.counts,
            )
        )
        if sink.quarantine is not None:
            quarantined = result.quarantined
            written.append(
                SinkWritten(dataset=sink.quarantine, objects=quarantined.objects, rows=quarantined.rows)
            )
    return written


def _call(arc: ArcProgram, frames: "Sequence[DataFrame]") -> "list[DataFrame]":
    if len(frames) != 1 or not _is_linear(arc, frames[0]):
        return results_of(arc, arc.function(*frames))
    inserted, deleted = (results_of(arc, arc.function(half)) for half in _split(frames[0]))
    return [_union(plus, minus) for plus, minus in zip(inserted, deleted, strict=True)]


def results_of(arc: ArcProgram, returned: Any) -> "list[DataFrame]":
    """Return a function's result as one frame per sink. Raise `ArcResult` if the result has another form."""
    names = [sink.dataset.name for sink in arc.spec.sinks]
    if is_frame(returned):
        frames: list[Any] = [returned]
    elif isinstance(returned, Mapping):
        if set(returned) != set(names):
            raise ArcResult(
                f"arc {arc.spec.name} ({arc.where}) returned the wrong tables:"
                f" {', '.join(map(str, returned)) or 'none'}",
                hint=f"return a DataFrame for each of {', '.join(names)}",
            )
        frames = [returned[name] for name in names]
    elif isinstance(returned, tuple | list):
        frames = list(returned)
    else:
        frames = [returned]
    if len(frames) != len(names) or not all(is_frame(frame) for frame in frames):
        kinds = ", ".join(type(frame).__name__ for frame in frames)
        raise ArcResult(
            f"arc {arc.spec.name} ({arc.where}) returned {kinds or 'nothing'}, but writes {', '.join(names)}",
            hint=f"return {len(names)} Spark DataFrame{'s, in that order' if len(names) > 1 else ''}",
        )
    return frames


def select_columns(
    arc: ArcProgram, sink: str, frame: "DataFrame", columns: str, *, evolves: bool = False
) -> "DataFrame":
    """Select the columns of the sink, in order. Raise `ArcResult` if the frame has different columns.

    - evolves: allow the sink to have more columns and wider types than the frame.
    """
    try:
        types = {column.name: column.type for column in schema.of_spark(frame.schema).stored().columns}
    except BadSchema as error:
        raise ArcResult(f"arc {arc.spec.name} ({arc.where}): {error.message}") from error
    expected = {column.name: column.type for column in schema.parse(columns).stored().columns}
    if evolves:
        frame, types = _widen(frame, types, schema.parse(columns).stored())
    problems = [f"{name} is missing" for name in expected if name not in types]
    problems += [f"{name} is not in {sink}" for name in types if name not in expected]
    problems += [
        f"{name} is {types[name]}, not {kind}"
        for name, kind in expected.items()
        if name in types and types[name] != kind
    ]
    if problems:
        raise ArcResult(
            f"arc {arc.spec.name} ({arc.where}) returned the wrong columns: {'; '.join(problems)}"
        )
    return frame.select(*[schema.quoted(name) for name in expected])


def _widen(
    frame: "DataFrame", types: "dict[str, schema.Type]", table: schema.Schema
) -> "tuple[DataFrame, dict[str, schema.Type]]":
    """Add the columns that only the table has, as NULL. Cast a column if its type in the table is wider."""
    from pyspark.sql import functions as sf

    kinds = {field.name: field.dataType for field in schema.to_spark(table).fields}
    for column in table.columns:
        name = column.name
        if name not in types:
            frame = frame.withColumn(name, sf.lit(None).cast(kinds[name]))
        elif is_wider(types[name], column.type):
            frame = frame.withColumn(name, sf.col(schema.quoted(name)).cast(kinds[name]))
        else:
            continue
        types = {**types, name: column.type}
    return frame, types


def _split(frame: "DataFrame") -> "tuple[DataFrame, DataFrame]":
    """Split changes into inserted rows and deleted rows. Repeat each row as many times as its weight says."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    schema = st.StructType([field for field in frame.schema.fields if field.name != WEIGHT])
    negated = frame.withColumn(WEIGHT, -sf.col(WEIGHT))
    return view_rows.repeated(frame, schema), view_rows.repeated(negated, schema)


def _union(inserted: "DataFrame", deleted: "DataFrame") -> "DataFrame":
    """Combine the results for inserted and deleted rows into one frame of changes."""
    from pyspark.sql import functions as sf

    plus, minus = sf.lit(1).cast("bigint"), sf.lit(-1).cast("bigint")
    return inserted.withColumn(WEIGHT, plus).unionByName(deleted.withColumn(WEIGHT, minus))


def _is_linear(arc: ArcProgram, frame: "DataFrame") -> bool:
    """Return whether to call the function for inserted and deleted rows separately."""
    return arc.spec.changes == "linear" and WEIGHT in frame.columns


def _ingest(tools: Tools, task: PartTask, place: PartClaim) -> Sequence[SinkWritten]:
    source = tools.program.sources.get(task.author)
    if source is None:
        raise CodeDiffers(f"the code of this runner does not declare the source {task.author}")
    return source.make_part(tools.spark, tools.storage, task, place)
