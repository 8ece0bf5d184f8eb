"""Making a part: what a worker thread of a runner does for one task, with Spark and the user's function.

It reads exactly the objects that the task names, calls the function, checks that the result has the columns
of its sink, and writes each sink into a folder that belongs to this claim alone. It returns the list of
files, which becomes the manifest.

A linear arc over a table whose rows are inserted and deleted never sees a weight (LOT-41). Its function is
called once with the inserted rows and once with the deleted ones, each repeated by its weight, and what it
makes of the latter is deleted. That is correct for a function that maps row by row; planning tries it out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill import crash
from tidemill.errors import ArcResult, BadSchema, CodeDiffers
from tidemill.lots.checks import quarantine_of
from tidemill.lots.datasets import Drift
from tidemill.objects import Objects
from tidemill.publish.parts import PartPlace, PartSink, PartTask, SinkWritten
from tidemill.runner import future_run
from tidemill.runner.program import ArcProgram, Program
from tidemill.schemas.type_table import is_wider
from tidemill.spark import schema
from tidemill.spark.frame_checks import write_checked
from tidemill.spark.lot_reader import read_objects
from tidemill.spark.operations import WEIGHT, is_frame
from tidemill.spark.sessions import kept, tagged
from tidemill.spark.storage import Storage
from tidemill.views.spark import weighted_rows as view_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What the threads of a runner work with."""

    spark: "SparkSession"
    storage: Storage
    objects: Objects
    program: Program


def make_part(task: PartTask) -> Sequence[SinkWritten]:
    """Make one part; called by its name in a thread of a runner's hands."""
    tools: Tools = future_run.tools()
    place = future_run.current()
    with tagged(tools.spark, future_run.tag_of(place)):
        if task.kind == "source":
            return _ingested(tools, task, place)
        return _computed(tools, task, place)


def _computed(tools: Tools, task: PartTask, place: PartPlace) -> list[SinkWritten]:
    arc = tools.program.arc(task.author)
    if arc is None or arc.spec.code != task.code:
        raise CodeDiffers(f"this runner has {'other code' if arc else 'no code'} for {task.author}")
    frames = [
        read_objects(tools.spark, tools.storage, tools.program.schema(one.dataset), one.objects)
        for one in task.inputs
    ]
    crash.point("runner.function.before")
    with kept(tools.spark):
        results = _results(arc, frames)
    written = []
    for sink, frame in zip(task.sinks, results, strict=True):
        future_run.check()
        wanted = tools.program.schema(sink.dataset)
        evolves = tools.program.dataset(sink.dataset).drift is Drift.EVOLVE
        out = fitted(arc, sink.dataset.name, frame, wanted, evolves=evolves)
        bad = PartSink(dataset=sink.quarantine or quarantine_of(sink.dataset))
        made = write_checked(
            out,
            tools.storage,
            tools.objects,
            place.data_prefix(task, sink),
            place.data_prefix(task, bad),
            arc.checks.get(sink.dataset.name, ()),
            table=sink.dataset.name,
            kind=tools.program.dataset(sink.dataset).kind,
            partition_by=sink.partition_by,
        )
        written.append(
            SinkWritten(
                dataset=sink.dataset, objects=made.rows.objects, rows=made.rows.rows, checks=made.counts
            )
        )
        if sink.quarantine is not None:
            out_of = made.quarantined
            written.append(SinkWritten(dataset=sink.quarantine, objects=out_of.objects, rows=out_of.rows))
    return written


def _results(arc: ArcProgram, frames: "Sequence[DataFrame]") -> "list[DataFrame]":
    if len(frames) != 1 or not _is_linear(arc, frames[0]):
        return results_of(arc, arc.function(*frames))
    inserted, deleted = (results_of(arc, arc.function(half)) for half in _halves(frames[0]))
    return [_joined(one, other) for one, other in zip(inserted, deleted, strict=True)]


