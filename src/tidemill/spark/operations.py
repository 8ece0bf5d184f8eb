"""Row operations (append, upsert, delete), and the extra columns that store them in lots (LOT-40, LOT-41).

    rows      no column: each row is an insert
    changes   `_weight`: how many times the row is inserted (above 0) or deleted (below 0)
    keyed     `_op` ("upsert" or "delete") and `_ordinal`, the number of the row within its append

Names that begin with an underscore are reserved: a declared column cannot have such a name.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidemill.errors import AppendRefused
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.schemas.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

WEIGHT: Final = "_weight"
OP: Final = "_op"
ORDINAL: Final = "_ordinal"


class RowOperation(StrEnum):
    """An operation that a producer applies to rows."""

    APPEND = "append"
    UPSERT = "upsert"
    DELETE = "delete"


EXTRA: Final[dict[Kind, str]] = {
    Kind.ROWS: "",
    Kind.CHANGES: f"{WEIGHT} BIGINT",
    Kind.KEYED: f"{OP} STRING, {ORDINAL} BIGINT",
}
"""The columns that follow the declared ones in a dataset's files, as DDL."""

ALLOWED: Final[dict[Kind, frozenset[RowOperation]]] = {
    Kind.ROWS: frozenset({RowOperation.APPEND}),
    Kind.CHANGES: frozenset({RowOperation.APPEND, RowOperation.DELETE}),
    Kind.KEYED: frozenset({RowOperation.UPSERT, RowOperation.DELETE}),
}


def stored_schema(ddl: str, kind: Kind) -> str:
    """Return the columns of a dataset's files, as DDL: the declared ones, and those for operations."""
    extra = EXTRA[kind]
    return f"{ddl}, {extra}" if extra else ddl


def check(dataset: DatasetRow, operation: RowOperation) -> None:
    """Raise `AppendRefused` for an operation that this kind of dataset does not allow."""
    if operation in ALLOWED[dataset.kind]:
        return
    hints = {
        Kind.ROWS: "the dataset is append-only: declare it with deletes=True, or with a key",
        Kind.CHANGES: "the dataset has no key: append and delete whole rows",
        Kind.KEYED: "the dataset has a key: upsert rows, and delete by key",
    }
    raise AppendRefused(
        f"{dataset.name} does not accept the operation {operation.value}", hint=hints[dataset.kind]
    )


def stored_table(table: pa.Table, dataset: DatasetRow, operation: RowOperation) -> pa.Table:
    """Add the columns that a lot stores besides the declared ones."""
    check(dataset, operation)
    count = table.num_rows
    if dataset.kind is Kind.CHANGES:
        weight = -1 if operation is RowOperation.DELETE else 1
        return table.append_column(WEIGHT, pa.array([weight] * count, pa.int64()))
    if dataset.kind is Kind.KEYED:
        table = table.append_column(OP, pa.array([operation.value] * count, pa.string()))
        return table.append_column(ORDINAL, pa.array(range(count), pa.int64()))
    return table


def is_frame(rows: Any) -> bool:
    """Return whether this is a Spark DataFrame, of classic Spark or of Spark Connect."""
    return hasattr(rows, "sparkSession") and hasattr(rows, "createOrReplaceTempView")


def stored_frame(
    frame: "DataFrame", declared: "StructType", dataset: DatasetRow, operation: RowOperation
) -> "DataFrame":
    """Select the columns that a lot stores, cast to the declared types.

    A declared column that the frame lacks is NULL. Spark decides the order of a frame's rows. So Spark also
    decides which of two rows with the same key is the later one.
    """
    from pyspark.sql import functions as sf

    check(dataset, operation)
    declared_names = {field.name for field in declared}
    unknown = [name for name in frame.columns if name not in declared_names]
    if unknown:
        raise AppendRefused(
            f"the DataFrame for {dataset.name} has the unknown column {', '.join(unknown)}",
            hint=f"remove or rename it; the columns of {dataset.name} are"
            f" {', '.join(field.name for field in declared)}",
        )
    frame_types = {field.name: field.dataType for field in frame.schema.fields}
    columns = []
    for field in declared:
        if operation is RowOperation.DELETE and field.name in dataset.order_by:
            column = _order_column(field, frame_types, dataset)
        elif field.name in frame_types:
            column = _lossless(field, frame_types[field.name], dataset.name)
        else:
            column = sf.lit(None).cast(field.dataType)
        columns.append(column.alias(field.name))
    frame = frame.select(*columns)
    if dataset.kind is Kind.CHANGES:
        weight = -1 if operation is RowOperation.DELETE else 1
        return frame.withColumn(WEIGHT, sf.lit(weight).cast("bigint"))
    if dataset.kind is Kind.KEYED:
        frame = frame.withColumn(OP, sf.lit(operation.value))
        return frame.withColumn(ORDINAL, sf.monotonically_increasing_id())
    return frame


def _order_column(
    field: "StructField", frame_types: "Mapping[str, DataType]", dataset: DatasetRow
) -> "Column":
    """Return the order_by column of a deletion. It decides which write of a key is the latest.

    The Spark job fails if a value is NULL.
    """
    from pyspark.sql import functions as sf

    if field.name not in frame_types:
        raise unordered(dataset, field.name)
    column = _lossless(field, frame_types[field.name], dataset.name)
    refused = sf.raise_error(sf.lit(unordered(dataset, field.name).message)).cast(field.dataType)
    return sf.when(sf.col(quoted(field.name)).isNull(), refused).otherwise(column)


def unordered(dataset: DatasetRow, name: str) -> AppendRefused:
    """Return the error for a deletion that lacks a value in an order_by column (LOT-40)."""
    return AppendRefused(
        f"a deletion from {dataset.name} has no {name}",
        hint=f"pass {', '.join((*dataset.key, *dataset.order_by))}:"
        f" {name} decides which write of a row is the latest",
    )


def _lossless(field: "StructField", frame_type: "DataType", table: str) -> "Column":
    """Cast a column to its declared type. The Spark job fails if the cast would change a value."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    column = sf.col(quoted(field.name))
    cast = column.cast(field.dataType)
    can_lose = isinstance(frame_type, st.NumericType | st.DateType | st.TimestampType | st.TimestampNTZType)
    if isinstance(field.dataType, st.FloatType | st.DoubleType) and not isinstance(
        frame_type, st.IntegralType
    ):
        can_lose = False  # rounding the last digit of a fraction is accepted
    if not can_lose or frame_type.simpleString() == field.dataType.simpleString():
        return cast  # texts are parsed by ANSI rules, which refuse bad values
    type_name = field.dataType.simpleString()
    message = (
        f"{table}: a value of column {field.name} ({frame_type.simpleString()}) does not fit {type_name}"
    )
    refused = sf.raise_error(sf.lit(message)).cast(field.dataType)
    return sf.when(~cast.cast(frame_type).eqNullSafe(column), refused).otherwise(cast)


def digest(frame: "DataFrame") -> str:
    """Compute the digest of a frame's rows in one pass. It does not depend on the order of rows (LOT-36)."""
    from pyspark.sql import functions as sf

    columns = [sf.col(quoted(name)) for name in frame.columns if name != ORDINAL]
    hashes = [sf.xxhash64(sf.lit(salt), *columns).cast("decimal(38,0)") for salt in (1, 2)]
    sums = frame.select(*[column.alias(f"h{number}") for number, column in enumerate(hashes)]).agg(
        sf.count(sf.lit(1)), sf.sum("h0"), sf.sum("h1")
    )
    row = sums.collect()[0]
    return f"{row[0]}:{row[1] or 0}:{row[2] or 0}"
