"""Tables as they were at a position or a time, and snapshots of groups that are at different steps."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.clock import SYSTEM
from tidemill.errors import NothingYet, UsageError
from tidemill.views.steps import groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

TOTALS = "SELECT region, count(*) AS n FROM orders GROUP BY region"
PAIRS = "SELECT o.id, r.name FROM orders o JOIN regions r ON o.region = r.region"


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def declared(pipeline: tm.Pipeline) -> tuple[Any, Any]:
    orders = pipeline.dataset("orders", "id BIGINT, region STRING", deletes=True)
    regions = pipeline.dataset("regions", "region STRING, name STRING", key="region")
    pipeline.view("totals", TOTALS, group="a")
    pipeline.view("pairs", PAIRS, group="b")
    return orders, regions


def consistent(frames: Any) -> None:
    """Each view of a snapshot is the result of its query over the other tables of the snapshot."""
    names = {row["region"]: row["name"] for row in frames["regions"].collect()}
    orders = rows(frames["orders"])
    of_region = [region for _, region in orders]
    assert rows(frames["totals"]) == sorted((region, of_region.count(region)) for region in set(of_region))
    assert rows(frames["pairs"]) == sorted((id_, names[region]) for id_, region in orders if region in names)


@pytest.mark.rule("DBSP-34")
def test_a_snapshot_is_of_one_step_while_groups_are_at_different_steps(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as pipeline:
        orders, regions = declared(pipeline)
        regions.upsert([("n", "north"), ("s", "south")])
        orders.append([(1, "n"), (2, "s"), (3, "s")])
        assert pipeline.run().ok
        consistent(pipeline.snapshot())
        first = {name: rows(frame) for name, frame in pipeline.snapshot().items()}
        times = [_now()]
        at = {name: pipeline[name].position for name in ("orders", "regions", "totals", "pairs")}
        pipeline.pause("pairs")
        orders.append([(4, "n")])
        orders.delete([(2, "s")])
        assert pipeline.run().ok
        regions.upsert([("s", "far south")])
        assert pipeline.run().ok
        steps = {name: _step(pipeline, name) for name in ("a", "b")}
        assert steps["a"] > steps["b"], "the groups are at different steps"
        assert rows(pipeline["totals"].df()) == [("n", 2), ("s", 1)]
        behind = pipeline.snapshot()
        consistent(behind)
        assert {name: rows(frame) for name, frame in behind.items()} == first
        pipeline.resume("pairs")
        assert pipeline.run().ok
        after = pipeline.snapshot()
        consistent(after)
        assert rows(after["orders"]) == [(1, "n"), (3, "s"), (4, "n")]
        assert rows(after["pairs"]) == [(1, "north"), (3, "far south"), (4, "north")]
        # The same rows by position and by time.
        for name, position in at.items():
            assert rows(pipeline[name].df(as_of=position)) == first[name], name
            assert rows(pipeline[name].df(as_of=times[0])) == first[name], name
            assert rows(pipeline[name].df(as_of=_now())) == rows(pipeline[name].df())
            assert rows(pipeline[name].df(as_of=pipeline[name].position)) == rows(pipeline[name].df())
            assert rows(pipeline[name].df(as_of=0)) == []
            assert rows(pipeline[name].df(as_of=times[0] - timedelta(days=1))) == []
            with pytest.raises(UsageError, match="is not a position"):
                pipeline[name].df(as_of=pipeline[name].position + 1)
            with pytest.raises(UsageError, match="no time zone"):
                pipeline[name].df(as_of=datetime(2026, 1, 1))  # noqa: DTZ001 - refused
        with pytest.raises(NothingYet):
            pipeline.view("later", "SELECT id FROM orders").df(as_of=1)


def _now() -> datetime:
    return datetime.fromtimestamp(SYSTEM.wall(), UTC)


def _step(pipeline: tm.Pipeline, group: str) -> int:
    context = pipeline.context
    return context.store.run(lambda tx: groups.read(tx, context.keys, pipeline.name, group)).step
