"""Records as topics and web addresses deliver them: each is stored in a lot, or quarantined with a reason."""

import io
import random
from typing import Any

import msgspec
import pyarrow.parquet as pq

from tests.fuzz.mutation import json_text, mutated_value, text, value
from tests.unit.test_sources_http_poll import Stage
from tidemill.clock import SYSTEM
from tidemill.lots import datasets
from tidemill.lots.datasets import DatasetRow, Drift, Kind
from tidemill.lots.keys import DatasetId
from tidemill.publish.manifests import Manifests
from tidemill.schemas import ddl
from tidemill.sources.batch_publisher import CheckpointMove
from tidemill.sources.records import SourceRecord
from tidemill.spark import drift as drifts
from tidemill.spark import schema as schemas

CASES = 100

TYPES = (
    *("BIGINT", "INT", "SMALLINT", "TINYINT", "DOUBLE", "FLOAT", "BOOLEAN", "STRING", "BINARY", "DATE"),
    *("TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(10,2)", "DECIMAL(38,0)", "DECIMAL(38,38)", "TIME", "CHAR(3)"),
    *(
        "INTERVAL DAY TO SECOND",
        "ARRAY<INT>",
        "ARRAY<STRING>",
        "MAP<STRING,INT>",
        "MAP<INT,DATE>",
        "STRUCT<a:INT>",
    ),
    *("STRUCT<a:MAP<STRING,INT>,b:DECIMAL(3,1)>", "ARRAY<STRUCT<a:INT,b:STRING>>", "ARRAY<ARRAY<TIMESTAMP>>"),
    *("MAP<STRING,MAP<STRING,ARRAY<INT>>>", "STRUCT<a:STRUCT<b:TIME>>", "INTERVAL YEAR TO MONTH", "VARIANT"),
)
_EXAMPLES: dict[str, Any] = {
    "BOOLEAN": True,
    "STRING": "x",
    "BINARY": "x",
    "DATE": "2024-01-31",
    "TIMESTAMP": "2024-01-31T12:30:00Z",
    "TIMESTAMP_NTZ": "2024-01-31T12:30:00",
    "TIME": "12:30:00",
    "CHAR(3)": "abc",
    "INTERVAL DAY TO SECOND": "1 02:03:04",
    "ARRAY<INT>": [1, 2],
    "ARRAY<STRING>": ["a"],
    "MAP<STRING,INT>": {"a": 1},
    "MAP<INT,DATE>": [{"key": 1, "value": "2024-01-01"}],
    "STRUCT<a:INT>": {"a": 1},
    "STRUCT<a:MAP<STRING,INT>,b:DECIMAL(3,1)>": {"a": {"k": 1}, "b": "1.5"},
    "ARRAY<STRUCT<a:INT,b:STRING>>": [{"a": 1, "b": "x"}],
    "ARRAY<ARRAY<TIMESTAMP>>": [["2024-01-31T12:30:00Z"]],
    "MAP<STRING,MAP<STRING,ARRAY<INT>>>": {"a": {"b": [1]}},
    "STRUCT<a:STRUCT<b:TIME>>": {"a": {"b": "12:30:00"}},
}


def declaration(rng: random.Random) -> dict[str, Any]:
    """Return the columns and the drift policy of a dataset."""
    types = rng.sample(TYPES, rng.randrange(1, 4))
    return {
        "columns": {f"c{number}": column_type for number, column_type in enumerate(types)},
        "drift": rng.choice(list(Drift)).value,
        "keyed": rng.random() < 0.2,
    }


def row(rng: random.Random, columns: dict[str, str]) -> dict[str, Any]:
    """Return a row, usually with something wrong."""
    good = {"id": rng.randrange(5), **{name: _EXAMPLES.get(kind, 1) for name, kind in columns.items()}}
    if rng.random() < 0.3:
        good[rng.choice(("extra", "Extra", "a.b", "a b", "_x", text(rng)))] = value(rng)
    for _ in range(rng.choice((0, 1, 1, 2))):
        changed = mutated_value(rng, good)
        good = changed if isinstance(changed, dict) or rng.random() < 0.1 else good
        if not isinstance(good, dict):
            break
    return good


def generate(rng: random.Random) -> dict[str, Any]:
    case = declaration(rng)
    case["batches"] = [
        [
            None if rng.random() < 0.01 else json_text(rng, row(rng, case["columns"]))
            for _ in range(rng.choice((0, 1, 1, 2, 5)))
        ]
        for _ in range(rng.choice((1, 1, 2, 3)))
    ]
    return case


def dataset(case: dict[str, Any]) -> DatasetRow:
    """Return the dataset of a case. Types that only Spark can write are left out."""
    columns = {"id": "BIGINT", **case.get("columns", {})}
    arrow = {
        name: kind for name, kind in columns.items() if kind not in ("INTERVAL YEAR TO MONTH", "VARIANT")
    }
    keyed = bool(case.get("keyed"))
    return drifts.effective(
        DatasetRow(
            name="orders",
            schema=", ".join(f"{name} {kind}" for name, kind in arrow.items()),
            drift=Drift(case.get("drift", "freeze")),
            kind=Kind.KEYED if keyed else Kind.ROWS,
            key=("id",) if keyed else (),
            deletes=keyed,
        )
    )


class RecordStage(Stage):
    """A stage for the dataset of a case; counts what its lots hold."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(**msgspec.structs.asdict(dataset(case)))

    def stored(self, dataset_id: DatasetId) -> int:
        """Read every file of a dataset completely; return the number of rows."""
        manifests = Manifests(self.objects, SYSTEM)
        rows = 0
        for lot in self.stage.rows_of(dataset_id):
            lot_rows = 0
            for item in manifests.lot_objects(lot.manifest):
                table = pq.read_table(io.BytesIO(self.objects.get(item.uri)[0]))
                table.validate(full=True)
                lot_rows += table.num_rows
            assert lot_rows == lot.rows, "a lot has other rows than its manifest says"
            rows += lot_rows
        return rows

    def check_columns(self) -> None:
        """Check that the columns, to which rows may have added some, can be parsed and converted."""
        current = self.store.run(lambda tx: datasets.read(tx, self.keys.publish.lots, self.dataset.id))
        schemas.to_arrow(ddl.parse(current.schema))
        assert str(ddl.parse(current.schema)) == current.schema


def check(case: dict[str, Any]) -> None:
    stage = RecordStage(case)
    publisher = stage.publisher()
    count, checkpoint = 0, None
    for number, batch in enumerate(case.get("batches", ())):
        records = [SourceRecord("topic/0", count + at, body) for at, body in enumerate(batch)]
        count += len(batch)
        parsed = publisher.parse(records)
        assert parsed.rows.num_rows + parsed.bad.num_rows == len(records), "records are lost or doubled"
        assert all(parsed.bad["error"].to_pylist()), "a record is quarantined without a reason"
        after = b"%d" % number
        publisher.publish(parsed, [CheckpointMove("0", checkpoint, after)], stage.lease.fence)
        checkpoint = after
    assert stage.stored(stage.dataset.id) + stage.stored(stage.bad_id) == count
    stage.check_columns()