def results_of(arc: ArcProgram, returned: Any) -> "list[DataFrame]":
    """What a function returned, as one frame for each sink."""
    names = [sink.dataset.name for sink in arc.spec.sinks]
    if is_frame(returned):
        found: list[Any] = [returned]
    elif isinstance(returned, Mapping):
        if set(returned) != set(names):
            raise ArcResult(
                f"arc {arc.spec.name} ({arc.where}) returned {', '.join(map(str, returned)) or 'nothing'}",
                hint=f"return a frame for each of {', '.join(names)}",
            )
        found = [returned[name] for name in names]
    elif isinstance(returned, tuple | list):
        found = list(returned)
    else:
        found = [returned]
    if len(found) != len(names) or not all(is_frame(one) for one in found):
        kinds = ", ".join(type(one).__name__ for one in found)
        raise ArcResult(
            f"arc {arc.spec.name} ({arc.where}) returned {kinds}, and writes {', '.join(names)}",
            hint=f"return {len(names)} Spark DataFrame{'s, in that order' if len(names) > 1 else ''}",
        )
    return found


def fitted(
    arc: ArcProgram, sink: str, frame: "DataFrame", wanted: str, *, evolves: bool = False
) -> "DataFrame":
    """A frame with exactly the columns of its sink, in their order; `ArcResult` if it has others.

    - evolves: the sink may have columns that the function does not return any more, and wider types.
    """
    try:
        there = {one.name: one.type for one in schema.of_spark(frame.schema).stored().columns}
    except BadSchema as error:
        raise ArcResult(f"arc {arc.spec.name} ({arc.where}): {error.message}") from error
    expected = {one.name: one.type for one in schema.parse(wanted).stored().columns}
    if evolves:
        frame, there = _widened(frame, there, schema.parse(wanted).stored())
    problems = [f"{name} is missing" for name in expected if name not in there]
    problems += [f"{name} is not in {sink}" for name in there if name not in expected]
    problems += [
        f"{name} is {there[name]}, not {kind}"
        for name, kind in expected.items()
        if name in there and there[name] != kind
    ]
    if problems:
        raise ArcResult(f"arc {arc.spec.name} ({arc.where}) returned other columns: {'; '.join(problems)}")
    return frame.select(*[schema.quoted(name) for name in expected])


def _widened(
    frame: "DataFrame", there: "dict[str, schema.Type]", wanted: schema.Schema
) -> "tuple[DataFrame, dict[str, schema.Type]]":
    """A frame with the columns that its table has beside, as NULL, and with the types that became wider."""
    from pyspark.sql import functions as sf

    kinds = {field.name: field.dataType for field in schema.to_spark(wanted).fields}
    for one in wanted.columns:
        if one.name not in there:
            frame = frame.withColumn(one.name, sf.lit(None).cast(kinds[one.name]))
        elif is_wider(there[one.name], one.type):
            frame = frame.withColumn(one.name, sf.col(schema.quoted(one.name)).cast(kinds[one.name]))
        else:
            continue
        there = {**there, one.name: one.type}
    return frame, there


def _halves(frame: "DataFrame") -> "tuple[DataFrame, DataFrame]":
    """Split a change into inserted and deleted rows, each repeated by its weight."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    schema = st.StructType([field for field in frame.schema.fields if field.name != WEIGHT])
    turned = frame.withColumn(WEIGHT, -sf.col(WEIGHT))
    return view_rows.repeated(frame, schema), view_rows.repeated(turned, schema)


def _joined(inserted: "DataFrame", deleted: "DataFrame") -> "DataFrame":
    """Join what the function made of both halves into one change."""
    from pyspark.sql import functions as sf

    plus, minus = sf.lit(1).cast("bigint"), sf.lit(-1).cast("bigint")
    return inserted.withColumn(WEIGHT, plus).unionByName(deleted.withColumn(WEIGHT, minus))


def _is_linear(arc: ArcProgram, frame: "DataFrame") -> bool:
    """Whether the function of this arc is called for insertions and deletions separately."""
    return arc.spec.changes == "linear" and WEIGHT in frame.columns


def _ingested(tools: Tools, task: PartTask, place: PartPlace) -> Sequence[SinkWritten]:
    source = tools.program.sources.get(task.author)
    if source is None:
        raise CodeDiffers(f"this runner has no source {task.author}")
    return source.make_part(tools.spark, tools.storage, task, place)
