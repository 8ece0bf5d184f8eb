"""Every operator has a rung and a reason, and explain says them as text, as JSON and as a picture."""

# ruff: noqa: E501  # queries stand on one line

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


def placed(sql: str, *functions: UserFunction) -> dict[str, tuple[str, bool]]:
    made = rewrite(output(sql, *functions), ViewFunctions(functions))
    return {op.kind: (at.rung.value, at.scan) for op, at in rungs(made, ViewFunctions(functions)).items()}


@pytest.mark.parametrize(
    ("sql", "kind", "rung", "scan"),
    [
        ("SELECT id FROM events WHERE kind = 'x'", "filter", "linear", False),
        ("SELECT id, upper(kind) AS k FROM events", "project", "linear", False),
        ("SELECT id, t FROM events LATERAL VIEW explode(tags) e AS t", "generate", "linear", False),
        ("SELECT id FROM orders UNION ALL SELECT id FROM customers", "union all", "linear", False),
        (f"SELECT o.id, region {JOINED}", "join", "native", False),
        (f"SELECT o.id, region {JOINED} AND o.day > c.since", "join", "native", False),
        ("SELECT o.id, region FROM orders o LEFT JOIN customers c ON o.cust = c.id", "join", "keyed", False),
        (
            "SELECT o.id FROM orders o LEFT JOIN customers c ON o.cust = c.id AND o.day > c.since",
            "join",
            "keyed",
            False,
        ),
        ("SELECT o.id FROM orders o JOIN customers c ON o.day > c.since", "join", "full", True),
        ("SELECT id FROM orders WHERE cust NOT IN (SELECT id FROM customers)", "join", "full", True),
        ("SELECT id FROM orders WHERE cust IN (SELECT id FROM customers)", "join", "keyed", False),
        ("SELECT DISTINCT cust FROM orders", "distinct", "native", False),
        ("SELECT cust FROM orders EXCEPT SELECT id FROM customers", "set operation", "native", False),
        (
            "SELECT cust, sum(amount) AS s, max(day) AS d FROM orders GROUP BY cust",
            "aggregate",
            "native",
            False,
        ),
        ("SELECT count(*) AS n FROM orders", "aggregate", "native", False),
        ("SELECT cust, median(amount) AS m FROM orders GROUP BY cust", "aggregate", "keyed", False),
        ("SELECT cust, count(DISTINCT day) AS m FROM orders GROUP BY cust", "aggregate", "keyed", False),
        ("SELECT median(amount) AS m FROM orders", "aggregate", "full", True),
        (
            "SELECT id, rank() OVER (PARTITION BY cust ORDER BY day) AS r FROM orders",
            "window",
            "keyed",
            False,
        ),
        ("SELECT id, rank() OVER (ORDER BY day) AS r FROM orders", "window", "full", True),
        ("SELECT id FROM orders ORDER BY amount LIMIT 10", "top-k", "full", True),
        ("SELECT id FROM orders ORDER BY amount LIMIT 100000", "top-k", "full", True),
        ("SELECT id, (SELECT max(day) FROM orders) AS d FROM orders", "scalar", "full", True),
        ("SELECT id FROM events WHERE at < now() - INTERVAL 1 HOUR", "temporal filter", "full", True),
        ("SELECT id FROM events WHERE hour(at) = hour(now())", "filter", "full", True),
        ("SELECT id, now() AS t FROM events", "project", "full", True),
    ],
)
def test_each_operator_runs_on_the_highest_rung_that_is_right(
    sql: str, kind: str, rung: str, scan: bool
) -> None:
    assert placed(sql)[kind] == (rung, scan)


def test_every_rung_has_a_reason() -> None:
    made = output(f"SELECT region, sum(amount) AS s, min(day) AS d {JOINED} GROUP BY region")
    for op, at in rungs(rewrite(made)).items():
        assert at.reason, op.kind
        assert at.reason[0].islower() or at.reason.startswith(("NOT IN", "Spark"))


def test_an_append_only_input_keeps_one_extreme_and_others_sixteen() -> None:
    grown = rungs(rewrite(output("SELECT cust, max(day) AS d FROM orders GROUP BY cust")))
    changed = rungs(rewrite(output("SELECT kind, max(id) AS m FROM events GROUP BY kind")))
    assert any("the best value" in at.reason for at in grown.values())
    assert any("the best 16" in at.reason for at in changed.values())


