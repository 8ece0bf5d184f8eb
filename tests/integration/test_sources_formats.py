"""Files of every format, whole and broken, read by Spark: rows are kept, the rest is in quarantine."""

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.clock import SYSTEM
from tidemill.errors import BadSource, SourceFileChanged
from tidemill.lots.checks import quarantine_of
from tidemill.lots.datasets import Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject
from tidemill.objects import open_objects
from tidemill.publish.parts import PartClaim, PartInput, PartSink, PartTask
from tidemill.sources.file_source import FileSourceSpec
from tidemill.sources.folder import folder
from tidemill.sources.window_task import run_window
from tidemill.spark.ingest import ingestion
from tidemill.spark.ingest.arrow_ingestion import PlainRows, read_plain
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, name STRING, amount DECIMAL(10,2)"
ORDERS = DatasetId("orders")
ARRIVED_US = 1_700_000_000_250_000


class Outcome(NamedTuple):
    rows: list[tuple[Any, ...]]
    bad: list[tuple[Any, ...]]
    checks: dict[str, int]


Read = Callable[..., Outcome]


@pytest.fixture
def read(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Put files into a folder, read them as one window, and say what came of it.

    A window that is read without Spark is read by Spark too, with the same outcome.
    """
    turns = iter(range(100))
    plain: list[PlainRows] = []

    def counted(*arguments: Any) -> PlainRows | None:
        rows = read_plain(*arguments)
        plain.extend([] if rows is None else [rows])
        return rows

    def run(
        files: dict[str, bytes], schema: str = SCHEMA, form: str = "", key: Any = (), **options: Any
    ) -> Outcome:
        turn = next(turns)
        root = tmp_path / f"in{turn}"
        for path, body in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(body)
        first = next(iter(files))
        place = folder(f"{root}/**", format=form or first.removesuffix(".gz").rpartition(".")[2], **options)
        listing = place.listing()
        spec = FileSourceSpec(
            id="source:shop/orders",
            pipeline="shop",
            dataset=ORDERS,
            schema=schema,
            kind=Kind.KEYED if key else Kind.ROWS,
            key=key,
            reading=place.reading,
            quarantine=quarantine_of(ORDERS),
            origin=place.origin,
        )
        listed = list(listing.files(lambda *problem: pytest.fail(str(problem))))
        task = PartTask(
            kind="source",
            pipeline="shop",
            author=spec.id,
            code=spec.code,
            attempt=f"attempt{turn}",
            lot="A00000000000000001",
            key="k",
            inputs=(
                PartInput(
                    dataset=ORDERS,
                    objects=tuple(
                        StoredObject(uri=file.path, size=file.size, etag=file.version) for file in listed
                    ),
                ),
            ),
            sinks=(PartSink(dataset=ORDERS), PartSink(dataset=spec.quarantine)),
            options={"arrived": str(ARRIVED_US)},
        )
        objects = open_objects(str(tmp_path / "objects"), clock=SYSTEM)
        storage = Storage(objects)

        def rows(written: Any) -> list[tuple[Any, ...]]:
            tables = [pq.read_table(tmp_path / "objects" / item.uri) for item in written.objects]
            values = [tuple(row.values()) for table in tables for row in table.to_pylist()]
            assert len(values) == written.rows
            return sorted(values, key=repr)

        outcomes = []
        for epoch, reads in ((1, counted), (2, lambda *_: None)):
            monkeypatch.setattr(ingestion, "read_plain", reads)
            good, bad = run_window(spark, storage, spec, listing, task, PartClaim("f", epoch))
            outcomes.append(Outcome(rows(good), rows(bad), good.checks))
            if not plain:
                break
            plain.clear()
        assert outcomes[0] == outcomes[-1], "Spark reads another outcome"
        return outcomes[0]

    return run


def row(number: int) -> tuple[int, str, Decimal]:
    return number, f"name {number}", Decimal(f"{number}.25")


def as_json(numbers: range) -> bytes:
    lines = [json.dumps({"id": n, "name": f"name {n}", "amount": f"{n}.25"}) for n in numbers]
    return ("\n".join(lines) + "\n").encode()


def as_csv(numbers: range, header: str = "id,name,amount\n") -> bytes:
    return (header + "".join(f"{n},name {n},{n}.25\n" for n in numbers)).encode()


def as_parquet(path: Path, numbers: range) -> bytes:
    table = pa.table(
        {
            "id": pa.array(list(numbers), pa.int64()),
            "name": [f"name {n}" for n in numbers],
            "amount": pa.array([Decimal(f"{n}.25") for n in numbers], pa.decimal128(10, 2)),
        }
    )
    pq.write_table(table, path / "made.parquet", store_schema=False)
    return (path / "made.parquet").read_bytes()


# --- cut in half


def test_json_lines_before_a_cut_are_kept_and_the_rest_is_in_quarantine(read: Read) -> None:
    body = as_json(range(100))
    cut = body[: len(body) // 2]
    whole = cut.count(b"\n")
    done = read({"cut.json": cut, "fine.json": as_json(range(500, 510))})
    assert done.rows == sorted([row(n) for n in [*range(whole), *range(500, 510)]], key=repr)
    assert done.bad == [("cut.json", whole + 1, cut.rpartition(b"\n")[2].decode(), "it is not JSON")]
    assert done.checks == {"files": 2, "quarantined": 1}


def test_csv_records_before_a_cut_are_kept_and_the_rest_is_in_quarantine(read: Read) -> None:
    body = as_csv(range(100))
    cut = body[: body.index(b"50,name 50") + 6]
    done = read({"cut.csv": cut})
    assert done.rows == sorted([row(n) for n in range(50)], key=repr)
    assert done.bad == [("cut.csv", 52, "50,nam", "it does not have 3 columns")]


def test_text_is_kept_to_the_last_byte_and_half_a_character_is_in_quarantine(read: Read) -> None:
    done = read({"cut.txt": "one\ntwo\n\nthree ü".encode()[:-1]}, "line STRING", form="text")
    assert done.rows == [("",), ("one",), ("two",)]
    assert done.bad == [("cut.txt", 4, "three \ufffd", "it is not UTF-8")]


def test_a_parquet_file_that_is_cut_is_in_quarantine_as_a_whole(read: Read, tmp_path: Path) -> None:
    body = as_parquet(tmp_path, range(100))
    done = read({"cut.parquet": body[: len(body) // 2], "fine.parquet": body, "tiny.parquet": b"PAR1"})
    assert done.rows == sorted([row(n) for n in range(100)], key=repr)
    assert done.bad == [
        ("cut.parquet", None, None, "it is not a complete Parquet file: its end is missing"),
        ("tiny.parquet", None, None, "it is not a Parquet file"),
    ]


@pytest.mark.parametrize("form", ["json", "csv", "text"])
def test_records_before_the_cut_of_a_gzip_file_are_kept_and_the_rest_is_in_quarantine(
    read: Read, form: str
) -> None:
    def name(number: int) -> str:
        return f"{number * 7919 % 99991:08x}{number * 104729 % 1299709:08x}"

    if form == "json":
        body = "".join(json.dumps({"id": n, "name": name(n)}) + "\n" for n in range(3000)).encode()
    elif form == "csv":
        body = ("name,id\n" + "".join(f"{name(n)},{n}\n" for n in range(3000))).encode()
    else:
        body = "".join(f"{name(n)}\n" for n in range(3000)).encode()
    packed = gzip.compress(body)
    schema = "name STRING" if form == "text" else "id BIGINT, name STRING"
    cut_file, fine_file = f"cut.{form}.gz", f"fine.{form}.gz"
    done = read({cut_file: packed[: len(packed) // 2], fine_file: packed}, schema, form)
    assert 500 < len(done.rows) - 3000 < 2900
    (cut,) = done.bad
    kept = len(done.rows) - 3000
    assert cut[:2] == (cut_file, kept + (2 if form == "csv" else 1))
    assert cut[3] == "the compressed data is broken from here on"
    lines = body.decode().splitlines()
    assert lines[cut[1] - 1].startswith(cut[2] or "")
    assert {record[-1] if form == "text" else record[0] for record in done.rows} == (
        {name(n) for n in range(3000)} if form == "text" else set(range(3000))
    )


def test_what_is_packed_in_name_alone_is_in_quarantine_as_a_whole(read: Read) -> None:
    done = read({"fine.json.gz": gzip.compress(as_json(range(2))), "not.json.gz": as_json(range(3))})
    assert done.rows == [row(0), row(1)]
    assert [record[:3] for record in done.bad] == [("not.json.gz", None, None)]


# --- records that do not fit


def test_json_that_does_not_fit_is_in_quarantine_with_its_line_and_the_reason(read: Read) -> None:
    lines = {
        1: '{"id": 1, "name": "fine", "amount": 1.5}',
        3: '{"id": "one", "name": "x"}',
        4: '{"id": 4, "amount": "much", "name": 7}',
        5: "[1, 2]",
        6: "null",
        7: '{"id": 7}{"id": 8}',
        8: '{"id": 9} and more',
        9: '{"id": 10, "name": "a}{b", "other": {"c": [{"d": 1}, {"e": 2}]}}',
        10: '{"id": 99999999999999999999}',
        11: '  {"id": 11}  ',
        12: "{'id': ",
    }
    body = "\n".join(lines.get(number, "") for number in range(1, 13)).encode() + b'\n{"name": "\xff"}\n'
    long = '} x\\"' * 50_000  # a regular expression that calls itself for each character would end Java
    body += f'{{"id": 14, "name": "{long}"}}\n'.encode()
    done = read({"a.json": body})
    good = [(1, "fine", Decimal("1.50")), (10, "a}{b", None), (11, None, None)]
    assert done.rows == sorted([*good, (14, '} x"' * 50_000, None)], key=repr)
    reasons = {line: error for _, line, _, error in done.bad}
    assert reasons == {
        3: "these columns do not fit: id BIGINT",
        4: "these columns do not fit: amount DECIMAL(10,2)",
        5: "it is not a JSON object",
        6: "it is not a JSON object",
        7: "there is text after the object",
        8: "there is text after the object",
        10: "these columns do not fit: id BIGINT",
        12: "it is not JSON",
        13: "it is not UTF-8",
    }
    records = {line: record for _, line, record, _ in done.bad}
    assert all(records[line] == lines[line] for line in records if line < 13)


def test_csv_that_does_not_fit_is_in_quarantine_with_its_line_and_the_reason(read: Read) -> None:
    body = b'id,name,amount\n1,a,1.5\n2,b\n3,c,x\n4,"d,e",2\n\nid,name,amount\n6,f,6,7\n2,b\nx,y,z'
    done = read({"a.csv": body})
    assert done.rows == sorted([(1, "a", Decimal("1.50")), (4, "d,e", Decimal("2.00"))], key=repr)
    assert sorted((line, record, error) for _, line, record, error in done.bad) == [
        (3, "2,b", "it does not have 3 columns"),
        (4, "3,c,x", "these columns do not fit: amount DECIMAL(10,2)"),
        (7, "id,name,amount", "these columns do not fit: id BIGINT, amount DECIMAL(10,2)"),
        (8, "6,f,6,7", "it does not have 3 columns"),
        (9, "2,b", "it does not have 3 columns"),
        (10, "x,y,z", "these columns do not fit: id BIGINT, amount DECIMAL(10,2)"),
    ]


def test_columns_of_csv_go_by_name_file_by_file(read: Read) -> None:
    done = read(
        {
            "order.csv": b"amount,id,name\n1.5,1,a\n",
            "more.csv": b'\xef\xbb\xbf"ID", note ,Name\n2,x,b\n',
            "packed.csv.gz": gzip.compress(b"id,name,amount\n3,c,3\n"),
            "strange.csv": b"x,y\n1,2\n",
            "twice.csv": b"id,id\n1,2\n",
            "blank.csv": b"\n\n",
            "header.csv": b"id,name,amount\n",
        }
    )
    assert done.rows == [(1, "a", Decimal("1.50")), (2, "b", None), (3, "c", Decimal("3.00"))]
    assert [(path, error) for path, _, _, error in done.bad] == [
        ("strange.csv", "its header has none of the declared columns; it has x, y"),
        ("twice.csv", "its header names 'id' twice"),
    ]


def test_csv_without_a_header_goes_by_place_and_other_separators_are_taken(read: Read) -> None:
    done = read({"a.csv": b"1;'a;b';1.5\n2;c;-\n"}, header=False, separator=";", quote="'", null="-")
    assert done.rows == [(1, "a;b", Decimal("1.50")), (2, "c", None)]
    assert done.bad == []


def test_records_over_several_lines_are_counted_instead_of_lines(read: Read) -> None:
    done = read({"a.csv": b'id,name,amount\n1,"a\nb",1\nx,"c\nd",2\n3,e,3\n'}, multiline=True)
    assert done.rows == [(1, "a\nb", Decimal("1.00")), (3, "e", Decimal("3.00"))]
    assert [record[:2] for record in done.bad] == [("a.csv", 2)]
    done = read({"a.json": b'[{"id": 1},\n {"id": 2}]', "cut.json": b'[{"id": 3},\n {"i'}, multiline=True)
    assert [record[0] for record in done.rows] == [1, 2]
    assert [record[:2] for record in done.bad] == [("cut.json", 1)]


def test_objects_over_several_lines_with_half_of_a_surrogate_pair_are_in_quarantine(read: Read) -> None:
    """Spark would store a question mark, and does not say in which object."""
    half = b'[{"id": 1, "name": "a"},\n {"id": 2,\n "name": "\\ud800"}]'
    whole = b'[{"id": 3,\n "name": "\\ud83d\\ude00"}]'
    done = read({"half%20.json": half, "whole.json": whole}, multiline=True)
    assert [record[:2] for record in done.rows] == [(3, "\U0001f600")]
    assert [record[0] for record in done.bad] == ["half%20.json"]
    assert "surrogate" in done.bad[0][3]


def test_bad_csv_records_that_are_not_utf_8_are_in_quarantine(read: Read) -> None:
    done = read({"a.csv": b"id,name,amount\nx,\x80,1\n2,b,2\nx,\xff\xf0\x9f\x98,3\n"})
    assert [record[0] for record in done.rows] == [2]
    assert [record[:2] for record in done.bad] == [("a.csv", 2), ("a.csv", 4)]


def test_a_parquet_file_that_spark_does_not_name_is_in_quarantine(read: Read, tmp_path: Path) -> None:
    """Spark's error for dictionaries of unsigned numbers names no file."""
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.uint64())}), tmp_path / "unsigned.parquet")
    body = as_parquet(tmp_path, range(3))
    done = read({"fine.parquet": body, "unsigned.parquet": (tmp_path / "unsigned.parquet").read_bytes()})
    assert done.rows == [row(n) for n in range(3)]
    assert [record[0] for record in done.bad] == ["unsigned.parquet"]


