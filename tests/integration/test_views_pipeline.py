"""Views through the public API: errors with their place, an honest explain, functions, the time of a step."""

import datetime as dt
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemill as tm
from tidemill import crash
from tidemill.cli import main
from tidemill.errors import (
    DeclarationError,
    NameAmbiguous,
    NameUnknown,
    NotIncremental,
    QueryError,
    QueryRefused,
    StoreCorrupt,
    ViewRefused,
)
from tidemill.events import Event
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.explanation import retry_certification
from tidemill.pipeline.plan import catalog, circuits, planned_queries
from tidemill.publish.manifests import Manifests
from tidemill.runner import certifier
from tidemill.spark.planning_memo import PlanningMemo
from tidemill.store import Tx
from tidemill.testing.threads import STUCK_S
from tidemill.views.certify import tester
from tidemill.views.certify.bounds import BoundExceeded
from tidemill.views.certify.certificates import CertificateLate, ViewCertified, ViewNotCertified
from tidemill.views.steps import commits
from tidemill.views.steps.events import RowsSetAside, StepAbandoned, StepCommitted, StepTimed
from tidemill.views.steps.inputs import InputReader, LotSlice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = "id BIGINT, region STRING, amount DOUBLE, at TIMESTAMP"
HERE = Path(__file__).name


@pytest.fixture
def shop(tmp_path: Path, spark: "SparkSession") -> Iterator[tm.Pipeline]:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as pipeline:
        pipeline.dataset("orders", ORDERS)
        pipeline.dataset("regions", "region STRING, name STRING", key="region")
        yield pipeline


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.df().collect()), key=repr)


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


# --- errors


def test_an_unknown_column_is_shown_in_the_users_file(shop: tm.Pipeline) -> None:
    shop.view(
        "totals",
        """
        SELECT region, sum(amuont) AS total  -- here
        FROM orders GROUP BY region""",
    )
    with pytest.raises(NameUnknown) as caught:
        shop.plan()
    line = line_of("sum(amuont) AS total")
    column = "        SELECT region, sum(amuont)".index("amuont") + 1
    assert f"{HERE}:{line}:{column}: there is no column amuont" in caught.value.message
    assert caught.value.hint == "did you mean amount?"
    assert (caught.value.line, caught.value.near) == (2, ("amount",))


@pytest.mark.parametrize(
    ("sql", "kind", "pattern"),
    [
        ("SELECT id FROM oders", NameUnknown, "oders"),
        ("SELECT region FROM orders o JOIN regions r ON o.region = r.region", NameAmbiguous, "is ambiguous"),
        ("SELECT FROM WHERE", QueryError, "line 1"),
        ("SELECT id FROM orders WHERE", QueryError, "line 1"),
        ("SELECT no_such(id) AS x FROM orders", QueryRefused, "no_such"),
        ("SELECT sum(region) + id AS x FROM orders", QueryRefused, "GROUP|group"),
    ],
)
def test_a_query_that_is_none_is_told_with_its_line_and_nothing_is_stored(
    shop: tm.Pipeline, sql: str, kind: type[QueryError], pattern: str
) -> None:
    shop.view("v", sql)
    with pytest.raises(kind, match=pattern) as caught:
        shop.plan()
    assert HERE in caught.value.message
    assert not isinstance(caught.value, DeclarationError)
    assert shop["v"].position == 0


def test_a_view_that_reads_itself_is_refused(shop: tm.Pipeline) -> None:
    shop.view("v", "SELECT id FROM v UNION SELECT id FROM orders")
    with pytest.raises(DeclarationError, match="form a cycle"):
        shop.plan()


@pytest.mark.rule("DBSP-17")
@pytest.mark.parametrize(
    ("sql", "pattern"),
    [
        ("SELECT id, rand() AS r FROM orders", "rand"),
        ("SELECT id, now() AS n FROM orders", "clock"),
        ("SELECT o.id FROM orders o JOIN regions r ON o.region <> r.region", "no equality"),
        ("SELECT id FROM orders ORDER BY id LIMIT 3000", "first rows depend on the order"),
        ("SELECT id, stddev(id) OVER () AS r FROM orders", "without PARTITION BY"),
    ],
)
def test_incremental_refuses_instead_of_recomputing(shop: tm.Pipeline, sql: str, pattern: str) -> None:
    shop.view("v", sql, refresh="incremental")
    with pytest.raises(NotIncremental, match=pattern) as caught:
        shop.plan()
    assert HERE in caught.value.message


