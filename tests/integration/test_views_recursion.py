"""Recursive queries as views, and views that are taken out of their pipeline."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.pipeline.reader import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

REACHED = """
    WITH RECURSIVE reached(start, place) AS (
        SELECT a, b FROM roads
        UNION ALL
        SELECT r.start, roads.b FROM reached r JOIN roads ON r.place = roads.a)
    SELECT DISTINCT start, place FROM reached"""


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.df().collect()), key=repr)


def closure(roads: set[tuple[str, str]]) -> list[tuple[str, str]]:
    pairs = set(roads)
    while more := {(a, d) for a, b in pairs for c, d in roads if b == c} - pairs:
        pairs |= more
    return sorted(pairs, key=repr)


@pytest.mark.rule("DBSP-16")
def test_a_recursive_view_follows_insertions_and_deletions(tmp_path: Path, spark: "SparkSession") -> None:
    roads = {("a", "b"), ("b", "c"), ("c", "d"), ("x", "y")}
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        table = pipeline.dataset("roads", "a STRING, b STRING", deletes=True)
        view = pipeline.view("reached", REACHED)
        table.append(sorted(roads))
        assert pipeline.run().ok
        assert rows(view) == closure(roads)
        table.append([("d", "x")])
        table.delete([("b", "c")])
        roads = roads - {("b", "c")} | {("d", "x")}
        assert pipeline.run().ok
        assert rows(view) == closure(roads)
        last = {(row["start"], row["place"], row["_weight"]) for row in view.changes(after=1).collect()}
        assert ("a", "d", -1) in last
        assert ("c", "y", 1) in last
        assert ("a", "b", -1) not in last, "what stays is left alone"
        assert "recomputed" in repr(view.explain())


def test_a_view_that_is_taken_out_can_be_read_and_its_group_is_retired(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    def made(*views: str) -> tm.Pipeline:
        pipeline = tm.Pipeline("p", home=tmp_path / "home", spark=spark)
        pipeline.dataset("t", "id INT")
        for name in views:
            pipeline.view(name, f"SELECT id AS {name} FROM t", group=name[:1], refresh="full")
        return pipeline

    with made("g1", "g2", "h1") as pipeline:
        pipeline["t"].append([(1,)])  # type: ignore[attr-defined]
        assert pipeline.run().ok
    with made("g1") as pipeline:
        pipeline["t"].append([(2,)])  # type: ignore[attr-defined]
        removed = {entry["name"] for entry in pipeline.plan().describe() if entry["status"] == "removed"}
        assert removed == {"g2", "h1", "h"}, "two views, and a group without views"
        assert pipeline.run().ok
        assert rows(pipeline["g1"]) == [(1,), (2,)]
        old = pipeline.retired()
        assert set(old) == {"g2", "h1"}
        assert rows(old["g2"]) == rows(old["h1"]) == [(1,)], "as they were"
        joined = query(pipeline, "SELECT g1, h1 FROM g1 JOIN H1 ON g1 = h1")
        assert [tuple(row) for row in joined.collect()] == [(1, 1)], "a query reads a retired view"
        with pytest.raises(tm.TidemillError, match="no table 'g2'"):
            pipeline["g2"]
    with made("g1", "g2") as pipeline:
        assert pipeline.run().ok
        assert rows(pipeline["g2"]) == [(1,), (2,)]
        (left,) = pipeline.retired().values()
        assert left.name == "h1"
        assert left.drop()
        assert not left.drop()
        assert not old["g2"].drop(), "it is declared again"
        assert pipeline.retired() == {}
