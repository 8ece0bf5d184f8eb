"""Tables with a key, without Spark: what is declared of them, and writes that have no key (LOT-40)."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

import tidemill as tm
from tests.unit.test_checks import counted, rows_of
from tidemill.errors import AppendRefused, DatasetChanged, DeclarationError
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.ids import Unit
from tidemill.lots.keys import DatasetId
from tidemill.views.chain.chain import InputKind
from tidemill.views.spark.group_chain import input_kind

COLUMNS = "id BIGINT, place STRING, at TIMESTAMP_NTZ, n INT"
BAD = DatasetId("orders_quarantine")


def keyed(tmp_path: Path, **options: Any) -> tuple[tm.Pipeline, tm.Dataset]:
    pipeline = tm.Pipeline("shop", home=tmp_path / "home")
    return pipeline, pipeline.dataset("orders", COLUMNS, **options)


@pytest.mark.rule("LOT-40")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order_by": "at"}, "order_by=at but no key"),
        ({"order_by": "at", "deletes": True}, "order_by=at but no key"),
        ({"key": ["id", "place"], "order_by": ["at", "place"]}, "place in key and in order_by"),
        ({"key": "id", "order_by": ["at", "n", "at"]}, "at twice in order_by"),
        ({"key": ["id", "id"]}, "id twice in key"),
    ],
)
def test_an_order_that_cannot_be_meant_is_refused_at_its_line(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DeclarationError, match=rf"{Path(__file__).name}:\d+: .*{message}"):
        keyed(tmp_path, **options)


@pytest.mark.rule("LOT-40")
@pytest.mark.parametrize("options", [{"key": "if"}, {"key": "id", "order_by": "when"}])
def test_a_write_says_that_a_column_of_the_key_or_of_its_order_is_not_there(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    pipeline, orders = keyed(tmp_path, **options)
    expected = r'orders has no column "(if|when)" to (use as a key|order by)'
    with pipeline, pytest.raises(DeclarationError, match=expected):
        orders.upsert([{"id": 1}])


@pytest.mark.rule("LOT-40")
def test_the_order_of_a_table_cannot_change(tmp_path: Path) -> None:
    pipeline, orders = keyed(tmp_path, key="id", order_by="at")
    with pipeline:
        orders.upsert([{"id": 1}])
    for options, message in (
        ({}, "order_by was at, now none"),
        ({"order_by": ["n"]}, "order_by was at, now n"),
    ):
        pipeline, orders = keyed(tmp_path, key="id", **options)
        with pipeline, pytest.raises(DatasetChanged, match=message):
            orders.upsert([{"id": 2}])


@pytest.mark.rule("LOT-40")
def test_upserts_and_deletions_without_a_key_go_to_quarantine_and_the_others_through(tmp_path: Path) -> None:
    pipeline, orders = keyed(tmp_path, key=["id", "place"])
    with pipeline:
        receipt = orders.upsert([(1, "a", None, 1), (None, "a", None, 2), (2, None, None, 3)])
        assert counted(pipeline, receipt.lot) == {"key": 2}
        orders.delete([(1, "a"), (None, None)])
        stored = rows_of(pipeline, DatasetId("orders"))
        assert [(row["id"], row["_op"], row["_ordinal"]) for row in stored] == [
            (1, "upsert", 0),
            (1, "delete", 0),
        ]
        out = rows_of(pipeline, BAD)
        assert [(row["check"], row["error"]) for row in out] == [("key", "NULL in the key id, place")] * 3
        records = [json.loads(row["record"]) for row in out]
        assert [(row["id"], row["place"], row["n"], row["_op"]) for row in records] == [
            (None, "a", 2, "upsert"),
            (2, None, 3, "upsert"),
            (None, None, None, "delete"),
        ]
        assert pipeline["orders_quarantine"].position == 2


@pytest.mark.rule("LOT-40")
def test_a_deletion_among_ordered_writes_must_say_its_place(tmp_path: Path) -> None:
    pipeline, orders = keyed(tmp_path, key="id", order_by="n")
    with pipeline:
        for rows in ([1], [{"id": 1}], [(1, None)], pa.table({"id": [1]})):
            with pytest.raises(AppendRefused) as raised:
                orders.delete(rows)
            assert "orders" in raised.value.message
        assert orders.position == 0
        for rows in ([(1, 5)], [{"id": 1, "n": 5, "place": "x"}], pa.table({"n": [5], "id": [1]})):
            orders.delete(rows)
        stored = rows_of(pipeline, DatasetId("orders"))
        assert [(row["id"], row["place"], row["n"], row["_op"]) for row in stored] == [
            (1, None, 5, "delete")
        ] * 3


def test_whole_rows_of_pandas_and_batches_can_be_deleted_too(tmp_path: Path) -> None:
    import pandas as pd

    pipeline, orders = keyed(tmp_path, key="id")
    with pipeline:
        orders.delete(pd.DataFrame({"id": [1], "n": [2]}))
        orders.delete(pa.RecordBatch.from_pydict({"id": [1], "n": [2]}))
        assert [(row["id"], row["n"]) for row in rows_of(pipeline, DatasetId("orders"))] == [(1, None)] * 2


@pytest.mark.rule("LOT-40")
def test_a_chain_knows_the_order_of_writes() -> None:
    plain = DatasetRow(name="t", kind=Kind.KEYED, key=("id",), deletes=True, schema="id INT, a INT, b INT")
    assert input_kind(plain) == InputKind("keyed")
    assert input_kind(replace(plain, unit=Unit.parse("PT5M"))) == InputKind("keyed")
    assert input_kind(replace(plain, order_by=("b", "a"))) == InputKind("keyed", (2, 1))
    assert input_kind(DatasetRow(name="t", unit=Unit.parse("PT5M"), schema="id INT")) == InputKind("rows")
