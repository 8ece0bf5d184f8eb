"""Every operator has a rung and a reason; explain shows them as text, JSON and a drawing."""

# ruff: noqa: E501  # each query is on one line

import json
from xml.etree import ElementTree

import pytest

from tests.unit.views_stage import circuit, output
from tidemill.errors import NotIncremental
from tidemill.pipeline.plan.circuits import refuse_incremental
from tidemill.pipeline.source_line import SourceLine
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.explanation import draw, explain, layers
from tidemill.views.circuit.functions import UserFunction, ViewFunctions
from tidemill.views.circuit.operators import InputTable, NamedInput, Opaque, TemporalFilter, ViewOutput
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.circuit.rungs import Rung, rungs

JOINED = "FROM orders o JOIN customers c ON o.cust = c.id"


def rung_by_kind(sql: str, *functions: UserFunction) -> dict[str, tuple[str, bool]]:
    view = rewrite(output(sql, *functions), ViewFunctions(functions))
    return {op.kind: (at.rung.value, at.scan) for op, at in rungs(view, ViewFunctions(functions)).items()}


@pytest.mark.parametrize(
    ("sql", "kind", "rung", "scan"),
    [
        ("SELECT id FROM events WHERE kind = 'x'", "filter", "linear", False),
        ("SELECT id, upper(kind) AS k FROM events", "project", "linear", False),
        ("SELECT id, t FROM events LATERAL VIEW explode(tags) e AS t", "generate", "linear", False),
        ("SELECT id FROM orders UNION ALL SELECT id FROM customers", "union all", "linear", False),
        (f"SELECT o.id, region {JOINED}", "join", "native", False),
        (f"SELECT o.id, region {JOINED} AND o.day > c.since", "join", "native", False),
        ("SELECT o.id, region FROM orders o LEFT JOIN customers c ON o.cust = c.id", "join", "native", False),
        (
            "SELECT o.id FROM orders o LEFT JOIN customers c ON o.cust = c.id AND o.day > c.since",
            "join",
            "native",
            False,
        ),
        ("SELECT o.id FROM orders o JOIN customers c ON o.day > c.since", "join", "native", False),
        ("SELECT o.id FROM orders o JOIN customers c ON o.day <> c.since", "join", "full", True),
        ("SELECT id FROM orders WHERE cust NOT IN (SELECT id FROM customers)", "join", "full", True),
        ("SELECT id FROM orders WHERE cust IN (SELECT id FROM customers)", "join", "native", False),
        ("SELECT DISTINCT cust FROM orders", "distinct", "native", False),
        ("SELECT cust FROM orders EXCEPT SELECT id FROM customers", "set operation", "native", False),
        (
            "SELECT cust, sum(amount) AS s, max(day) AS d FROM orders GROUP BY cust",
            "aggregate",
            "native",
            False,
        ),
        ("SELECT count(*) AS n FROM orders", "aggregate", "native", False),
        ("SELECT bool_and(amount > 1) AS p, any(amount > 2) AS q FROM orders", "aggregate", "native", False),
        ("SELECT cust, median(amount) AS m FROM orders GROUP BY cust", "aggregate", "keyed", False),
        ("SELECT cust, count(DISTINCT day) AS m FROM orders GROUP BY cust", "aggregate", "native", False),
        ("SELECT sum(DISTINCT amount) AS m FROM orders", "aggregate", "native", False),
        ("SELECT median(amount) AS m FROM orders", "aggregate", "full", True),
        (
            "SELECT id, rank() OVER (PARTITION BY cust ORDER BY day) AS r FROM orders",
            "window",
            "native",
            False,
        ),
        ("SELECT id, rank() OVER (ORDER BY day) AS r FROM orders", "window", "native", False),
        ("SELECT stddev(amount) OVER (PARTITION BY cust) AS r FROM orders", "window", "keyed", False),
        ("SELECT stddev(amount) OVER () AS r FROM orders", "window", "full", True),
        ("SELECT id FROM orders ORDER BY amount LIMIT 10", "top-k", "native", False),
        ("SELECT id FROM orders ORDER BY amount LIMIT 900 OFFSET 100", "top-k", "native", False),
        ("SELECT id FROM orders ORDER BY amount LIMIT 901 OFFSET 100", "top-k", "full", True),
        ("SELECT id FROM orders ORDER BY amount OFFSET 1", "top-k", "full", True),
        ("SELECT id FROM orders ORDER BY amount LIMIT 100000", "top-k", "full", True),
        ("SELECT id, (SELECT max(day) FROM orders) AS d FROM orders", "scalar", "native", True),
        ("SELECT id FROM events WHERE at < now() - INTERVAL 1 HOUR", "temporal filter", "full", True),
        ("SELECT id FROM events WHERE hour(at) = hour(now())", "filter", "full", True),
        ("SELECT id, now() AS t FROM events", "project", "full", True),
    ],
)
def test_each_operator_uses_the_highest_possible_rung(sql: str, kind: str, rung: str, scan: bool) -> None:
    assert rung_by_kind(sql)[kind] == (rung, scan)


