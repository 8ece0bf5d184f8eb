"""Merge pieces of a view's table: add up their rows and write them as one run.

This process merges small windows with Arrow. Spark merges large windows, and rows with types that Arrow does
not have or compares differently (collations). Either way, the written rows must have the digest of the rows
that were read (DBSP-42), and a run that was read completely must have the digest in its manifest.
"""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.errors import BadSchema, ObjectMissing, ObjectUnreadable, TypeRefused, WriteMismatch
from tidemill.lots.manifest import Manifest, StoredObject
from tidemill.objects import Objects
from tidemill.schemas.type_table import is_compared_by_spark_only
from tidemill.spark import schema as schemas
from tidemill.spark.lot_reader import read_objects
from tidemill.spark.lot_writer import Written, write_frame, write_table
from tidemill.spark.operations import WEIGHT
from tidemill.spark.parquet_files import RangedFile, unreadable
from tidemill.spark.storage import Storage
from tidemill.views.kernels.zsets import digest
from tidemill.views.spark import digests, weighted_rows
from tidemill.views.spark.table_pieces import MergeWindow, TablePiece
from tidemill.views.trace.consolidation import column, group_sums
from tidemill.views.trace.hash_space import hash_bounds
from tidemill.views.trace.row_equality import code_rows, group_equal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

IN_PROCESS_ROWS = 1_000_000
IN_PROCESS_BYTES = 64 * 1024**2
"""The maximum rows, and the maximum bytes of their files, that are merged without Spark."""

GROUP_ROWS = 8_192
BLOCK_BYTES = 2 * 1024 * 1024
"""The size of a row group in a table's files: in rows if this process writes them, in bytes if Spark does.
Files are sorted by identity, so only the row groups of a window are read."""

_SMALL_BYTES = 1 << 20  # objects of fewer bytes are read at once

Load = Callable[[str], Manifest]


class MergedTable(msgspec.Struct, frozen=True):
    """The objects that a merge wrote, and their digest."""

    written: Written
    digest: int


def merge(
    storage: Storage,
    load: Load,
    window: MergeWindow,
    schema: "StructType",
    prefix: str,
    spark: "SparkSession | None",
) -> MergedTable | None:
    """Rewrite a window into one run; return None if this needs Spark and `spark` is None.

    Args:
        storage: the object storage.
        load: returns the manifest of a run.
        window: the window to rewrite.
        schema: the columns of the table.
        prefix: the folder to write to, which is empty.
        spark: the session for windows that are not merged in this process.
    """
    if window.rows <= IN_PROCESS_ROWS and _bytes(load, window) <= IN_PROCESS_BYTES:
        arrow = arrow_schema(stored_columns(schema))
        if arrow is not None:
            try:
                return _in_process(storage.objects, load, window, arrow, prefix)
            except (TypeRefused, pa.ArrowNotImplementedError, pa.ArrowInvalid):
                pass  # Arrow cannot represent a value: Spark merges the window
    return None if spark is None else _by_spark(spark, storage, load, window, schema, prefix)


def _bytes(load: Load, window: MergeWindow) -> float:
    """Estimate the bytes of files that hold the rows of a window."""
    return sum(_row_bytes(load(piece.part)) * piece.rows for piece in window.pieces)


def _row_bytes(leaf: Manifest) -> float:
    return sum(item.size for item in leaf.objects) / max(1, leaf.rows)


def stored_columns(schema: "StructType") -> "StructType":
    """Return the columns of a table's files."""
    from pyspark.sql import types as st

    extra = [st.StructField(name, st.LongType()) for name in (weighted_rows.HIGH, weighted_rows.LOW, WEIGHT)]
    return st.StructType([*schema.fields, *extra])


def arrow_schema(schema: "StructType") -> pa.Schema | None:
    """Return the columns of files as Arrow types; None if only Spark can merge them."""
    columns = schemas.of_spark(schema)
    # Only Spark compares strings by collation, and maps regardless of the order of their entries.
    if any(is_compared_by_spark_only(column.type) for column in columns.columns):
        return None
    try:
        return schemas.to_arrow(columns.stored())
    except BadSchema:
        return None


# --- in this process


def _in_process(
    objects: Objects, load: Load, window: MergeWindow, arrow: pa.Schema, prefix: str
) -> MergedTable:
    tables = [_checked(objects, load(piece.part), piece, arrow) for piece in window.pieces]
    rows = pa.concat_tables(tables)
    before = digest(rows, weighted_rows.HIGH, weighted_rows.LOW, WEIGHT)
    merged = netted(rows)
    after = digest(merged, weighted_rows.HIGH, weighted_rows.LOW, WEIGHT)
    _compare_digests(window, before, after)
    return MergedTable(write_table(merged, objects, prefix, group_rows=GROUP_ROWS, pack=True), after)


def netted(table: pa.Table) -> pa.Table:
    """Add up the weights of equal rows, and sort by identity: like `weighted_rows.netted`, but with Arrow."""
    table = table.combine_chunks()
    if table.num_rows == 0:
        return table
    internal = (weighted_rows.HIGH, weighted_rows.LOW, WEIGHT)
    places = [n for n, name in enumerate(table.column_names) if name not in internal]
    coded = code_rows([_chunk(table, place) for place in places], table.num_rows, "equal")
    order, starts = group_equal(coded, column(table, weighted_rows.HIGH))
    weights = group_sums(column(table, WEIGHT)[order], starts)
    remaining = weights != 0
    rows = table.take(pa.array(order[starts[remaining]]))
    place = table.column_names.index(WEIGHT)
    return rows.set_column(place, table.schema.field(place), pa.array(weights[remaining].astype(np.int64)))


