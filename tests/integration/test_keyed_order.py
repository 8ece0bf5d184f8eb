"""Tables with a key on Spark: which write of a key counts, for `df()`, snapshots and views (LOT-40)."""

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tidemill as tm
from tests.integration.test_pipeline import content
from tests.leases import LongLeaseClock
from tidemill.errors import AppendRefused, DeclarationError
from tidemill.events import Event
from tidemill.views.spark.execution import SETTING
from tidemill.views.steps.events import StepTimed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

COLUMNS = "id INT, at DOUBLE, turn INT, name STRING"
Write = tuple[str, tuple[Any, ...]]


def newest(writes: list[Write]) -> list[tuple[Any, ...]]:
    """The table by the rule itself, write by write: one that is older than the stored one is dropped."""

    def age(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
        return [(value is not None, value) for value in row[1:3]]  # NULL is older than all

    stored: dict[Any, Write] = {}
    for operation, row in writes:
        known = stored.get(row[0])
        if known is None or age(row) >= age(known[1]):
            stored[row[0]] = (operation, row)
    return sorted((row for operation, row in stored.values() if operation == "upsert"), key=str)


def drawn(chance: random.Random, count: int) -> list[tuple[Any, ...]]:
    return [
        (
            chance.randrange(6),
            chance.choice([None, 1.0, 2.0, 2.5, float("inf")]),
            chance.choice([None, 1, 2]),
            f"w{chance.randrange(1000)}",
        )
        for _ in range(count)
    ]


def frame(spark: "SparkSession", rows: list[tuple[Any, ...]]) -> "DataFrame":
    """As Arrow, which Spark reads without a Python worker."""
    names = ["id", "at", "turn", "name"]
    columns = {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=False)}
    return spark.createDataFrame(pa.table(columns)).coalesce(1)


QUERIES = {
    "copied": "SELECT id, at, turn, name FROM t",
    "counted": "SELECT turn, count(*) AS n, max(name) AS name FROM t GROUP BY turn",
    "joined": "SELECT t.id, u.name FROM t JOIN u ON t.id = u.id",
    "ranked": "SELECT id, rank() OVER (PARTITION BY turn ORDER BY name) AS r FROM t",
}


@pytest.mark.rule("LOT-40", "DBSP-17")
def test_what_is_older_than_the_stored_write_or_its_tombstone_changes_nothing(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views follow a table with `order_by`, in both places; plain Spark gives the same rows."""
    chance = random.Random(40)
    events: list[Event] = []
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        table = pipeline.dataset("t", COLUMNS, key="id", order_by=["at", "turn"])
        other = pipeline.dataset("u", "id INT, edition INT, name STRING", key="id", order_by="edition")
        views = {name: pipeline.view(name, sql, refresh="incremental") for name, sql in QUERIES.items()}
        full = pipeline.view("full", QUERIES["copied"], refresh="full")
        writes: list[Write] = []
        for step in range(4):
            frames = step == 1
            rows = drawn(chance, 4)
            table.upsert(frame(spark, rows) if frames else rows)
            writes += [("upsert", row) for row in rows]
            gone = [(key, at, turn) for key, at, turn, _ in drawn(chance, 3) if at and turn]
            table.delete(frame(spark, gone) if frames else gone)
            writes += [("delete", row) for row in gone]
            other.upsert([(key, chance.randrange(4), f"u{step}") for key in range(6)])
            monkeypatch.setenv(SETTING, ("runner", "spark")[step % 2])
            assert pipeline.run(emit=events.append).ok
            assert content(table) == content(full) == content(views["copied"]) == newest(writes)
            table.df().createOrReplaceTempView("t")
            other.df().createOrReplaceTempView("u")
            for name, view in views.items():
                plain = spark.sql(QUERIES[name]).collect()
                assert content(view) == sorted(map(tuple, plain), key=str), (step, name)
        assert sorted(map(tuple, pipeline.snapshot()["t"].collect()), key=str) == newest(writes)
        assert len({operation for operation, _ in writes}) == 2
        assert len(newest(writes)) < 6, "a tombstone of the newest time is among them"
        for view in views.values():
            assert "not incremental" not in str(view.explain())
        timed = [event for event in events if isinstance(event, StepTimed)]
        assert [event.loaded_traces > 0 for event in timed] == [True, *[False] * 3]
        assert {event.place for event in timed[1:]} == {"runner", "spark"}
        for query in ("SELECT 1 AS id", "SELECT 1 AS id, CAST(NULL AS DOUBLE) AS at, 1 AS turn"):
            with pytest.raises(AppendRefused, match="a deletion from t has no at"):
                table.delete(spark.sql(query))


@pytest.mark.rule("LOT-40")
def test_null_keys_of_frames_go_to_quarantine_and_no_reader_sees_them(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        table = pipeline.dataset("t", "a INT, b STRING, n INT", key=["a", "b"])
        view = pipeline.view("v", "SELECT count(*) AS n, count(a) AS a FROM t", refresh="full")
        given = spark.sql("SELECT * FROM VALUES (1, 'x', 1), (NULL, 'x', 2), (1, NULL, 3) AS t(a, b, n)")
        table.upsert(given)
        table.delete(given.select("a", "b").where("n > 1"))
        table.upsert([(2, "y", 4), (None, None, 5)])
        assert pipeline.run().ok
        assert content(table) == [(1, "x", 1), (2, "y", 4)]
        assert content(view) == [(2, 2)]
        aside = pipeline["t_quarantine"].df().select("check", "error").collect()
        assert {tuple(row) for row in aside} == {("key", "NULL in the key a, b")}
        assert len(aside) == 5
        assert [stage["name"] for stage in pipeline.plan().describe()] == ["t", "t_quarantine", "main"]


@pytest.mark.rule("LOT-40")
def test_appends_of_one_interval_keep_their_order_and_compaction_leaves_them_alone(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    clock = LongLeaseClock.early_in_an_hour()
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark, clock=clock) as pipeline:
        table = pipeline.dataset("t", "id INT, n INT", key="id", lots="PT1H")
        view = pipeline.view("v", "SELECT id, n FROM t", refresh="incremental")
        for n in range(6):
            table.upsert([(1, -n), (1, n), (n + 10, n)])
        table.delete([10])
        clock.pass_time(3600)
        assert pipeline.run().ok
        assert [lot.rows for lot in table.lots()] == [19]
        expected = [(1, 5), *((n + 10, n) for n in range(1, 6))]
        assert content(table) == content(view) == sorted(expected, key=str)
        table.upsert([(1, 7), (11, 8)])
        table.upsert([(1, 6)])
        table.delete([11])
        clock.pass_time(3600)
        assert pipeline.run().ok
        expected = [(1, 6), *((n + 10, n) for n in range(2, 6))]
        assert content(table) == content(view) == sorted(expected, key=str)
        assert table.compact() == []
        assert content(table) == sorted(expected, key=str)


@pytest.mark.rule("LOT-40")
def test_types_that_have_no_order_are_refused_at_plan_with_their_line(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    for options, message in (
        ({"key": "any"}, "t cannot use any as a key"),
        ({"key": "id", "order_by": "m"}, "t cannot be ordered by m"),
        ({"key": "id", "order_by": "when"}, 't has no column "when" to order by'),
    ):
        pipeline = tm.Pipeline("p", home=tmp_path / "home", spark=spark)
        pipeline.dataset("t", "id INT, m MAP<STRING, INT>, any VARIANT", **options)  # type: ignore[arg-type]
        with pipeline, pytest.raises(DeclarationError, match=rf"{Path(__file__).name}:\d+: {message}"):
            pipeline.plan()
