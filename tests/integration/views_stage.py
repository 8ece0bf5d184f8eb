"""A stage for views on Spark: datasets with real objects, groups that step by recompute and diff."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession

from tests.unit.steps_stage import P, StepStage
from tidemill.cluster.nodes import Node
from tidemill.lots import datasets, layout, lots, manifest
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import Manifest, ManifestState
from tidemill.lots.states import LotState
from tidemill.objects.local import LocalObjects
from tidemill.spark import schema
from tidemill.spark.lot_writer import write_table
from tidemill.spark.operations import RowOperation, stored_table
from tidemill.spark.storage import Storage
from tidemill.store import Store, Tx
from tidemill.triggers import wakes
from tidemill.views.spark import dataset_contents
from tidemill.views.spark.step_computer import StepComputer
from tidemill.views.spark.view_sources import ViewSources
from tidemill.views.spark.view_tables import ViewTables
from tidemill.views.steps import commits
from tidemill.views.steps.groups import GroupSpec, ViewSpec
from tidemill.views.steps.inputs import InputReader, ManifestReader


@dataclass(frozen=True)
class Code:
    name: str
    sql: str
    datasets: Mapping[str, DatasetId]
    views: tuple[str, ...] = ()
    function: Any = None
    reads: tuple[str, ...] = ()
    circuit: Any = None
    clock: Any = None
    refresh: str = "full"
    copied: tuple[str, ...] = ()
    checked: str = ""
    failures: str = ""


class ViewStage(StepStage):
    """One pipeline with one group, `g`, and real rows."""

    def __init__(self, spark: SparkSession, folder: Path, store: Store | None = None) -> None:
        super().__init__(store, scan=False)
        self.spark = spark
        self.objects = LocalObjects(folder, self.clock, random.Random(7))
        self.storage = Storage(self.objects)
        self.reader = ManifestReader(self.objects)
        self.tables = ViewTables(self.storage, self.reader, self.clock)
        self.inputs = InputReader(self.store, self.lots, self.reader)
        self.declared: dict[DatasetId, DatasetRow] = {}
        self.codes: dict[str, Code] = {}
        self.numbers = count(1)
        self.me: Node = self.node("me", 10**15)

    def sources(self) -> ViewSources:
        return ViewSources(lambda: self.spark, self.tables, self.inputs, self.declared, self.codes)

    # --- datasets

    def base(self, name: str, ddl: str, **fields: Any) -> DatasetId:
        dataset = self.run(datasets.declare, self.lots, DatasetRow(name=name, schema=ddl, **fields))
        self.declared[dataset.id] = dataset
        return dataset.id

    def append(
        self,
        dataset: DatasetId,
        rows: Sequence[dict[str, Any]],
        operation: RowOperation = RowOperation.APPEND,
    ) -> str:
        """One lot; its id."""
        lot = str(self.run(lots.next_append, self.lots, dataset))
        self.publish_lot(dataset, lot, 0, rows, operation)
        return lot

    def publish_lot(
        self,
        dataset: DatasetId,
        lot: str,
        generation: int,
        rows: Sequence[dict[str, Any]] | None,
        operation: RowOperation = RowOperation.APPEND,
    ) -> None:
        """One generation of a lot; None for rows takes it back."""
        known = self.declared[dataset]
        arrow = schema.to_arrow(schema.parse(known.schema))
        given = [{name: row.get(name) for name in arrow.names} for row in rows or ()]
        table = stored_table(pa.Table.from_pylist(given, arrow), known, operation)
        attempt = f"a{next(self.numbers):025}"
        written = write_table(table, self.objects, layout.data_prefix(*dataset.parts, lot, attempt))
        state = LotState.REMOVED if rows is None else LotState.COMPLETE if rows else LotState.EMPTY
        key = layout.manifest_key(*dataset.parts, lot, ManifestState(state.value), generation, attempt)
        body = Manifest(
            state=ManifestState(state.value),
            dataset=dataset.name,
            version=dataset.version,
            lot=lot,
            attempt=attempt,
            objects=list(written.objects),
        )
        self.objects.put(key, manifest.encode(body))
        row = LotRow(
            dataset=dataset, lot=lot, generation=generation, state=state, manifest=key, attempt=attempt
        )

        def both(tx: Tx) -> None:
            lots.add(tx, self.lots, row)
            wakes.wake(tx, self.triggers, dataset)

        self.run(both)

    # --- views

    def view(self, name: str, sql: str, *reads: str, code: str = "") -> None:
        """Add or replace a view of the group; `reads` are datasets and earlier views."""
        bases = {dataset.name: dataset for dataset in self.declared}
        self.codes[name] = Code(
            name,
            sql,
            {read: bases[read] for read in reads if read in bases},
            tuple(read for read in reads if read in self.codes),
        )
        views = tuple(
            ViewSpec(
                name=view.name, code=str(hash(view.sql)), reads=tuple(view.datasets.values()), uses=view.views
            )
            for view in self.codes.values()
        )
        self.declare(GroupSpec(name="g", views=views), circuit=f"{len(views)} {sql}")

    def catch_up(self) -> None:
        """Apply whatever there is."""
        computer = StepComputer(self.sources())
        for _ in range(20):
            ticket = self.begin(self.me, "g")
            if ticket is None:
                return
            self.stepper(compute=computer).run(ticket)
        raise AssertionError("the group never comes to rest")

    def table(self, name: str) -> DataFrame:
        return self.tables.content(self.spark, self.group("g").tables[name])

    def changes(self, name: str, after: int, to: int | None = None) -> DataFrame:
        group = self.group("g")
        rows = self.store.run(
            lambda tx: commits.rows(tx, self.keys, P, "g", after, group.step if to is None else to)
        )
        return self.tables.changes(self.spark, group.tables[name], name, rows)

    def stored_changes(self, name: str, step: int) -> Counter[Any]:
        """The changes that a step's commit names, read without Spark."""
        rows = self.store.run(lambda tx: commits.rows(tx, self.keys, P, "g", step - 1, step))
        keys = [
            output.changes for row in rows for output in row.outputs if output.view == name and output.changes
        ]
        return self._read(keys)

    def stored_table(self, name: str) -> Counter[Any]:
        """The table as its manifest lists it, read without Spark."""
        return self._read([self.group("g").tables[name]])

    def data_of(self, name: str) -> set[str]:
        """The data objects of a view that exist."""
        keys = (info.key for info in self.objects.list("data/"))
        return {key for key in keys if layout.parse_key(key)["name"] == f"view:{P}/{name}"}

    def named(self, name: str) -> set[str]:
        """The data objects of a view that its commits name."""
        keys = [
            key
            for row in self.rows_of_group("g")
            for output in row.outputs
            if output.view == name
            for key in (output.changes, output.table)
            if key
        ]
        return {item.uri for key in keys for item in self.reader.objects(key)}

    def _read(self, keys: Sequence[str]) -> Counter[Any]:
        weighted = []
        for item in (item for key in keys for item in self.reader.objects(key)):
            body = pq.read_table(pa.BufferReader(self.objects.get(item.uri)[0])).to_pylist()
            weighted += [(plain(tuple(row.values())[:-3]), row["_weight"]) for row in body]
        return summed(weighted)

    def dataset_frame(self, dataset: DatasetId, position: int) -> DataFrame:
        slices = self.inputs.at(dataset, position)
        return dataset_contents.dataset_frame(self.spark, self.storage, self.declared[dataset], slices)


def bag(df: DataFrame) -> Counter[Any]:
    """The rows of a frame as a multiset, comparable: NaN equals itself."""
    return Counter(plain(row) for row in df.collect())


def summed(weighted: Iterable[tuple[Any, int]]) -> Counter[Any]:
    """Weights added up by row; those that cancel out are gone."""
    total: Counter[Any] = Counter()
    for row, weight in weighted:
        total[row] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def plain(value: Any) -> Any:
    """A value that can be compared and hashed, and tells types apart that Python takes for equal."""
    if isinstance(value, Row | tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, list):
        return ("list", *(plain(item) for item in value))
    if isinstance(value, dict):
        return ("map", frozenset((plain(key), plain(item)) for key, item in value.items()))
    if isinstance(value, float):
        return ("float", "nan" if value != value else value)
    if isinstance(value, bytearray | bytes):
        return ("bytes", bytes(value))
    if isinstance(value, Decimal):
        return ("decimal", str(value))
    return value