@pytest.mark.parametrize(
    "call", ["rand()", "uuid()", "monotonically_increasing_id()", "input_file_name()", "shuffle(tags)"]
)
def test_a_nondeterministic_value_is_stored_with_its_row_and_refused_under_incremental(call: str) -> None:
    made = output(f"SELECT id, {call} AS x FROM events")
    found = {op.kind: at for op, at in rungs(made).items()}
    assert found["project"].rung is Rung.KEYED
    assert not found["project"].deterministic
    with pytest.raises(NotIncremental, match="not deterministic"):
        refuse_incremental(made, SourceLine(), "")


def test_a_function_of_the_user_is_deterministic_only_if_declared_so() -> None:
    sql = "SELECT id, score(amount) AS s FROM orders"
    for deterministic in (True, False):
        score = UserFunction("score", "digest", deterministic=deterministic)
        made = output(sql, score)
        found = {op.kind: at.deterministic for op, at in rungs(made, ViewFunctions([score])).items()}
        assert found["project"] is deterministic


def test_an_aggregate_of_the_user_is_one() -> None:
    best = UserFunction("best", "digest", deterministic=True, aggregate=True)
    assert placed("SELECT cust, best(amount) AS b FROM orders GROUP BY cust", best)["aggregate"] == (
        "keyed",
        False,
    )


def test_now_against_a_column_is_a_temporal_filter_whichever_way_it_is_written() -> None:
    one = output("SELECT id FROM events WHERE at < now() - INTERVAL 1 HOUR AND kind = 'x'")
    two = output("SELECT id FROM events WHERE current_timestamp() - INTERVAL 1 HOUR > at AND kind = 'x'")
    assert one == two
    assert [op.comparison for op in walk(one) if isinstance(op, TemporalFilter)] == ["<"]


def test_an_opaque_query_has_a_reason_that_names_its_nondeterministic_functions() -> None:
    source = InputTable("t", ())
    op = Opaque((source,), (NamedInput("t", ()),), "SELECT rand()", 1, "a pivot", ("rand",))
    at = rungs(op)[op]
    assert at.rung is Rung.FULL
    assert not at.deterministic
    assert "a pivot; rand is not deterministic" in at.reason
    with pytest.raises(NotIncremental):
        refuse_incremental(ViewOutput(op, ("x",)), SourceLine(), "")


def test_explain_as_text_names_columns_rungs_and_what_is_shared() -> None:
    both = circuit(
        per_region=f"SELECT region, sum(amount) AS total {JOINED} GROUP BY region",
        large=f"SELECT region FROM (SELECT region, sum(amount) AS total {JOINED} GROUP BY region) q WHERE total > 9",
    )
    said = explain(both).text()
    assert "per_region: incremental" in said
    assert "[native] sum(amount) by region" in said
    assert "[linear, shared] region, sum(amount)" in said
    assert "inner join" in said
    assert "cust = id" in said
    assert "(see above)" in said
    assert "customers, key id" in said


def test_explain_as_json_is_whole() -> None:
    made = explain(circuit(late="SELECT DISTINCT id FROM events", all="SELECT id, now() AS t FROM events"))
    told = json.loads(json.dumps(made.json()))
    assert told["views"]["late"]["incremental"] is True
    assert told["views"]["all"]["incremental"] is False
    assert {one["rung"] for one in told["operators"]} == {"linear", "native", "full"}
    known = {one["id"] for one in told["operators"]}
    assert all(child in known for one in told["operators"] for child in one["inputs"])
    assert all(one["reason"] for one in told["operators"])


def test_the_drawing_is_svg_with_a_box_for_every_operator_right_of_what_it_reads() -> None:
    made = explain(
        circuit(v=f"SELECT region, count(*) AS `n < 3` {JOINED} WHERE region <> '<&>' GROUP BY region")
    )
    root = ElementTree.fromstring(draw(made))
    assert root.tag.endswith("svg")
    boxes = [one for one in root.iter() if one.tag.endswith("}g")]
    assert len(boxes) == len(made.lines)
    depth = {one: x for x, column in enumerate(layers(made)) for one in column}
    assert all(depth[child] < depth[one] for one, line in made.lines.items() for child in line.inputs)
