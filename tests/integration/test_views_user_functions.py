"""Functions of the user that queries of views call."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.errors import DeclarationError, NotIncremental
from tidemill.events import Event
from tidemill.views.steps.events import StepCommitted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.rule("DBSP-22")
def test_a_view_follows_the_code_of_a_declared_function(tmp_path: Path, spark: "SparkSession") -> None:
    def run(add: int, **options: Any) -> tuple[list[int], bool]:
        """Run the pipeline; return the rows, and whether the run has computed a step."""
        events: list[Event] = []
        with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
            orders: Any = shop.dataset("orders", "id BIGINT")
            shop.function("raised", lambda value: None if value is None else value + add, "BIGINT", **options)
            view = shop.view("raised_ids", "SELECT raised(id) AS id FROM orders")
            if orders.position == 0:
                orders.append([(1,), (2,)])
            assert shop.run(emit=events.append).ok
            assert "it calls the function raised" in view.explain().text()
            assert view.explain().json()["runs"] == "full"
            rows = sorted(row.id for row in view.df().collect())
        return rows, any(isinstance(event, StepCommitted) for event in events)

    assert run(1, deterministic=True) == ([2, 3], True)
    assert run(1, deterministic=True) == ([2, 3], False), "the same code"
    assert run(5, deterministic=True) == ([6, 7], True), "other code, the same rows"


@pytest.mark.rule("DBSP-22")
def test_a_view_that_calls_a_function_is_refused_if_it_must_be_incremental(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        shop.dataset("orders", "id BIGINT")
        shop.function("doubled", lambda value: 2 * value, "BIGINT")
        shop.view("v", "SELECT doubled(id) AS id FROM orders", refresh="incremental")
        with pytest.raises(NotIncremental, match="doubled"):
            shop.plan()
        with pytest.raises(DeclarationError, match="a function of Spark"):
            shop.function("Upper", str.upper, "STRING")
        with pytest.raises(DeclarationError, match="already declared"):
            shop.function("Doubled", lambda value: value, "BIGINT")