def test_every_rung_has_a_reason() -> None:
    view = output(f"SELECT region, sum(amount) AS s, min(day) AS d {JOINED} GROUP BY region")
    for op, at in rungs(rewrite(view)).items():
        assert at.reason, op.kind
        assert at.reason[0].islower() or at.reason.startswith(("NOT IN", "Spark"))


def test_max_keeps_one_value_of_append_only_inputs_and_sixteen_of_others() -> None:
    grown = rungs(rewrite(output("SELECT cust, max(day) AS d FROM orders GROUP BY cust")))
    changed = rungs(rewrite(output("SELECT kind, max(id) AS m FROM events GROUP BY kind")))
    assert any("the best value" in at.reason for at in grown.values())
    assert any("the best 16" in at.reason for at in changed.values())


@pytest.mark.parametrize(
    "call", ["rand()", "uuid()", "monotonically_increasing_id()", "input_file_name()", "shuffle(tags)"]
)
def test_a_nondeterministic_value_is_stored_with_its_row_and_refused_under_incremental(call: str) -> None:
    view = output(f"SELECT id, {call} AS x FROM events")
    rungs_by_kind = {op.kind: at for op, at in rungs(view).items()}
    assert rungs_by_kind["project"].rung is Rung.KEYED
    assert not rungs_by_kind["project"].deterministic
    with pytest.raises(NotIncremental, match="not deterministic"):
        refuse_incremental(view, SourceLine(), "")


def test_a_user_function_is_deterministic_only_if_declared_so() -> None:
    sql = "SELECT id, score(amount) AS s FROM orders"
    for deterministic in (True, False):
        score = UserFunction("score", "digest", deterministic=deterministic)
        view = output(sql, score)
        deterministic_by_kind = {
            op.kind: at.deterministic for op, at in rungs(view, ViewFunctions([score])).items()
        }
        assert deterministic_by_kind["project"] is deterministic


def test_a_user_aggregate_is_keyed() -> None:
    best = UserFunction("best", "digest", deterministic=True, aggregate=True)
    assert rung_by_kind("SELECT cust, best(amount) AS b FROM orders GROUP BY cust", best)["aggregate"] == (
        "keyed",
        False,
    )


def test_a_comparison_of_now_with_a_column_is_a_temporal_filter_in_both_directions() -> None:
    first = output("SELECT id FROM events WHERE at < now() - INTERVAL 1 HOUR AND kind = 'x'")
    second = output("SELECT id FROM events WHERE current_timestamp() - INTERVAL 1 HOUR > at AND kind = 'x'")
    assert first == second
    assert [op.comparison for op in walk(first) if isinstance(op, TemporalFilter)] == ["<"]


def test_an_opaque_query_has_a_reason_that_names_its_nondeterministic_functions() -> None:
    source = InputTable("t", ())
    op = Opaque((source,), (NamedInput("t", ()),), "SELECT rand()", 1, "a pivot", ("rand",))
    at = rungs(op)[op]
    assert at.rung is Rung.FULL
    assert not at.deterministic
    assert "a pivot; rand is not deterministic" in at.reason
    with pytest.raises(NotIncremental):
        refuse_incremental(ViewOutput(op, ("x",)), SourceLine(), "")


def test_explain_as_text_shows_columns_rungs_and_shared_operators() -> None:
    views = circuit(
        per_region=f"SELECT region, sum(amount) AS total {JOINED} GROUP BY region",
        large=f"SELECT region FROM (SELECT region, sum(amount) AS total {JOINED} GROUP BY region) q WHERE total > 9",
    )
    text = explain(views).text()
    assert "per_region: incremental" in text
    assert "[native] sum(amount) by region" in text
    assert "[linear, shared] region, sum(amount)" in text
    assert "inner join" in text
    assert "cust = id" in text
    assert "(see above)" in text
    assert "customers, key id" in text


def test_explain_as_json_is_complete() -> None:
    explanation = explain(
        circuit(late="SELECT DISTINCT id FROM events", all="SELECT id, now() AS t FROM events")
    )
    parsed = json.loads(json.dumps(explanation.json()))
    assert parsed["views"]["late"]["incremental"] is True
    assert parsed["views"]["all"]["incremental"] is False
    assert {operator["rung"] for operator in parsed["operators"]} == {"linear", "native", "full"}
    ids = {operator["id"] for operator in parsed["operators"]}
    assert all(child in ids for operator in parsed["operators"] for child in operator["inputs"])
    assert all(operator["reason"] for operator in parsed["operators"])


def test_the_drawing_has_a_box_for_every_operator_to_the_right_of_its_inputs() -> None:
    explanation = explain(
        circuit(v=f"SELECT region, count(*) AS `n < 3` {JOINED} WHERE region <> '<&>' GROUP BY region")
    )
    root = ElementTree.fromstring(draw(explanation))
    assert root.tag.endswith("svg")
    boxes = [element for element in root.iter() if element.tag.endswith("}g")]
    assert len(boxes) == len(explanation.lines)
    depth = {operator_id: x for x, column in enumerate(layers(explanation)) for operator_id in column}
    assert all(
        depth[child] < depth[operator_id]
        for operator_id, line in explanation.lines.items()
        for child in line.inputs
    )
