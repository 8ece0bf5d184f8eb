"""Tables with a key: what their declarations must say, and what is given to delete from them (LOT-40)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.errors import DeclarationError
from tidemill.lots.datasets import Dataset, Kind
from tidemill.schemas.type_table import why_not_kept
from tidemill.spark import input_rows as given
from tidemill.spark import operations, schema
from tidemill.spark.queries import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_columns(dataset: Dataset) -> None:
    """Are the columns of the key, and those that order its writes, there, and can rows be told apart by what
    tells them apart? By the declaration alone.
    """
    columns = schema.parse(dataset.schema).columns
    names = [column.name for column in columns]
    for what, wanted in (("be its key", dataset.key), ("be ordered by", dataset.order_by)):
        missing = [name for name in wanted if name not in names]
        if missing:
            raise DeclarationError(
                f"{dataset.name} has no column {missing[0]} to {what}", hint=f"it has {dataset.schema}"
            )
    for column in columns:
        why = why_not_kept(column.type)
        if why and dataset.kind is Kind.CHANGES:
            raise DeclarationError(
                f"rows of {dataset.name} cannot be found to be deleted: its column {column.name} is {why}",
                hint="give it a key instead of deletes=True, or keep the value as another type",
            )
        if why and column.name in dataset.key:
            raise DeclarationError(
                f"{dataset.name} cannot have {column.name} as its key: it is {why}",
                hint="take another column, or keep the value as another type",
            )


def check_types(spark: "SparkSession", dataset: Dataset) -> None:
    """Can Spark group by the key, and tell which of two writes is the newer one? By its own analysis."""
    from pyspark.sql import functions as sf

    if not dataset.key:
        return
    empty = spark.createDataFrame([], dataset.schema)
    for name in dataset.key:
        with _spoken(dataset, f"have {name} as its key"):
            empty.groupBy(quoted(name)).count().schema  # noqa: B018 - asks for the analysis
    for name in dataset.order_by:
        with _spoken(dataset, f"be ordered by {name}"):
            empty.agg(sf.max(quoted(name))).schema  # noqa: B018


@contextmanager
def _spoken(dataset: Dataset, what: str) -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        said = " ".join(str(error).split("\n\nJVM stacktrace")[0].split(";\n'")[0].split())[:400]
        raise DeclarationError(f"{dataset.name} cannot {what}: {said}") from error


def deletions(dataset: Dataset, rows: Any, columns: pa.Schema) -> pa.Table:
    """What is deleted by key, as rows that are NULL but for the key and what orders its writes.

    It may be given as whole rows, as keys, or, where one column says it all, as values. Where writes are
    ordered a deletion has its place among them, so it must say which: without it nobody could tell whether
    what is there is older (`AppendRefused`).
    """
    wanted = pa.schema([one for one in columns if one.name in (*dataset.key, *dataset.order_by)])
    table = given.to_table(_needed(rows, wanted.names), wanted, dataset.name)
    for name in dataset.order_by:
        if table.column(name).null_count:
            raise operations.unordered(dataset, name)
    full = [
        table.column(one.name) if one.name in wanted.names else pa.nulls(len(table), one.type)
        for one in columns
    ]
    return pa.table(full, schema=columns)


def _needed(rows: Any, names: Sequence[str]) -> Any:
    if isinstance(rows, list | tuple | set | frozenset):
        return [_of_row(row, names) for row in rows]
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows.select([name for name in rows.column_names if name in names])
    if type(rows).__module__.partition(".")[0] == "pandas":
        return rows[[name for name in rows.columns if name in names]]
    return rows


def _of_row(row: Any, names: Sequence[str]) -> Any:
    if isinstance(row, dict):
        return {name: value for name, value in row.items() if name in names}
    if len(names) == 1 and not isinstance(row, list | tuple):
        return (row,)
    return row