def test_parquet_of_other_types_and_broken_in_the_middle_is_in_quarantine(read: Read, tmp_path: Path) -> None:
    body = as_parquet(tmp_path, range(1000))
    pq.write_table(pa.table({"id": ["x"], "name": ["y"]}), tmp_path / "other.parquet")
    broken = bytearray(body)
    broken[40:400] = bytes(range(1, 181)) * 2
    pq.write_table(pa.table({"name": ["only"]}), tmp_path / "few.parquet")
    done = read(
        {
            "fine.parquet": body,
            "broken.parquet": bytes(broken),
            "other.parquet": (tmp_path / "other.parquet").read_bytes(),
            "few.parquet": (tmp_path / "few.parquet").read_bytes(),
        }
    )
    assert done.rows == sorted([*[row(n) for n in range(1000)], (None, "only", None)], key=repr)
    (broken_row, other_row) = done.bad
    assert broken_row[:3] == ("broken.parquet", None, None)
    assert other_row[0] == "other.parquet"
    assert "id" in other_row[3]


def test_names_of_files_are_taken_literally(read: Read) -> None:
    names = [
        "a b.json",
        'it\'s "x".json',
        "day=1/é%20#;&,.json",
        "x*.json",
        "x{1}[2]?.json",
        "back\\slash.json",
    ]
    done = read({name: as_json(range(place, place + 1)) + b"bad\n" for place, name in enumerate(names)})
    assert done.rows == [row(place) for place in range(len(names))]
    assert sorted(record[0] for record in done.bad) == sorted(names)
    assert {record[1] for record in done.bad} == {2}


