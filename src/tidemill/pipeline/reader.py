"""Read the tables of a pipeline as Spark DataFrames.

A DataFrame shows a table as of one position. The reader first reads the table's current position. It then
reads all lots up to that position through manifests, which never change. Lots that are published later do not
appear in the DataFrame. If several tables are read together, one transaction reads all their positions.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.errors import DatasetUnknown, GroupUnknown, NothingYet, QueryError
from tidemill.lots import datasets, events
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.retired import retired_datasets
from tidemill.spark import queries
from tidemill.spark.drift import effective
from tidemill.spark.expected_errors import expecting_errors
from tidemill.store import Tx
from tidemill.views.spark.dataset_contents import dataset_frame
from tidemill.views.spark.view_tables import ViewTables
from tidemill.views.steps import failed_views, groups, pins
from tidemill.views.steps import retired as retired_views
from tidemill.views.steps.failed_views import FailedView
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.inputs import InputReader, ManifestReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.pipeline import Pipeline


def table(pipeline: "Pipeline", name: str) -> "DataFrame":
    """Return a table as it is now."""
    with pipeline.context.spark() as spark:
        return TableReader(pipeline, spark).table(name)


def query(pipeline: "Pipeline", sql: str) -> "DataFrame":
    """Return the result of a query on the tables of the pipeline, all as of the same moment.

    The query can also read retired tables.
    """
    names = [table.name for table in queries.table_names(sql)]
    tables = dict.fromkeys([*pipeline.names, *pipeline.quarantines, *pipeline.retired()])
    matched = {queries.match(name, tables) for name in names}
    with pipeline.context.spark() as spark:
        frames = TableReader(pipeline, spark).together(matched)
        with (
            _query_errors(),
            queries.over(spark, sql, frames, f"q{pipeline.context.chance.getrandbits(64):x}") as result,
        ):
            return result  # Spark has analysed the query, so the temporary views can be dropped


def collected(pipeline: "Pipeline", sql: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of a query's columns, and its first rows. A simple query is answered without Spark."""
    from tidemill.pipeline import arrow_query

    answer = arrow_query.first_rows(pipeline, sql, limit)
    if answer is not None:
        return answer
    return first_rows(pipeline, query(pipeline, sql), limit)


