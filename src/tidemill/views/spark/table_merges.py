"""Merges of a view's table: the rows of some pieces, added up and written as one run.

Few rows are merged here in the process, with Arrow; many by a job of Spark, and so are rows of types that are
compared in another way outside of Spark (collations) or have no form there. Either way the digest of what is
written must be the digest of what was read (DBSP-42), and a run that was read whole must have the digest that
its manifest states.
"""

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

HERE_ROWS = 1_000_000
HERE_BYTES = 64 * 1024**2
"""So many rows, in files of so many bytes, are merged without Spark."""

GROUP_ROWS = 8_192
BLOCK_BYTES = 2 * 1024 * 1024
"""Of a row group of a table's files, as we write them and as Spark does: they are sorted by identity, and a
window is read without the rest."""

_SMALL_BYTES = 1 << 20  # objects of fewer bytes are read at once

Load = Callable[[str], Manifest]


class MergedTable(msgspec.Struct, frozen=True):
    """What a merge wrote: objects, and their digest."""

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
    """Rewrite a window into one run.

    None when that takes Spark, and there is none: then nothing was written that is of use.

    Args:
        storage: where the table is.
        load: gives the manifest of a run.
        window: what to rewrite.
        schema: the columns of the table.
        prefix: a folder that nobody has written into yet.
        spark: the session for what is not merged here.
    """
    if window.rows <= HERE_ROWS and _bytes(load, window) <= HERE_BYTES:
        arrow = arrow_schema(stored_columns(schema))
        if arrow is not None:
            try:
                return _here(storage.objects, load, window, arrow, prefix)
            except (TypeRefused, pa.ArrowNotImplementedError, pa.ArrowInvalid):
                pass  # a value that has no form outside of Spark: Spark merges it
    return None if spark is None else _by_spark(spark, storage, load, window, schema, prefix)


def _bytes(load: Load, window: MergeWindow) -> float:
    """About how many bytes of files hold the rows of a window."""
    return sum(_row_bytes(load(piece.part)) * piece.rows for piece in window.pieces)


def _row_bytes(leaf: Manifest) -> float:
    return sum(item.size for item in leaf.objects) / max(1, leaf.rows)


def stored_columns(schema: "StructType") -> "StructType":
    """The columns of a table's files."""
    from pyspark.sql import types as st

    extra = [st.StructField(name, st.LongType()) for name in (weighted_rows.HIGH, weighted_rows.LOW, WEIGHT)]
    return st.StructType([*schema.fields, *extra])


def arrow_schema(schema: "StructType") -> pa.Schema | None:
    """The columns of files as they are merged outside of Spark; None when they are not."""
    columns = schemas.of_spark(schema)
    # Texts with a collation are equal to Spark, and not here; maps it compares by sorting their entries.
    if any(is_compared_by_spark_only(column.type) for column in columns.columns):
        return None
    try:
        return schemas.to_arrow(columns.stored())
    except BadSchema:
        return None


# --- in this process


def _here(objects: Objects, load: Load, window: MergeWindow, arrow: pa.Schema, prefix: str) -> MergedTable:
    tables = [_checked(objects, load(piece.part), piece, arrow) for piece in window.pieces]
    came = pa.concat_tables(tables)
    before = digest(came, weighted_rows.HIGH, weighted_rows.LOW, WEIGHT)
    made = netted(came)
    after = digest(made, weighted_rows.HIGH, weighted_rows.LOW, WEIGHT)
    _compare(window, before, after)
    return MergedTable(write_table(made, objects, prefix, group_rows=GROUP_ROWS, pack=True), after)


def netted(table: pa.Table) -> pa.Table:
    """Equal rows as one, with the sum of their weights, sorted by identity: as `rows.netted`, by Arrow."""
    table = table.combine_chunks()
    if table.num_rows == 0:
        return table
    apart = (weighted_rows.HIGH, weighted_rows.LOW, WEIGHT)
    places = [n for n, name in enumerate(table.column_names) if name not in apart]
    coded = code_rows([_chunk(table, place) for place in places], table.num_rows, "equal")
    order, starts = group_equal(coded, column(table, weighted_rows.HIGH))
    weights = group_sums(column(table, WEIGHT)[order], starts)
    alive = weights != 0
    found = table.take(pa.array(order[starts[alive]]))
    place = table.column_names.index(WEIGHT)
    return found.set_column(place, table.schema.field(place), pa.array(weights[alive].astype(np.int64)))


def _chunk(table: pa.Table, place: int) -> pa.Array:
    found = table.column(place)
    return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()


