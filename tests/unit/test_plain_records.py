"""Plain records are read without Spark; everything that Spark reads in its own way is left to it."""

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.lots.checks import Check, expect, not_null, unique
from tidemill.lots.datasets import Kind
from tidemill.schemas.ddl import parse
from tidemill.spark.ingest import arrow_ingestion
from tidemill.spark.ingest.arrow_ingestion import check_plain, read_plain
from tidemill.spark.ingest.foreign_files import ForeignFile
from tidemill.spark.ingest.formats import Format, FormatOptions
from tidemill.spark.ingest.plain_records import NotPlain, converter

SCHEMA = "id BIGINT, name STRING, amount DECIMAL(10,2), day DATE, at TIMESTAMP, ok BOOLEAN, ratio DOUBLE"
ROW = {
    "id": 1,
    "name": "ä \U0001f30a",
    "amount": "1.50",
    "day": "2026-02-28",
    "at": "2026-02-28T10:00:00.25+01:30",
    "ok": True,
    "ratio": 0.1,
}
VALUES = {
    "id": 1,
    "name": "ä \U0001f30a",
    "amount": Decimal("1.50"),
    "day": date(2026, 2, 28),
    "at": datetime(2026, 2, 28, 8, 30, 0, 250_000, UTC),
    "ok": True,
    "ratio": 0.1,
}


def read(
    files: dict[str, bytes],
    form: Format = Format.JSON,
    ddl: str = SCHEMA,
    kind: Kind = Kind.ROWS,
    key: Sequence[str] = (),
    **options: Any,
) -> Any:
    def open_file(path: str) -> BinaryIO:
        return io.BytesIO(files[path])

    listed = [ForeignFile(path, f"file:/{path}", len(body)) for path, body in files.items()]
    return read_plain(parse(ddl), kind, key, FormatOptions(format=form, **options), listed, open_file)


def line(**changes: Any) -> bytes:
    return json.dumps(ROW | changes).encode() + b"\n"


def test_json_lines() -> None:
    plain = read({"a": line() + b"  \r\n" + b'{"id": null, "more": [1, {}]}'})
    assert plain.rows.to_pylist() == [VALUES, dict.fromkeys(VALUES)]
    assert plain.unknown == 1


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\n",
        b"\xef\xbb\xbf" + line(),
        b"[1]\n",
        b"{}{}\n",
        b"{},\n",
        b"\t{}\n",
        b"{}\t\n",
        b'{"id": 1, "id": 2}\n',
        b'{"ID": 1}\n',
        b'{"id": 1}\r{"id": 2}\n',
        b'{"name": "\\ud83d"}\n',
        b'{"name": "a\x01"}\n',
        b'{"ratio": NaN}\n',
        b'{"ratio": -0.0}\n',
        b'{"ratio": 1e999}\n',
        b'{"amount": 1e1}\n',
        line(id="1"),
        line(id=1.0),
        line(id=1 << 63),
        line(name=1),
        line(name=True),
        line(name={}),
        line(amount="1.501"),
        line(amount="123456789.00"),
        line(amount=" 1"),
        line(day="2026-2-28"),
        line(day="2026-02-30"),
        line(day="1899-12-31"),
        line(at="2026-02-28"),
        line(at="2026-02-28T24:00:00"),
        line(at="2026-02-28T10:00:00+19:00"),
        line(ok="true"),
        line(ok=1),
        line(ratio="0.1"),
    ],
)
def test_json_that_is_left_to_spark(body: bytes) -> None:
    assert read({"a": body}) is None


def test_csv_by_the_names_of_each_header() -> None:
    header = "day,id,amount,name,other\n"
    plain = read(
        {"a": f"{header}2026-02-28,1,-0.5,a b,x\n\n,2,,,\n".encode(), "b": b"id\r\n3\r\n"}, Format.CSV
    )
    values = [(row["id"], row["name"], row["amount"], row["day"]) for row in plain.rows.to_pylist()]
    assert values == [
        (1, "a b", Decimal("-0.50"), date(2026, 2, 28)),
        (2, None, None, None),
        (3, None, None, None),
    ]
    assert plain.unknown == 2


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b'id,name\n1,"a"\n', {}),
        (b"id,name\n1,a\\n\n", {}),
        (b"id,name\n1\n", {}),
        (b"id,name\n1,a,b\n", {}),
        (b"id,name\n1, a\n", {}),
        (b"id,name\n1,\xc2\xa0\n", {}),
        (b"ID,name\n1,a\n", {}),
        (b"id,id\n1,1\n", {}),
        (b"other\n1\n", {}),
        (b"other\n", {}),
        (b"id\n+1\n", {}),
        (b"id\n1.0\n", {}),
        (b"id\nNULL\n", {"null": "NULL"}),
        (b"id\n1\n", {"multiline": True}),
        (b"day\n01/02/2026\n", {"date_format": "dd/MM/yyyy"}),
    ],
)
def test_csv_that_is_left_to_spark(body: bytes, options: dict[str, Any]) -> None:
    assert read({"a": body}, Format.CSV, **options) is None


