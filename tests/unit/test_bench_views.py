"""What bench.views is fed with: steps lead from the base to the tables that views are compared over."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.views.beside import Turns
from bench.views.shop import INTEGERS, TYPES, Shop, Step
from bench.views.stage import Differs, Timing, compare

TABLES = ("orders", "customers")


def rows(path: Path | str) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*pq.read_table(path).to_pydict().values(), strict=True))


def after(shop: Shop, steps: list[Step]) -> dict[str, Counter[tuple[Any, ...]]]:
    tables = {table: rows(shop.base / table) for table in TABLES}
    for step in steps:
        for table in TABLES:
            gone = rows(step.files[f"{table}_out"])
            assert gone <= tables[table], "only what is there goes"
            tables[table] = tables[table] - gone + rows(step.files[f"{table}_in"])
    return tables


@pytest.mark.parametrize("kind", [INTEGERS, TYPES])
def test_the_base_and_its_steps_come_to_the_tables_as_they_are(kind: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop", kind, 2_000)
    steps = [shop.step(changes) for changes in (10, 1_000, 500)]
    now = shop.write(tmp_path / "now")
    assert after(shop, steps) == {table: rows(now / table) for table in TABLES}
    assert sum(rows(steps[1].files["orders_out"]).values()) == 100
    assert sum(rows(steps[1].files["orders_in"]).values()) == 900
    moved = {row[0]: row[1] for row in rows(steps[1].files["customers_out"])}
    assert all(moved[customer] != region for customer, region in rows(steps[1].files["customers_in"]))


def test_both_kinds_of_shop_hold_the_same_numbers_each_time_they_are_drawn(tmp_path: Path) -> None:
    shops = [Shop(tmp_path / str(at), kind, 500) for at, kind in enumerate((INTEGERS, INTEGERS, TYPES))]
    drawn = [rows(shop.step(100).files["orders_in"]) for shop in shops]
    assert drawn[0] == drawn[1]
    assert {row[:2] for row in drawn[0]} == {row[:2] for row in drawn[2]}
    assert {row[3] for row in drawn[0]} == {int(100 * row[3]) for row in drawn[2]}


def test_steps_that_would_take_more_orders_than_there_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few"):
        Shop(tmp_path, INTEGERS, 50).step(1_000)


def test_a_ratio_is_the_median_of_turns_that_the_peer_took_part_in() -> None:
    turns = Turns()
    turns.ours = [Timing([10.0, 30.0, 20.0], [0.0] * 3), Timing([20.0], [0.0]), Timing([40.0], [0.0])]
    turns.peers["x"] = [Timing([200.0], [0.0]), Timing([], []), Timing([80.0], [0.0])]
    assert turns.ratio("x") == 6.0
    assert turns.as_json("x")["ratio_of_each_turn"] == [10.0, 2.0]


def test_a_view_that_differs_from_plain_spark_in_one_value_is_found(tmp_path: Path) -> None:
    table = pq.read_table(Shop(tmp_path, TYPES, 100).base / "orders")
    compare("same", table, table.sort_by([("id", "descending")]))
    other = table.set_column(1, "cust", [[*table["cust"].to_pylist()[:-1], -1]])
    for wrong in (other, table.slice(1), table.rename_columns(["a", "b", "c", "d"])):
        with pytest.raises(Differs):
            compare("other", wrong, table)
    with pytest.raises(Differs, match="nothing was compared"):
        compare("empty", table.slice(0, 0), table.slice(0, 0))
