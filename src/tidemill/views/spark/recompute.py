"""The rung *full*: a view's new result by plain Spark SQL, minus its stored table, is what changed (DBSP-17).

Whatever Spark computes can be kept this way. The old result is never computed again: what is retracted is
what is stored, so a query that gives another value each time it runs leaves nothing behind.

The views of a group are computed in their order, each from the datasets at the step's positions and from the
tables of the others as of this very step; one whose inputs did not change is left alone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tidemill.errors import CodeDiffers, ViewRefused
from tidemill.lots.datasets import Dataset, Kind
from tidemill.lots.keys import DatasetId
from tidemill.spark import queries
from tidemill.spark.lot_reader import naming
from tidemill.spark.lot_writer import Written
from tidemill.spark.operations import WEIGHT
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import ViewOutput as CircuitOutput
from tidemill.views.circuit.render import Renderer
from tidemill.views.circuit.ties import depends_on_ties, has_one_result
from tidemill.views.spark import dataset_contents, weighted_rows
from tidemill.views.spark.digests import text_of
from tidemill.views.spark.failures import failing_view
from tidemill.views.spark.step_time import clock_values, reads_clock, with_step_time
from tidemill.views.spark.view_tables import ViewAttempt, ViewTables, schema_text
from tidemill.views.steps.commits import QuarantinedRows, StepBatch, StepOutput
from tidemill.views.steps.groups import GroupSpec, ViewSpec
from tidemill.views.steps.inputs import InputReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class ViewCode(Protocol):
    """A view's query, and what its table names stand for."""

    @property
    def name(self) -> str: ...

    @property
    def sql(self) -> str: ...

    @property
    def function(self) -> "Callable[..., DataFrame] | None":
        """What computes it instead of a query, from frames of what it reads."""
        ...

    @property
    def reads(self) -> tuple[str, ...]:
        """The tables a function is given, in this order."""
        ...

    @property
    def circuit(self) -> CircuitOutput | None:
        """Its query as a circuit; None where there is none."""
        ...

    @property
    def refresh(self) -> str:
        """`full` has it always recomputed."""
        ...

    @property
    def datasets(self) -> Mapping[str, DatasetId]:
        """Base datasets by the name the query has for them."""
        ...

    @property
    def views(self) -> tuple[str, ...]:
        """Views of the same group, by their names."""
        ...


class FullViews:
    """Computes the steps of groups by recomputing and comparing: the port `Compute` of the stepper.

    - session: gives the Spark session to use, when it is used.
    - datasets, views: declarations and code, by id and by name.
    - specs: the groups as this program has them. A step of a group that another program declared otherwise
      is refused with `CodeDiffers`: its rows must not come from other code than its tables say.
    """

    def __init__(
        self,
        session: "Callable[[], SparkSession]",
        tables: ViewTables,
        inputs: InputReader,
        datasets: Mapping[DatasetId, Dataset],
        views: Mapping[str, ViewCode],
        specs: Sequence[GroupSpec] | None = None,
    ) -> None:
        self._session = session
        self._tables = tables
        self._inputs = inputs
        self._datasets = datasets
        self._views = views
        self._specs = specs

    def __call__(self, batch: StepBatch, attempt: str) -> tuple[StepOutput | QuarantinedRows, ...]:
        self.check(batch)
        outputs = self.recomputed(batch, attempt, [view.name for view in batch.spec.views])
        read = {one for view in batch.spec.views for one in view.reads}
        aside = self.set_aside(batch, attempt, read & batch.moved)
        return tuple(outputs) if aside is None else (*outputs, aside)

    def check(self, batch: StepBatch) -> None:
        """`CodeDiffers` for a group that another program declared otherwise."""
        if self._specs is not None and batch.spec not in self._specs:
            raise CodeDiffers(f"this runner has other code for the views of group {batch.spec.name!r}")

    def recomputed(
        self, batch: StepBatch, attempt: str, names: Collection[str], done: Sequence[StepOutput] = ()
    ) -> list[StepOutput]:
        """The outputs of these views, of those that the batch concerns and that have changed.

        - done: what was computed of the others by now; these views may read it.
        """
        spark = self._session()
        bases: dict[DatasetId, DataFrame] = {}
        tables = batch.tables | {one.view: one.table for one in done}
        changed = {one.view for one in done}
        outputs = []
        for view in batch.spec.views:
            if view.name not in names or not self._concerned(view, batch, changed):
                continue
            frames = {}
            for name, dataset in self._code(view.name).datasets.items():
                if dataset not in bases:
                    bases[dataset] = self.base(spark, batch, dataset)
                frames[name] = bases[dataset]
            for name in self._code(view.name).views:
                frames[name] = self._tables.content(spark, tables[name])
            place = ViewAttempt(pipeline=batch.pipeline, view=view.name, lot=batch.lot, attempt=attempt)
            before = tables.get(view.name, "")
            with failing_view(self._code(view.name)):
                output = recompute_view(
                    spark, self._tables, place, self._code(view.name), frames, before, batch.now
                )
            if output.changes or output.table != before:
                outputs.append(output)
                changed.add(view.name)
            tables[view.name] = output.table
        return outputs

    def set_aside(
        self, batch: StepBatch, attempt: str, datasets: Collection[DatasetId]
    ) -> QuarantinedRows | None:
        """What these datasets had deleted, and have not: set aside, and told."""
        spark = self._session()
        # A group's alarm is an input as well, and holds nothing.
        known = [one for one in sorted(datasets) if one in self._datasets]
        wanted = [one for one in known if self._datasets[one].kind is Kind.CHANGES]
        if not wanted:
            return None
        frames = {
            one.name: dataset_contents.negative_rows(
                spark,
                self._tables.storage,
                self._datasets[one],
                self._inputs.at(one, batch.positions[one]),
            )
            for one in wanted
        }
        with naming(self._tables.storage):
            return self._tables.set_aside(batch.pipeline, batch.spec.name, batch.lot, attempt, frames)

    def _concerned(self, view: ViewSpec, batch: StepBatch, changed: set[str]) -> bool:
        return (
            view.name in batch.stale
            or view.name not in batch.tables
            or not batch.moved.isdisjoint(view.reads)
            or not changed.isdisjoint(view.uses)
            or self._reads_clock(view.name)
        )

    def _reads_clock(self, view: str) -> bool:
        """Then every step has another result for it, whatever its inputs did."""
        code = self._code(view)
        return code.function is None and reads_clock(code.sql)

    def base(self, spark: "SparkSession", batch: StepBatch, dataset: DatasetId) -> "DataFrame":
        """All of a dataset as of the batch's step."""
        slices = self._inputs.at(dataset, batch.positions[dataset])
        return dataset_contents.dataset_frame(spark, self._tables.storage, self._datasets[dataset], slices)

    def _code(self, view: str) -> ViewCode:
        found = self._views.get(view)
        if found is None:
            raise CodeDiffers(f"this runner has no view {view!r}")
        return found


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