def test_lines_are_numbered_across_the_blocks_of_a_large_file(read: Read, spark: "SparkSession") -> None:
    lines = [b'{"id": %d}' % n for n in range(5000)]
    wrong = {0, 1, 777, 2500, 4999}
    for number in wrong:
        lines[number] = b"wrong %d" % number
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "9999")
    try:
        done = read({"a.json": b"\r\n".join(lines), "b.json": b"\n".join(lines) + b"\n"}, "id BIGINT")
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    assert len(done.rows) == 2 * (5000 - len(wrong))
    assert {(path, line, record) for path, line, record, _ in done.bad} == {
        (path, number + 1, f"wrong {number}") for path in ("a.json", "b.json") for number in wrong
    }


# --- datasets with a key


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_records_for_a_key_are_upserts_in_order_and_one_without_it_is_in_quarantine(
    read: Read, tmp_path: Path, form: str
) -> None:
    def body(rows: list[tuple[int | None, str]]) -> bytes:
        if form == "json":
            return "".join(json.dumps({"id": number, "name": name}) + "\n" for number, name in rows).encode()
        if form == "csv":
            return ("id,name\n" + "".join(f"{number or ''},{name}\n" for number, name in rows)).encode()
        table = pa.table(
            {"id": pa.array([number for number, _ in rows], pa.int64()), "name": [n for _, n in rows]}
        )
        pq.write_table(table, tmp_path / "made")
        return (tmp_path / "made").read_bytes()

    files = {
        f"b+c.{form}": body([(1, "b1"), (2, "b2"), (1, "b3")]),
        f"a 1.{form}": body([(1, "a1"), (None, "nobody"), (3, "a3")]),
    }
    done = read(files, "id BIGINT, name STRING", form, key=("id",))
    assert [record[2] for record in done.rows] == ["upsert"] * 5
    assert [record[1] for record in sorted(done.rows, key=lambda record: record[3])] == [
        "a1",
        "a3",
        "b1",
        "b2",
        "b3",
    ]
    assert len({record[3] for record in done.rows}) == 5
    assert done.bad == [(f"a 1.{form}", None, '{"id":null,"name":"nobody"}', "its key (id) is NULL")]


