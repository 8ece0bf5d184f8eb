"""Read the files of lots with Arrow, in the runner or in Spark's Python workers, as c0, c1, … and `_w`.

If Spark read the files, it would convert each row to its own format and back to Arrow, which takes several
times as long as reading. Spark reads a file only if its columns differ from the declared ones in name or type
(`FileMismatch`), because Spark can convert them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from tidemill.errors import FileMismatch, ObjectMissing
from tidemill.lots.datasets import Kind
from tidemill.objects import Objects
from tidemill.spark.lot_reader import POSITION
from tidemill.spark.operations import OP, ORDINAL, RowOperation
from tidemill.spark.operations import WEIGHT as STORED
from tidemill.spark.parquet_files import open_parquet, unreadable

INTERNAL_COLUMNS = frozenset({OP, ORDINAL, STORED, POSITION})
BATCH_ROWS = 131_072
BATCH_BYTES = 8 * 1024**2
"""How much is decoded at once, by the sizes in a file's metadata."""

_BUFFER_BYTES = 4 * 1024**2  # how much of a column of a large file is fetched at once


class LotFilePart(NamedTuple):
    """A part of a file: an equal share of its row groups.

    Args:
        key, size: the key and size of the object.
        sign: 1 for inserted rows, -1 for retracted ones.
        append: in a keyed dataset, the number of the append; the rows of a later append are newer.
        part, parts: the number of the share, and how many shares there are.
    """

    key: str
    size: int
    sign: int
    append: int
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class LotReader:
    """Reads the files of a dataset.

    Args:
        columns: the columns to read, including internal ones.
        kind: the kind of the dataset.
    """

    columns: pa.Schema
    kind: Kind

    def rows(self, objects: Objects, file: LotFilePart, *, threads: bool = False) -> Iterator[pa.Table]:
        """Yield the rows of a part of a file in pieces.

        Args:
            objects: the object storage.
            file: the part of a file.
            threads: whether to decode columns in parallel; a Spark task has one core.
        """
        try:
            large = file.size > 2 * _BUFFER_BYTES
            with open_parquet(
                objects, file.key, file.size, buffer_bytes=_BUFFER_BYTES if large else 0
            ) as parquet:
                places = self._places(parquet.schema_arrow, file.key)
                groups = _share(parquet.num_row_groups, file)
                names = [parquet.schema_arrow.field(place).name for place in places if place is not None]
                if not names:
                    raise FileMismatch(f"{file.key!r} has none of the declared columns")
                count = _batch_rows(parquet.metadata, groups)
                for batch in parquet.iter_batches(count, groups, names, use_threads=threads):
                    yield self._numbered(pa.Table.from_batches([batch]), file)
        except ObjectMissing as error:
            raise unreadable(file.key, "it does not exist") from error
        except MemoryError:
            raise  # also Arrow's: the file is not the cause
        except (pa.ArrowException, OSError) as error:
            raise unreadable(file.key, f"it is not a complete Parquet file: {error}") from error

    def _places(self, schema: pa.Schema, key: str) -> list[int | None]:
        """Return the places of the columns in a file; None for a column that the file does not have."""
        by_name = {name.lower(): place for place, name in enumerate(schema.names)}
        places = [by_name.get(field.name.lower()) for field in self.columns]
        if len(by_name) < len(schema) or any("." in name for name in schema.names):
            raise FileMismatch(f"{key!r} has column names that differ only in case or contain a dot")
        for field, place in zip(self.columns, places, strict=True):
            if place is not None and not _is_convertible(schema.field(place).type, field.type):
                raise FileMismatch(
                    f"in {key!r}, column {field.name} has the type {schema.field(place).type}, not"
                    f" {field.type}"
                )
        return places

    def _numbered(self, rows: pa.Table, file: LotFilePart) -> pa.Table:
        """Return the rows of a file as c0, c1, … and `_w`."""
        count = rows.num_rows
        by_name = {name.lower(): rows.column(place) for place, name in enumerate(rows.column_names)}
        arrays = {}
        for field in self.columns:
            column = by_name.get(field.name.lower())
            absent = pa.chunked_array([pa.nulls(count, field.type)])
            arrays[field.name] = absent if column is None else column.cast(field.type)
        columns = [arrays[name] for name in self.columns.names if name not in INTERNAL_COLUMNS]
        weight = pa.repeat(pa.scalar(file.sign, pa.int64()), count)
        if self.kind is Kind.CHANGES:
            weight = pc.multiply_checked(arrays[STORED], file.sign)
        elif self.kind is Kind.KEYED:
            append = pa.repeat(pa.scalar(file.append, pa.int64()), count)
            columns += [pc.equal(arrays[OP], RowOperation.DELETE.value), append, arrays[ORDINAL]]
        return pa.table([*columns, weight], names=[*(f"c{i}" for i in range(len(columns))), "_w"])


def _share(groups: int, file: LotFilePart) -> list[int]:
    first, end = (groups * at // file.parts for at in (file.part, file.part + 1))
    return list(range(first, end))


def _batch_rows(metadata: pq.FileMetaData, groups: list[int]) -> int:
    """Return how many rows to decode at once."""
    row_groups = [metadata.row_group(number) for number in groups]
    size, rows = (
        sum(group.total_byte_size for group in row_groups),
        sum(group.num_rows for group in row_groups),
    )
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // size)) if size else BATCH_ROWS


def _is_convertible(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether Arrow converts every value of the stored type to the declared type unchanged."""
    if stored == declared:
        return True
    if pat.is_signed_integer(stored) and pat.is_signed_integer(declared):
        return bool(stored.bit_width < declared.bit_width)
    if pat.is_timestamp(stored) and pat.is_timestamp(declared):
        return bool(stored.unit == declared.unit and (stored.tz is None) == (declared.tz is None))
    strings = pat.is_large_string(stored) and pat.is_string(declared)
    return bool(strings or (pat.is_large_binary(stored) and pat.is_binary(declared)))
