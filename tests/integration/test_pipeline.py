"""A pipeline through its public API: declared, planned, written to, run and read."""

import decimal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import pyarrow as pa
import pytest

import tidemill as tm
from tests import shop
from tests.certificates import certify_views
from tests.leases import LongLeaseClock
from tidemill.errors import AppendRefused, DeclarationError, NothingYet, QueryError, TidemillError
from tidemill.pipeline import changes as changes_of
from tidemill.pipeline import reader
from tidemill.pipeline.reader import query
from tidemill.pipeline.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).name
Declare = Callable[[tm.Pipeline], object]


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def content(table: Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.df().collect()), key=str)


def changes(table: Table, after: int) -> list[tuple[Any, ...]]:
    """What changed, with weight and position last."""
    frame = table.changes(after)
    names = [name for name in frame.columns if not name.startswith("_")]
    return sorted((tuple(row) for row in frame.select(*names, "_weight", "_position").collect()), key=str)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


# --- declaring


def same(df: "DataFrame") -> "DataFrame":
    return df


def arc(pipeline: tm.Pipeline, writes: str) -> None:
    pipeline.arc(reads="orders", writes=writes, name="a")(same)


def circle(pipeline: tm.Pipeline) -> None:
    pipeline.arc(reads="b", writes="a", name="one")(same)
    pipeline.arc(reads="a", writes="b", name="two")(same)