def _checked(objects: Objects, leaf: Manifest, piece: TablePiece, arrow: pa.Schema) -> pa.Table:
    """The rows of a piece; those of a whole run must have the digest that it is stated to have."""
    table = pa.concat_tables([read_piece(objects, item, piece, arrow) for item in leaf.objects])
    if piece.whole and leaf.digest:
        found = digest(table, weighted_rows.HIGH, weighted_rows.LOW, WEIGHT)
        if found != digests.number_of(leaf.digest):
            raise WriteMismatch(
                f"the files of {piece.part} have the digest {digests.text_of(found)}, not {leaf.digest}"
            )
    return table


def read_piece(objects: Objects, item: StoredObject, piece: TablePiece, arrow: pa.Schema) -> pa.Table:
    """The rows of one file that belong to a piece; only the row groups that may have some are fetched."""
    low, high = hash_bounds(piece.low, piece.high)
    try:
        source: Any = (
            pa.BufferReader(objects.get(item.uri)[0])
            if item.size <= _SMALL_BYTES
            else pa.PythonFile(RangedFile(objects, item.uri, item.size), mode="r")
        )
        # Instants of Spark may be in a format of 96 bits: as nanoseconds they would not all fit.
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=True)
        wanted = [
            number
            for number in range(file.metadata.num_row_groups)
            if piece.whole or _may_have(file.metadata.row_group(number), low, high)
        ]
        table = file.read_row_groups(wanted)
    except (ObjectMissing, OSError) as error:
        raise unreadable(item.uri, f"it is not there, or no whole Parquet file: {error}") from error
    except pa.ArrowInvalid as error:
        if "Parquet" in str(error) or "magic" in str(error):
            raise unreadable(item.uri, f"it is no whole Parquet file: {error}") from error
        raise
    if table.num_columns != len(arrow):
        raise ObjectUnreadable(f"{item.uri!r} has {table.num_columns} columns, and its table {len(arrow)}")
    columns = [column.cast(field.type) for column, field in zip(table.columns, arrow, strict=True)]
    table = pa.Table.from_arrays(columns, schema=arrow)
    if piece.whole:
        return table
    hashes = column(table, weighted_rows.HIGH)
    return table.filter(pa.array((hashes >= low) & (hashes <= high)))


def _may_have(group: Any, low: int, high: int) -> bool:
    for number in range(group.num_columns):
        found = group.column(number)
        if found.path_in_schema == weighted_rows.HIGH:
            stats = found.statistics
            return stats is None or not stats.has_min_max or not (stats.max < low or stats.min > high)
    return True


# --- by Spark


def frame_of_pieces(
    spark: "SparkSession", storage: Storage, load: Load, pieces: Sequence[TablePiece], schema: "StructType"
) -> "DataFrame":
    """The rows of pieces with identity and weight, not added up: one scan for each way that runs were cut.

    - schema: the columns of the table.
    """
    from pyspark.sql import functions as sf

    cuts: dict[str, list[tuple[int, int]]] = {}
    for piece in pieces:
        kept = cuts.setdefault(piece.part, [])
        if not piece.whole:
            kept.append(hash_bounds(piece.low, piece.high))
    scans: dict[tuple[tuple[int, int], ...], list[StoredObject]] = {}
    for part, bounds in cuts.items():
        scans.setdefault(tuple(sorted(bounds)), []).extend(load(part).objects)
    frame: DataFrame | None = None
    for ranges, objects in sorted(scans.items(), key=lambda scan: scan[0]):
        found = read_objects(spark, storage, stored_columns(schema), objects)
        if ranges:
            kept_rows = (sf.col(weighted_rows.HIGH).between(low, high) for low, high in ranges)
            found = found.where(reduce(lambda one, other: one | other, kept_rows))
        frame = found if frame is None else frame.unionAll(found)
    return read_objects(spark, storage, stored_columns(schema), []) if frame is None else frame


def _by_spark(
    spark: "SparkSession",
    storage: Storage,
    load: Load,
    window: MergeWindow,
    schema: "StructType",
    prefix: str,
) -> MergedTable:
    came, before = digests.observed(frame_of_pieces(spark, storage, load, window.pieces, schema))
    frame, after = digests.observed(
        weighted_rows.netted(came, schema).sortWithinPartitions(weighted_rows.HIGH)
    )
    written = write_frame(frame, storage, storage.objects, f"{prefix}spark/", block_bytes=BLOCK_BYTES)
    _compare(window, before(), after())
    return MergedTable(written, after())


def _compare(window: MergeWindow, before: int, after: int) -> None:
    if before != after:
        raise WriteMismatch(
            f"a merge of {len(window.pieces)} runs was written with the digest {digests.text_of(after)},"
            f" and they come to {digests.text_of(before)}",
            hint="the step is made again; if this stays, one of the files is damaged",
        )