@pytest.mark.rule("DBSP-17")
def test_incremental_takes_what_follows_the_change(shop: tm.Pipeline) -> None:
    view = shop.view("v", "SELECT region, count(*) AS n FROM orders GROUP BY region", refresh="incremental")
    assert view.explain().json()["runs"] == "incremental"


# --- planning


def test_a_query_is_planned_once_in_a_process_and_a_changed_declaration_again(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned_queries, "_planned", PlanningMemo())
    planned: list[str] = []
    make = circuits.make

    def counted(session: Any, sql: str, *rest: Any) -> circuits.ViewCircuit:
        planned.append(sql)
        return make(session, sql, *rest)

    monkeypatch.setattr(circuits, "make", counted)
    totals = "SELECT region, count(*) AS n FROM orders GROUP BY region"
    large = "SELECT * FROM totals WHERE n > 1"

    def plans(home: str, sql: str = totals, columns: str = "id BIGINT, region STRING", **options: Any) -> int:
        planned.clear()
        with tm.Pipeline("shop", home=tmp_path / home, spark=spark) as pipeline:
            pipeline.dataset("orders", columns, **options)
            pipeline.view("totals", sql)
            pipeline.view("large", large)
            if home == "functions":
                pipeline.view("unknown", "SELECT unheard_of(id) AS x FROM orders")
            programs = {view.name: view for view in pipeline.plan().program.groups["views:shop/main"].views}
            assert all(program.circuit is not None for program in programs.values())
            assert programs["totals"].schema == programs["large"].schema
        return len(planned)

    assert plans("first") == 2
    assert plans("first") == plans("second") == 0, "also for another pipeline in this process"
    assert plans("third", columns="id BIGINT, region INT") == 2, "other types, also of the view that is read"
    assert plans("fourth", key="id") == 1, "rows can be removed; of the view that was always true"
    assert plans("fifth", totals.replace("count(*)", "count(id)")) == 1
    spark.conf.set("spark.sql.groupByOrdinal", "false")
    try:
        assert plans("sixth") == 2
    finally:
        spark.conf.unset("spark.sql.groupByOrdinal")
    spark.udf.register("unheard_of", lambda value: value, "BIGINT")
    try:
        assert plans("functions") == 1
        assert plans("functions") == 1, "the function of a session may change"
    finally:
        spark.sql("DROP TEMPORARY FUNCTION unheard_of")


