"""The content of datasets and of views' tables as Arrow tables, read without Spark.

The rows are those of the frames of `dataset_contents` and `view_tables`. Where that is not certain, the
result is None, and the caller reads the frame: if the files need a conversion, if rows are compared that only
Spark compares in its way (both zeros, collations, maps), or if `order_by` decides which write of a key is the
last.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidemill.errors import TypeRefused
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.schemas.columns import Schema
from tidemill.spark import schema as schemas
from tidemill.spark.operations import WEIGHT as STORED_WEIGHT
from tidemill.spark.storage import Storage
from tidemill.views.spark import table_merges
from tidemill.views.spark.step_inputs import LotInput
from tidemill.views.spark.table_pieces import overlap
from tidemill.views.spark.view_tables import ViewTables
from tidemill.views.steps.inputs import LotSlice, appends
from tidemill.views.trace.consolidation import column, group_sums
from tidemill.views.trace.layout import WEIGHT
from tidemill.views.trace.row_equality import code_rows, group_equal, is_plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def dataset_table(
    spark: "SparkSession", storage: Storage, dataset: DatasetRow, slices: Sequence[LotSlice]
) -> pa.Table | None:
    """Return the current rows of a dataset; None if Spark must read them.

    The arguments are those of `dataset_frame`.
    """
    columns = schemas.parse(dataset.schema)
    if dataset.kind is Kind.KEYED:
        if dataset.order_by:
            return None
        slices = [
            LotSlice(lot="", position=number, generation=0, objects=tuple(objects))
            for number, objects in enumerate(appends(slices))
        ]
    objects = [item for lot in slices for item in lot.objects]
    if not objects:
        return _empty(columns)
    rows = LotInput(spark, storage, dataset, slices).table()
    if rows is None:
        return None
    width = len(columns.names)
    if dataset.kind is Kind.CHANGES:
        summed = _summed(rows, range(width))
        rows = None if summed is None else _repeated(summed)
    elif dataset.kind is Kind.KEYED:
        rows = _last_writes(rows, [columns.names.index(name) for name in dataset.key], width)
    return None if rows is None else rows.select(range(width)).rename_columns(columns.names)


def view_table(tables: ViewTables, table: str) -> pa.Table | None:
    """Return the rows of a view's table; None if Spark must read them.

    - table: the key of the table's manifest.
    """
    schema, pieces = tables.schema(table), tables.pieces(table)
    arrow = table_merges.arrow_schema(table_merges.stored_columns(schema))
    if arrow is None:
        return None
    parts = [
        table_merges.read_piece(tables.storage.objects, item, piece, arrow)
        for piece in pieces
        for item in tables.load(piece.part).objects
    ]
    rows = pa.concat_tables(parts) if parts else arrow.empty_table()
    if overlap(pieces):
        if not all(_is_compared(field.type) for field in arrow):
            return None
        rows = table_merges.netted(rows)
    return _repeated(rows, STORED_WEIGHT).select(range(len(schema.fields)))


def _empty(columns: Schema) -> pa.Table | None:
    try:
        return schemas.to_arrow(columns.stored()).empty_table()
    except TypeRefused:
        return None


def _is_compared(kind: pa.DataType) -> bool:
    """Return whether equal values of a type have equal bytes: Spark takes both zeros of a float for one."""
    return is_plain(kind) and not pat.is_floating(kind)


def _summed(rows: pa.Table, places: Sequence[int]) -> pa.Table | None:
    """Add up the weights of equal rows; return None if only Spark knows which rows are equal."""
    arrays = [rows.column(place).combine_chunks() for place in places]
    if not all(_is_compared(array.type) for array in arrays):
        return None
    order, starts = group_equal(code_rows(arrays, rows.num_rows))
    weights = group_sums(column(rows, WEIGHT)[order], starts)
    first = rows.take(pa.array(order[starts]))
    return first.set_column(first.column_names.index(WEIGHT), WEIGHT, pa.array(weights.astype(np.int64)))


def _repeated(rows: pa.Table, weight: str = WEIGHT) -> pa.Table:
    """Repeat each row as many times as its weight says."""
    times = np.maximum(column(rows, weight).astype(np.int64), 0)
    if np.all(times == 1):
        return rows
    return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), times)))


def _last_writes(rows: pa.Table, key: Sequence[int], width: int) -> pa.Table | None:
    """Return the last write of each key, without deletions.

    After the declared columns, the rows have a flag for deletions, the position of the append, and the place
    within it.
    """
    arrays = [rows.column(place).combine_chunks() for place in key]
    if not all(_is_compared(array.type) for array in arrays):
        return None
    order, starts = group_equal(code_rows(arrays, rows.num_rows))
    group = np.empty(rows.num_rows, np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, rows.num_rows)))
    deleted, position, ordinal = (
        rows.column(width + place).combine_chunks().to_numpy(zero_copy_only=False) for place in range(3)
    )
    by_time = np.lexsort((ordinal, position, group))
    ends = np.append(np.flatnonzero(np.diff(group[by_time])), rows.num_rows - 1)
    last = by_time[ends]
    return rows.take(pa.array(np.sort(last[~deleted[last].astype(bool)])))