def test_text_has_one_row_for_each_line() -> None:
    assert read({"a": b" x\n\ny"}, Format.TEXT, "line STRING").rows.to_pydict() == {"line": [" x", "", "y"]}
    assert read({"a": b"x"}, Format.TEXT, "line BIGINT") is None


def parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def test_parquet_with_exactly_the_declared_types() -> None:
    table = pa.table({"id": [1, 2], "name": pa.array(["a", None], pa.large_string()), "other": [0, 0]})
    plain = read({"a": parquet(table)}, Format.PARQUET, "id BIGINT, name STRING, day DATE")
    assert plain.rows.to_pydict() == {"id": [1, 2], "name": ["a", None], "day": [None, None]}
    assert plain.unknown == 2


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"id": pa.array([1], pa.int32())}),
        pa.table({"ID": [1]}),
        pa.table({"other": [1]}),
        pa.table({"id": [1], "day": pa.array([-30000], pa.int32()).cast(pa.date32())}),
        pa.table({"id": [1], "at": pa.array([0], pa.timestamp("ms", "UTC"))}),
        pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us"))}),
        pa.table({"id": [1], "name": pa.array([b"\xff"], pa.binary()).view(pa.string())}),
    ],
)
def test_parquet_that_is_left_to_spark(table: pa.Table) -> None:
    assert read({"a": parquet(table)}, Format.PARQUET) is None


def test_a_small_parquet_file_with_a_huge_table_is_left_to_spark() -> None:
    """Reading it would need more memory than a machine may have."""
    text = pa.array(["x" * (1 << 20)])
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int32()), text)
    body = parquet(pa.table({"id": range(300), "name": repeated}))
    assert len(body) < 1 << 20
    assert read({"a": body}, Format.PARQUET, "id BIGINT, name STRING") is None
    numbers = parquet(pa.table({"id": pa.repeat(7, 3)}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_ingestion, "MOST_PARQUET_VALUES", 2)
        assert read({"a": numbers}, Format.PARQUET) is None
    assert read({"a": numbers}, Format.PARQUET).rows.num_rows == 3


def test_an_incomplete_or_compressed_file_is_left_to_spark() -> None:
    assert read({"a": parquet(pa.table({"id": [1]}))[:-9]}, Format.PARQUET) is None
    assert read({"a.json.gz": line()}) is None


@pytest.mark.parametrize("kind", ["float", "array<int>", "varchar(3)", "binary", "decimal(38,0) "])
def test_types_with_several_spellings_are_left_to_spark(kind: str) -> None:
    with pytest.raises(NotPlain):
        converter(parse(f"a {kind}").columns[0].type) if kind.strip() == kind else converter(
            parse("a struct<b:int>").columns[0].type
        )


@pytest.mark.rule("LOT-40")
def test_of_two_records_with_a_key_the_later_one_has_the_higher_ordinal() -> None:
    files = {"b": b'{"id": 1}\n', "a": b'{"id": 1}\n{"id": 2}\n'}
    rows = read(files, ddl="id BIGINT", kind=Kind.KEYED, key=("id",)).rows
    ordinals = rows.column("_ordinal").to_pylist()
    assert ordinals == sorted(ordinals)
    assert rows.column("id").to_pylist() == [1, 2, 1]
    assert set(rows.column("_op").to_pylist()) == {"upsert"}


@pytest.mark.rule("LOT-40")
def test_a_record_without_a_key_is_left_to_spark() -> None:
    assert read({"a": b'{"name": "x"}\n'}, kind=Kind.KEYED, key=("id",)) is None


def check(table: pa.Table, *checks: Check) -> Any:
    return check_plain(table, checks, Kind.ROWS, lambda rows, _: [pa.array([True] * rows.num_rows)])


@pytest.mark.rule("LOT-33")
def test_rows_that_a_check_removes_are_left_to_spark() -> None:
    table = pa.table({"id": [1, 1, None]})
    assert check(table, not_null("id", on_fail="drop")) is None
    warned = check(table, not_null("id", on_fail="warn"), unique("id", on_fail="warn"), expect("id > 0"))
    assert list(warned.counts.values()) == [1, 2, 0]
    assert check(pa.table({"x": [0.0, -0.0]}), unique("x")) is None, "Spark does not distinguish both zeros"
