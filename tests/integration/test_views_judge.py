"""The judge and the certification of circuits, with real Spark."""

from typing import Any

import pytest

from tests.integration import views_oracle
from tidemill.testing import Case, Judge, MaintainedView, Step
from tidemill.views.certify import generated_steps
from tidemill.views.certify.bounds import BoundExceeded, Bounds
from tidemill.views.certify.circuit_comparison import certify
from tidemill.views.certify.equality import EXACT, FLOAT_BOUND, Equality, equality_of
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import ViewOutput
from tidemill.views.circuit.rewrites import rewrite

DDL = {"t": "a INT, b INT, x DOUBLE, ts TIMESTAMP", "u": "a INT, s STRING"}
ORDERED = Equality(ordered=True)
STEPS = [
    Step(),
    Step(inserts={"t": [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": None, "b": 3}], "u": [{"a": 1, "s": "x"}]}),
    Step(deletes={"t": [{"a": 1, "b": 2}]}),
]


@pytest.fixture(autouse=True)
def quick(spark: Any) -> Any:
    with views_oracle.stage(spark, {}, DDL) as tables:
        yield tables


@pytest.mark.rule("DBSP-20")
def test_the_judge_finds_each_difference_and_its_step(spark: Any) -> None:
    cases = [
        Case(
            "same", "SELECT a, count(*) AS n FROM t GROUP BY a", "SELECT a, count(1) AS n FROM t GROUP BY 1"
        ),
        Case("off", "SELECT a, count(*) AS n FROM t GROUP BY a", "SELECT a, count(a) AS n FROM t GROUP BY a"),
        Case("not empty", "SELECT count(*) AS n FROM u", "SELECT count(*) AS n FROM u HAVING count(*) > 0"),
        Case("raises", "SELECT b / (b - 3) AS q FROM t", "SELECT try_divide(b, b - 3) AS q FROM t"),
        Case("raise alike", "SELECT b / (b - 3) AS q FROM t", "SELECT 1 * b / (b - 3) AS q FROM t"),
        Case(
            "ties",
            "SELECT a, b FROM t ORDER BY a LIMIT 2",
            "SELECT a, b FROM t ORDER BY a, b DESC LIMIT 2",
            ORDERED,
        ),
        Case("too few", "SELECT a, b FROM t ORDER BY a LIMIT 2", "SELECT a, b FROM t LIMIT 1", ORDERED),
        Case(
            "no ties",
            "SELECT b FROM t ORDER BY b LIMIT 2",
            "SELECT b FROM t ORDER BY b DESC LIMIT 2",
            ORDERED,
        ),
    ]
    verdict = Judge(spark, DDL).run(cases, STEPS)
    wrong = sorted({(mismatch.case.name, mismatch.step) for mismatch in verdict.mismatches})
    # In the last step only two rows are left, so LIMIT 2 leaves no ties.
    assert wrong == [("no ties", 1), ("not empty", 0), ("off", 1), ("off", 2), ("raises", 1), ("raises", 2),
                     ("too few", 1), ("too few", 2)]  # fmt: skip
    assert (verdict.compared, verdict.raised, verdict.loose) == (24, 2, 2)
    assert "missing (None, '1')" in str(verdict)


def test_a_maintained_view_receives_every_step(spark: Any) -> None:
    """The view only counts inserts, so it is wrong after a delete."""
    counted = 0

    def after(step: Step) -> Any:
        nonlocal counted
        counted += len(step.inserts.get("t", ()))
        return spark.sql(f"SELECT {counted}L AS n")

    verdict = Judge(spark, DDL).run([Case("n", "SELECT count(*) AS n FROM t", MaintainedView(after))], STEPS)
    assert [(mismatch.step, mismatch.why) for mismatch in verdict.mismatches] == [
        (2, "missing ('2',); extra ('3',)")
    ]


@pytest.mark.rule("DBSP-19")
def test_a_view_is_certified_if_its_circuit_equals_its_query(spark: Any, quick: Any) -> None:
    queries = {
        "join": "SELECT t.a, s, sum(x) AS sx FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.a, s",
        "clock": "SELECT a, current_date() AS d FROM t WHERE ts < now() - INTERVAL 1 DAY",
        "ranked": "SELECT a, b, row_number() OVER (PARTITION BY a ORDER BY b) AS n FROM t",
        "filtered": "SELECT a, bool_or(b > 2) FILTER (WHERE b > 1) OVER (ORDER BY b) AS r FROM t",
        "overflows": "SELECT a + b AS s FROM t",
        "random": "SELECT a, rand() AS r FROM t",
    }
    outputs = {
        name: rewrite(views_oracle.compiled(spark, quick, sql).output) for name, sql in queries.items()
    }
    certificates = {name: certify(spark, name, sql, outputs[name], DDL) for name, sql in queries.items()}
    assert all(certificate.equal for certificate in certificates.values()), certificates
    assert certificates["join"].kind == "float"
    assert certificates["join"].compared == 5, "one step changes only the time"
    assert certificates["ranked"].kind == "ordered"
    assert certificates["ranked"].loose < certificates["ranked"].compared
    assert certificates["overflows"].raised == 1, "extreme values overflow on both sides"
    assert "not deterministic" in certificates["random"].why
    assert all("each step runs the query" in certificates[name].why for name in ("clock", "filtered"))
    assert [certificates[name].compared for name in ("random", "clock", "filtered")] == [0, 0, 0]


@pytest.mark.rule("DBSP-19")
def test_a_view_with_lengths_and_counts_is_certified(spark: Any, quick: Any) -> None:
    """With extreme values these functions ask Java for 2 GB, which ends Spark."""
    sql = """
        SELECT lpad(s, n, 'x') AS l, rpad(s, n, 'x') AS r, repeat(s, n) AS p, space(n) AS b,
               array_repeat(s, n) AS a, sequence(n, n + 2) AS q, format_number(x, abs(n)) AS f,
               array_insert(array(s), abs(n) + 1, 'i') AS i
        FROM (SELECT s, t.x, t.b AS n FROM t JOIN u ON t.a = u.a)"""
    written = views_oracle.compiled(spark, quick, sql).output
    certificate = certify(spark, "sizes", sql, rewrite(written), DDL, written=written, bounds=Bounds())
    assert certificate.equal, certificate.why
    assert certificate.raised == 0


@pytest.mark.rule("DBSP-19")
def test_a_certification_is_bounded_in_rows_and_bytes(spark: Any, quick: Any) -> None:
    bounds = Bounds(rows=1000, result_bytes=20_000)
    for sql, why in {
        "SELECT explode(sequence(1, 2000)) AS n FROM t": "more than 1,000 rows",
        "SELECT repeat('x', 30000) AS s FROM t": "more than 20,000 bytes",
        "SELECT repeat('x', 2000) AS s FROM t JOIN u v ON t.a = v.a JOIN u w ON v.a = w.a": "20,000 bytes",
    }.items():
        output = views_oracle.compiled(spark, quick, sql).output
        with pytest.raises(BoundExceeded, match=why):
            certify(spark, "large", sql, output, DDL, bounds=bounds)
    sql = "SELECT a, count(*) AS n, b / (b - 3) AS q FROM t GROUP BY a, b"
    output = views_oracle.compiled(spark, quick, sql).output
    certificate = certify(spark, "small", sql, output, DDL, bounds=bounds)
    assert certificate == certify(spark, "small", sql, output, DDL)
    assert certificate.equal


@pytest.mark.rule("DBSP-19")
def test_a_circuit_that_differs_from_its_query_is_not_certified(spark: Any, quick: Any) -> None:
    """As if the compiler had confused NOT IN with an anti join, and a left join with an inner join."""
    wrong = {
        "SELECT a FROM t WHERE a NOT IN (SELECT a FROM u)": "SELECT t.a FROM t LEFT ANTI JOIN u ON t.a = u.a",
        "SELECT t.a, s FROM t LEFT JOIN u ON t.a = u.a": "SELECT t.a, s FROM t JOIN u ON t.a = u.a",
        "SELECT x, count(*) AS n FROM t GROUP BY x": "SELECT x, 1L AS n FROM (SELECT DISTINCT x FROM t)",
        "SELECT sum(b) AS s FROM t": "SELECT sum(b) AS s FROM t HAVING count(*) > 0",
    }
    for sql, wrong_sql in wrong.items():
        output: ViewOutput = views_oracle.compiled(spark, quick, wrong_sql).output
        certificate = certify(spark, "v", sql, output, DDL)
        assert not certificate.equal, sql
        assert sql in certificate.why


@pytest.mark.rule("DBSP-20")
def test_ties_that_a_reversed_order_does_not_show_are_found_by_other_orders(spark: Any, quick: Any) -> None:
    """Three rows tie, and the first and the last look the same: reversing the order shows no difference."""
    loose_steps = {}
    queries = {
        "grouped": "SELECT f, sum(x) AS s"
        " FROM (SELECT x, first_value(b) OVER (PARTITION BY a ORDER BY x) AS f FROM t) GROUP BY f",
        "rounded": "SELECT s, row_number() OVER (ORDER BY a) AS n FROM (SELECT a, b, sum(x) AS s FROM t"
        " GROUP BY a, b)",
    }
    for n in range(1, 5):
        rows = [{"a": 1, "b": b, "x": 1.5} for b in (n, 9, n)]
        for name, sql in queries.items():
            written = views_oracle.compiled(spark, quick, sql).output
            texts = interpret(rewrite(written)), interpret(written)
            case = Case(f"{name} {n}", sql, texts[0], equality_of(written), texts[1])
            verdict = Judge(spark, DDL).run([case], [Step(inserts={"t": rows})])
            assert verdict, str(verdict)
            loose_steps[name, n] = verdict.loose
            assert case.equality.ties_broken == (name == "grouped"), "no tie depends on the hash of a sum"
    assert any(loose_steps.values()), "Spark has another result in some cases"


def test_equality_of_nested_values_and_of_every_float(spark: Any) -> None:
    select = "SELECT array(y, NULL) AS l, map('k', y) AS m, named_struct('f', y, 'n', CAST(NULL AS INT)) AS s"
    sql = f"{select} FROM (SELECT x AS y FROM t)"
    near = f"{select} FROM (SELECT x * 1.0000000000001D AS y FROM t)"
    steps = generated_steps.generate_steps(DDL, seed=3)[:2]
    exact = Judge(spark, DDL).run([Case("exact", sql, sql, EXACT), Case("near", sql, near, EXACT)], steps)
    assert {mismatch.case.name for mismatch in exact.mismatches} == {"near"}
    assert Judge(spark, DDL).run([Case("near", sql, near, Equality(FLOAT_BOUND))], steps)