def _chunk(table: pa.Table, place: int) -> pa.Array:
    array = table.column(place)
    return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()


def _checked(objects: Objects, leaf: Manifest, piece: TablePiece, arrow: pa.Schema) -> pa.Table:
    """Read the rows of a piece.

    If the piece is a complete run, compare the rows with the digest in its manifest.
    """
    table = pa.concat_tables([read_piece(objects, item, piece, arrow) for item in leaf.objects])
    if piece.complete and leaf.digest:
        actual = digest(table, weighted_rows.HIGH, weighted_rows.LOW, WEIGHT)
        if actual != digests.number_of(leaf.digest):
            raise WriteMismatch(
                f"the files of {piece.part} have the digest {digests.text_of(actual)}, not {leaf.digest}"
            )
    return table


def read_piece(objects: Objects, item: StoredObject, piece: TablePiece, arrow: pa.Schema) -> pa.Table:
    """Read the rows of one file that belong to a piece; fetch only row groups that may have such rows."""
    low, high = hash_bounds(piece.low, piece.high)
    try:
        source: Any = (
            pa.BufferReader(objects.get(item.uri)[0])
            if item.size <= _SMALL_BYTES
            else pa.PythonFile(RangedFile(objects, item.uri, item.size), mode="r")
        )
        # Spark may write timestamps with 96 bits, which do not all fit into nanoseconds.
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=True)
        groups = [
            number
            for number in range(file.metadata.num_row_groups)
            if piece.complete or _may_overlap(file.metadata.row_group(number), low, high)
        ]
        table = file.read_row_groups(groups)
    except ObjectMissing as error:
        raise unreadable(item.uri, f"it does not exist: {error.message}") from error
    except OSError as error:
        raise unreadable(item.uri, f"it is not a complete Parquet file: {error}") from error
    except pa.ArrowInvalid as error:
        if "Parquet" in str(error) or "magic" in str(error):
            raise unreadable(item.uri, f"it is not a complete Parquet file: {error}") from error
        raise
    if table.num_columns != len(arrow):
        raise ObjectUnreadable(
            f"{item.uri!r} has {table.num_columns} columns, but its table has {len(arrow)}"
        )
    columns = [column.cast(field.type) for column, field in zip(table.columns, arrow, strict=True)]
    table = pa.Table.from_arrays(columns, schema=arrow)
    if piece.complete:
        return table
    hashes = column(table, weighted_rows.HIGH)
    return table.filter(pa.array((hashes >= low) & (hashes <= high)))


def _may_overlap(group: Any, low: int, high: int) -> bool:
    for number in range(group.num_columns):
        column_chunk = group.column(number)
        if column_chunk.path_in_schema == weighted_rows.HIGH:
            stats = column_chunk.statistics
            return stats is None or not stats.has_min_max or not (stats.max < low or stats.min > high)
    return True


# --- with Spark


def frame_of_pieces(
    spark: "SparkSession", storage: Storage, load: Load, pieces: Sequence[TablePiece], schema: "StructType"
) -> "DataFrame":
    """Return the rows of pieces with identity and weight. Equal rows are not added up.

    Pieces with the same cuts share one scan.

    Args:
        spark: the session.
        storage: the object storage.
        load: returns the manifest of a run.
        pieces: the pieces to read.
        schema: the columns of the table.
    """
    from pyspark.sql import functions as sf

    cuts: dict[str, list[tuple[int, int]]] = {}
    for piece in pieces:
        bounds = cuts.setdefault(piece.part, [])
        if not piece.complete:
            bounds.append(hash_bounds(piece.low, piece.high))
    scans: dict[tuple[tuple[int, int], ...], list[StoredObject]] = {}
    for part, bounds in cuts.items():
        scans.setdefault(tuple(sorted(bounds)), []).extend(load(part).objects)
    frame: DataFrame | None = None
    for ranges, objects in sorted(scans.items(), key=lambda scan: scan[0]):
        rows = read_objects(spark, storage, stored_columns(schema), objects)
        if ranges:
            in_ranges = (sf.col(weighted_rows.HIGH).between(low, high) for low, high in ranges)
            rows = rows.where(reduce(operator.or_, in_ranges))
        frame = rows if frame is None else frame.unionAll(rows)
    return read_objects(spark, storage, stored_columns(schema), []) if frame is None else frame


def _by_spark(
    spark: "SparkSession",
    storage: Storage,
    load: Load,
    window: MergeWindow,
    schema: "StructType",
    prefix: str,
) -> MergedTable:
    rows, before = digests.observed(frame_of_pieces(spark, storage, load, window.pieces, schema))
    frame, after = digests.observed(
        weighted_rows.netted(rows, schema).sortWithinPartitions(weighted_rows.HIGH)
    )
    written = write_frame(frame, storage, f"{prefix}spark/", block_bytes=BLOCK_BYTES)
    _compare_digests(window, before(), after())
    return MergedTable(written, after())


def _compare_digests(window: MergeWindow, before: int, after: int) -> None:
    if before != after:
        raise WriteMismatch(
            f"a merge of {len(window.pieces)} pieces of run files read rows with the digest"
            f" {digests.text_of(before)}, but wrote rows with the digest {digests.text_of(after)}",
            hint="no action is needed: the step runs again; if the error repeats, one of the files"
            " is damaged",
        )
