"""Certification executes the chain that runs, in both places: a fault of any part is found (DBSP-19)."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.integration import views_oracle
from tidemill.spark import queries, schema
from tidemill.spark.lot_reader import no_rows
from tidemill.spark.sessions import separate_session
from tidemill.spark.small_queries import FOR_SMALL_QUERIES
from tidemill.views.certify import circuit_comparison
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.certify.circuit_comparison import GeneratedTables, certify_circuits
from tidemill.views.certify.executed_chain import ExecutedViews
from tidemill.views.certify.generated_lots import GeneratedLots
from tidemill.views.certify.table_facts import facts_of
from tidemill.views.certify.view_tests import CircuitTest
from tidemill.views.chain import native_operators
from tidemill.views.chain.chain import InputKind
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.spark import in_process_executor, shared_projection, spark_executor
from tidemill.views.spark.group_chain import GroupChain, group_chain

DDL = {
    "t": "a INT, b INT, x DOUBLE, ts TIMESTAMP, tn TIMESTAMP_NTZ, v VARCHAR(8)",
    "u": "a INT, s CHAR(3)",
}
STAGED = {name: str(schema.parse(columns).unlimited()) for name, columns in DDL.items()}
QUERIES = {
    "sums": "SELECT a, sum(b) AS s, count(*) AS n, avg(x) AS m FROM t GROUP BY a",
    "joined": "SELECT t.a, t.b, u.s FROM t JOIN u ON t.a = u.a",
    "texts": "SELECT a + 1 AS p, upper(v) AS v FROM t WHERE b > 0",
    "distinct": "SELECT DISTINCT x, ts, tn FROM t",
    "top": "SELECT a, b FROM t ORDER BY b DESC LIMIT 3",
    "filtered": "SELECT a, bool_or(b > 2) FILTER (WHERE b > 1) OVER (ORDER BY b) AS r FROM t",
}


MORE = {
    "more texts": "SELECT lower(v) AS v, b FROM t WHERE b > 1",
    "stamps": "SELECT to_json(struct(tn)) AS j FROM (SELECT DISTINCT tn FROM t)",
}


def circuit_tests(spark: Any, tables: Any, texts: dict[str, str]) -> list[CircuitTest]:
    written = {name: views_oracle.compiled(spark, tables, sql).output for name, sql in texts.items()}
    return [
        CircuitTest(view=name, sql=sql, output=rewrite(written[name]), written=written[name], tables=DDL)
        for name, sql in texts.items()
    ]


def certified(spark: Any, tests: list[CircuitTest], **before: Any) -> dict[str, ViewCertificate]:
    facts = facts_of(test.output for test in tests)
    with GeneratedTables(spark, DDL, facts=facts) as tables:
        results = certify_circuits(spark, tests, tables, **before)
    return {test.view: result for test, result in zip(tests, results, strict=True)}


@pytest.mark.rule("DBSP-19")
def test_the_chain_of_a_batch_is_executed_in_both_places(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[int] = []
    original = spark_executor.SparkExecutor.planned
    monkeypatch.setattr(
        spark_executor.SparkExecutor,
        "planned",
        lambda self, inputs: (jobs.append(1), original(self, inputs))[1],
    )
    with views_oracle.stage(spark, {}, STAGED) as tables:
        results = certified(spark, circuit_tests(spark, tables, QUERIES))
    assert {name: result.why for name, result in results.items() if not result.equal} == {}
    assert all(results[name].compared == 5 for name in QUERIES if name != "filtered")
    assert "runs the query" in results["filtered"].why
    assert jobs, "one step runs as a Spark job"


def forget_retractions(monkeypatch: pytest.MonkeyPatch) -> None:
    with_results = native_operators.StatefulAggregate._with_results

    def forgetful(self: Any, table: Any) -> Any:
        return with_results(self, table.filter(pa.compute.greater(table["_w"], 0)))

    monkeypatch.setattr(native_operators.StatefulAggregate, "_with_results", forgetful)
    # The workers of Spark do not have this fault, so the Spark job would show it.
    monkeypatch.setattr(circuit_comparison, "_job_step", lambda *_: None)


def double_shared_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the expression of one view exploded the rows of all views that share its projection."""
    apply = shared_projection.SharedProjection.apply

    def doubling(self: Any, *args: Any) -> Any:
        frame = apply(self, *args)
        return frame.unionAll(frame) if len(self.edges) > 1 else frame

    monkeypatch.setattr(shared_projection.SharedProjection, "apply", doubling)


