"""The rung *full*: recompute a view by plain Spark SQL, and store the difference to its table (DBSP-17).

Every query can be kept this way. The old result is never recomputed: the stored rows are retracted, so a
query that gives other values each time leaves nothing behind.

The views of a group are recomputed in their order, each from the datasets at the step's positions and the
tables of the other views at the same step. A view whose inputs did not change is skipped.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemill.errors import ViewRefused
from tidemill.lots.datasets import Kind
from tidemill.lots.keys import DatasetId
from tidemill.spark import queries
from tidemill.spark.lot_reader import naming
from tidemill.spark.lot_writer import Written
from tidemill.spark.operations import WEIGHT
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.render import Renderer
from tidemill.views.circuit.ties import depends_on_ties, has_one_result
from tidemill.views.spark import dataset_contents, weighted_rows
from tidemill.views.spark.digests import text_of
from tidemill.views.spark.failures import failing_view
from tidemill.views.spark.step_time import clock_values, reads_clock, with_step_time
from tidemill.views.spark.view_sources import ViewCode, ViewSources
from tidemill.views.spark.view_tables import ViewAttempt, ViewTables, schema_text
from tidemill.views.steps.commits import QuarantinedRows, StepBatch, StepOutput
from tidemill.views.steps.groups import ViewSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def recompute_views(
    sources: ViewSources,
    batch: StepBatch,
    attempt: str,
    names: Collection[str],
    done: Sequence[StepOutput] = (),
) -> list[StepOutput]:
    """Recompute those of these views whose inputs changed; the outputs of those that changed themselves.

    - done: the outputs of the group's other views. These views may read them.
    """
    spark = sources.session()
    bases: dict[DatasetId, DataFrame] = {}
    tables = batch.tables | {output.view: output.table for output in done}
    changed = {output.view for output in done}
    outputs = []
    for view in batch.spec.views:
        code = sources.code(view.name) if view.name in names else None
        if code is None or not _is_concerned(view, code, batch, changed):
            continue
        frames = {}
        for name, dataset in code.datasets.items():
            if dataset not in bases:
                bases[dataset] = sources.dataset(batch, dataset)
            frames[name] = bases[dataset]
        for name in code.views:
            frames[name] = sources.tables.content(spark, tables[name])
        place = ViewAttempt(pipeline=batch.pipeline, view=view.name, lot=batch.lot, attempt=attempt)
        before = tables.get(view.name, "")
        with failing_view(code):
            output = recompute_view(spark, sources.tables, place, code, frames, before, batch.now)
        if output.changes or output.table != before:
            outputs.append(output)
            changed.add(view.name)
        tables[view.name] = output.table
    return outputs


def _is_concerned(view: ViewSpec, code: ViewCode, batch: StepBatch, changed: set[str]) -> bool:
    """Whether the result of a view may have changed. One that reads the clock may change in every step."""
    return (
        view.name in batch.stale
        or view.name not in batch.tables
        or not batch.moved.isdisjoint(view.reads)
        or not changed.isdisjoint(view.uses)
        or (code.function is None and reads_clock(code.sql))
    )


def quarantine_rows(
    sources: ViewSources, batch: StepBatch, attempt: str, datasets: Collection[DatasetId]
) -> QuarantinedRows | None:
    """Write rows that were deleted from these datasets before they were inserted; None if there are none."""
    # A group's alarm is an input as well, and has no rows.
    known = [dataset for dataset in sorted(datasets) if dataset in sources.datasets]
    wanted = [dataset for dataset in known if sources.datasets[dataset].kind is Kind.CHANGES]
    if not wanted:
        return None
    spark = sources.session()
    frames = {
        dataset.name: dataset_contents.negative_rows(
            spark,
            sources.tables.storage,
            sources.datasets[dataset],
            sources.inputs.at(dataset, batch.positions[dataset]),
        )
        for dataset in wanted
    }
    with naming(sources.tables.storage):
        return sources.tables.set_aside(batch.pipeline, batch.spec.name, batch.lot, attempt, frames)


def recompute_view(
    spark: "SparkSession",
    tables: ViewTables,
    place: ViewAttempt,
    code: ViewCode,
    frames: "Mapping[str, DataFrame]",
    before: str,
    now: int,
) -> StepOutput:
    """One view's step: the result of its query now, minus its table before, and the table that follows.

    - frames: what the query reads, by its names for them.
    - before: the manifest of its table; empty if it has none. A table of other columns is begun anew: then
      the changes are all of the new rows, and consumers are told to read it whole.
    - now: the time of the step, µs since 1970: what `now()` gives.
    """
    tag = f"{place.attempt}_{place.lot}".replace(".", "_")
    with _result(spark, code, frames, now, tag) as result, naming(tables.storage):
        schema = result.schema
        weighted_rows.check_columns(place.view, schema)
        kept = before if before and schema_text(tables.schema(before)) == schema_text(schema) else ""
        changes, written = tables.write_changes(place, _changes(spark, tables, result, kept), schema)
        return step_output(spark, tables, place, kept, changes, written, schema)


def step_output(
    spark: "SparkSession",
    tables: ViewTables,
    place: ViewAttempt,
    kept: str,
    changes: str,
    written: Written,
    schema: "StructType",
) -> StepOutput:
    """A view's step from its changes: the table that follows.

    - kept: the manifest of its table before; empty if it has none of these columns.
    - changes: the manifest of what was written; empty when nothing changed.
    """
    table = kept if kept and not changes else tables.extended(place, kept, changes, schema, spark)
    size = sum(item.size for item in written.objects)
    return StepOutput(
        view=place.view,
        table=table,
        changes=changes,
        rows=written.rows,
        size=size,
        digest=text_of(tables.digest(changes)),
        content=text_of(tables.digest(table)),
    )


@contextmanager
def _result(
    spark: "SparkSession", code: ViewCode, frames: "Mapping[str, DataFrame]", now: int, tag: str
) -> "Iterator[DataFrame]":
    """What a view is now, of whole tables."""
    if code.function is not None:
        yield result_of(code.name, code.function, [frames[name] for name in code.reads])
        return
    if code.circuit is not None and depends_on_ties(code.circuit) and has_one_result(code.circuit):
        # The query has several results; its circuit, in which ties are broken, has one (DBSP-20).
        with queries.over(spark, interpret(code.circuit, Renderer(clock_values(now))), frames, tag) as result:
            yield result
        return
    text = with_step_time(code.sql, now, {name for frame in frames.values() for name in frame.columns})
    with queries.over(spark, text, frames, tag) as result:
        if text == code.sql:
            yield result
            return
        # A column without a name is called by its text, and the text has the time in it now.
        with queries.over(spark, code.sql, frames, f"{tag}_names") as written:
            names = written.columns
        yield result.toDF(*names)


def result_of(view: str, function: "Callable[..., DataFrame]", frames: "Sequence[DataFrame]") -> "DataFrame":
    """What a function makes of frames; `ViewRefused` when that is no frame."""
    made = function(*frames)
    if not hasattr(made, "selectExpr"):
        raise ViewRefused(
            f"the function of view {view} returned {type(made).__name__}", hint="it returns one DataFrame"
        )
    return made


def _changes(spark: "SparkSession", tables: ViewTables, result: "DataFrame", before: str) -> "DataFrame":
    from pyspark.sql import functions as sf

    schema = result.schema
    new = weighted_rows.identified(
        result.select(*weighted_rows.columns_of(schema), sf.lit(1).cast("bigint").alias(WEIGHT)), schema
    )
    return difference(spark, tables, new, schema, before) if before else weighted_rows.netted(new, schema)


def difference(
    spark: "SparkSession", tables: ViewTables, new: "DataFrame", schema: "StructType", before: str
) -> "DataFrame":
    """What takes a table to these rows, which have identity and weight."""
    from pyspark.sql import functions as sf

    old = tables.weighted(spark, before)
    negative = (-sf.col(WEIGHT)).alias(WEIGHT)
    gone = old.select(*weighted_rows.columns_of(schema), weighted_rows.HIGH, weighted_rows.LOW, negative)
    return weighted_rows.netted(new.unionAll(gone), schema)
