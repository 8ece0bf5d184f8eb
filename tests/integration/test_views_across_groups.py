"""A view in one group reads views of other groups: right in every step, by kernels and recomputed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.events import Event
from tidemill.views.steps.events import StepTimed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

TOTALS = "SELECT region, count(*) AS n, sum(amount) AS s FROM orders GROUP BY region"
BIG = "SELECT region, n FROM totals WHERE n > 1"
NAMED = "SELECT name, n FROM big JOIN regions USING (region)"
RANKED = "SELECT name, rank() OVER (ORDER BY n) AS place FROM named"
NAMES = {"n": "north", "s": "south", "w": "west"}


def declare(pipeline: tm.Pipeline, big: str = BIG) -> tuple[Any, Any]:
    orders = pipeline.dataset("orders", "id BIGINT, region STRING, amount BIGINT", deletes=True)
    regions = pipeline.dataset("regions", "region STRING, name STRING", key="region")
    pipeline.view("totals", TOTALS, group="a")
    pipeline.view("big", big, group="a")
    pipeline.view("named", NAMED, group="b")
    pipeline.view("again", NAMED, group="c", refresh="full")
    pipeline.view("ranked", RANKED, group="a")
    pipeline.view("counted", lambda named: named.groupBy("n").count(), reads=["named"], full=True, group="c")
    return orders, regions


def contents(pipeline: tm.Pipeline, view: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in pipeline[view].df().collect())


def check(pipeline: tm.Pipeline, expected: list[tuple[str, int]]) -> None:
    assert contents(pipeline, "named") == contents(pipeline, "again") == expected
    counts = [n for _, n in expected]
    assert contents(pipeline, "counted") == sorted((n, counts.count(n)) for n in set(counts))
    places = [(name, 1 + sum(other < n for other in counts)) for name, n in expected]
    assert contents(pipeline, "ranked") == places


@pytest.mark.rule("DBSP-34")
def test_views_read_views_of_other_groups(tmp_path: Path, spark: "SparkSession") -> None:
    events: list[Event] = []
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as pipeline:
        orders, regions = declare(pipeline)
        regions.upsert([{"region": region, "name": name} for region, name in NAMES.items()])
        orders.append([(1, "n", 1), (2, "n", 2), (3, "s", 3), (4, "s", 4), (5, "s", 5), (6, "w", 6)])
        assert pipeline.run(emit=events.append).ok
        check(pipeline, [("north", 2), ("south", 3)])
        orders.append([(7, "w", 7)])
        orders.delete([(3, "s", 3), (4, "s", 4)])
        regions.upsert([{"region": "n", "name": "far north"}])
        assert pipeline.run(emit=events.append).ok
        check(pipeline, [("far north", 2), ("west", 2)])
    ready = [event.views for event in events if isinstance(event, StepTimed) and event.group == "b"]
    assert ready[-1] == ("named",), "it follows the change"
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as pipeline:
        declare(pipeline, BIG.replace("n > 1", "n > 0"))
        assert pipeline.run().ok
        check(pipeline, [("far north", 2), ("south", 1), ("west", 2)])
