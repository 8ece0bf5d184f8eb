"""What a dataset's lots bring to a chain: rows of c0, c1, … and the weight `_w`.

rows      each row once; a lot that was replaced takes its old rows back (DBSP-8)
changes   each row with its weight
keyed     each write: the row, whether it deletes, and where it stands among all writes

Rows come as a frame, for a job of Spark's, or as a table that this process reads by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from tidemill.errors import ObjectMissing, TypeRefused
from tidemill.lots.datasets import Dataset, Kind
from tidemill.lots.manifest import StoredObject
from tidemill.spark.footers import unreadable
from tidemill.spark.operations import OP, ORDINAL, Operation, stored_schema
from tidemill.spark.operations import WEIGHT as STORED
from tidemill.spark.queries import quoted
from tidemill.spark.reading import POSITION, read_objects, read_positioned
from tidemill.spark.schema import parse, to_spark
from tidemill.spark.storage import Storage
from tidemill.views.spark.arrow import arrow_of
from tidemill.views.steps.inputs import Slice

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OURS = frozenset({OP, ORDINAL, STORED, POSITION})


class Arriving(Protocol):
    """Rows of c0, c1, … and `_w`."""

    def frame(self) -> "DataFrame":
        """As a frame that has not run."""

    def table(self) -> pa.Table | None:
        """Read here and now; None when only Spark reads them."""


@dataclass(frozen=True)
class Framed:
    """Rows that Spark computes."""

    given: "DataFrame"

    def frame(self) -> "DataFrame":
        return self.given

    def table(self) -> pa.Table | None:
        return None


@dataclass(frozen=True)
class Lots:
    """The rows of lots, as they are stored.

    Args:
        spark: the session.
        storage: where objects are.
        dataset: of which these are lots.
        plus: what comes.
        minus: what is taken back; of a keyed dataset nothing may be, since what was before is not known.
    """

    spark: "SparkSession"
    storage: Storage
    dataset: Dataset
    plus: Sequence[Slice]
    minus: Sequence[Slice] = ()

    def __post_init__(self) -> None:
        assert not (self.minus and self.dataset.kind is Kind.KEYED), "what was written before is not known"

    # --- as a frame

    def frame(self) -> "DataFrame":
        whole = self._frame(self.plus)
        if not self.minus:
            return whole
        gone = self._frame(self.minus, sign=-1)
        return whole.unionAll(gone) if self.plus else gone

    def _frame(self, slices: Sequence[Slice], sign: int = 1) -> "DataFrame":
        from pyspark.sql import functions as sf

        schema, kind = stored_schema(self.dataset.schema, self.dataset.kind), self.dataset.kind
        if kind is Kind.KEYED:
            positions = [(one.position, one.objects) for one in slices]
            df = read_positioned(self.spark, self.storage, schema, positions)
            gone = sf.col(OP) == Operation.DELETE.value
            order = [sf.col(name).cast("bigint") for name in (POSITION, ORDINAL)]
            return _numbered(df, [gone, *order], sf.lit(1))
        df = read_objects(self.spark, self.storage, schema, [item for one in slices for item in one.objects])
        return _numbered(df, [], sf.col(STORED) * sign if kind is Kind.CHANGES else sf.lit(sign))

    # --- as a table

    def table(self) -> pa.Table | None:
        try:
            wanted = self._wanted()
            parts = [
                self._part(one, item, sign, wanted)
                for slices, sign in ((self.plus, 1), (self.minus, -1))
                for one in slices
                for item in one.objects
            ]
        except (TypeRefused, _Unlike):
            return None
        return pa.concat_tables(parts) if parts else None

    def _wanted(self) -> pa.Schema:
        declared = to_spark(parse(stored_schema(self.dataset.schema, self.dataset.kind)))
        return pa.schema([pa.field(one.name, arrow_of(one.dataType.simpleString())) for one in declared])

    def _part(self, slice_: Slice, item: StoredObject, sign: int, wanted: pa.Schema) -> pa.Table:
        rows = _read(self.storage, item, wanted)
        count = rows.num_rows
        columns = [rows[name] for name in wanted.names if name not in OURS]
        weight = pa.repeat(pa.scalar(sign, pa.int64()), count)
        if self.dataset.kind is Kind.CHANGES:
            weight = pc.multiply_checked(rows[STORED], sign)
        elif self.dataset.kind is Kind.KEYED:
            position = pa.repeat(pa.scalar(slice_.position, pa.int64()), count)
            columns += [pc.equal(rows[OP], Operation.DELETE.value), position, rows[ORDINAL]]
        names = [*(f"c{i}" for i in range(len(columns))), "_w"]
        return pa.table([*columns, weight], names=names)


class _Unlike(Exception):
    """A file's columns are not plainly those that are wanted: Spark knows what to make of them."""


def _read(storage: Storage, item: StoredObject, wanted: pa.Schema) -> pa.Table:
    """The wanted columns of a file; one that it lacks is NULL."""
    try:
        body, _ = storage.objects.get(item.uri)
        found = pq.read_table(pa.BufferReader(body), use_threads=False)
    except ObjectMissing as error:
        raise unreadable(item.uri, "it is not there") from error
    except (pa.ArrowException, OSError) as error:
        raise unreadable(item.uri, f"it is no whole Parquet file: {error}") from error
    places = {name.lower(): place for place, name in enumerate(found.column_names)}
    if len(places) != found.num_columns:
        raise _Unlike
    columns = []
    for field in wanted:
        place = places.get(field.name.lower())
        if place is None:
            columns.append(pa.chunked_array([pa.nulls(found.num_rows, field.type)]))
            continue
        column = found.column(place)
        if not _alike(column.type, field.type):
            raise _Unlike
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, names=wanted.names)


def _alike(here: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether each value of one type is the same value of the other."""
    if here == wanted:
        return True
    if pat.is_signed_integer(here) and pat.is_signed_integer(wanted):
        return bool(here.bit_width < wanted.bit_width)
    if pat.is_timestamp(here) and pat.is_timestamp(wanted):
        return bool(here.unit == wanted.unit and (here.tz is None) == (wanted.tz is None))
    texts = pat.is_large_string(here) and pat.is_string(wanted)
    return bool(texts or (pat.is_large_binary(here) and pat.is_binary(wanted)))


def _numbered(df: "DataFrame", extra: "Sequence[Column]", weight: "Column") -> "DataFrame":
    from pyspark.sql import functions as sf

    columns = [*(sf.col(quoted(name)) for name in df.columns if name not in OURS), *extra]
    named = [column.alias(f"c{i}") for i, column in enumerate(columns)]
    return df.select(*named, weight.cast("bigint").alias("_w"))