WRONG: dict[str, tuple[Declare, str]] = {
    "a name twice": (
        lambda p: p.dataset("orders", "x INT"),
        "already declared as a dataset at .*:",
    ),
    "a view of that name": (
        lambda p: p.view("orders", "SELECT 1 AS x"),
        "already declared as a dataset",
    ),
    "types": (lambda p: p.dataset("t", "x STRIN"), "STRIN"),
    "no columns": (lambda p: p.dataset("t", ""), "column|empty"),
    "a column twice": (lambda p: p.dataset("t", "x INT, X INT"), "twice|duplicate|again|x"),
    "a key it has not": (lambda p: p.dataset("t", "x INT", key="y"), 't has no column "y"'),
    "our column": (lambda p: p.dataset("t", "_weight BIGINT"), "_weight"),
    "an interval": (lambda p: p.dataset("t", "x INT", lots="five"), "five"),
    "a reader of nothing": (
        lambda p: p.arc(reads="order", writes="t", name="a")(same),
        "a reads order, which is not declared",
    ),
    "a circle": (circle, "arcs form a cycle: one -> two"),
    "an arc twice": (lambda p: (arc(p, "x"), arc(p, "y")), "the arc a is already declared at"),
    "no parts": (
        lambda p: p.arc(reads="orders", writes="t", parts=0),
        "invalid retries=3, parts=0 or max_concurrent=",
    ),
    "one schema for two": (
        lambda p: p.arc(reads="orders", writes=("a", "b"), schema="x INT"),
        "one schema",
    ),
    "a partition it has not": (
        lambda p: p.arc(reads="orders", writes="t", partition_by="zone", name="a")(same),
        't has no column "zone" to partition by',
    ),
    "a view of nothing": (lambda p: p.view("v", "SELECT * FROM oders"), "oders"),
    "a column of nothing": (lambda p: p.view("v", "SELECT amout FROM orders"), "amout"),
    "not a query": (lambda p: p.view("v", "DROP TABLE orders"), "DROP|query"),
    "views in a circle": (
        lambda p: (p.view("v", "SELECT * FROM w"), p.view("w", "SELECT * FROM v")),
        "views form a cycle: v -> w",
    ),
    "a refresh": (lambda p: p.view("v", "SELECT 1 AS x", refresh="often"), "refresh='often'"),  # type: ignore[arg-type]
    "groups": (
        lambda p: (
            p.view("v", "SELECT id, rand() AS r FROM orders", group="g"),
            p.view("w", "SELECT * FROM v"),
        ),
        "w cannot read v, a view of another group: its query can have several results",
    ),
    "the clock of another group": (
        lambda p: (
            p.view("u", "SELECT count(*) AS n FROM orders WHERE id > unix_micros(now())", group="g"),
            p.view("v", "SELECT n FROM u", group="g"),
            p.view("w", "SELECT * FROM v"),
        ),
        "w cannot read u, a view of another group: its query uses the clock",
    ),
    "a function of another group": (
        lambda p: (p.view("v", same, reads="orders", full=True, group="g"), p.view("w", "SELECT * FROM v")),
        "w cannot read v, a view of another group: it is a function",
    ),
    "a source of nothing": (lambda p: p.source("nothing", tm.folder("x/*.json")), "p has no dataset nothing"),
    "two sources": (
        lambda p: [p.source("orders", tm.folder("x/*.json")) for _ in range(2)],
        "orders already has a source, declared at",
    ),
    "another pipeline's": (
        lambda p: p.arc(reads=tm.Pipeline("q", home="q").dataset("o", "x INT"), writes="t", name="a")(same),
        "o belongs to another pipeline, q",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_declaration_is_told_with_its_line(
    what: str, home: Path, spark: "SparkSession"
) -> None:
    wrong, message = WRONG[what]

    def declare(pipeline: tm.Pipeline) -> None:
        wrong(pipeline)
        pipeline.plan()

    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        pipeline.dataset("orders", "id BIGINT, amount DECIMAL(10,2)")
        with pytest.raises(TidemillError, match=message) as raised:
            declare(pipeline)
        number = int(raised.value.message.partition(f"{HERE}:")[2].partition(":")[0] or 0)
        assert line_of("def arc(pipeline") < number < line_of("def test_what_is_wrong"), raised.value.message
        assert pipeline["orders"].position == 0


def test_a_near_name_is_suggested_and_an_unknown_one_is_refused(home: Path) -> None:
    pipeline = tm.Pipeline("p", home=home)
    pipeline.dataset("orders", "id BIGINT")
    with pytest.raises(DeclarationError, match="no table 'order'") as raised:
        pipeline["order"]
    assert raised.value.hint == "did you mean orders?"
    for name in ("", "a/b", "a:b"):
        with pytest.raises(DeclarationError, match="is not a valid pipeline name"):
            tm.Pipeline(name)
    assert not home.exists()  # declaring touches nothing


# --- planning


@pytest.mark.rule("LOT-44")
def test_a_plan_says_what_is_new_the_same_changed_and_removed(home: Path, spark: "SparkSession") -> None:
    def plan(factor: int, *, arcs: bool = True, view: str = "SELECT id FROM orders") -> dict[str, str]:
        with tm.Pipeline("p", home=home, spark=spark) as pipeline:
            orders = pipeline.dataset("orders", "id BIGINT")
            if arcs:

                @pipeline.arc(reads=orders, writes="out")
                def copy(df: "DataFrame") -> "DataFrame":
                    return df.selectExpr(f"id * {factor} AS id", "'x' AS `what kind`")

            pipeline.view("v", view)
            made = pipeline.plan()
            statuses = {f"{stage['what']} {stage['name']}": stage["status"] for stage in made.describe()}
            assert all(HERE in stage["where"] for stage in made.describe() if stage["status"] != "removed")
            assert all(name.split()[1] in repr(made) for name in statuses)
            certify_views(pipeline)
            if arcs:
                assert pipeline["out"].schema == "id bigint, `what kind` string"
            return statuses

    names = ("dataset orders", "dataset out", "arc copy", "views main", "circuit v")
    assert plan(1) == dict.fromkeys(names, "new")
    assert plan(1) == dict.fromkeys(names, "same")
    assert plan(2) == {**dict.fromkeys(names, "same"), "arc copy": "changed"}
    assert plan(2, view="SELECT id + 1 AS id FROM orders")["views main"] == "changed"
    gone = plan(2, arcs=False, view="SELECT id + 1 AS id FROM orders")
    assert gone == {
        "dataset orders": "same",
        "dataset out": "removed",
        "arc copy": "removed",
        "views main": "same",
        "circuit v": "same",
    }


@pytest.mark.rule("LOT-44")
def test_a_declared_schema_overrides_what_spark_finds(home: Path, spark: "SparkSession") -> None:
    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT")

        @pipeline.arc(reads=orders, writes="out", schema="n BIGINT, id BIGINT")
        def counted(df: "DataFrame") -> "DataFrame":
            if df.isEmpty():  # what an empty table says nothing about
                return df
            return df.selectExpr("id", "id + 1 AS n")

        orders.append([(1,)])
        assert pipeline.run().ok
        assert content(pipeline["out"]) == [(2, 1)]


# --- writing


ROW = {
    "id": 1,
    "name": "a",
    "amount": decimal.Decimal("12.30"),
    "at": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
}
SCHEMA = "id BIGINT, name STRING, amount DECIMAL(10,2), at TIMESTAMP"


def forms(spark: "SparkSession") -> Iterator[tuple[str, Any]]:
    yield "dictionaries", [ROW]
    yield "tuples", [tuple(ROW.values())]
    yield "a generator", (row for row in [ROW])
    yield "text and float for a decimal", [{**ROW, "amount": 12.3}]
    table = pa.Table.from_pylist([ROW])
    yield "arrow", table
    yield "a batch", table.to_batches()[0]
    yield "other columns' order", table.select(["at", "amount", "name", "id"])
    yield "narrower types", table.set_column(0, "id", pa.array([1], pa.int16()))
    yield "pandas", pd.DataFrame([ROW])
    yield "spark", spark.createDataFrame([tuple(ROW.values())], SCHEMA)
    narrow = "SELECT CAST(1 AS TINYINT) AS id, '12.3' AS amount, TIMESTAMP '2024-01-02 03:04:05' AS at"
    yield "spark, in other types", spark.sql(narrow + ", 'a' AS name")


def test_rows_are_taken_in_every_form_and_are_the_same(home: Path, spark: "SparkSession") -> None:
    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        orders = pipeline.dataset("orders", SCHEMA)
        count = 0
        for count, (form, rows) in enumerate(forms(spark), 1):
            assert orders.append(rows).position == count, form
        collected = [tuple(row) for row in orders.df().collect()]
        assert len(collected) == count
        assert set(collected) == {(1, "a", decimal.Decimal("12.30"), datetime(2024, 1, 2, 3, 4, 5))}  # noqa: DTZ001
        assert orders.append([]).position == count + 1  # nothing is an answer too
        assert [lot.state for lot in orders.lots()][-2:] == ["complete", "empty"]


@pytest.mark.rule("LOT-36")
def test_a_frame_of_spark_sent_again_is_taken_once_too(home: Path, spark: "SparkSession") -> None:
    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT")
        first = orders.append(spark.range(5), producer="p", seq=1)
        assert orders.append(spark.range(5).repartition(3), producer="p", seq=1) == first
        with pytest.raises(TidemillError, match="already sent number 1 to orders@1 with other rows"):
            orders.append(spark.range(6), producer="p", seq=1)
        assert orders.position == 1


REFUSED: dict[str, tuple[Any, str]] = {
    "a column nobody declared": ([{"id": 1, "size": 2}], "row 0 for orders has the unknown column size"),
    "a tuple too long": ([(1, "a", None, None, 5)], "row 0 for orders is"),
    "a text for a number": ([{"id": 1}, {"id": "x"}], r"orders: column id expects BIGINT, got 'x' \(row 1\)"),
    "too large": ([{"id": 2**63}], r"column id expects BIGINT, got .* \(row 0\)"),
    "more places than declared": (
        [{"amount": decimal.Decimal("1.234")}],
        "column amount expects DECIMAL",
    ),
    "a dictionary": ({"id": 1}, "dict is not a collection of rows"),
    "a text": ("1,a", "str is not a collection of rows"),
    "nothing": (None, "NoneType is not a collection of rows"),
    "a number": ([1], "row 0 for orders is neither a dictionary nor a tuple of . values: 1"),
    "arrow with a fraction for a whole": (
        pa.table({"id": pa.array([1.5])}),
        "column id expects BIGINT, got double",
    ),
    "pandas with other columns": (pd.DataFrame({"x": [1]}), "the frame for orders has the unknown column x"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_rows_that_do_not_fit_are_refused_whole(what: str, home: Path) -> None:
    rows, message = REFUSED[what]
    with tm.Pipeline("p", home=home) as pipeline:
        orders = pipeline.dataset("orders", SCHEMA)
        with pytest.raises(AppendRefused, match=message):
            orders.append(rows)
        assert orders.position == 0


@pytest.mark.parametrize(
    ("column", "declared"),
    [
        ("CAST(1.5 AS DOUBLE)", "BIGINT"),
        ("CAST(1.234 AS DECIMAL(10,3))", "DECIMAL(10,2)"),
        ("CAST(4294967296 AS BIGINT)", "INT"),
        ("TIMESTAMP '2024-01-01 10:00:00'", "DATE"),
        ("'x'", "BIGINT"),
        ("CAST(9007199254740993 AS BIGINT)", "DOUBLE"),
    ],
)
def test_a_frame_of_spark_whose_values_would_be_cut_is_refused(
    column: str, declared: str, home: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        orders = pipeline.dataset("orders", f"x {declared}")
        with pytest.raises(AppendRefused, match="the DataFrame for orders cannot be written"):
            orders.append(spark.sql(f"SELECT {column} AS x"))
        assert orders.position == 0


@pytest.mark.rule("LOT-40")
def test_a_table_with_a_key_holds_the_last_write_of_each_key(home: Path, spark: "SparkSession") -> None:
    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        stock = pipeline.dataset("stock", "sku STRING, place INT, n BIGINT", key=["sku", "place"])
        pipeline.view("total", "SELECT sku, sum(n) AS n FROM stock GROUP BY sku")
        stock.upsert([("a", 1, 5), ("a", 2, 7), ("b", 1, 1), ("a", 1, 6)])
        assert content(stock) == [("a", 1, 6), ("a", 2, 7), ("b", 1, 1)]
        assert pipeline.run().ok
        stock.delete([{"sku": "a", "place": 2, "n": 99}, ("b", 1)])
        stock.upsert(spark.createDataFrame([("b", 1, 3)], "sku STRING, place INT, n BIGINT"))
        assert content(stock) == [("a", 1, 6), ("b", 1, 3)]
        assert pipeline.run().ok
        assert content(pipeline["total"]) == [("a", 6), ("b", 3)]
        raw = Counter((row[0], row[3]) for row in shop.table(pipeline, "stock"))  # operations, as they came
        assert raw == {("a", "upsert"): 3, ("a", "delete"): 1, ("b", "upsert"): 2, ("b", "delete"): 1}
        with pytest.raises(AppendRefused, match="does not accept the operation append"):
            stock.append([("c", 1, 1)])
        with pytest.raises(QueryError, match="stock has a key"):
            stock.changes()


@pytest.mark.rule("LOT-41")
def test_a_table_with_deletes_takes_whole_rows_out_and_an_arc_may_follow_with_weights(
    home: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        log = pipeline.dataset("log", "word STRING, n BIGINT", deletes=True)

        @pipeline.arc(reads=log, writes="doubled", changes="raw")
        def double(df: "DataFrame") -> "DataFrame":
            return df.selectExpr("word", "2 * n AS n", "_weight")

        pipeline.view("words", "SELECT word, count(*) AS many FROM doubled GROUP BY word")
        log.append([("a", 1), ("a", 1), ("b", None)])
        log.delete([("a", 1)])
        assert content(log) == [("a", 1), ("b", None)]
        assert pipeline.run().ok
        assert content(pipeline["doubled"]) == [("a", 2), ("b", None)]
        assert content(pipeline["words"]) == [("a", 1), ("b", 1)]
        log.delete([("b", None)])
        assert pipeline.run().ok
        assert content(pipeline["words"]) == [("a", 1)]
        assert changes(log, 1) == [("a", 1, -1, 2), ("b", None, -1, 3)]


@pytest.mark.rule("LOT-42")
@pytest.mark.rule("LOT-6")
def test_appends_of_an_interval_become_one_lot_when_it_is_over(home: Path, spark: "SparkSession") -> None:
    clock = LongLeaseClock.early_in_an_hour()
    with tm.Pipeline("p", home=home, spark=spark, clock=clock) as pipeline:
        ticks = pipeline.dataset("ticks", "id BIGINT", lots="PT1H")

        @pipeline.arc(reads=ticks, writes="out")
        def copy(df: "DataFrame") -> "DataFrame":
            return df

        receipts = [ticks.append([(n,)]) for n in range(3)]
        assert all(receipt.position is None for receipt in receipts)
        assert pipeline.run().ok
        assert pipeline["out"].position == 0, "the hour is not over"
        clock.pass_time(3 * 3600)
        assert pipeline.run().ok
        lots = {lot.lot: lot for lot in pipeline["out"].lots()}
        assert [lot.state for lot in lots.values()] == ["complete", "empty", "empty"]
        assert {receipt.lot for receipt in receipts} == {next(iter(lots))}
        assert [lot.lot for lot in ticks.lots()] == list(lots)
        assert content(ticks) == content(pipeline["out"]) == [(0,), (1,), (2,)]


# --- reading


def temporary_views(spark: "SparkSession") -> set[str]:
    return {row["viewName"] for row in spark.sql("SHOW VIEWS").collect()}


@pytest.mark.rule("LOT-36")
def test_changes_snapshots_and_queries_are_of_one_moment(home: Path, spark: "SparkSession") -> None:
    views = temporary_views(spark)
    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")
        total = pipeline.view("total", "SELECT region, count(*) AS n FROM orders GROUP BY region")
        with pytest.raises(NothingYet, match="orders has no lots yet"):
            orders.df()
        with pytest.raises(NothingYet, match="the view total"):
            total.df()
        assert pipeline.snapshot() == {}
        orders.append([(1, "n"), (2, "s")])
        assert pipeline.run().ok
        before = orders.df()
        orders.append([(3, "n")])
        assert pipeline.run().ok
        assert sorted(row[0] for row in before.collect()) == [1, 2]  # of its moment
        assert changes(orders, 1) == [(3, "n", 1, 2)]
        assert orders.changes(after=2).count() == 0
        step = total.position
        assert changes(total, step - 1) == [("n", 1, -1, step), ("n", 2, 1, step)]
        snapshot = pipeline.snapshot()
        assert set(snapshot) == {"orders", "total"}
        assert sum(row["n"] for row in snapshot["total"].collect()) == snapshot["orders"].count() == 3
        joined = query(pipeline, "SELECT o.id, t.n FROM Orders o JOIN total t USING (region) WHERE t.n > 1")
        assert sorted(tuple(row) for row in joined.collect()) == [(1, 2), (3, 2)]
        with pytest.raises(TidemillError, match="nowhere"):
            query(pipeline, "SELECT * FROM nowhere")
        assert ">1</td>" in orders._repr_html_()
        assert repr(total) == "<View total of p>"
    # No thread of the pipeline runs any more, and none left a view in the session of the user.
    assert temporary_views(spark) <= views


@pytest.mark.rule("LOT-36")
def test_a_query_reads_all_its_tables_as_of_one_moment(
    home: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        tables = [pipeline.dataset(name, "id BIGINT") for name in ("a", "b")]
        for table in tables:
            table.append([(1,)])
        frame_of = reader.dataset_frame

        def append_first(*args: Any) -> "DataFrame":
            """Append to both tables when the first of them is read."""
            monkeypatch.undo()
            for table in tables:
                table.append([(2,)])
            return frame_of(*args)

        monkeypatch.setattr(reader, "dataset_frame", append_first)
        counts = query(pipeline, "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)")
        assert [tuple(row) for row in counts.collect()] == [(1, 1)]


def test_a_dataset_that_is_removed_is_planned_retired_read_and_dropped(
    home: Path, spark: "SparkSession"
) -> None:
    def declared(*names: str) -> tm.Pipeline:
        pipeline = tm.Pipeline("p", home=home, spark=spark)
        for name in names:
            pipeline.dataset(name, "id BIGINT")
        if "old" in names:
            pipeline.arc(reads="old", writes="kept", name="keep")(same)
        return pipeline

    def removed(pipeline: tm.Pipeline) -> set[str]:
        stages = [stage for stage in pipeline.plan().describe() if stage["what"] == "dataset"]
        return {stage["name"] for stage in stages if stage["status"] == "removed"}

    with declared("orders", "old") as pipeline:
        cast(tm.Dataset, pipeline["old"]).append([(1,)])
        cast(tm.Dataset, pipeline["orders"]).append([(1,), (2,)])
        assert removed(pipeline) == set()
        assert pipeline.run().ok
    with declared("orders") as pipeline:
        assert removed(pipeline) == {"old", "kept"}
        assert pipeline.retired() == {}, "a plan changes nothing"
        assert pipeline.run().ok
        assert removed(pipeline) == set()
        assert set(pipeline.retired()) == {"old", "kept"}
        assert [tuple(row) for row in pipeline.retired()["kept"].df().collect()] == [(1,)]
        rows = query(pipeline, "SELECT id FROM orders EXCEPT SELECT id FROM old").collect()
        assert [tuple(row) for row in rows] == [(2,)]
        assert pipeline.retired()["old"].drop()
        with pytest.raises(TidemillError, match="the table old does not exist"):
            query(pipeline, "SELECT id FROM old")
    with declared("orders", "old") as pipeline:
        refused = [error.message for error in pipeline.plan().refusals()]
        assert len(refused) == 1
        assert "old@1 was dropped" in refused[0]


@pytest.mark.rule("LOT-36", "DBSP-7")
def test_each_change_names_the_lots_it_was_made_from(home: Path, spark: "SparkSession") -> None:
    def made_from(table: Table, after: int) -> set[tuple[Any, ...]]:
        rows = table.changes(after).select("id", "_weight", "_position", "_inputs").collect()
        return {
            (*row[:3], tuple((source["dataset"], source["lot"], source["generation"]) for source in row[3]))
            for row in rows
        }

    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT, `x.y` STRING")
        other = pipeline.dataset("other", "id BIGINT")
        pipeline.arc(reads=orders, writes="kept", name="keep")(same)
        view = pipeline.view("v", "SELECT id FROM kept UNION ALL SELECT id FROM other", refresh="full")
        pipeline.view("w", "SELECT id FROM v WHERE id < 2", refresh="full")
        first, second = orders.append([(1, "a")]), orders.append([(2, None)])
        assert made_from(orders, 0) == {(1, 1, 1, ()), (2, 1, 2, ())}, "they came from outside"
        assert pipeline.run().ok
        assert made_from(pipeline["kept"], 0) == {
            (1, 1, 1, (("orders", first.lot, 0),)),
            (2, 1, 2, (("orders", second.lot, 0),)),
        }
        before, step = pipeline["kept"].position, view.position
        orders.replace(first.lot, [(3, "c")])
        third = other.append([(4,)])
        assert pipeline.run().ok
        by = (("orders", first.lot, 1),)
        assert made_from(pipeline["kept"], before) == {(3, 1, 3, by), (1, -1, 3, by)}, (
            "both by the correction"
        )
        taken = {source for row in made_from(view, step) for source in row[3]}
        assert taken == {("kept", first.lot, 1), ("other", third.lot, 0)}
        (gone,) = made_from(pipeline["w"], step)
        assert gone[:2] == (1, -1)
        assert ("kept", first.lot, 1) in gone[3]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(changes_of, "MAX_INPUTS", 0)
            assert {row["_inputs"] for row in view.changes().collect()} == {None}, "more than can be named"


# --- arcs over lots


@pytest.mark.rule("LOT-27")
@pytest.mark.rule("LOT-10")
@pytest.mark.rule("LOT-6")
def test_one_run_takes_many_lots_each_with_a_state_of_its_own_and_never_again(
    home: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("p", home=home, spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT")

        @pipeline.arc(reads=orders, writes="out", max_concurrent=2)
        def copy(df: "DataFrame") -> "DataFrame":
            return df

        for n in range(3):
            orders.append([(n,)] if n != 1 else [])
        report = pipeline.run()
        assert (report.ok, report.arcs[0].complete) == (True, 3)
        assert [lot.state for lot in pipeline["out"].lots()] == ["complete", "empty", "complete"]
        assert [lot.lot for lot in pipeline["out"].lots()] == [lot.lot for lot in orders.lots()]
        again = pipeline.run()
        assert (again.ok, again.arcs) == (True, ())
        shop.clean_up(pipeline)
        assert content(pipeline["out"]) == [(0,), (2,)]
