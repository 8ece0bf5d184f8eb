"""What a dataset's lots bring to a chain: rows of c0, c1, … and the weight `_w`.

rows      each row once; a lot that was replaced takes its old rows back (DBSP-8)
changes   each row with its weight
keyed     each write: the row, whether it deletes, and where it stands among all writes

Rows come as a frame, or from files that the runner, or a worker of Spark's, reads by itself (`lot_files`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.errors import FileUnlike, TypeRefused
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.manifest import StoredObject
from tidemill.objects import Objects
from tidemill.spark.lot_reader import POSITION, read_objects, read_positioned
from tidemill.spark.operations import OP, ORDINAL, RowOperation, stored_schema
from tidemill.spark.operations import WEIGHT as STORED
from tidemill.spark.queries import quoted
from tidemill.spark.schema import parse, to_spark
from tidemill.spark.storage import Storage
from tidemill.views.spark.arrow_types import arrow_of
from tidemill.views.spark.lot_files import OURS, LotFilePart, LotReader
from tidemill.views.steps.inputs import LotSlice

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PART_ROWS = 500_000
PART_BYTES = 32 * 2**20
"""What is read by one task at a time, about, if the file has row groups that small."""


Each = Callable[[Callable[[LotFilePart], list[pa.Table]], Iterable[LotFilePart]], Iterable[list[pa.Table]]]


class StepInput(Protocol):
    """Rows of c0, c1, … and `_w`."""

    def frame(self) -> "DataFrame":
        """As a frame that has not run."""

    def table(self, each: Each = map) -> pa.Table | None:
        """Read here and now; None when only Spark reads them.

        - each: `map` over files, or one that has several threads.
        """

    def reading(self) -> LotReader | None:
        """How workers read `files` by themselves; None when only Spark reads them."""

    def files(self) -> list[LotFilePart]:
        """What is to be read."""


@dataclass(frozen=True)
class FrameInput:
    """Rows that Spark computes."""

    given: "DataFrame"

    def frame(self) -> "DataFrame":
        return self.given

    def table(self, each: Each = map) -> pa.Table | None:
        return None

    def reading(self) -> LotReader | None:
        return None

    def files(self) -> list[LotFilePart]:
        return []


@dataclass(frozen=True)
class SpilledInput:
    """Rows that an earlier job of the step wrote.

    Args:
        spark: the session.
        storage: where objects are.
        schema: the columns, c0, c1, … and `_w`.
        objects: the files.
    """

    spark: "SparkSession"
    storage: Storage
    schema: pa.Schema
    objects: Sequence[StoredObject]

    def frame(self) -> "DataFrame":
        from pyspark.sql.pandas.types import from_arrow_schema

        return read_objects(self.spark, self.storage, from_arrow_schema(self.schema), self.objects)

    def table(self, each: Each = map) -> pa.Table | None:
        bodies = [self.storage.objects.get(item.uri)[0] for item in self.objects]
        parts = [pq.read_table(pa.BufferReader(body), use_threads=False) for body in bodies]
        return pa.concat_tables([part.cast(self.schema) for part in parts])

    def reading(self) -> LotReader | None:
        return None

    def files(self) -> list[LotFilePart]:
        return []


@dataclass(frozen=True)
class LotInput:
    """The rows of lots, as they are stored.

    Args:
        spark: the session.
        storage: where objects are.
        dataset: of which these are lots.
        plus: what comes.
        minus: what is taken back; of a keyed dataset nothing may be, since what was before is not known.
        by_spark: only Spark may read them.
    """

    spark: "SparkSession"
    storage: Storage
    dataset: DatasetRow
    plus: Sequence[LotSlice]
    minus: Sequence[LotSlice] = ()
    by_spark: bool = False

    def __post_init__(self) -> None:
        assert not (self.minus and self.dataset.kind is Kind.KEYED), "what was written before is not known"

    # --- as a frame

    def frame(self) -> "DataFrame":
        whole = self._frame(self.plus)
        if not self.minus:
            return whole
        gone = self._frame(self.minus, sign=-1)
        return whole.unionAll(gone) if self.plus else gone

    def _frame(self, slices: Sequence[LotSlice], sign: int = 1) -> "DataFrame":
        from pyspark.sql import functions as sf

        schema, kind = stored_schema(self.dataset.schema, self.dataset.kind), self.dataset.kind
        if kind is Kind.KEYED:
            positions = [(one.position, one.objects) for one in slices]
            df = read_positioned(self.spark, self.storage, schema, positions)
            gone = sf.col(OP) == RowOperation.DELETE.value
            order = [sf.col(name).cast("bigint") for name in (POSITION, ORDINAL)]
            return _numbered(df, [gone, *order], sf.lit(1))
        df = read_objects(self.spark, self.storage, schema, [item for one in slices for item in one.objects])
        return _numbered(df, [], sf.col(STORED) * sign if kind is Kind.CHANGES else sf.lit(sign))

    # --- by Arrow

    def table(self, each: Each = map) -> pa.Table | None:
        reading = self.reading()
        if reading is None:
            return None
        try:
            parts = list(each(partial(_read, reading, self.storage.objects), self.files()))
        except FileUnlike:
            return None
        rows = [rows for part in parts for rows in part]
        return pa.concat_tables(rows) if rows else None

    def reading(self) -> LotReader | None:
        objects = [item for one in (*self.plus, *self.minus) for item in one.objects]
        if self.by_spark or not all(item.size and item.format == "parquet" for item in objects):
            return None
        try:
            declared = to_spark(parse(stored_schema(self.dataset.schema, self.dataset.kind)))
            wanted = [pa.field(one.name, arrow_of(one.dataType.simpleString())) for one in declared]
        except TypeRefused:
            return None
        return LotReader(pa.schema(wanted), self.dataset.kind)

    def files(self) -> list[LotFilePart]:
        found = []
        signed = [*((one, 1) for one in self.plus), *((one, -1) for one in self.minus)]
        for one, sign in signed:
            for item in one.objects:
                parts = max(1, -(-(item.rows or 0) // PART_ROWS), -(-item.size // PART_BYTES))
                found += [
                    LotFilePart(item.uri, item.size, sign, one.position, part, parts) for part in range(parts)
                ]
        return found


def _read(reading: LotReader, objects: Objects, file: LotFilePart) -> list[pa.Table]:
    return list(reading.rows(objects, file, threads=True))


def _numbered(df: "DataFrame", extra: "Sequence[Column]", weight: "Column") -> "DataFrame":
    from pyspark.sql import functions as sf

    columns = [*(sf.col(quoted(name)) for name in df.columns if name not in OURS), *extra]
    named = [column.alias(f"c{i}") for i, column in enumerate(columns)]
    return df.select(*named, weight.cast("bigint").alias("_w"))
