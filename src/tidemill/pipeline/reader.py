"""Reads the tables of a pipeline as Spark DataFrames.

A DataFrame shows a table as of one position. The reader first reads the table's current position. It then
reads all lots up to that position through manifests, which never change. Lots that are published later do not
appear in the DataFrame.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidemill.errors import DatasetUnknown, GroupUnknown, NothingYet, QueryError
from tidemill.lots import datasets, events
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.spark import queries
from tidemill.spark.drift import effective
from tidemill.spark.sessions import expecting_errors
from tidemill.store import Tx
from tidemill.views.spark.dataset_contents import dataset_frame
from tidemill.views.spark.view_tables import ViewTables
from tidemill.views.steps import groups, pins
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.inputs import InputReader, ManifestReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.pipeline import Pipeline


def table(pipeline: "Pipeline", name: str) -> "DataFrame":
    """Return a table as it is now."""
    with pipeline.context.spark() as spark:
        return TableReader(pipeline, spark).table(name)


def snapshot(pipeline: "Pipeline") -> "Mapping[str, DataFrame]":
    """Return all tables that are not empty, as of the same moment: one transaction reads their positions."""
    with pipeline.context.spark() as spark:
        return TableReader(pipeline, spark).snapshot()


def query(pipeline: "Pipeline", sql: str) -> "DataFrame":
    """Return the result of a query on the tables of the pipeline, each at its current position."""
    names = [table.name for table in queries.table_names(sql)]
    with pipeline.context.spark() as spark:
        reader = TableReader(pipeline, spark)
        tables = dict.fromkeys([*pipeline.names, *pipeline.quarantines])
        frames = {name: reader.table(name) for name in {queries.match(name, tables) for name in names}}
        with (
            _query_errors(),
            queries.over(spark, sql, frames, f"q{pipeline.context.chance.getrandbits(64):x}") as result,
        ):
            return result  # Spark has analysed the query, so the temporary views can be dropped


def collected(pipeline: "Pipeline", sql: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of a query's columns, and its first rows."""
    frame = query(pipeline, sql)
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
    context = pipeline.context
    if name in pipeline.views:
        try:
            return _group_of(pipeline, name).step
        except GroupUnknown:
            return 0
    dataset = DatasetId(name, _version(pipeline, name))
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


def _version(pipeline: "Pipeline", name: str) -> str:
    owner = name.removesuffix("_quarantine") if name in pipeline.quarantines else name
    return pipeline.datasets[owner].dataset.version if owner in pipeline.datasets else "1"


def stored_dataset(pipeline: "Pipeline", name: str) -> DatasetRow:
    """Return the row of a table in the store. Raise `NothingYet` if the table does not exist yet."""
    context = pipeline.context
    dataset = DatasetId(name, _version(pipeline, name))
    try:
        return context.store.run(lambda tx: datasets.read(tx, context.keys.lots, dataset))
    except DatasetUnknown:
        raise NothingYet(f"{name} has no lots yet") from None


def _group_of(pipeline: "Pipeline", view: str) -> ViewGroup:
    context, group = pipeline.context, pipeline.views[view].group
    return context.store.run(lambda tx: groups.read(tx, context.keys, pipeline.name, group))


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
        if name in self.pipeline.views:
            return self.tables.content(self.spark, self.view_table(name, pin=True))
        dataset = self.dataset(name)
        head = self.context.store.run(lambda tx: events.head(tx, self.context.keys.lots, dataset.id))
        return self._at(dataset, head)

    def _at(self, dataset: DatasetRow, head: int) -> "DataFrame":
        return dataset_frame(self.spark, self.context.storage, dataset, self.inputs.at(dataset.id, head))

    def dataset(self, name: str) -> DatasetRow:
        """Return the row of a table in the store. Raise `NothingYet` if the table does not exist yet."""
        return stored_dataset(self.pipeline, name)

    def group(self, view: str) -> ViewGroup:
        """Return the group of a view. Raise `GroupUnknown` before its first step."""
        return _group_of(self.pipeline, view)

    def view_table(self, name: str, *, pin: bool = False) -> str:
        """Return the current manifest of a view's table.

        - pin: for a while, keep the files that the manifest lists, even if later steps replace them.
        """
        context, pipeline = self.context, self.pipeline

        def read(tx: Tx) -> str | None:
            table = groups.read(tx, context.keys, pipeline.name, pipeline.views[name].group).tables.get(name)
            if pin and table:
                pins.take(tx, context.keys, pipeline.name, [table])
            return table

        try:
            manifest = context.store.run(read)
        except GroupUnknown:
            manifest = None
        if manifest is None:
            raise NothingYet(f"the view {name} has not been computed yet")
        return manifest

    def snapshot(self) -> "dict[str, DataFrame]":
        """Return all tables that are not empty, as of the same moment."""
        context, pipeline = self.context, self.pipeline
        names = [name for name in pipeline.names if name not in pipeline.views]
        stored = {}
        for name in names:
            try:
                stored[name] = self.dataset(name)
            except NothingYet:
                continue
        ids = [dataset.id for dataset in stored.values()]

        def read(tx: Tx) -> tuple[dict[DatasetId, int], list[ViewGroup]]:
            heads = events.heads(tx, context.keys.lots, ids) if ids else {}
            listed = groups.listed(tx, context.keys, pipeline.name)
            tables = [table for group in listed for table in group.tables.values()]
            pins.take(tx, context.keys, pipeline.name, tables)
            return heads, listed

        heads, listed = context.store.run(read)
        frames = {name: self._at(dataset, heads[dataset.id]) for name, dataset in stored.items()}
        for group in listed:
            for view, manifest in group.tables.items():
                if view in pipeline.views:
                    frames[view] = self.tables.content(self.spark, manifest)
        return frames
