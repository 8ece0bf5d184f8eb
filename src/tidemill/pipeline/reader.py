"""Reading tables: what the store says is published, as frames.

A frame is of one moment: the position is read first, and everything up to it through manifests, which never
change. What is published while the frame is used does not join it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidemill.errors import DatasetUnknown, GroupUnknown, NothingYet, QueryError
from tidemill.lots import datasets, events
from tidemill.lots.datasets import Dataset
from tidemill.lots.keys import DatasetId
from tidemill.spark import queries
from tidemill.store import Tx
from tidemill.views.spark.contents import content
from tidemill.views.spark.tables import Tables
from tidemill.views.steps import groups, pins
from tidemill.views.steps.groups import Group
from tidemill.views.steps.inputs import Inputs, ManifestReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.pipeline import Pipeline


def table(pipeline: "Pipeline", name: str) -> "DataFrame":
    """A table as it is now."""
    with pipeline.site.spark() as spark:
        return Reader(pipeline, spark).table(name)


def snapshot(pipeline: "Pipeline") -> "Mapping[str, DataFrame]":
    """All tables that hold anything yet, as of one moment: their positions are read together."""
    with pipeline.site.spark() as spark:
        return Reader(pipeline, spark).snapshot()


def query(pipeline: "Pipeline", sql: str) -> "DataFrame":
    """The result of a query over tables of the pipeline, all as of one moment."""
    names = [one.name for one in queries.table_names(sql)]
    with pipeline.site.spark() as spark:
        reader = Reader(pipeline, spark)
        known = dict.fromkeys([*pipeline.names, *pipeline.quarantines])
        wanted = {queries.match(name, known) for name in names}
        frames = {name: reader.table(name) for name in wanted}
        with (
            _spoken(),
            queries.over(spark, sql, frames, f"q{pipeline.site.chance.getrandbits(64):x}") as found,
        ):
            # Spark has analysed it: what the names stood for may go now.
            return found


def collected(pipeline: "Pipeline", sql: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The names of a query's columns, and its first rows."""
    frame = query(pipeline, sql)
    with pipeline.site.spark(), _spoken():
        return frame.columns, [tuple(row) for row in frame.limit(limit).collect()]


@contextmanager
def _spoken() -> Iterator[None]:
    """What Spark says of a query, without the plan behind it that helps nobody."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        said = str(error).split("\n\nJVM stacktrace")[0].split(";\n'")[0].split("\n== ")[0]
        raise QueryError(" ".join(said.split())[:600], hint="see the tables with `tidemill ls`") from error


def position(pipeline: "Pipeline", name: str) -> int:
    """The position of what was published last."""
    site = pipeline.site
    if name in pipeline.views:
        try:
            return _group_of(pipeline, name).step
        except GroupUnknown:
            return 0
    dataset = DatasetId(name, _version(pipeline, name))
    return site.store.run(lambda tx: events.head(tx, site.keys.lots, dataset))


def columns(pipeline: "Pipeline", name: str) -> str:
    """The columns of a table, as Spark writes them."""
    if name in pipeline.views:
        with pipeline.site.spark() as spark:
            reader = Reader(pipeline, spark)
            from tidemill.spark import schema

            return str(schema.of_spark(reader.tables.schema(reader.view_table(name))))
    if name in pipeline.datasets:
        from tidemill.pipeline.writes import spelled

        return spelled(pipeline.datasets[name].dataset).schema
    return declared(pipeline, name).schema


def _version(pipeline: "Pipeline", name: str) -> str:
    of = name.removesuffix("_quarantine") if name in pipeline.quarantines else name
    return pipeline.datasets[of].dataset.version if of in pipeline.datasets else "1"


def declared(pipeline: "Pipeline", name: str) -> Dataset:
    """A table as the store has it; `NothingYet` before it is there."""
    site = pipeline.site
    dataset = DatasetId(name, _version(pipeline, name))
    try:
        return site.store.run(lambda tx: datasets.read(tx, site.keys.lots, dataset))
    except DatasetUnknown:
        raise NothingYet(f"{name} holds nothing yet") from None


def _group_of(pipeline: "Pipeline", view: str) -> Group:
    site, group = pipeline.site, pipeline.views[view].group
    return site.store.run(lambda tx: groups.read(tx, site.keys, pipeline.name, group))


class Reader:
    """What is published of a pipeline, read with one session."""

    def __init__(self, pipeline: "Pipeline", spark: "SparkSession") -> None:
        site = pipeline.site
        self.pipeline = pipeline
        self.spark = spark
        self.site = site
        manifests = ManifestReader(site.objects)
        self.inputs = Inputs(site.store, site.keys.lots, manifests)
        self.tables = Tables(site.storage, manifests, site.clock)

    def table(self, name: str) -> "DataFrame":
        if name in self.pipeline.views:
            return self.tables.content(self.spark, self.view_table(name, pin=True))
        dataset = self.declared(name)
        head = self.site.store.run(lambda tx: events.head(tx, self.site.keys.lots, dataset.id))
        return self._at(dataset, head)

    def _at(self, dataset: Dataset, head: int) -> "DataFrame":
        return content(self.spark, self.site.storage, dataset, self.inputs.at(dataset.id, head))

    def declared(self, name: str) -> Dataset:
        return declared(self.pipeline, name)

    def group(self, view: str) -> Group:
        """The group of a view; `GroupUnknown` before its first step."""
        return _group_of(self.pipeline, view)

    def view_table(self, name: str, *, pin: bool = False) -> str:
        """The manifest of a view's table now.

        - pin: it will be read later: what it lists stays for a while, though steps go on.
        """
        site, pipeline = self.site, self.pipeline

        def read(tx: Tx) -> str | None:
            table = groups.read(tx, site.keys, pipeline.name, pipeline.views[name].group).tables.get(name)
            if pin and table:
                pins.take(tx, site.keys, pipeline.name, [table])
            return table

        try:
            found = site.store.run(read)
        except GroupUnknown:
            found = None
        if found is None:
            raise NothingYet(f"the view {name} has not been computed yet")
        return found

    def snapshot(self) -> "dict[str, DataFrame]":
        site, pipeline = self.site, self.pipeline
        names = [name for name in pipeline.names if name not in pipeline.views]
        found = {}
        declared = {}
        for name in names:
            try:
                declared[name] = self.declared(name)
            except NothingYet:
                continue
        ids = [one.id for one in declared.values()]

        def read(tx: Tx) -> tuple[dict[DatasetId, int], list[Group]]:
            heads = events.heads(tx, site.keys.lots, ids) if ids else {}
            listed = groups.listed(tx, site.keys, pipeline.name)
            tables = [table for group in listed for table in group.tables.values()]
            pins.take(tx, site.keys, pipeline.name, tables)
            return heads, listed

        heads, listed = site.store.run(read)
        for name, dataset in declared.items():
            found[name] = self._at(dataset, heads[dataset.id])
        for group in listed:
            for view, manifest in group.tables.items():
                if view in pipeline.views:
                    found[view] = self.tables.content(self.spark, manifest)
        return found
