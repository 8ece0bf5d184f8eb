"""The rung *full*: recompute a view with Spark SQL, and store the difference from its table (DBSP-17).

This works for every query. The old result is not recomputed: the stored rows are retracted. So this also
works for a query that returns different values each time.

The views of a group are recomputed in their order, each from the datasets at the step's positions and the
tables of the other views at the same step. A view without changed inputs is skipped.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tidemill.errors import ViewRefused
from tidemill.lots.datasets import Kind
from tidemill.lots.keys import DatasetId
from tidemill.spark import queries
from tidemill.spark.lot_reader import read_errors
from tidemill.spark.lot_writer import Written
from tidemill.spark.operations import WEIGHT
from tidemill.spark.sessions import repinned
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
    other_outputs: Sequence[StepOutput] = (),
) -> list[StepOutput]:
    """Recompute the named views that have changed inputs; return the outputs of the views that changed.

    Args:
        sources: what views are computed from.
        batch: the step.
        attempt: the attempt that writes.
        names: the views to recompute.
        other_outputs: the outputs of the group's other views, which these views may read.
    """
    spark = sources.session()
    bases: dict[DatasetId, DataFrame] = {}
    tables = batch.tables | {output.view: output.table for output in other_outputs}
    changed = {output.view for output in other_outputs}
    outputs = []
    for view in batch.spec.views:
        code = sources.code(view.name) if view.name in names else None
        if code is None or not _may_change(view, code, batch, changed):
            continue
        frames = {}
        for name, dataset in code.datasets.items():
            if view.name in batch.passed:
                frames[name] = sources.dataset(batch, dataset, view.name)
                continue
            if dataset not in bases:
                bases[dataset] = sources.dataset(batch, dataset)
            frames[name] = bases[dataset]
        for name in code.views:
            frames[name] = sources.tables.content(spark, tables[name])
        view_attempt = ViewAttempt(
            pipeline=batch.pipeline,
            view=view.name,
            lot=batch.lot,
            attempt=attempt,
            by_check=bool(code.checked),
        )
        before = tables.get(view.name, "")
        tag = f"{attempt}_{batch.lot}".replace(".", "_")
        with failing_view(code), with_copied(sources, code, frames, batch.now, tag) as inputs:
            output = recompute_view(spark, sources.tables, view_attempt, code, inputs, before, batch.now)
        if output.changes or output.table != before:
            outputs.append(output)
            changed.add(view.name)
        tables[view.name] = output.table
    return outputs


def _may_change(view: ViewSpec, code: ViewCode, batch: StepBatch, changed: set[str]) -> bool:
    """Return whether a view may have changed. A view that reads the clock may change in every step."""
    return (
        view.name in batch.stale
        or view.name not in batch.tables
        or not batch.moved.isdisjoint(view.reads)
        or not changed.isdisjoint(view.uses)
        or (code.function is None and reads_clock(code.sql))
    )


def quarantine_rows(
    sources: ViewSources,
    batch: StepBatch,
    attempt: str,
    datasets: Collection[DatasetId],
    set_aside: "Mapping[DatasetId, tuple[DataFrame, StructType]]",
) -> QuarantinedRows | None:
    """Write the rows of datasets that have a negative count; return None if there are none.

    Args:
        sources: what views are computed from.
        batch: the step.
        attempt: the attempt that writes.
        datasets: the datasets that are read as a whole to find such rows.
        set_aside: the rows that source operators put into quarantine.
    """
    # A group's alarm is also an input, but it is not a dataset.
    declared = [dataset for dataset in sorted(datasets) if dataset in sources.datasets]
    with_changes = [dataset for dataset in declared if sources.datasets[dataset].kind is Kind.CHANGES]
    if not with_changes and not set_aside:
        return None
    spark = sources.session()
    frames = {
        dataset.name: dataset_contents.negative_rows(
            spark,
            sources.tables.storage,
            sources.datasets[dataset],
            sources.inputs.at(dataset, batch.positions[dataset]),
        )
        for dataset in with_changes
    } | {dataset.name: rows for dataset, rows in set_aside.items()}
    with read_errors(sources.tables.storage):
        return sources.tables.write_quarantine(batch.pipeline, batch.spec.name, batch.lot, attempt, frames)


def recompute_view(
    spark: "SparkSession",
    tables: ViewTables,
    view_attempt: ViewAttempt,
    code: ViewCode,
    frames: "Mapping[str, DataFrame]",
    before: str,
    now: int,
) -> StepOutput:
    """Compute one step of a view: its changes (its new result minus its table), and its next table.

    Args:
        spark: the session.
        tables: the tables of views.
        view_attempt: the names under which the step writes.
        code: the view's query or function.
        frames: the tables that the view reads, by name.
        before: the manifest of the view's table; empty if there is none. If the columns changed, a new table
            begins: its changes are all new rows, and consumers read it from the start.
        now: the time of the step in µs since 1970, which `now()` returns.
    """
    tag = f"{view_attempt.attempt}_{view_attempt.lot}".replace(".", "_")
    with query_result(spark, code, frames, now, tag) as result, read_errors(tables.storage):
        schema = result.schema
        weighted_rows.check_columns(view_attempt.view, schema)
        base = before if before and schema_text(tables.schema(before)) == schema_text(schema) else ""
        changes, written = tables.write_changes(view_attempt, _changes(spark, tables, result, base), schema)
        return step_output(spark, tables, view_attempt, base, changes, written, schema)


def step_output(
    spark: "SparkSession",
    tables: ViewTables,
    view_attempt: ViewAttempt,
    base: str,
    changes: str,
    written: Written,
    schema: "StructType",
) -> StepOutput:
    """Build the table after a view's changes; return the output of its step.

    Args:
        spark: the session.
        tables: the tables of views.
        view_attempt: the names under which the step writes.
        base: the manifest of the view's table before the step; empty if there is none with these columns.
        changes: the manifest of the changes; empty if nothing changed.
        written: the files of the changes.
        schema: the columns of the view.
    """
    table = base if base and not changes else tables.extended(view_attempt, base, changes, schema, spark)
    size = sum(item.size for item in written.objects)
    return StepOutput(
        view=view_attempt.view,
        table=table,
        changes=changes,
        rows=written.rows,
        size=size,
        digest=text_of(tables.digest(changes)),
        content=text_of(tables.digest(table)),
    )


@contextmanager
def with_copied(
    sources: ViewSources, code: ViewCode, frames: "Mapping[str, DataFrame]", now: int, tag: str
) -> "Iterator[dict[str, DataFrame]]":
    """Yield the frames, and those of the copied views: their queries over these frames.

    Args:
        sources: what views are computed from.
        code: the view that reads the copied views.
        frames: the other tables that the view reads, by name.
        now: the time of the step in µs since 1970.
        tag: a name for temporary views.
    """
    inputs = dict(frames)
    with ExitStack() as results:
        for name in code.copied:
            copied = sources.code(name)
            inputs[name] = results.enter_context(query_result(sources.session(), copied, inputs, now, tag))
        yield inputs


@contextmanager
def query_result(
    spark: "SparkSession", code: ViewCode, frames: "Mapping[str, DataFrame]", now: int, tag: str
) -> "Iterator[DataFrame]":
    """Compute the complete result of a view."""
    if code.function is not None:
        yield result_of(spark, code.name, code.function, [frames[name] for name in code.reads])
        return
    if code.circuit is not None and depends_on_ties(code.circuit) and has_one_result(code.circuit):
        # The query has several valid results. Its circuit breaks ties and has only one (DBSP-20).
        with queries.over(spark, interpret(code.circuit, Renderer(clock_values(now))), frames, tag) as result:
            yield result
        return
    text = with_step_time(code.sql, now, {name for frame in frames.values() for name in frame.columns})
    with queries.over(spark, text, frames, tag) as result:
        if text == code.sql:
            yield result
            return
        # Spark names an unnamed column by its text, which now contains the time: use the original names.
        with queries.over(spark, code.sql, frames, f"{tag}_names") as written:
            names = written.columns
        yield result.toDF(*names)


def result_of(
    spark: "SparkSession", view: str, function: "Callable[..., DataFrame]", frames: "Sequence[DataFrame]"
) -> "DataFrame":
    """Call a view's function; raise `ViewRefused` if it does not return a frame."""
    with repinned(spark):
        result = function(*frames)
    if not hasattr(result, "selectExpr"):
        raise ViewRefused(
            f"the function of view {view} returned {type(result).__name__}", hint="return one DataFrame"
        )
    return result


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
    """Return the changes that turn a table into these rows, which have identity and weight."""
    from pyspark.sql import functions as sf

    old = tables.weighted(spark, before)
    negative = (-sf.col(WEIGHT)).alias(WEIGHT)
    retracted = old.select(*weighted_rows.columns_of(schema), weighted_rows.HIGH, weighted_rows.LOW, negative)
    return weighted_rows.netted(new.unionAll(retracted), schema)
