"""Files with undeclared columns under each drift policy, and lots of both schemas read together (LOT-34)."""

import io
import json
import random
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemill as tm
from tests.column_history import column_history
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.errors import DatasetChanged
from tidemill.events import Event
from tidemill.lots.datasets import Drift
from tidemill.lots.keys import DatasetId
from tidemill.objects.local import LocalObjects
from tidemill.schemas.type_table import is_wider
from tidemill.sources.events import ColumnsDrifted
from tidemill.spark.frame_checks import LotFolders
from tidemill.spark.ingest.foreign_files import ForeignFile
from tidemill.spark.ingest.formats import Format, FormatOptions
from tidemill.spark.ingest.ingestion import IngestColumns, Ingested, ingest
from tidemill.spark.lot_reader import read_objects
from tidemill.spark.lot_writer import write_table
from tidemill.spark.schema import Simple, to_arrow
from tidemill.spark.schema import parse as parse_schema
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LINES = [
    {"id": 1, "amount": 5},
    {"id": 2, "amount": 6, "more": 2.5, "deep": {"x": [1, None]}},
    {"id": 3, "amount": "many", "more": 3.5},
]
JSON_LINES = "".join(json.dumps(line) + "\n" for line in LINES) + "not json\n"
CSV = "more,id,amount\n,1,5\n2.5,2,6\n3.5,3,many\n9,9\n"


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


