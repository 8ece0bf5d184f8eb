"""The inputs of a step: rows of c0, c1, … and the weight `_w`, from lots, spilled files or frames.

rows      each row with weight 1; a replaced lot retracts its old rows (DBSP-8)
changes   each row with its weight
keyed     each write: the row, a flag for deletes, and the write's place among the writes of the input

An input is a frame, or files that the runner or Spark's Python workers read with Arrow (`lot_files`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.errors import FileMismatch, TypeRefused
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.manifest import StoredObject
from tidemill.objects import Objects
from tidemill.spark.lot_reader import POSITION, read_objects, read_positioned
from tidemill.spark.operations import OP, ORDINAL, RowOperation, stored_schema
from tidemill.spark.operations import WEIGHT as STORED
from tidemill.spark.queries import quoted
from tidemill.spark.schema import parse, to_spark
from tidemill.spark.storage import Storage
from tidemill.views.spark.arrow_types import arrow_of, spark_schema
from tidemill.views.spark.lot_files import INTERNAL_COLUMNS, LotFilePart, LotReader
from tidemill.views.steps.inputs import LotSlice, appends

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PART_ROWS = 500_000
PART_BYTES = 32 * 2**20
"""About how much of a file one task reads at a time, if the row groups are small enough."""

MapFiles = Callable[
    [Callable[[LotFilePart], list[pa.Table]], Iterable[LotFilePart]], Iterable[list[pa.Table]]
]
"""`map` over files, or a version of it that uses several threads."""


class StepInput(Protocol):
    """Rows of c0, c1, … and `_w`."""

    def frame(self) -> "DataFrame":
        """Return the rows as a frame that has not run."""

    def table(self, map_files: MapFiles = map) -> pa.Table | None:
        """Read the rows in this process; return None if only Spark can read them."""

    def reader(self) -> LotReader | None:
        """Return the reader of `files` for Python workers; None if only Spark can read them."""

    def files(self) -> list[LotFilePart]:
        """Return the files to read."""


@dataclass(frozen=True)
class FrameInput:
    """Rows that Spark computes."""

    rows: "DataFrame"

    def frame(self) -> "DataFrame":
        return self.rows

    def table(self, map_files: MapFiles = map) -> pa.Table | None:
        return None

    def reader(self) -> LotReader | None:
        return None

    def files(self) -> list[LotFilePart]:
        return []


@dataclass(frozen=True)
class SpilledInput:
    """Rows that an earlier job of the step wrote.

    Args:
        spark: the session.
        storage: the object storage.
        schema: the columns, c0, c1, … and `_w`.
        objects: the files.
    """

    spark: "SparkSession"
    storage: Storage
    schema: pa.Schema
    objects: Sequence[StoredObject]

    def frame(self) -> "DataFrame":
        return read_objects(self.spark, self.storage, spark_schema(self.schema), self.objects)

    def table(self, map_files: MapFiles = map) -> pa.Table | None:
        bodies = [self.storage.objects.get(item.uri)[0] for item in self.objects]
        parts = [pq.read_table(pa.BufferReader(body), use_threads=False) for body in bodies]
        return pa.concat_tables([part.cast(self.schema) for part in parts])

    def reader(self) -> LotReader | None:
        return None

    def files(self) -> list[LotFilePart]:
        return []


@dataclass(frozen=True)
class LotInput:
    """The rows of lots, read from their files.

    Args:
        spark: the session.
        storage: the object storage.
        dataset: the dataset of the lots.
        plus: the inserted lots.
        minus: the retracted lots; none for a keyed dataset, because the replaced rows are not stored.
        by_spark: whether only Spark may read the files.
    """

    spark: "SparkSession"
    storage: Storage
    dataset: DatasetRow
    plus: Sequence[LotSlice]
    minus: Sequence[LotSlice] = ()
    by_spark: bool = False

    def __post_init__(self) -> None:
        assert not (self.minus and self.dataset.kind is Kind.KEYED), (
            "the rows before a retracted write are not stored"
        )

    # --- as a frame

    def frame(self) -> "DataFrame":
        inserted = self._frame(self.plus)
        if not self.minus:
            return inserted
        retracted = self._frame(self.minus, sign=-1)
        return inserted.unionAll(retracted) if self.plus else retracted

    def _frame(self, slices: Sequence[LotSlice], sign: int = 1) -> "DataFrame":
        from pyspark.sql import functions as sf

        schema, kind = stored_schema(self.dataset.schema, self.dataset.kind), self.dataset.kind
        if kind is Kind.KEYED:
            df = read_positioned(self.spark, self.storage, schema, list(enumerate(appends(slices))))
            deletes = sf.col(OP) == RowOperation.DELETE.value
            order = [sf.col(name).cast("bigint") for name in (POSITION, ORDINAL)]
            return _numbered(df, [deletes, *order], sf.lit(1))
        df = read_objects(self.spark, self.storage, schema, [item for lot in slices for item in lot.objects])
        return _numbered(df, [], sf.col(STORED) * sign if kind is Kind.CHANGES else sf.lit(sign))

    # --- with Arrow

    def table(self, map_files: MapFiles = map) -> pa.Table | None:
        reader = self.reader()
        if reader is None:
            return None
        try:
            parts = list(map_files(partial(_read, reader, self.storage.objects), self.files()))
        except FileMismatch:
            return None
        rows = [rows for part in parts for rows in part]
        return pa.concat_tables(rows) if rows else None

    def reader(self) -> LotReader | None:
        objects = [item for lot in (*self.plus, *self.minus) for item in lot.objects]
        if self.by_spark or not all(item.size and item.format == "parquet" for item in objects):
            return None
        try:
            declared = to_spark(parse(stored_schema(self.dataset.schema, self.dataset.kind)).unlimited())
            columns = [pa.field(field.name, arrow_of(field.dataType.simpleString())) for field in declared]
        except TypeRefused:
            return None
        return LotReader(pa.schema(columns), self.dataset.kind)

    def files(self) -> list[LotFilePart]:
        if self.dataset.kind is Kind.KEYED:
            numbered = [(item, 1, n) for n, objects in enumerate(appends(self.plus)) for item in objects]
        else:
            signed = [*((lot, 1) for lot in self.plus), *((lot, -1) for lot in self.minus)]
            numbered = [(item, sign, 0) for lot, sign in signed for item in lot.objects]
        files = []
        for item, sign, number in numbered:
            parts = max(1, -(-(item.rows or 0) // PART_ROWS), -(-item.size // PART_BYTES))
            files += [LotFilePart(item.uri, item.size, sign, number, part, parts) for part in range(parts)]
        return files


def _read(reader: LotReader, objects: Objects, file: LotFilePart) -> list[pa.Table]:
    return list(reader.rows(objects, file, threads=True))


def _numbered(df: "DataFrame", extra: "Sequence[Column]", weight: "Column") -> "DataFrame":
    from pyspark.sql import functions as sf

    columns = [*(sf.col(quoted(name)) for name in df.columns if name not in INTERNAL_COLUMNS), *extra]
    selected = [column.alias(f"c{i}") for i, column in enumerate(columns)]
    return df.select(*selected, weight.cast("bigint").alias("_w"))