def first_rows(
    pipeline: "Pipeline", frame: "DataFrame", limit: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of a frame's columns, and its first rows."""
    with pipeline.context.spark(), _query_errors():
        return frame.columns, [tuple(row) for row in frame.limit(limit).collect()]


@contextmanager
def _query_errors() -> Iterator[None]:
    """Convert errors of Spark to `QueryError`, without the query plan. Keep pyspark from logging them."""
    from pyspark.errors import PySparkException

    try:
        with expecting_errors():
            yield
    except PySparkException as error:
        text = str(error).split("\n\nJVM stacktrace")[0].split(";\n'")[0].split("\n== ")[0]
        raise QueryError(
            " ".join(text.split())[:600],
            hint="check the query; this error message comes from Spark. To list tables, run: tidemill ls",
        ) from error


def position(pipeline: "Pipeline", name: str) -> int:
    """Return the position of the last publication of a table; 0 if there is none."""
    if name in pipeline.views:
        context, group = pipeline.context, pipeline.views[name].group

        def read(tx: Tx) -> int:
            step = groups.read(tx, context.keys, pipeline.name, group).step
            failed = failed_views.listed(tx, context.keys, pipeline.name, group).get(name)
            return step if failed is None or not failed.is_aside else failed.current

        try:
            return context.store.run(read)
        except GroupUnknown:
            return 0
    return head(pipeline, _dataset_id(pipeline, name))


def failed(pipeline: "Pipeline") -> dict[str, FailedView]:
    """Return the views that are set aside or pass over lots, because they failed on their input, by name."""
    context = pipeline.context
    return context.store.run(lambda tx: failed_views.listed_all(tx, context.keys, pipeline.name))


def head(pipeline: "Pipeline", dataset: DatasetId) -> int:
    """Return the position of the last publication of a dataset; 0 if there is none."""
    context = pipeline.context
    return context.store.run(lambda tx: events.head(tx, context.keys.lots, dataset))


def columns(pipeline: "Pipeline", name: str) -> str:
    """Return the columns of a table, as Spark writes them."""
    if name in pipeline.views:
        with pipeline.context.spark() as spark:
            reader = TableReader(pipeline, spark)
            from tidemill.spark import schema

            return str(schema.of_spark(reader.tables.schema(reader.view_table(name))))
    if name in pipeline.datasets:
        return effective(pipeline.datasets[name].dataset).schema
    return stored_dataset(pipeline, name).schema


def _dataset_id(pipeline: "Pipeline", name: str) -> DatasetId:
    owner = name.removesuffix("_quarantine") if name in pipeline.quarantines else name
    version = pipeline.datasets[owner].dataset.version if owner in pipeline.datasets else "1"
    return DatasetId(name, version)


def stored_dataset(pipeline: "Pipeline", name: str) -> DatasetRow:
    """Return the row of a table in the store. Raise `NothingYet` if the table does not exist yet."""
    context = pipeline.context
    dataset = _dataset_id(pipeline, name)
    try:
        return context.store.run(lambda tx: datasets.read(tx, context.keys.lots, dataset))
    except DatasetUnknown:
        raise NothingYet(f"{name} has no lots yet") from None


def _group_of(pipeline: "Pipeline", view: str) -> ViewGroup:
    context, group = pipeline.context, pipeline.views[view].group
    return context.store.run(lambda tx: groups.read(tx, context.keys, pipeline.name, group))


class TableMoment(NamedTuple):
    """Which rows tables have at one moment.

    - datasets: the declaration and the head of each dataset.
    - manifests: the manifest of each view's table.
    """

    datasets: dict[str, tuple[DatasetRow, int]]
    manifests: dict[str, str]


class TableReader:
    """Reads the published tables of a pipeline with one Spark session."""

    def __init__(self, pipeline: "Pipeline", spark: "SparkSession") -> None:
        context = pipeline.context
        self.pipeline = pipeline
        self.spark = spark
        self.context = context
        manifests = ManifestReader(context.objects)
        self.inputs = InputReader(context.store, context.keys.lots, manifests)
        self.tables = ViewTables(context.storage, manifests, context.clock)

    def table(self, name: str) -> "DataFrame":
        """Return a table as it is now. Raise `NothingYet` if it does not exist yet."""
        return self.together([name])[name]

    def together(self, names: Iterable[str]) -> "dict[str, DataFrame]":
        """Return these tables as of the same moment. Raise `NothingYet` if one does not exist yet."""
        return self._frames(self.moment(names))

    def moment(self, names: Iterable[str]) -> "TableMoment":
        """Return which rows these tables have now. Raise `NothingYet` if one does not exist yet."""
        names = list(names)
        moment = self._moment(names)
        for name in names:
            if name in self.pipeline.views and name not in moment.manifests:
                raise NothingYet(f"the view {name} has not been computed yet{self._why(name)}")
            if name not in moment.manifests and name not in moment.datasets:
                raise NothingYet(f"{name} has no lots yet")
        return moment

    def _why(self, view: str) -> str:
        row = failed(self.pipeline).get(view)
        return f"; it is {row.text}" if row is not None and row.is_aside else ""

    def present(self, names: Sequence[str]) -> dict[str, DatasetRow]:
        """Return the rows of those of these datasets that exist."""
        return {name: row for name, (row, _) in self._moment(names).datasets.items()}

    def _moment(self, names: Sequence[str]) -> "TableMoment":
        """Read in one transaction which rows these tables have now. Pin the files of views."""
        context, pipeline = self.context, self.pipeline
        declared = {*pipeline.names, *pipeline.quarantines}
        ids = {name: _dataset_id(pipeline, name) for name in names if name not in pipeline.views}
        views = [name for name in names if name in pipeline.views]
        undeclared = [name for name in names if name not in declared]
        if undeclared:
            old = retired_datasets(pipeline)
            ids |= {name: old[name] for name in undeclared if name in old}

        def read(tx: Tx) -> TableMoment:
            tables: dict[str, str] = {}
            for group in groups.listed(tx, context.keys, pipeline.name):
                tables |= group.tables
            manifests = {name: tables[name] for name in views if name in tables}
            for name in undeclared:
                table = retired_views.find(tx, context.keys, pipeline.name, name)
                if table is not None:
                    manifests[name] = table.table
            stored = {}
            for name, dataset in ids.items():
                if name not in manifests:
                    with suppress(DatasetUnknown):
                        stored[name] = datasets.read(tx, context.keys.lots, dataset)
            heads = events.heads(tx, context.keys.lots, [row.id for row in stored.values()])
            pins.take(tx, context.keys, pipeline.name, manifests.values())
            return TableMoment({name: (row, heads[row.id]) for name, row in stored.items()}, manifests)

        return context.store.run(read)

    def _frames(self, moment: "TableMoment") -> "dict[str, DataFrame]":
        frames = {
            name: dataset_frame(
                self.spark, self.context.storage, row, self.inputs.at(row.id, head, complete=False)
            )
            for name, (row, head) in moment.datasets.items()
        }
        for name, manifest in moment.manifests.items():
            frames[name] = self.tables.content(self.spark, manifest)
        return frames

    def dataset(self, name: str) -> DatasetRow:
        """Return the row of a table in the store. Raise `NothingYet` if the table does not exist yet."""
        return stored_dataset(self.pipeline, name)

    def group(self, view: str) -> ViewGroup:
        """Return the group of a view. Raise `GroupUnknown` before its first step."""
        return _group_of(self.pipeline, view)

    def view_table(self, name: str) -> str:
        """Return the current manifest of a view's table."""
        try:
            manifest = self.group(name).tables.get(name)
        except GroupUnknown:
            manifest = None
        if manifest is None:
            raise NothingYet(f"the view {name} has not been computed yet")
        return manifest