def lose_time_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the wire had no type for timestamps without a time zone."""
    frame_of = in_process_executor.frame_of

    def confused(spark: Any, rows: Any, *_: Any) -> Any:
        return frame_of(spark, rows)

    monkeypatch.setattr(in_process_executor, "frame_of", confused)


def double_rows_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = spark_executor.SparkExecutor._layers
    monkeypatch.setattr(
        spark_executor.SparkExecutor, "_layers", lambda self, packets: layers(self, [*packets, *packets])
    )


def fail_in_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, packets: Any) -> Any:
        raise ValueError("no such column")

    monkeypatch.setattr(spark_executor.SparkExecutor, "_layers", fails)


def lose_rows_of_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    all_lots = GeneratedLots.all
    monkeypatch.setattr(
        GeneratedLots,
        "all",
        lambda self: {name: replace(rows, plus=rows.plus[-1:]) for name, rows in all_lots(self).items()},
    )


@pytest.mark.rule("DBSP-19")
@pytest.mark.parametrize(
    ("fault", "wrong", "why"),
    [
        (forget_retractions, {"sums"}, "extra"),
        (double_shared_rows, {"texts", "more texts"}, "only together with other views"),
        (double_rows_of_jobs, {"texts"}, "as a Spark job"),
        (fail_in_jobs, {"texts"}, "no such column"),
        (lose_time_zones, {"stamps"}, "extra"),
        (lose_rows_of_loads, {"joined"}, "a reload gives other rows"),
    ],
)
def test_a_chain_with_a_fault_is_refused_although_its_circuit_is_right(
    spark: Any, monkeypatch: pytest.MonkeyPatch, fault: Any, wrong: set[str], why: str
) -> None:
    texts = {name: {**QUERIES, **MORE}[name] for name in wrong}
    fault(monkeypatch)
    with views_oracle.stage(spark, {}, STAGED) as tables:
        results = certified(spark, circuit_tests(spark, tables, texts))
    assert {name for name, result in results.items() if not result.equal} == wrong
    assert [result.why for result in results.values() if why not in result.why] == []


def double_rows_of_one_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a view doubled the rows of another view of its chain."""
    written = ExecutedViews._written

    def doubled(self: Any, view: str, reports: Any) -> Any:
        rows = written(self, view, reports)
        return pa.concat_tables([rows, rows]) if view == "more texts" and len(self.views) > 1 else rows

    monkeypatch.setattr(ExecutedViews, "_written", doubled)


@pytest.mark.rule("DBSP-19")
@pytest.mark.parametrize(
    ("fault", "how", "why"),
    [
        (double_shared_rows, "beside", "only together with other views"),
        (double_rows_of_one_view, "beside", "certified views are wrong: more texts"),
        (double_shared_rows, "others", "only together with other views"),
        (double_rows_of_one_view, "others", "the rows of more texts differ"),
    ],
)
def test_a_new_view_is_judged_together_with_certified_views(
    spark: Any, monkeypatch: pytest.MonkeyPatch, fault: Any, how: str, why: str
) -> None:
    """Others are views of other batches: plain Spark does not compute them again."""
    with views_oracle.stage(spark, {}, STAGED) as tables:
        (other,) = circuit_tests(spark, tables, {"more texts": MORE["more texts"]})
        new = circuit_tests(spark, tables, {"texts": QUERIES["texts"]})
        assert certified(spark, new, **{how: [other]})["texts"].equal
        fault(monkeypatch)
        assert certified(spark, new)["texts"].equal, "alone it is right"
        result = certified(spark, new, **{how: [other]})["texts"]
    assert not result.equal
    assert why in result.why


@pytest.mark.rule("DBSP-19")
def test_sessions_that_never_merge_are_refused(spark: Any) -> None:
    """Generated timestamps lie a few minutes apart."""
    sql = "SELECT count(*) AS n FROM t GROUP BY session_window(ts, '5 minutes')"
    wrong = "SELECT count(*) AS n FROM t WHERE ts IS NOT NULL GROUP BY ts"
    with views_oracle.stage(spark, {}, STAGED) as tables:
        (test,) = circuit_tests(spark, tables, {"sessions": wrong})
        (result,) = certified(spark, [replace(test, sql=sql)]).values()
    assert not result.equal


@pytest.mark.rule("DBSP-17")
def test_the_types_of_a_view_are_resolved_once_in_a_process(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags: list[str] = []
    over = queries.over
    monkeypatch.setattr(queries, "over", lambda *args: (tags.append(args[-1]), over(*args))[1])

    def built(session: Any, tag: str) -> GroupChain:
        frames = {"t": no_rows(session, DDL["t"])}
        return group_chain(session, {"sums": test.output}, frames, {"t": InputKind("changes")}, tag)

    with views_oracle.stage(spark, {}, STAGED) as tables:
        (test,) = circuit_tests(spark, tables, {"sums": "SELECT b, sum(a) AS total FROM t GROUP BY b"})
    tags.clear()
    first = built(spark, "planning")
    session = separate_session(spark)
    for name, value in FOR_SMALL_QUERIES.items():
        session.conf.set(name, value)
    assert built(session, "certification").types == first.types
    assert tags == ["planning"]
    session.conf.set("spark.sql.groupByAliases", "false")
    built(session, "other settings")
    assert tags == ["planning", "other settings"]