def test_another_process_finds_the_plans_of_queries_in_the_store(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = circuits.make

    def counted(session: Any, sql: str, *rest: Any) -> circuits.ViewCircuit:
        made.append(sql)
        return make(session, sql, *rest)

    monkeypatch.setattr(circuits, "make", counted)
    totals = "SELECT region, count(*) AS n FROM orders GROUP BY region"
    joined = "SELECT o.id, t.n FROM orders o JOIN totals t ON o.region = t.region ORDER BY o.id LIMIT 5"
    recent = "SELECT id FROM orders WHERE at > now() - INTERVAL 1 DAY"

    def plan(sql: str = totals) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(planned_queries, "_planned", PlanningMemo())  # as in a new process
        made.clear()
        with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as pipeline:
            pipeline.dataset("orders", ORDERS)
            for name, text in {"totals": sql, "joined": joined, "recent": recent}.items():
                pipeline.view(name, text)
            plan = pipeline.plan()
            plan.apply("node")
        views = plan.program.groups["views:shop/main"].views
        facts = {view.name: (view.circuit, view.schema, view.clock, view.code) for view in views}
        return len(made), {"views": facts, "notes": plan.circuits["joined"].notes}

    first = plan()
    assert first[0] == 3
    assert plan() == (0, first[1])
    assert plan(totals.replace("count(*)", "count(id)"))[0] == 1
    assert plan()[0] == 1, "each view has one row"
    monkeypatch.setattr(planned_queries, "release_digest", lambda: b"the next release")
    assert plan()[0] == 3
    assert plan() == (0, first[1])
    version = str(spark.version)
    engine = catalog.engine_of(spark)
    monkeypatch.setattr(catalog, "engine_of", lambda _: engine._replace(version=f"{version}.1"))
    assert plan()[0] == 3
    settings = engine.settings | {("spark.sql.session.timeZone", "Asia/Tokyo")}
    monkeypatch.setattr(catalog, "engine_of", lambda _: engine._replace(settings=settings))
    assert plan()[0] == 3
    assert plan() == (0, first[1])


def test_a_damaged_plan_of_a_query_is_made_again(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(damage: Callable[[bytes], bytes] | None = None) -> str:
        monkeypatch.setattr(planned_queries, "_planned", PlanningMemo())  # as in a new process
        with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as pipeline:
            pipeline.dataset("orders", ORDERS)
            pipeline.view("ids", "SELECT id FROM orders")
            context = pipeline.context
            key = context.keys.planned["shop", "ids"]

            def change(tx: Tx) -> None:
                raw = tx.get(key)
                assert raw is not None
                assert damage is not None
                tx.set(key, damage(raw))

            if damage is not None:
                context.store.run(change)
            plan = pipeline.plan()
            plan.apply("node")
        return plan.program.groups["views:shop/main"].views[0].schema

    columns = plan()
    assert plan(lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])) == columns
    assert plan(lambda _: msgspec.msgpack.encode(planned_queries.StoredQuery(b"", b"foreign"))) == columns
    with pytest.raises(StoreCorrupt):
        plan(lambda raw: raw[: len(raw) // 2])


def test_a_run_without_work_makes_as_many_transactions_for_eight_views_as_for_two(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    def transactions(views: int) -> int:
        with tm.Pipeline("shop", home=tmp_path / str(views), spark=spark) as pipeline:
            orders = pipeline.dataset("orders", ORDERS)
            for number in range(views):
                query = f"SELECT region, count(*) + {number} AS n FROM orders GROUP BY region"
                pipeline.view(f"v{number}", query, refresh="full")
            orders.append([(1, "n", 2.0, None)])
            assert pipeline.run().ok
            plan = pipeline.plan()
            counted: list[object] = []
            store = pipeline.context.store
            run = store.run

            def counting(*arguments: Any, **options: Any) -> Any:
                counted.append(arguments)
                return run(*arguments, **options)

            monkeypatch.setattr(store, "run", counting)
            pipeline.plan()
            plan.apply("node")
            return len(counted)

    assert transactions(8) == transactions(2)


# --- explain


def test_explain_says_the_rung_of_each_operator_and_how_steps_are_computed(
    shop: tm.Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.view("big", "SELECT id, region FROM orders WHERE amount > 10")
    view = shop.view(
        "named",
        "SELECT r.name, count(*) AS n FROM big b JOIN regions r ON b.region = r.region GROUP BY r.name",
    )
    explained = view.explain()
    text = repr(explained)
    assert "each step processes only the changes" in text
    assert "not yet compared" in text
    assert "amount > 10" in text, "down to the datasets, through the other view"
    kinds = {operator["kind"]: operator["rung"] for operator in explained.json()["circuit"]["operators"]}  # type: ignore[index]
    assert kinds["inner join"] == "native"
    assert kinds["filter"] == "linear"
    assert explained.drawing().startswith("<svg")
    shop["orders"].append([(1, "n", 20.0, None)])  # type: ignore[attr-defined]
    shop["regions"].upsert([("n", "north")])  # type: ignore[attr-defined]
    assert shop.run().ok
    assert "equal to plain Spark (exact)" in view.explain().text()
    assert rows(view) == [("north", 1)], "a view over a view, in one step"
    monkeypatch.setattr("tidemill.cli.explain.find", lambda file: shop)
    picture = tmp_path / "named.svg"
    assert main(["explain", "named", "--json", "--draw", str(picture)]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["runs"] == "incremental"
    assert answer["certified"] is True
    assert picture.read_text().startswith("<svg")
    assert main(["explain", "orders"]) == 1


# --- certification


@pytest.mark.rule("DBSP-19")
def test_a_view_is_certified_once_for_its_code_and_a_mismatch_is_loud(
    shop: tm.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    shop.view("totals", "SELECT region, count(*) AS n FROM orders GROUP BY region")
    shop["orders"].append([(1, "n", 2.0, None)])  # type: ignore[attr-defined]
    assert shop.run(emit=events.append).ok
    assert [event.view for event in events if isinstance(event, ViewCertified)] == ["totals"]
    events.clear()
    assert shop.run(emit=events.append).ok
    assert not [event for event in events if isinstance(event, ViewCertified)], "not again"

    honest = circuits.make
    monkeypatch.setattr(planned_queries, "_planned", PlanningMemo())
    monkeypatch.setattr(planned_queries, "release_digest", lambda: b"the next release")

    def wrong(spark: Any, sql: str, *rest: Any) -> circuits.ViewCircuit:
        """A normaliser that forgets rows whose region is NULL."""
        return honest(spark, sql.replace("FROM orders", "FROM orders WHERE region IS NOT NULL"), *rest)

    monkeypatch.setattr(circuits, "make", wrong)
    assert shop.run(emit=events.append).ok
    (loud,) = [event for event in events if isinstance(event, ViewNotCertified)]
    assert loud.view == "totals"
    assert "missing (None," in loud.why
    (line,) = [entry for entry in shop.plan().describe() if entry["what"] == "circuit"]
    assert "NOT equal to plain Spark" in line["detail"]
    assert rows(shop["totals"]) == [("n", 1)], "the query itself is what is run"
    assert "NOT equal" in shop["totals"].explain().text()  # type: ignore[attr-defined]


@pytest.mark.rule("DBSP-19")
def test_a_view_that_cannot_be_compared_is_recomputed_and_says_why(
    shop: tm.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []

    def fails(*args: Any, **options: Any) -> Any:
        raise BoundExceeded("it took longer than 120 s")

    certify_circuits = tester.certify_circuits
    monkeypatch.setattr(tester, "certify_circuits", fails)
    view = shop.view("totals", "SELECT region, count(*) AS n FROM orders GROUP BY region")
    shop["orders"].append([(1, "n", 2.0, None)])  # type: ignore[attr-defined]
    assert shop.run(emit=events.append).ok
    (event,) = [event for event in events if isinstance(event, ViewNotCertified)]
    assert event.why == "it took longer than 120 s"
    assert rows(view) == [("n", 1)]
    explanation = view.explain()
    assert explanation.json()["runs"] == "full"
    assert "it is not certified" in explanation.text()
    assert "not compared: it took longer than 120 s" in explanation.text()
    monkeypatch.setattr(tester, "certify_circuits", certify_circuits)
    assert shop.run(emit=events.append).ok
    assert not [event for event in events if isinstance(event, ViewCertified)], "the attempt is not repeated"
    assert retry_certification(shop, "totals")
    assert not retry_certification(shop, "totals")
    assert shop.run(emit=events.append).ok
    assert [event.view for event in events if isinstance(event, ViewCertified)] == ["totals"]
    assert view.explain().json()["runs"] == "incremental"
    shop["orders"].append([(2, "n", 2.0, None)])  # type: ignore[attr-defined]
    assert shop.run().ok
    assert rows(view) == [("n", 2)]


class LateComparison:
    """Comparisons that end when a test lets them end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        certify_circuits = tester.certify_circuits
        self._opened = threading.Event()

        def certify_late(*args: Any, **options: Any) -> Any:
            assert self._opened.wait(STUCK_S)
            return certify_circuits(*args, **options)

        monkeypatch.setattr(tester, "certify_circuits", certify_late)

    def end(self) -> None:
        self._opened.set()


@pytest.mark.rule("DBSP-19", "DBSP-20", "DBSP-22")
def test_a_view_without_a_certificate_is_recomputed_and_switches_without_a_difference(
    shop: tm.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step after the certificate builds the traces. Rows are neither lost nor doubled."""
    late = LateComparison(monkeypatch)
    monkeypatch.setattr(certifier, "WAIT_S", 0.0)
    orders: Any = shop["orders"]
    totals = shop.view("totals", "SELECT region, count(*) AS n, sum(id) AS s FROM orders GROUP BY region")
    top = shop.view("top", "SELECT region, s FROM totals WHERE s > 1")
    past = shop.view("past", "SELECT id FROM orders WHERE at < now()")
    orders.append([(1, "n", 2.0, None), (2, "n", 5.0, None), (3, None, 1.0, None)])
    events: list[Event] = []

    def follow(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepCommitted):
            late.end()  # the first result is visible before the comparison ends

    assert shop.run(emit=follow).ok
    assert {event.view for event in events if isinstance(event, CertificateLate)} == {"totals", "top", "past"}
    assert {event.view for event in events if isinstance(event, ViewCertified)} == {"totals", "top", "past"}
    assert rows(totals) == [("n", 2, 3), (None, 1, 3)]
    events.clear()
    orders.append([(4, "s", 2.0, None)])
    assert shop.run(emit=events.append).ok
    assert [event for event in events if isinstance(event, StepTimed)], "a chain has computed this step"
    changed = totals.changes(after=1).collect()
    assert [(row["region"], row["n"], row["_weight"]) for row in changed] == [("s", 1, 1)]
    assert rows(top) == [("n", 3), ("s", 4), (None, 3)]
    assert rows(past) == []
    orders.append([(5, "s", 2.0, None)])
    assert shop.run().ok
    plain = orders.df().groupBy("region").agg({"*": "count", "id": "sum"}).collect()
    assert rows(totals) == sorted(map(tuple, plain), key=repr)


@pytest.mark.rule("DBSP-19")
def test_a_wrong_circuit_is_found_before_its_first_step_is_visible(
    shop: tm.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load uses the circuit while it is compared. It is discarded, and the view is recomputed."""
    honest = circuits.make
    monkeypatch.setattr(planned_queries, "_planned", PlanningMemo())

    def wrong(spark: Any, sql: str, *rest: Any) -> circuits.ViewCircuit:
        return honest(spark, sql.replace("FROM orders", "FROM orders WHERE region IS NOT NULL"), *rest)

    monkeypatch.setattr(circuits, "make", wrong)
    late = LateComparison(monkeypatch)
    events: list[Event] = []

    def follow(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepTimed):
            late.end()  # the wrong circuit has computed the step

    view = shop.view("totals", "SELECT region, count(*) AS n FROM orders GROUP BY region")
    shop["orders"].append([(1, "n", 2.0, None), (2, None, 2.0, None)])  # type: ignore[attr-defined]
    report = shop.run(emit=follow)
    assert report.ok, report
    assert [event.view for event in events if isinstance(event, ViewNotCertified)] == ["totals"]
    assert [event for event in events if isinstance(event, StepAbandoned)], "the first attempt"
    assert rows(view) == [("n", 1), (None, 1)]
    assert len(view.lots()) == 1
    assert view.explain().json()["runs"] == "full"


@pytest.mark.rule("DBSP-19")
@pytest.mark.parametrize("point", ["certify.begin.after", "certify.finish.before", "certify.finish.after"])
def test_a_kill_during_the_comparison_does_not_leave_the_view_recomputed(
    shop: tm.Pipeline, point: str
) -> None:
    events: list[Event] = []
    view = shop.view("totals", "SELECT region, count(*) AS n FROM orders GROUP BY region")
    shop["orders"].append([(1, "n", 2.0, None)])  # type: ignore[attr-defined]
    with crash.armed(point), pytest.raises(crash.Crashed):
        shop.run()
    assert shop.run(emit=events.append).ok
    certified = [event.view for event in events if isinstance(event, ViewCertified)]
    assert certified == ([] if point == "certify.finish.after" else ["totals"])
    assert view.explain().json()["runs"] == "incremental"
    assert rows(view) == [("n", 1)]
    assert len(view.lots()) == 1


# --- the clock


def test_now_is_the_time_of_the_step(tmp_path: Path, spark: "SparkSession") -> None:
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT, at TIMESTAMP")
        other = pipeline.dataset("other", "id BIGINT")
        view = pipeline.view(
            "recent",
            "SELECT id, now() AS n, current_date() AS d, current_timestamp, now() = current_timestamp() AS s,"
            " at < now() AS past FROM orders",
        )
        pipeline.view("elsewhere", "SELECT count(*) AS n FROM other")
        orders.append(
            [(1, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)), (2, dt.datetime(2999, 1, 1, tzinfo=dt.UTC))]
        )
        assert pipeline.run().ok
        first = rows(view)
        assert view.df().columns == ["id", "n", "d", "current_timestamp()", "s", "past"]
        assert [(row[0], row[4], row[5]) for row in first] == [(1, True, True), (2, True, False)]
        assert len({row[1] for row in first} | {row[3] for row in first}) == 1
        assert first[0][1].date() == first[0][2]
        other.append([(1,)])
        assert pipeline.run().ok
        second = rows(view)
        assert second[0][1] > first[0][1], "another step of the group is another time"
        gone = [row for row in view.changes(after=1).collect() if row["_weight"] < 0]
        assert {row["n"] for row in gone} == {first[0][1]}, "what was stored is what is taken back"


# --- functions


@pytest.mark.rule("DBSP-18", "DBSP-19")
def test_a_view_may_be_a_function_that_is_declared_and_one_that_lies_is_told(shop: tm.Pipeline) -> None:
    events: list[Event] = []

    def biggest(orders: "DataFrame", regions: "DataFrame") -> "DataFrame":
        return orders.join(regions, "region").groupBy("region").agg({"amount": "max"}).toDF("region", "most")

    shop.view("doubled", lambda df: df.selectExpr("id", "amount * 2 AS twice"), reads="orders", linear=True)
    shop.view("most", biggest, reads=["orders", "regions"], keyed_by="region")
    shop.view("n", lambda df: df.groupBy().count(), reads=[shop["doubled"]], full=True)
    shop.view("lies", lambda df: df.select("region").distinct(), reads="orders", linear=True)
    shop["orders"].append([(1, "n", 2.0, None), (2, "n", 5.0, None)])  # type: ignore[attr-defined]
    shop["regions"].upsert([("n", "north")])  # type: ignore[attr-defined]
    assert shop.run(emit=events.append).ok
    kinds = {event.view: event.kind for event in events if isinstance(event, ViewCertified)}
    assert kinds == {"doubled": "linear", "most": "keyed by region"}
    (loud,) = [event for event in events if isinstance(event, ViewNotCertified)]
    assert loud.view == "lies"
    assert "declared linear but is not" in loud.why
    assert rows(shop["lies"]) == [("n",)], "it is run on whole tables"
    assert "declared linear but is not" in shop["lies"].explain().text()  # type: ignore[attr-defined]
    assert rows(shop["doubled"]) == [(1, 4.0), (2, 10.0)]
    assert rows(shop["most"]) == [("n", 5.0)]
    assert rows(shop["n"]) == [(2,)]
    shop["regions"].delete([("n",)])  # type: ignore[attr-defined]
    assert shop.run().ok
    assert rows(shop["most"]) == []
    assert "declared keyed by region" in repr(shop["most"].explain())  # type: ignore[attr-defined]


@pytest.mark.rule("DBSP-18")
def test_a_function_says_what_it_reads_and_what_it_is(shop: tm.Pipeline) -> None:
    def same(df: "DataFrame") -> "DataFrame":
        return df

    for wrong in (
        {"linear": True},
        {"reads": "orders"},
        {"reads": "orders", "linear": True, "full": True},
    ):
        with pytest.raises(DeclarationError, match="is a function"):
            shop.view("v", same, **wrong)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="are for functions"):
        shop.view("v", "SELECT 1 AS x", full=True)
    shop.view("v", same, reads="orders", keyed_by="colour")
    with pytest.raises(DeclarationError, match='no column "colour" to use as a key'):
        shop.plan()


def test_a_function_that_returns_no_frame_is_told_with_its_line(shop: tm.Pipeline) -> None:
    shop.view("v", lambda df: df.count(), reads="orders", full=True)
    with pytest.raises((ViewRefused, DeclarationError), match="returned int") as caught:
        shop.plan()
    assert HERE in caught.value.message


# --- datasets that change


@pytest.mark.rule("DBSP-8", "LOT-30")
def test_a_replaced_lot_is_as_if_the_first_generation_had_never_been(shop: tm.Pipeline) -> None:
    """Through two views, one over the other, and again when the lot is taken back."""
    shop.view("big", "SELECT id, region, amount FROM orders WHERE amount > 1")
    view = shop.view(
        "totals",
        "SELECT region, count(*) AS n, max(amount) AS most, collect_set(id) AS ids FROM big GROUP BY region",
    )
    orders = shop["orders"]
    assert isinstance(orders, tm.Dataset)
    first = orders.append([(1, "n", 5.0, None), (2, "s", 9.0, None)])
    orders.append([(3, "n", 2.0, None)])
    assert shop.run().ok
    orders.replace(str(first.lot), [(1, "n", 1.0, None), (4, "w", 7.0, None)])
    assert shop.run().ok
    assert rows(view) == [("n", 1, 2.0, [3]), ("w", 1, 7.0, [4])]
    net: dict[Any, int] = {}
    for row in view.changes().collect():
        key = (row["region"], row["n"], row["most"], tuple(row["ids"]))
        net[key] = net.get(key, 0) + row["_weight"]
    assert {key for key, weight in net.items() if weight} == {("n", 1, 2.0, (3,)), ("w", 1, 7.0, (4,))}
    orders.remove(str(first.lot))
    assert shop.run().ok
    assert rows(view) == [("n", 1, 2.0, [3])]
    assert rows(shop["big"]) == [(3, "n", 2.0)]


@pytest.mark.rule("DBSP-21")
def test_a_deletion_of_a_row_that_is_not_there_is_set_aside_told_and_netted_later(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    events: list[Event] = []
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        stock = pipeline.dataset("stock", "item STRING, n INT", deletes=True)
        view = pipeline.view("counts", "SELECT item, count(*) AS n, sum(n) AS total FROM stock GROUP BY item")
        stock.append([("a", 1), ("a", 1)])
        stock.delete([("a", 1), ("b", 2), ("b", 2), (None, None)])
        assert pipeline.run(emit=events.append).ok
        assert rows(view) == [("a", 1, 1)], "what is not there takes nothing away"
        (aside,) = [event for event in events if isinstance(event, RowsSetAside)]
        assert aside.rows == {"stock": 2}, "two different rows"
        (row,) = [row for row in step_rows(pipeline) if row.quarantined is not None]
        assert row.quarantined is not None
        kept = [
            (*tuple(record.values())[:2], record["_weight"])
            for item in Manifests(pipeline.context.objects, pipeline.context.clock).lot_objects(
                row.quarantined.manifest
            )
            for record in pq.read_table(
                pa.BufferReader(pipeline.context.objects.get(item.uri)[0])
            ).to_pylist()
        ]
        assert sorted(kept, key=repr) == [("b", 2, -2), (None, None, -1)]
        events.clear()
        stock.append([("b", 2), ("b", 2), ("b", 2), (None, None)])
        assert pipeline.run(emit=events.append).ok
        assert rows(view) == [("a", 1, 1), ("b", 1, 2)], "two insertions met their deletions"
        assert not [event for event in events if isinstance(event, RowsSetAside)]


@pytest.mark.rule("DBSP-17", "DBSP-21")
def test_steps_after_a_stray_delete_read_only_what_changed(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_reads: list[str] = []
    read_whole = InputReader.at

    def counted_at(self: InputReader, dataset: DatasetId, position: int) -> list[LotSlice]:
        whole_reads.append(dataset.name)
        return read_whole(self, dataset, position)

    events: list[Event] = []
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        stock = pipeline.dataset("stock", "item STRING, at TIMESTAMP, n DECIMAL(10,2)", deletes=True)
        view = pipeline.view("counts", "SELECT item, count(*) AS n FROM stock GROUP BY item")
        stock.append([("a", None, 1)])
        assert pipeline.run().ok
        monkeypatch.setattr(InputReader, "at", counted_at)
        stray = ("b", dt.datetime(2024, 1, 2, tzinfo=dt.UTC), 2)
        stock.delete([stray])
        assert pipeline.run(emit=events.append).ok
        assert [event.rows for event in events if isinstance(event, RowsSetAside)] == [{"stock": 1}]
        (row,) = [row for row in step_rows(pipeline) if row.quarantined is not None]
        assert row.quarantined is not None
        (item,) = Manifests(pipeline.context.objects, pipeline.context.clock).lot_objects(
            row.quarantined.manifest
        )
        body = pa.BufferReader(pipeline.context.objects.get(item.uri)[0])
        (record,) = pq.read_table(body).to_pylist()
        assert (record["item"], record["n"], record["_weight"]) == ("b", 2, -1)
        events.clear()
        stock.append([("c", None, 1)])
        stock.delete([("a", None, 1)])
        assert pipeline.run(emit=events.append).ok
        assert whole_reads == [], "no step lists all lots of the dataset"
        assert rows(view) == [("c", 1)]
        assert not [event for event in events if isinstance(event, RowsSetAside)]


def step_rows(pipeline: tm.Pipeline) -> list[commits.StepRow]:
    site = pipeline.context
    return site.store.run(lambda tx: commits.rows(tx, site.keys, pipeline.name, "main", 0, 1 << 60))


@pytest.mark.rule("LOT-40")
def test_a_keyed_dataset_is_in_views_what_was_written_last(shop: tm.Pipeline) -> None:
    """Upserts and deletes by key, several of one key in a step, seen through a view and its changes."""
    view = shop.view("named", "SELECT name, count(*) AS n FROM regions GROUP BY name")
    regions = shop["regions"]
    assert isinstance(regions, tm.Dataset)
    regions.upsert([("n", "north"), ("s", "south"), ("n", "nord")])
    assert shop.run().ok
    assert rows(view) == [("nord", 1), ("south", 1)]
    regions.upsert([("n", "south")])
    regions.delete([("s",), ("x",)])
    regions.upsert([("s", None)])
    assert shop.run().ok
    assert rows(view) == [("south", 1), (None, 1)]
    last = {(row["name"], row["n"]): row["_weight"] for row in view.changes(after=1).collect()}
    assert last == {("nord", 1): -1, (None, 1): 1}, "only what is other than before"


def test_changes_of_a_view_do_not_continue_over_other_columns_or_a_new_declaration(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    """A reader that added the changes up would have the old and the new rows."""

    def step(query: str = "", append: int = 0) -> tm.Table:
        """Run the pipeline with this query as its view, or without a view; return the view."""
        shop = tm.Pipeline("shop", home=tmp_path / "home", spark=spark)
        events = shop.dataset("events", "id BIGINT, kind STRING")
        view = shop.view("a", query, refresh="full") if query else events
        if append:
            events.append([(append, "x"), (append, "y")])
        assert shop.run().ok
        return view

    def summed(view: tm.Table, after: int) -> Counter[tuple[object, ...]]:
        sums: Counter[tuple[object, ...]] = Counter()
        for row in view.changes(after).drop("_inputs", "_position").collect():
            sums[row[:-1]] += row[-1]
        return Counter({key: count for key, count in sums.items() if count})

    few = "SELECT kind, count(*) n FROM events GROUP BY kind"
    more = "SELECT kind, count(*) n, max(id) m FROM events GROUP BY kind"
    first = step(few, append=1).position
    view = step(more)
    second = view.position
    with pytest.raises(ViewRefused, match=f"at position {second}.*at position {first}") as error:
        view.changes(after=first)
    assert f"after position {second}" in error.value.hint
    assert summed(view, second) == {}
    step()  # the group is removed
    view = step(more)
    with pytest.raises(ViewRefused, match=f"declared again after position {second}"):
        view.changes(after=second)
    assert summed(view, 0) == {("x", 1, 1): 1, ("y", 1, 1): 1}


# --- money


def test_transfers_between_accounts_come_to_nothing_after_every_step(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    """Ten accounts, many transfers of one unit: credits, debits and balances move, their total never does."""
    chance = random.Random(5)
    with tm.Pipeline("bank", home=tmp_path / "home", spark=spark) as bank:
        moves = bank.dataset("moves", "source INT, target INT, amount BIGINT")
        bank.view("credits", "SELECT target AS account, sum(amount) AS amount FROM moves GROUP BY target")
        bank.view("debits", "SELECT source AS account, sum(amount) AS amount FROM moves GROUP BY source")
        bank.view(
            "balance",
            "SELECT account, coalesce(c.amount, 0L) - coalesce(d.amount, 0L) AS amount"
            " FROM credits c FULL JOIN debits d USING (account)",
        )
        total = bank.view("total", "SELECT sum(amount) AS amount FROM balance")
        balances: dict[int, int] = {}
        for _ in range(2):
            made = [(chance.randrange(10), chance.randrange(10), 1) for _ in range(50_000)]
            for source, target, _ in made:
                balances[source] = balances.get(source, 0) - 1
                balances[target] = balances.get(target, 0) + 1
            moves.append(made)
            assert bank.run().ok
            assert rows(total) == [(0,)]
            assert rows(bank["balance"]) == sorted(balances.items(), key=repr)
        assert [row["amount"] for row in total.changes().collect()] == [0], "and it never was another"


# --- arcs over what changes


@pytest.mark.rule("LOT-41")
def test_a_linear_arc_follows_deletions_and_one_that_is_not_is_refused(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        stock = pipeline.dataset("stock", "item STRING, n INT", deletes=True)

        @pipeline.arc(reads=stock, writes="split", changes="linear")
        def split(df: "DataFrame") -> "DataFrame":
            assert "_weight" not in df.columns
            return df.where("n > 0").selectExpr("item", "explode(sequence(1, n)) AS place")

        stock.append([("a", 2), ("b", 1), ("c", 0)])
        assert pipeline.run().ok
        stock.delete([("a", 2)])
        stock.append([("c", 1)])
        assert pipeline.run().ok
        assert rows(pipeline["split"]) == [("b", 1), ("c", 1)]

        @pipeline.arc(reads=stock, writes="counted", changes="linear")
        def counted(df: "DataFrame") -> "DataFrame":
            return df.groupBy("item").count()

        with pytest.raises(DeclarationError, match="counted is declared linear but is not"):
            pipeline.plan()


@pytest.mark.rule("DBSP-20")
def test_ties_are_broken_alike_in_whatever_order_rows_came(tmp_path: Path, spark: "SparkSession") -> None:
    results = []
    for home, turn in (("one", 1), ("other", -1)):
        with tm.Pipeline("ties", home=tmp_path / home, spark=spark) as pipeline:
            table = pipeline.dataset("t", "id BIGINT, grade INT")
            view = pipeline.view("best", "SELECT id, grade FROM t ORDER BY grade DESC LIMIT 3")
            for row in [(n, n % 2) for n in range(8)][::turn]:
                table.append([row])
            assert pipeline.run().ok
            results.append(rows(view))
    assert results[0] == results[1]
    assert [grade for _, grade in results[0]] == [1, 1, 1]
