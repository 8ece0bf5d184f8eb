"""Files of lots as rows of c0, c1, … and `_w`, read with Arrow: by the runner, and by Spark's Python workers.

Spark would read the same rows, turn each into one of its own and each of these into Arrow again, which takes
several times as long as reading them. It is still asked where a file's columns are not plainly those that are
declared (`FileUnlike`): it knows what to make of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from tidemill.errors import FileUnlike, ObjectMissing
from tidemill.lots.datasets import Kind
from tidemill.objects import Objects
from tidemill.spark.lot_reader import POSITION
from tidemill.spark.operations import OP, ORDINAL, RowOperation
from tidemill.spark.operations import WEIGHT as STORED
from tidemill.spark.parquet_files import open_parquet, unreadable

OURS = frozenset({OP, ORDINAL, STORED, POSITION})
BATCH_ROWS = 131_072
BATCH_BYTES = 8 * 1024**2
"""What is decoded at once, by what a file says of its rows."""

_BUFFER_BYTES = 4 * 1024**2  # fetched at once of a column of a large file


class LotFilePart(NamedTuple):
    """A part of a file: its row groups in equal shares.

    Args:
        key, size: of the object.
        sign: 1 for what comes, -1 for what is taken back.
        position: of the lot it belongs to.
        part, parts: which share.
    """

    key: str
    size: int
    sign: int
    position: int
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class LotReader:
    """How the files of a dataset are read.

    Args:
        wanted: the columns, ours among them.
        kind: of the dataset.
    """

    wanted: pa.Schema
    kind: Kind

    def rows(self, objects: Objects, file: LotFilePart, *, threads: bool = False) -> Iterator[pa.Table]:
        """The rows of a part of a file, in pieces.

        - threads: columns are decoded side by side; a task of Spark's has one core.
        """
        try:
            large = file.size > 2 * _BUFFER_BYTES
            with open_parquet(
                objects, file.key, file.size, buffer_bytes=_BUFFER_BYTES if large else 0
            ) as found:
                places = self._places(found.schema_arrow, file.key)
                groups = _share(found.num_row_groups, file)
                names = [found.schema_arrow.field(place).name for place in places if place is not None]
                if not names:
                    raise FileUnlike(f"{file.key!r} has none of the declared columns")
                count = _at_once(found.metadata, groups)
                for batch in found.iter_batches(count, groups, names, use_threads=threads):
                    yield self._shown(pa.Table.from_batches([batch]), file)
        except ObjectMissing as error:
            raise unreadable(file.key, "it is not there") from error
        except MemoryError:
            raise  # of Arrow's as well: it says nothing of the file
        except (pa.ArrowException, OSError) as error:
            raise unreadable(file.key, f"it is no whole Parquet file: {error}") from error

    def _places(self, here: pa.Schema, key: str) -> list[int | None]:
        """Where the wanted columns stand in a file; None for one that it lacks."""
        known = {name.lower(): place for place, name in enumerate(here.names)}
        found = [known.get(field.name.lower()) for field in self.wanted]
        if len(known) < len(here) or any("." in name for name in here.names):
            raise FileUnlike(f"{key!r} has columns whose names are not plain")
        for field, place in zip(self.wanted, found, strict=True):
            if place is not None and not _alike(here.field(place).type, field.type):
                raise FileUnlike(f"{key!r} has {field.name} as {here.field(place).type}, not {field.type}")
        return found

    def _shown(self, rows: pa.Table, file: LotFilePart) -> pa.Table:
        """Rows of a file as c0, c1, … and `_w`."""
        count = rows.num_rows
        known = {name.lower(): rows.column(place) for place, name in enumerate(rows.column_names)}
        found = {}
        for field in self.wanted:
            column = known.get(field.name.lower())
            absent = pa.chunked_array([pa.nulls(count, field.type)])
            found[field.name] = absent if column is None else column.cast(field.type)
        columns = [found[name] for name in self.wanted.names if name not in OURS]
        weight = pa.repeat(pa.scalar(file.sign, pa.int64()), count)
        if self.kind is Kind.CHANGES:
            weight = pc.multiply_checked(found[STORED], file.sign)
        elif self.kind is Kind.KEYED:
            position = pa.repeat(pa.scalar(file.position, pa.int64()), count)
            columns += [pc.equal(found[OP], RowOperation.DELETE.value), position, found[ORDINAL]]
        return pa.table([*columns, weight], names=[*(f"c{i}" for i in range(len(columns))), "_w"])


def _share(groups: int, file: LotFilePart) -> list[int]:
    first, end = (groups * at // file.parts for at in (file.part, file.part + 1))
    return list(range(first, end))


def _at_once(metadata: pq.FileMetaData, groups: list[int]) -> int:
    """How many rows to decode at once."""
    found = [metadata.row_group(number) for number in groups]
    size, rows = sum(one.total_byte_size for one in found), sum(one.num_rows for one in found)
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // size)) if size else BATCH_ROWS


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