# --- the window


def test_a_file_that_changes_while_it_is_read_fails_the_task(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tidemill.spark.ingest.ingestion as module

    genuine = module.ingest

    def slow(*args: Any, **named: Any) -> Any:
        done = genuine(*args, **named)
        path = Path(args[5][0].uri.removeprefix("file://"))
        path.write_bytes(path.read_bytes() + b'{"id": 5}\n')
        return done

    monkeypatch.setattr(module, "ingest", slow)
    with pytest.raises(SourceFileChanged) as refused:
        read({"a.json": as_json(range(3))})
    assert refused.value.hint


def test_text_for_several_columns_is_refused(read: Read) -> None:
    with pytest.raises(BadSource):
        read({"a.txt": b"x\n"}, form="text")


@pytest.mark.parametrize("form", ["json", "csv"])
def test_texts_of_limited_length_are_read(read: Read, form: str) -> None:
    bodies = {"json": b'{"id": 1, "name": "abc", "note": "x"}\n', "csv": b"id,name,note\n1,abc,x\n"}
    outcome = read({f"a.{form}": bodies[form]}, "id BIGINT, name CHAR(3), note VARCHAR(5)")
    assert outcome[:2] == ([(1, "abc", "x")], [])


@pytest.mark.parametrize(
    ("file", "schema"), [("a.json", "id BIGINT, days MAP<INT,DATE>"), ("a.csv", "id BIGINT, tags ARRAY<INT>")]
)
def test_a_type_that_files_cannot_have_is_named_with_its_column(read: Read, file: str, schema: str) -> None:
    with pytest.raises(BadSource, match=r"column (days|tags) cannot be read from (json|csv) files") as error:
        read({file: b"{}\n"}, schema)
    assert error.value.hint


WITH_ORIGIN = "_file STRING, id BIGINT, name STRING, _arrived_at TIMESTAMP, _line BIGINT"
ORIGIN = {"file_column": "_file", "line_column": "_line", "arrived_column": "_arrived_at"}


@pytest.mark.parametrize(
    ("files", "lines"),
    [
        (
            {
                "a.json": b'{"id": 1, "name": "x", "_line": 7}\n\n  \n{"id": 2, "name": "y"}\n',
                "b+c d.json": b'\n{"id": 3}\n',
            },
            [("a.json", 1, 1), ("a.json", 2, 4), ("b+c d.json", 3, 2)],
        ),
        (
            {"a.csv": b"\nname,id\nx,1\n\ny,2\n", "b.csv": b"id,name,_file\n3,z,no\n"},
            [("a.csv", 1, 3), ("a.csv", 2, 5), ("b.csv", 3, 2)],
        ),
    ],
    ids=["json", "csv"],
)
def test_columns_say_from_which_file_and_line_a_row_comes(
    read: Read, files: dict[str, bytes], lines: list[tuple[str, int, int]]
) -> None:
    """With and without Spark (the fixture compares both); records cannot fill these columns."""
    outcome = read(files, schema=WITH_ORIGIN, **ORIGIN)
    assert [(row[0], row[1], row[4]) for row in outcome.rows] == lines
    assert {row[3].timestamp() * 1e6 for row in outcome.rows} == {ARRIVED_US}
    assert outcome.checks["unknown_columns"] == 1


def test_lines_are_numbered_across_blocks_and_beside_bad_records(
    read: Read, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1000")
    try:
        numbers = range(200)
        body = b"id,name\n" + b"".join(
            b"%d,%s\n" % (number, b"a" * 30) if number % 50 else b"%d,b,too,many\n" % number
            for number in numbers
        )
        outcome = read({"a.csv": body}, schema=WITH_ORIGIN, **ORIGIN)
        assert [(row[1], row[4]) for row in sorted(outcome.rows, key=lambda row: row[1])] == [
            (number, number + 2) for number in numbers if number % 50
        ]
        assert sorted(row[1] for row in outcome.bad) == [2, 52, 102, 152]
        lines = b'{"id": 1}\n{"id": 2}\n'
        keyed = read({"a.json": lines}, schema=WITH_ORIGIN, key=("_file", "_line"), **ORIGIN)
        assert [row[4] for row in keyed.rows] == [1, 2]
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)


def test_parquet_rows_have_a_file_but_no_line(read: Read, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), path)
    outcome = read({"x.parquet": path.read_bytes()}, schema="id BIGINT, f STRING", file_column="f")
    assert outcome.rows == [(1, "x.parquet"), (2, "x.parquet")]
