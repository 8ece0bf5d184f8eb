"""What lots of each kind of dataset hold beside the declared columns (LOT-40, LOT-41).

    rows      nothing: the row is there
    changes   `_weight`: how often the row comes (above 0) or goes (below)
    keyed     `_op` ("upsert" or "delete") and `_ordinal`, the place in its append: raw, as they came

Names that begin with an underscore are ours in these files; a declared column cannot have one of them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidemill.errors import AppendRefused
from tidemill.lots.datasets import Dataset, Kind
from tidemill.schemas.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

WEIGHT: Final = "_weight"
OP: Final = "_op"
ORDINAL: Final = "_ordinal"


class Operation(StrEnum):
    """What a producer does with rows."""

    APPEND = "append"
    UPSERT = "upsert"
    DELETE = "delete"


EXTRA: Final[dict[Kind, str]] = {
    Kind.ROWS: "",
    Kind.CHANGES: f"{WEIGHT} BIGINT",
    Kind.KEYED: f"{OP} STRING, {ORDINAL} BIGINT",
}
"""The columns that come behind the declared ones, as DDL."""

ALLOWED: Final[dict[Kind, frozenset[Operation]]] = {
    Kind.ROWS: frozenset({Operation.APPEND}),
    Kind.CHANGES: frozenset({Operation.APPEND, Operation.DELETE}),
    Kind.KEYED: frozenset({Operation.UPSERT, Operation.DELETE}),
}


def stored_schema(ddl: str, kind: Kind) -> str:
    """The columns of a dataset's files."""
    extra = EXTRA[kind]
    return f"{ddl}, {extra}" if extra else ddl


def check(dataset: Dataset, operation: Operation) -> None:
    """`AppendRefused` for what a dataset of this kind does not take."""
    if operation in ALLOWED[dataset.kind]:
        return
    hints = {
        Kind.ROWS: "it is append-only: declare it with deletes=True, or with a key",
        Kind.CHANGES: "it has no key: append and delete whole rows",
        Kind.KEYED: "it has a key: upsert rows, and delete by key",
    }
    raise AppendRefused(f"{dataset.name} takes no {operation.value}", hint=hints[dataset.kind])


def stored_table(table: pa.Table, dataset: Dataset, operation: Operation) -> pa.Table:
    """A table of declared columns as the lot holds it."""
    check(dataset, operation)
    count = table.num_rows
    if dataset.kind is Kind.CHANGES:
        weight = -1 if operation is Operation.DELETE else 1
        return table.append_column(WEIGHT, pa.array([weight] * count, pa.int64()))
    if dataset.kind is Kind.KEYED:
        table = table.append_column(OP, pa.array([operation.value] * count, pa.string()))
        return table.append_column(ORDINAL, pa.array(range(count), pa.int64()))
    return table


def is_frame(rows: Any) -> bool:
    """Is this a Spark DataFrame, of either kind?"""
    return hasattr(rows, "sparkSession") and hasattr(rows, "createOrReplaceTempView")


def stored_frame(
    frame: "DataFrame", declared: "StructType", dataset: Dataset, operation: Operation
) -> "DataFrame":
    """A frame as the lot holds it: the declared columns by name, in their types; one that is missing is NULL.

    The order of a frame's rows is Spark's: if one has a key twice, which of the two is the later is as well.
    """
    from pyspark.sql import functions as sf

    check(dataset, operation)
    known = {field.name for field in declared}
    strange = [name for name in frame.columns if name not in known]
    if strange:
        raise AppendRefused(
            f"the frame for {dataset.name} has the column {', '.join(strange)}",
            hint=f"{dataset.name} has {', '.join(field.name for field in declared)}",
        )
    given = {field.name: field.dataType for field in frame.schema.fields}
    columns = []
    for field in declared:
        if operation is Operation.DELETE and field.name in dataset.order_by:
            column = _told(field, given, dataset)
        elif field.name in given:
            column = _whole(field, given[field.name], dataset.name)
        else:
            column = sf.lit(None).cast(field.dataType)
        columns.append(column.alias(field.name))
    frame = frame.select(*columns)
    if dataset.kind is Kind.CHANGES:
        weight = -1 if operation is Operation.DELETE else 1
        return frame.withColumn(WEIGHT, sf.lit(weight).cast("bigint"))
    if dataset.kind is Kind.KEYED:
        frame = frame.withColumn(OP, sf.lit(operation.value))
        return frame.withColumn(ORDINAL, sf.monotonically_increasing_id())
    return frame


def _told(field: "StructField", given: "Mapping[str, DataType]", dataset: Dataset) -> "Column":
    """What says which place a deletion has among the writes of its key; the job fails where it is NULL."""
    from pyspark.sql import functions as sf

    if field.name not in given:
        raise untold(dataset, field.name)
    column = _whole(field, given[field.name], dataset.name)
    refused = sf.raise_error(sf.lit(untold(dataset, field.name).message)).cast(field.dataType)
    return sf.when(sf.col(quoted(field.name)).isNull(), refused).otherwise(column)


def untold(dataset: Dataset, name: str) -> AppendRefused:
    """A deletion does not say which place it has among the writes of its key (LOT-40)."""
    return AppendRefused(
        f"a deletion from {dataset.name} has no {name}",
        hint=f"give {', '.join((*dataset.key, *dataset.order_by))}: writes of a key are ordered by {name}",
    )


def _whole(field: "StructField", given: "DataType", table: str) -> "Column":
    """A column in its declared type; the job fails at a value that would be cut on the way there and back."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    column = sf.col(quoted(field.name))
    cast = column.cast(field.dataType)
    cuttable = isinstance(given, st.NumericType | st.DateType | st.TimestampType | st.TimestampNTZType)
    if isinstance(field.dataType, st.FloatType | st.DoubleType) and not isinstance(given, st.IntegralType):
        cuttable = False  # nobody counts on the last digit of a fraction there
    if not cuttable or given.simpleString() == field.dataType.simpleString():
        return cast  # texts are parsed by ANSI rules, which refuse what is none
    said = f"column {field.name} for {table} is {given.simpleString()}, and one of its values does not fit "
    refused = sf.raise_error(sf.lit(said + field.dataType.simpleString())).cast(field.dataType)
    return sf.when(~cast.cast(given).eqNullSafe(column), refused).otherwise(cast)


def digest(frame: "DataFrame") -> str:
    """Of a frame's rows, whatever their order: equal for the same rows (LOT-36). One pass over them."""
    from pyspark.sql import functions as sf

    columns = [sf.col(quoted(name)) for name in frame.columns if name != ORDINAL]
    hashes = [sf.xxhash64(sf.lit(salt), *columns).cast("decimal(38,0)") for salt in (1, 2)]
    sums = frame.select(*[one.alias(f"h{n}") for n, one in enumerate(hashes)]).agg(
        sf.count(sf.lit(1)), sf.sum("h0"), sf.sum("h1")
    )
    row = sums.collect()[0]
    return f"{row[0]}:{row[1] or 0}:{row[2] or 0}"