class Files:
    """Files in a folder, ingested without a store."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.objects = LocalObjects(folder / "objects", SYSTEM, random.Random(1))
        self.number = 0

    def read(self, form: Format, drift: Drift, bodies: Mapping[str, bytes], schema: str) -> Ingested:
        self.number += 1
        files = []
        for name, body in bodies.items():
            path = self.folder / f"{self.number}-{name}"
            path.write_bytes(body)
            files.append(ForeignFile(str(path), f"file://{path}", len(body)))
        folders = LotFolders(rows=f"rows{self.number}/", bad=f"bad{self.number}/")
        dataset = IngestColumns(schema=schema, drift=drift, table="orders")
        return ingest(
            self.spark,
            Storage(self.objects),
            folders,
            dataset,
            FormatOptions(format=form),
            files,
            options={},
            open_file=self.open,
        )

    def open(self, path: str) -> BinaryIO:
        return Path(path).open("rb")

    def rows(self, ingested: Ingested) -> dict[int, dict[str, Any]]:
        """Return the rows of the files by id."""
        rows: dict[int, dict[str, Any]] = {}
        for item in ingested.rows.objects:
            table = pq.read_table(self.folder / "objects" / item.uri)
            rows |= {row["id"]: row for row in table.to_pylist()}
        assert len(rows) == ingested.rows.rows
        return rows


@pytest.fixture(scope="module")
def files(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(spark, tmp_path_factory.mktemp("drift"))


@pytest.mark.rule("LOT-34")
def test_freeze_counts_undeclared_columns_and_quarantines_values_that_do_not_fit(files: Files) -> None:
    ingested = files.read(Format.JSON, Drift.FREEZE, {"a.json": JSON_LINES.encode()}, "id BIGINT, amount INT")
    assert files.rows(ingested) == {1: {"id": 1, "amount": 5}, 2: {"id": 2, "amount": 6}}
    assert (ingested.quarantined.rows, ingested.checks, ingested.schema) == (2, {"unknown_columns": 1}, "")
    ingested = files.read(Format.CSV, Drift.FREEZE, {"a.csv": CSV.encode()}, "id BIGINT, amount INT")
    assert sorted(files.rows(ingested)) == [1, 2]
    assert (ingested.quarantined.rows, ingested.checks) == (2, {"unknown_columns": 2})
    body = parquet(id=[1, 2, 3], more=["a", "b", "c"])
    ingested = files.read(Format.PARQUET, Drift.FREEZE, {"a.parquet": body}, "id BIGINT")
    assert files.rows(ingested) == {n: {"id": n} for n in (1, 2, 3)}
    assert ingested.checks == {"unknown_columns": 3}


@pytest.mark.rule("LOT-34")
def test_a_text_with_half_of_a_surrogate_pair_is_quarantined_under_every_policy(files: Files) -> None:
    texts = [r"\ud800", r"\uDC00 \ud83d", r"a\\\udfff", r"\ud83d\ud83d\ude00"]
    fine = {10: r"\ud83d\ude00", 11: r"a\\ud800", 12: "\\u00fc ?"}
    lines = [f'{{"id": {number}, "t": "{text}"}}' for number, text in [*enumerate(texts), *fine.items()]]
    for drift in Drift:
        ingested = files.read(
            Format.JSON, drift, {"a.json": "\n".join(lines).encode()}, "id BIGINT, t STRING"
        )
        rows = {number: row["t"] for number, row in files.rows(ingested).items()}
        assert rows == {10: "\U0001f600", 11: r"a\ud800", 12: "\xfc ?"}
        assert ingested.quarantined.rows == len(texts)
        for item in ingested.quarantined.objects:
            errors = pq.read_table(files.folder / "objects" / item.uri)["error"].to_pylist()
            assert set(errors) == {"a text has half of a surrogate pair, which is not a character"}


@pytest.mark.rule("LOT-34")
def test_evolve_adds_the_columns_of_files_with_their_types(files: Files) -> None:
    ingested = files.read(Format.JSON, Drift.EVOLVE, {"a.json": JSON_LINES.encode()}, "id BIGINT, amount INT")
    assert parse_schema(ingested.schema) == parse_schema(
        "id BIGINT, amount INT, deep STRUCT<x: ARRAY<BIGINT>>, more DOUBLE"
    )
    assert files.rows(ingested) == {
        1: {"id": 1, "amount": 5, "deep": None, "more": None},
        2: {"id": 2, "amount": 6, "deep": {"x": [1, None]}, "more": 2.5},
    }
    assert (ingested.quarantined.rows, ingested.checks) == (2, {})
    ingested = files.read(Format.CSV, Drift.EVOLVE, {"a.csv": CSV.encode()}, "id BIGINT, amount INT")
    assert ingested.schema == "id bigint, amount int, more string"
    assert files.rows(ingested)[2] == {"id": 2, "amount": 6, "more": "2.5"}
    bodies = {
        "a.parquet": parquet(id=[1], more=["a"], odd=[1]),
        "b.parquet": parquet(id=[2], odd=["one"], day=pa.array([1], pa.date32())),
        "c.parquet": b"PAR1 broken",
    }
    ingested = files.read(Format.PARQUET, Drift.EVOLVE, bodies, "id BIGINT")
    assert ingested.schema == "id bigint, more string, day date"  # a column with two types is left out
    assert sorted(files.rows(ingested)) == [1, 2]
    assert (ingested.quarantined.rows, ingested.checks) == (1, {"unknown_columns": 2})


@pytest.mark.rule("LOT-34")
def test_evolve_adds_columns_if_an_object_has_a_name_twice(files: Files) -> None:
    """Spark cannot infer types then, so the new columns are STRING."""
    lines = b'{"id": 1, "more": 2}\n{"id": 2, "deep": {"x": 1}, "id": 3}\n'
    ingested = files.read(Format.JSON, Drift.EVOLVE, {"a.json": lines}, "id BIGINT")
    assert parse_schema(ingested.schema) == parse_schema("id BIGINT, deep STRING, more STRING")
    assert files.rows(ingested) == {
        1: {"id": 1, "deep": None, "more": "2"},
        3: {"id": 3, "deep": '{"x":1}', "more": None},
    }


@pytest.mark.rule("LOT-34")
def test_rescue_stores_the_rest_as_json_and_quarantines_only_broken_records(files: Files) -> None:
    schema = "id BIGINT, amount INT, _rescued STRING"
    ingested = files.read(Format.JSON, Drift.RESCUE, {"a.json": JSON_LINES.encode()}, schema)
    rows = files.rows(ingested)
    assert (rows[1]["amount"], rows[1]["_rescued"]) == (5, None)
    assert rows[2]["amount"] == 6
    assert json.loads(rows[2]["_rescued"]) == {"more": "2.5", "deep": '{"x":[1,null]}'}
    assert rows[3]["amount"] is None
    assert json.loads(rows[3]["_rescued"]) == {"amount": "many", "more": "3.5"}
    assert (ingested.quarantined.rows, ingested.checks) == (1, {"rescued": 2})
    ingested = files.read(Format.CSV, Drift.RESCUE, {"a.csv": CSV.encode()}, schema)
    rows = files.rows(ingested)
    assert rows[1]["_rescued"] is None
    assert json.loads(rows[2]["_rescued"]) == {"more": "2.5"}
    assert json.loads(rows[3]["_rescued"]) == {"amount": "many", "more": "3.5"}
    assert ingested.quarantined.rows == 1  # two values for three columns are ambiguous
    body = parquet(id=[1, 2], more=[None, "b"])
    ingested = files.read(Format.PARQUET, Drift.RESCUE, {"a.parquet": body}, "id BIGINT, _rescued STRING")
    assert {n: row["_rescued"] for n, row in files.rows(ingested).items()} == {1: None, 2: '{"more":"b"}'}


@pytest.mark.rule("LOT-34")
def test_files_of_every_narrower_type_are_read_as_the_wider_one_by_spark(files: Files) -> None:
    values: dict[str, Any] = {
        "tinyint": 3,
        "smallint": 4,
        "int": 5,
        "bigint": 6,
        "float": 0.5,
        "decimal(5,2)": "1.25",
    }
    wider = ["smallint", "int", "bigint", "double", "decimal(10,0)", "decimal(20,0)", "decimal(24,4)"]
    pairs = [(old, new) for old in values for new in wider if is_wider(Simple(old), Simple(new))]
    assert len(pairs) == 22, pairs
    pairs.append(("date", "timestamp_ntz"))
    values["date"] = date(2026, 1, 2)
    narrow = parse_schema(", ".join(f"c{n} {old}" for n, (old, _) in enumerate(pairs)))
    arrow = to_arrow(narrow)
    columns = [pa.array([values[old]]).cast(arrow.field(n).type) for n, (old, _) in enumerate(pairs)]
    written = write_table(pa.table(columns, schema=arrow), files.objects, "narrow/")
    wide = ", ".join(f"c{n} {new}" for n, (_, new) in enumerate(pairs)) + ", added DATE"
    [row] = read_objects(files.spark, Storage(files.objects), wide, written.objects).collect()
    assert [float(value) for value in row[:-2]] == [float(values[old]) for old, _ in pairs[:-1]]
    assert row[-2] == datetime(2026, 1, 2)  # noqa: DTZ001 - a type without a zone
    assert row["added"] is None


def declared(tmp_path: Path, spark: "SparkSession", schema: str, drift: Any) -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=tmp_path / "home", spark=spark)
    orders = shop.dataset("orders", schema, drift=drift)
    shop.source(orders, tm.folder(f"{tmp_path}/landing/*.json", settle_s=0.0))

    @shop.arc(reads=orders, writes="copies", drift="evolve")
    def copy(df: "DataFrame") -> "DataFrame":
        return df

    return shop


def land(tmp_path: Path, name: str, **line: Any) -> None:
    (tmp_path / "landing").mkdir(exist_ok=True)
    (tmp_path / "landing" / name).write_text(json.dumps(line) + "\n")


@pytest.mark.rule("LOT-34")
def test_a_new_column_is_published_with_its_lot_and_a_changed_declaration_is_planned(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    events: list[Event] = []
    land(tmp_path, "a.json", id=1)
    with declared(tmp_path, spark, "id INT", "evolve") as shop:
        assert shop.run(emit=events.append).ok
    land(tmp_path, "b.json", id=2, city="Bonn")
    with (
        declared(tmp_path, spark, "id INT", "evolve") as shop,
        crash.armed("publish.commit.before"),
        pytest.raises(crash.Crashed),
    ):
        shop.run()
    with declared(tmp_path, spark, "id INT", "evolve") as shop:
        assert shop["orders"].df().columns == ["id"]  # neither the rows nor their column
        assert shop.run(emit=events.append).ok
        assert sorted(map(tuple, shop["orders"].df().collect()), key=str) == [(1, None), (2, "Bonn")]
        assert shop["copies"].df().columns == ["id"]  # it was planned before
    assert [event.added for event in events if isinstance(event, ColumnsDrifted)] == [("city",)]
    with declared(tmp_path, spark, "id BIGINT, city STRING", "evolve") as shop:
        status = {
            item["name"]: item["status"] for item in shop.plan().describe() if item["what"] == "dataset"
        }
        assert (status["orders"], status["copies"]) == ("changed", "changed")
        land(tmp_path, "c.json", id=2**40, city="Ulm")
        assert shop.run().ok
        cities = {row["id"]: row["city"] for row in shop["orders"].df().collect()}
        assert cities == {1: None, 2: "Bonn", 2**40: "Ulm"}
        copies = {row["id"]: row["city"] for row in shop["copies"].df().collect()}
        assert copies == {1: None, 2: None, 2**40: "Ulm"}
        context = shop.context
        stored = context.store.run(lambda tx: column_history(tx, context.keys.lots, DatasetId("orders")))
        assert stored == ["id int", "id int, city string", "id bigint, city string"]
    with declared(tmp_path, spark, "id BIGINT", "freeze") as shop:
        plan = shop.plan()
        message = r"test_drift_spark\.py:\d+: the columns of dataset orders@1 .* city is no longer declared"
        with pytest.raises(DatasetChanged, match=message):
            plan.apply("n")


@pytest.mark.rule("LOT-34")
def test_a_column_is_added_and_a_type_widened_by_declaring_them(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    def declared(schema: str) -> tm.Pipeline:
        pipeline = tm.Pipeline("grow", home=tmp_path / "home", spark=spark)
        pipeline.dataset("orders", schema)
        pipeline.view("sums", "SELECT count(*) AS n, sum(amount) AS amount FROM orders")
        return pipeline

    with declared("id INT, amount INT") as shop:
        shop["orders"].append([(1, 10)])
        assert shop.run().ok
    with declared("id INT, city STRING, amount BIGINT") as shop:
        status = {stage["name"]: stage["status"] for stage in shop.plan().describe()}
        assert status["orders"] == "changed"
        shop["orders"].append([{"id": 2, "city": "Ulm", "amount": 2**40}])
        assert shop.run().ok
        rows = {row["id"]: (row["amount"], row["city"]) for row in shop["orders"].df().collect()}
        assert rows == {1: (10, None), 2: (2**40, "Ulm")}
        assert [tuple(row) for row in shop["sums"].df().collect()] == [(2, 2**40 + 10)]
        status = {stage["name"]: stage["status"] for stage in shop.plan().describe()}
        assert status["orders"] == "same"
    with declared("id INT, amount BIGINT") as shop:
        (refused,) = shop.plan().refusals()
    assert "column city is no longer declared" in refused.message
    assert "tidemill backfill" in refused.hint
