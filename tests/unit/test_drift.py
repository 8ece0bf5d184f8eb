"""Columns that change: what a declaration may become, and what the store keeps of it (LOT-34)."""

from pathlib import Path

import pytest

import tidemill as tm
from tests.column_history import column_history
from tests.unit.lots_stage import Stage
from tidemill.errors import BadSchema, DatasetChanged, DeclarationError
from tidemill.lots import datasets
from tidemill.lots.datasets import DatasetRow, Drift
from tidemill.lots.keys import DatasetId
from tidemill.schemas.type_table import is_wider
from tidemill.spark.drift import added, effective, evolved, merged
from tidemill.spark.schema import Column, Simple, parse


def orders(schema: str, drift: Drift = Drift.EVOLVE, **fields: object) -> DatasetRow:
    return effective(DatasetRow(name="orders", schema=schema, drift=drift, **fields))  # type: ignore[arg-type]


@pytest.mark.rule("LOT-34")
@pytest.mark.parametrize("drift", [Drift.FREEZE, Drift.RESCUE])
def test_a_declaration_adds_columns_and_widens_types_under_every_policy(drift: Drift):
    stage = Stage()
    stage.run(datasets.declare, stage.lots, orders("id INT", drift), evolved)
    wider = stage.run(datasets.declare, stage.lots, orders("name STRING, id BIGINT", drift), evolved)
    rescued = ", _rescued string" if drift is Drift.RESCUE else ""
    assert (wider.schema, wider.revision, wider.drift) == (f"id bigint{rescued}, name string", 1, drift)
    again = stage.run(datasets.declare, stage.lots, orders("name STRING, id BIGINT", drift), evolved)
    assert again == wider, "the order of the columns does not matter"
    assert stage.writes == 0
    assert stage.run(datasets.read, stage.lots, DatasetId("orders")) == wider


@pytest.mark.rule("LOT-34")
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id BIGINT", "column n is no longer declared"),
        ("id INT, n INT", "id was bigint and cannot become int"),
        ("id STRING, n INT", "id was bigint and cannot become string"),
        ("id BIGINT, n INT NOT NULL", "n was nullable and cannot become NOT NULL"),
        ("id BIGINT, n INT, m INT NOT NULL", "column m is NOT NULL, but existing lots have no value"),
        ("id BIGINT, n INT, N INT", "have the same name"),
    ],
)
def test_a_frozen_declaration_refuses_any_other_change(schema: str, message: str):
    stage = Stage()
    stored = stage.run(datasets.declare, stage.lots, orders("id BIGINT, n INT", Drift.FREEZE), evolved)
    with pytest.raises((DatasetChanged, BadSchema), match=message) as refused:
        stage.run(datasets.declare, stage.lots, orders(schema, Drift.FREEZE), evolved)
    if isinstance(refused.value, DatasetChanged):
        assert "tidemill backfill" in refused.value.hint
    assert stage.run(datasets.read, stage.lots, DatasetId("orders")) == stored


@pytest.mark.rule("LOT-34")
def test_a_declaration_that_evolves_gains_columns_and_wider_types_each_as_a_revision():
    stage = Stage()
    for schema in ("id INT", "id INT, name STRING", "id BIGINT", "id BIGINT, name STRING, at DATE"):
        stage.run(datasets.declare, stage.lots, orders(schema), evolved)
    stored = stage.run(datasets.read, stage.lots, DatasetId("orders"))
    assert (stored.schema, stored.revision) == ("id bigint, name string, at date", 3)
    assert stage.run(column_history, stage.lots, DatasetId("orders")) == [
        "id int",
        "id int, name string",
        "id bigint, name string",
        "id bigint, name string, at date",
    ]
    # A process that has not seen the new ones declares less, or something narrower: nothing changes.
    assert stage.run(datasets.declare, stage.lots, orders("id INT"), evolved) == stored
    assert stage.writes == 0
    for schema, words in [
        ("id STRING", "id was bigint and cannot become string"),
        ("id BIGINT, Name STRING", "Name differs from name only by its case"),
        ("id BIGINT, at TIMESTAMP", "at was date and cannot become timestamp"),
    ]:
        with pytest.raises(DatasetChanged, match=words):
            stage.run(datasets.declare, stage.lots, orders(schema), evolved)
    keyed = orders("id INT", kind=datasets.Kind.KEYED, key=("id",), deletes=True)
    with pytest.raises(DatasetChanged, match="key was none, now id"):
        stage.run(datasets.declare, stage.lots, keyed, evolved)
    assert stage.run(datasets.read, stage.lots, DatasetId("orders")) == stored


