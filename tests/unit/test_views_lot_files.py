"""Reading files of lots with Arrow: every row once; files with other columns are left to Spark."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.clock import SYSTEM
from tidemill.errors import FileMismatch, ObjectUnreadable
from tidemill.lots.datasets import Kind
from tidemill.objects import Objects
from tidemill.objects.local import LocalObjects
from tidemill.views.spark import lot_files
from tidemill.views.spark.lot_files import BATCH_BYTES, LotFilePart, LotReader

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("_weight", pa.int64())])
KEYED = pa.schema([("id", pa.int64()), ("_op", pa.string()), ("_ordinal", pa.int64())])


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return LocalObjects(tmp_path, SYSTEM, random.Random(1))


def put(objects: Objects, key: str, table: pa.Table, **options: Any) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    body = sink.getvalue().to_pybytes()
    objects.put(key, body)
    return len(body)


def rows_of(reader: LotReader, objects: Objects, file: LotFilePart) -> list[dict[str, Any]]:
    return [row for table in reader.rows(objects, file) for row in table.to_pylist()]


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_of_a_file_have_every_row_once(objects: Objects, parts: int) -> None:
    table = pa.table({"id": range(50), "name": [f"n{n}" for n in range(50)], "_weight": [1, 2] * 25})
    size = put(objects, "a.parquet", table, row_group_size=10)
    reader = LotReader(COLUMNS, Kind.CHANGES)
    rows = [
        row
        for part in range(parts)
        for row in rows_of(reader, objects, LotFilePart("a.parquet", size, -1, 4, part, parts))
    ]
    assert rows == [{"c0": n, "c1": f"n{n}", "_w": -(1 + n % 2)} for n in range(50)]


def test_columns_match_by_name_and_are_widened_or_null_if_missing(objects: Objects) -> None:
    table = pa.table({"_weight": pa.array([3], pa.int64()), "ID": pa.array([7], pa.int32())})
    size = put(objects, "b.parquet", table)
    rows = rows_of(LotReader(COLUMNS, Kind.CHANGES), objects, LotFilePart("b.parquet", size, 1, 1))
    assert rows == [{"c0": 7, "c1": None, "_w": 3}]


def test_writes_of_a_keyed_dataset_have_their_position_and_ordinal(objects: Objects) -> None:
    table = pa.table({"id": [1, 2], "_op": ["upsert", "delete"], "_ordinal": [0, 1]})
    size = put(objects, "c.parquet", table)
    rows = rows_of(LotReader(KEYED, Kind.KEYED), objects, LotFilePart("c.parquet", size, 1, 9))
    assert [tuple(row.values()) for row in rows] == [(1, False, 9, 0, 1), (2, True, 9, 1, 1)]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"id": ["1"], "_weight": [1]}),
        pa.table({"id": pa.array([1.0]), "_weight": [1]}),
        pa.table({"id": [1], "ID": [2], "_weight": [1]}),
        pa.table({"id": [1], "name": [{"a": 1}], "_weight": [1]}),
        pa.table({"other": [1]}),
    ],
)
def test_files_with_other_columns_are_refused(objects: Objects, table: pa.Table) -> None:
    size = put(objects, "d.parquet", table)
    with pytest.raises(FileMismatch, match=r"d\.parquet"):
        rows_of(LotReader(COLUMNS, Kind.CHANGES), objects, LotFilePart("d.parquet", size, 1, 1))


def test_a_damaged_or_missing_file_is_named(objects: Objects) -> None:
    table = pa.table({"id": range(1000), "name": ["x"] * 1000, "_weight": [1] * 1000})
    size = put(objects, "e.parquet", table, compression="none")
    body, _ = objects.get("e.parquet")
    objects.put("cut.parquet", body[: size // 2])
    reader = LotReader(COLUMNS, Kind.CHANGES)
    for key, length in (("cut.parquet", size // 2), ("gone.parquet", size)):
        with pytest.raises(ObjectUnreadable, match=key) as caught:
            rows_of(reader, objects, LotFilePart(key, length, 1, 1))
        assert caught.value.key == key


@pytest.mark.slow
def test_wide_rows_are_read_in_small_pieces(objects: Objects) -> None:
    random_bytes = random.Random(5)
    names = [random_bytes.randbytes(5_000).hex() for _ in range(4_000)]
    table = pa.table({"id": range(4_000), "name": names, "_weight": [1] * 4_000})
    size = put(objects, "wide.parquet", table)
    pieces = list(LotReader(COLUMNS, Kind.CHANGES).rows(objects, LotFilePart("wide.parquet", size, 1, 1)))
    assert max(piece.nbytes for piece in pieces) < 1.5 * BATCH_BYTES < table.nbytes
    assert pa.concat_tables(pieces)["c1"].to_pylist() == names


def test_a_lack_of_memory_is_not_reported_as_an_unreadable_file(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: Any) -> int:
        raise pa.ArrowMemoryError("malloc of size 31457280 failed")

    size = put(objects, "a.parquet", pa.table({"id": [1], "name": ["x"], "_weight": [1]}))
    monkeypatch.setattr(lot_files, "_batch_rows", raises)
    with pytest.raises(MemoryError, match="malloc"):
        rows_of(LotReader(COLUMNS, Kind.CHANGES), objects, LotFilePart("a.parquet", size, 1, 1))
