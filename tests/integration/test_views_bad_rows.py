"""Views whose rows or functions make them fail: told with the place, nothing touched; chance and settings."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.errors import NotIncremental
from tidemill.events import Event
from tidemill.views.steps.events import StepAbandoned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

HERE = Path(__file__).name


@pytest.fixture
def halves(spark: "SparkSession") -> Iterator[None]:
    """A function of the user's in the session: it has no half of an odd number."""

    def half(value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} has no half")  # half-line
        return value // 2

    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.udf.register("half", half, "INT")
    yield
    spark.sql("DROP TEMPORARY FUNCTION IF EXISTS half")


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.df().collect()), key=repr)


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


@pytest.mark.rule("DBSP-17")
@pytest.mark.usefixtures("halves")
def test_a_view_that_fails_says_where_and_leaves_everything_as_it_was(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    """An overflow, a function in SQL that raises, and one over frames: each in a group of its own."""
    events: list[Event] = []
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        stock = pipeline.dataset("stock", "item STRING, n INT")

        def doubled(df: "DataFrame") -> "DataFrame":
            return df.selectExpr("item", "half(n) AS h").where("h >= 0")

        bad = {
            "over": pipeline.view(
                "over", "SELECT item, n + 2147483000 AS m FROM stock", group="over", refresh="full"
            ),
            "halves": pipeline.view("halves", "SELECT item, half(n) AS h FROM stock", group="halves"),
            "frames": pipeline.view("frames", doubled, reads=stock, full=True, group="frames"),
        }
        fine = pipeline.view("fine", "SELECT count(*) AS n FROM stock", group="fine", refresh="full")
        stock.append([("a", 2)])
        assert pipeline.run().ok
        before = {name: (view.position, rows(view)) for name, view in bad.items()}
        assert before["halves"][1] == before["frames"][1] == [("a", 1)]
        stock.append([("b", 1001)])
        report = pipeline.run(emit=events.append)
        assert not report.ok
        messages = {name.rpartition("/")[2]: words for name, words in report.failures.items()}
        assert set(messages) == set(bad), "one that is fine goes on"
        assert rows(fine) == [(2,)]
        assert "ARITHMETIC_OVERFLOW" in messages["over"]
        assert "n + 2147483000" in messages["over"], "the piece of the query"
        for name in ("halves", "frames"):
            assert "ValueError: 1001 has no half" in messages[name]
            assert f"{HERE}:{line_of('# half-line')}" in messages[name], "the line of the function"
        for name, words in messages.items():
            assert f"{HERE}:" in words
            assert f"view {name}:" in words
            assert "JVM" not in words
        assert {event.group for event in events if isinstance(event, StepAbandoned)} == set(bad)
        assert {name: (view.position, rows(view)) for name, view in bad.items()} == before, (
            "nothing was touched"
        )


@pytest.mark.rule("DBSP-22")
@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize(
    ("sql", "pattern"),
    [
        ("SELECT id, rand() AS r FROM t", "rand"),
        ("SELECT id, uuid() AS u FROM t", "uuid"),
        ("SELECT id, monotonically_increasing_id() AS m FROM t", "monotonically_increasing_id"),
        ("SELECT id, input_file_name() AS f FROM t", "input_file_name"),
        ("SELECT id FROM t TABLESAMPLE (50 PERCENT)", "(?i)sample"),
        ("SELECT id, half(id) AS h FROM t", "half"),
        ("SELECT id, hour(now()) AS h FROM t", "clock"),
    ],
)
def test_what_is_not_the_same_twice_is_refused_when_it_must_be_incremental(
    tmp_path: Path, spark: "SparkSession", sql: str, pattern: str
) -> None:
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        pipeline.dataset("t", "id INT")
        pipeline.view("v", sql, refresh="incremental")
        with pytest.raises(NotIncremental, match=pattern) as caught:
            pipeline.plan()
        assert HERE in caught.value.message
        assert pipeline["v"].position == 0


@pytest.mark.rule("DBSP-22")
def test_a_value_that_is_drawn_is_kept_and_what_is_taken_back_is_what_was_kept(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        table = pipeline.dataset("t", "id INT", deletes=True)
        view = pipeline.view("v", "SELECT id, uuid() AS u, rand() AS r FROM t")
        table.append([(1,), (2,)])
        assert pipeline.run().ok
        first = rows(view)
        assert rows(view) == first, "it is read, and not drawn again"
        table.delete([(1,)])
        assert pipeline.run().ok
        net: dict[tuple[Any, ...], int] = {}
        for row in view.changes().collect():
            key = (row["id"], row["u"], row["r"])
            net[key] = net.get(key, 0) + row["_weight"]
        assert {key: weight for key, weight in net.items() if weight} == dict.fromkeys(rows(view), 1)
        assert [row[0] for row in rows(view)] == [2]


@pytest.mark.rule("DBSP-22")
def test_settings_of_the_session_do_not_change_what_a_view_is(tmp_path: Path, spark: "SparkSession") -> None:
    """Time zone, ANSI and case are the pipeline's, whatever the session has."""
    other = {
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
    }
    before = {name: spark.conf.get(name) for name in other}
    try:
        with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
            table = pipeline.dataset("t", "id INT, at TIMESTAMP")
            view = pipeline.view(
                "v",
                "SELECT ID, hour(at) AS h, try_divide(1, 0) AS d FROM T",
                refresh="full",
            )
            table.append([(1, "2024-01-01T05:00:00Z")])
            for name, value in other.items():
                spark.conf.set(name, value)
            assert pipeline.run().ok
            assert [str(value) for value in rows(view)[0]] == ["1", "5", "None"]
            assert view.df().columns == ["ID", "h", "d"]
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