@pytest.mark.rule("LOT-34")
def test_a_policy_may_change_while_the_columns_stay():
    stage = Stage()
    stage.run(datasets.declare, stage.lots, orders("id INT", Drift.FREEZE), evolved)
    stage.run(datasets.declare, stage.lots, orders("id INT", Drift.EVOLVE), evolved)
    grown = stage.run(datasets.declare, stage.lots, orders("id INT, n INT", Drift.EVOLVE), evolved)
    assert (grown.drift, grown.revision) == (Drift.EVOLVE, 1)
    with pytest.raises(DatasetChanged):  # its columns are frozen as they are now
        stage.run(datasets.declare, stage.lots, orders("id INT", Drift.FREEZE), evolved)
    frozen = stage.run(datasets.declare, stage.lots, orders("id INT, n INT", Drift.FREEZE), evolved)
    assert (frozen.drift, frozen.revision) == (Drift.FREEZE, 1)


@pytest.mark.parametrize(
    ("old", "new", "safe"),
    [
        ("tinyint", "bigint", True),
        ("int", "double", True),
        ("bigint", "double", False),
        ("bigint", "int", False),
        ("float", "double", True),
        ("int", "decimal(10,0)", True),
        ("int", "decimal(10,1)", False),
        ("bigint", "decimal(20,0)", True),
        ("decimal(5,2)", "decimal(7,4)", True),
        ("decimal(5,2)", "decimal(6,4)", False),
        ("date", "timestamp_ntz", True),
        ("date", "timestamp", False),
        ("string", "binary", False),
        ("int", "int", False),
    ],
)
def test_types_become_wider_where_every_value_stays_what_it_is(old: str, new: str, safe: bool) -> None:
    assert is_wider(Simple(old), Simple(new)) is safe


def test_columns_that_were_found_are_added_unless_nobody_could_use_their_names():
    columns = [Column(name, Simple("string")) for name in ("new", "ID", "_ours", "NEW", "a b")]
    assert added(parse("id INT"), columns).names == ("id", "new", "a b")
    both, problems = merged(parse("id INT NOT NULL"), parse("id INT, x STRING NOT NULL"))
    assert (str(both), problems) == ("id int NOT NULL, x string", [])


@pytest.mark.rule("LOT-34")
def test_an_append_under_a_wider_declaration_evolves_its_dataset_and_rescue_has_its_column(tmp_path: Path):
    for schema in ("id INT", "id BIGINT, name STRING"):
        with tm.Pipeline("shop", home=tmp_path / "home") as shop:
            table = shop.dataset("orders", schema, drift="evolve")
            table.append([{"id": 1}])
            site = shop.context
            stored = site.store.run(
                lambda tx, site=site: datasets.read(tx, site.keys.lots, DatasetId("orders"))
            )
    assert (stored.schema, stored.revision) == ("id bigint, name string", 1)
    with tm.Pipeline("other", home=tmp_path / "home2") as shop:
        table = shop.dataset("orders", "id INT", drift="rescue")
        assert table.schema == "id int, _rescued string"
        table.append([{"id": 1}])
        with pytest.raises(DeclarationError, match=r"test_drift\.py:\d+: invalid drift='melt'"):
            shop.dataset("others", "id INT", drift="melt")  # type: ignore[arg-type]
        with pytest.raises(DeclarationError, match="drift='rescue' is not valid for an arc"):
            shop.arc(reads="orders", writes="x", drift="rescue")  # type: ignore[arg-type]
