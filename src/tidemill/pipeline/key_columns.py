"""Check the key columns of a dataset, and convert the rows that users pass to delete by key (LOT-40)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.errors import DeclarationError
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.schemas.type_table import why_not_kept
from tidemill.spark import operations, schema
from tidemill.spark.input_rows import to_table
from tidemill.spark.queries import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_columns(dataset: DatasetRow) -> None:
    """Check that the columns of `key` and `order_by` exist and that their values can be compared.

    This uses only the declaration, not Spark.
    """
    columns = schema.parse(dataset.schema).columns
    names = [column.name for column in columns]
    for use, required in (("use as a key", dataset.key), ("order by", dataset.order_by)):
        missing = [name for name in required if name not in names]
        if missing:
            raise DeclarationError(
                f'{dataset.name} has no column "{missing[0]}" to {use}',
                hint=f"use one of its columns: {dataset.schema}",
            )
    for column in columns:
        why = why_not_kept(column.type)
        if why and dataset.kind is Kind.CHANGES:
            raise DeclarationError(
                f"rows of {dataset.name} cannot be deleted by value: its column {column.name} is {why}",
                hint="declare a key instead of deletes=True, or store the value as another type",
            )
        if why and column.name in dataset.key:
            raise DeclarationError(
                f"{dataset.name} cannot use {column.name} as a key: the column is {why}",
                hint="use another column, or store the value as another type",
            )


def check_types(spark: "SparkSession", dataset: DatasetRow) -> None:
    """Let Spark check that it can group by the key and sort by the order columns."""
    from pyspark.sql import functions as sf

    if not dataset.key:
        return
    empty = schema.empty_frame(spark, dataset.schema)
    for name in dataset.key:
        with _analysis_errors(f"{dataset.name} cannot use {name} as a key"):
            empty.groupBy(quoted(name)).count().schema  # noqa: B018 - runs the analysis
    for name in dataset.order_by:
        with _analysis_errors(f"{dataset.name} cannot be ordered by {name}"):
            empty.agg(sf.max(quoted(name))).schema  # noqa: B018


@contextmanager
def _analysis_errors(problem: str) -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        text = " ".join(str(error).split("\n\nJVM stacktrace")[0].split(";\n'")[0].split())[:400]
        raise DeclarationError(f"{problem}: {text}", hint="use a column of another type") from error


def deletions(dataset: DatasetRow, rows: Any, columns: pa.Schema) -> pa.Table:
    """Convert the rows of a deletion by key to rows of the table. Columns that it does not need are NULL.

    A user may pass whole rows, keys, or plain values if the key is one column. If the dataset declares
    `order_by`, a deletion needs these columns too. Otherwise its order among the other writes is unknown, and
    `AppendRefused` is raised.
    """
    used = pa.schema([field for field in columns if field.name in (*dataset.key, *dataset.order_by)])
    table = to_table(_select(rows, used.names), used, dataset.name)
    for name in dataset.order_by:
        if table.column(name).null_count:
            raise operations.unordered(dataset, name)
    full = [
        table.column(field.name) if field.name in used.names else pa.nulls(len(table), field.type)
        for field in columns
    ]
    return pa.table(full, schema=columns)


def _select(rows: Any, names: Sequence[str]) -> Any:
    """Return the rows with these columns only."""
    if isinstance(rows, list | tuple | set | frozenset):
        return [_select_values(row, names) for row in rows]
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows.select([name for name in rows.column_names if name in names])
    if type(rows).__module__.partition(".")[0] == "pandas":
        return rows[[name for name in rows.columns if name in names]]
    return rows


def _select_values(row: Any, names: Sequence[str]) -> Any:
    if isinstance(row, dict):
        return {name: value for name, value in row.items() if name in names}
    if len(names) == 1 and not isinstance(row, list | tuple):
        return (row,)
    return row
