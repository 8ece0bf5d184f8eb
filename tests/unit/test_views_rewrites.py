"""The effect of each rewrite on a circuit. Other tests compare the results with Spark."""

# ruff: noqa: E501  # each query is on one line

import pytest

from tests.unit.views_stage import kinds, output
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import Expr, call, column, text
from tidemill.views.circuit.functions import ViewFunctions
from tidemill.views.circuit.operators import Aggregate, Distinct, Filter, InputTable, Join, Operator, Project
from tidemill.views.circuit.pruning import prune
from tidemill.views.circuit.rewrites import drop_distinct, fuse, push_down, rewrite
from tidemill.views.circuit.row_properties import append_only, unique
from tidemill.views.circuit.total_expressions import is_total


def only(root: Operator, kind: type) -> Operator:
    (operator,) = [op for op in walk(root) if isinstance(op, kind)]
    return operator


def test_a_condition_moves_to_its_table() -> None:
    view = push_down(
        output(
            "SELECT o.id FROM orders o JOIN customers c ON o.cust = c.id WHERE c.region = 'x' AND o.amount > 5"
        ),
        ViewFunctions(),
    )
    join = only(view, Join)
    assert isinstance(join, Join)
    assert isinstance(join.left, Filter)
    assert isinstance(join.right, Filter)
    assert isinstance(join.left.input, InputTable)


def test_a_comma_join_gets_its_key_and_an_order_without_cross_products() -> None:
    view = rewrite(
        output(
            "SELECT o.id FROM customers c, events e, orders o WHERE c.id = o.cust AND e.id = o.id AND e.kind = c.region"
        )
    )
    joins = [op for op in walk(view) if isinstance(op, Join)]
    assert [op.join for op in joins] == ["inner", "inner"]
    assert [len(op.keys) for op in joins] == [1, 2]


def test_a_condition_on_the_nullable_side_of_an_outer_join_stays_above_it() -> None:
    view = rewrite(
        output("SELECT o.id FROM orders o LEFT JOIN customers c ON o.cust = c.id WHERE c.region = 'x'")
    )
    above = only(view, Filter)
    assert isinstance(above, Filter)
    assert any(isinstance(op, Join) for op in walk(above.input))


def test_a_condition_that_may_raise_stays_after_the_filters_before_it() -> None:
    view = rewrite(
        output(
            "SELECT o.id FROM orders o JOIN customers c ON o.cust = c.id WHERE c.region = 'x' AND 100 / o.amount > 1"
        )
    )
    raising = [op for op in walk(view) if isinstance(op, Filter) and "/" in op.conditions[0].sql()]
    assert len(raising) == 1
    assert any(isinstance(op, Join) for op in walk(raising[0].input))


@pytest.mark.rule("DBSP-20")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM (SELECT id, CAST(day AS INT) AS n, amount FROM orders) WHERE n > 0 AND abs(amount) > 1",
        "SELECT o.id FROM orders o JOIN customers c ON 100 DIV o.amount = c.id WHERE abs(o.amount) > 1",
        "SELECT amount FROM (SELECT amount, sum(10 DIV amount) AS s FROM orders GROUP BY amount) WHERE abs(amount) > 1",
        "SELECT id FROM (SELECT *, rank() OVER (PARTITION BY amount ORDER BY 10 DIV amount, 7 DIV amount) AS r, 9 DIV amount AS z FROM (SELECT *, 10 DIV amount AS q FROM orders)) WHERE abs(amount) > 1 AND q > 0",
    ],
)
def test_a_condition_that_may_raise_moves_below_expressions_that_may_raise(query: str) -> None:
    view = rewrite(output(query))
    guards = [
        op
        for op in walk(view)
        if isinstance(op, Filter) and any("abs" in condition.calls for condition in op.conditions)
    ]
    assert len(guards) == 1
    assert isinstance(guards[0].input, InputTable)


def test_a_condition_is_not_pushed_into_a_shared_operator() -> None:
    view = rewrite(
        output(
            """WITH v AS (SELECT cust, count(*) AS n FROM orders GROUP BY cust)
               SELECT cust FROM v WHERE cust > 5 UNION ALL SELECT cust FROM v WHERE cust < 3"""
        )
    )
    assert len([op for op in walk(view) if isinstance(op, Aggregate)]) == 1


def test_a_condition_on_group_keys_moves_below_the_groups_and_one_on_sums_does_not() -> None:
    view = rewrite(
        output("SELECT cust, count(*) AS n FROM orders GROUP BY cust HAVING cust > 5 AND count(*) > 1")
    )
    assert kinds(view) == ["source", "filter", "aggregate", "filter", "output"]


def test_unread_columns_are_removed_before_operators_with_state() -> None:
    view = rewrite(output("SELECT region FROM orders o JOIN customers c ON o.cust = c.id WHERE o.amount > 1"))
    join = only(view, Join)
    assert isinstance(join, Join)
    assert (join.left.width, join.right.width) == (1, 2)


def test_unread_aggregates_and_window_functions_are_removed() -> None:
    view = prune(
        output(
            "SELECT a FROM (SELECT cust AS a, sum(amount) AS s, rank() OVER (ORDER BY cust) AS r FROM orders GROUP BY cust) q"
        )
    )
    aggregate = only(view, Aggregate)
    assert isinstance(aggregate, Aggregate)
    assert aggregate.calls == ()
    assert "window" not in kinds(view)


def test_adjacent_projections_and_filters_are_fused() -> None:
    view = rewrite(
        output(
            "SELECT a + 1 AS b FROM (SELECT id AS a FROM (SELECT id, cust FROM orders) p WHERE cust > 1) q WHERE a > 2"
        )
    )
    assert kinds(view) == ["source", "filter", "project", "output"]


def test_an_expression_is_never_computed_twice_or_moved_into_a_branch() -> None:
    nested = "SELECT CASE WHEN x > 1 THEN y END AS z FROM (SELECT id AS x, 1 / id AS y FROM orders) q"
    assert kinds(fuse(output(nested), ViewFunctions())).count("project") == 2
    twice = "SELECT r AS p, r AS q FROM (SELECT rand() AS r FROM orders) s"
    assert kinds(fuse(output(twice), ViewFunctions())).count("project") == 2


def test_distinct_is_dropped_if_rows_contain_a_key() -> None:
    assert "distinct" not in kinds(drop_distinct(output("SELECT DISTINCT id, region FROM customers")))
    assert "distinct" in kinds(drop_distinct(output("SELECT DISTINCT region FROM customers")))
    assert "distinct" not in kinds(
        drop_distinct(
            output("SELECT DISTINCT cust, n FROM (SELECT cust, count(*) AS n FROM orders GROUP BY cust) q")
        )
    )


@pytest.mark.parametrize(
    ("sql", "grows"),
    [
        ("SELECT id FROM orders WHERE amount > 1", True),
        ("SELECT id FROM events", False),
        ("SELECT a.id FROM orders a JOIN orders b ON a.id = b.cust", True),
        ("SELECT a.id FROM orders a LEFT JOIN orders b ON a.id = b.cust", False),
        ("SELECT DISTINCT cust FROM orders", True),
        ("SELECT cust, count(*) AS n FROM orders GROUP BY cust", False),
        ("SELECT id FROM orders WHERE day < current_date()", True),
        ("SELECT id FROM orders WHERE day > current_date()", False),
        ("SELECT id FROM orders WHERE cust NOT IN (SELECT id FROM orders)", False),
    ],
)
def test_operators_that_remove_no_rows_stay_append_only(sql: str, grows: bool) -> None:
    view = output(sql)
    assert append_only(view)[view] is grows


@pytest.mark.parametrize(
    ("sql", "keys"),
    [
        ("SELECT region, id FROM customers", {(1,)}),
        ("SELECT region FROM customers", set()),
        ("SELECT o.id, c.id AS c FROM orders o JOIN customers c ON o.cust = c.id", set()),
        (
            "SELECT e.id, c.region, c.id AS k FROM (SELECT DISTINCT id FROM events) e JOIN customers c ON e.id = c.id",
            {(0,), (2,), (0, 2)},
        ),
        ("SELECT cust, count(*) AS n FROM orders GROUP BY cust", {(0,)}),
        ("SELECT count(*) AS n FROM orders", {()}),
        ("SELECT id FROM customers UNION ALL SELECT id FROM customers", set()),
        ("SELECT cust, day, count(*) AS n FROM orders GROUP BY ROLLUP (cust, day)", set()),
    ],
)
def test_unique_keys_of_a_view(sql: str, keys: set[tuple[int, ...]]) -> None:
    view = output(sql)
    assert {tuple(sorted(key)) for key in unique(view)[view]} == keys


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("{} > 5", True),
        ("{} BETWEEN 0.06 - 0.01 AND 0.06 + 0.01", True),
        ("{} < DATE '1994-01-01' + INTERVAL '1' YEAR", True),
        ("{} LIKE 'a-b%' AND {} IS NOT NULL", True),
        ("{} IN ('x', 'y + z')", True),
        ("{} = -1", True),
        ("{} + 1 > 2", False),
        ("100 / {} > 1", False),
        ("2 > - {}", False),
        ("{}[0] = 1", False),
        ("{} :: int = 1", False),
    ],
)
def test_only_expressions_that_cannot_raise_are_total(sql: str, expected: bool) -> None:
    pieces = sql.split("{}")
    parts: list[str | int] = [pieces[0]]
    for piece in pieces[1:]:
        parts += [0, piece]
    assert is_total(Expr(tuple(part for part in parts if part != "")), ViewFunctions()) is expected


def test_only_listed_functions_are_total() -> None:
    assert is_total(call("coalesce", column(0), text("1")), ViewFunctions())
    assert not is_total(call("element_at", column(0), text("1")), ViewFunctions())
    assert not is_total(call("rand"), ViewFunctions())


@pytest.mark.parametrize(
    ("join", "condition", "expected"),
    [
        ("LEFT", "c.q > 1", "inner"),
        ("RIGHT", "o.id IS NOT NULL", "inner"),
        ("FULL", "o.id = 1", "left"),
        ("FULL", "c.q <> 1", "right"),
        ("FULL", "c.q <> 1 AND o.id = 1", "inner"),
        ("LEFT", "c.q BETWEEN 1 AND 3", "inner"),
        ("LEFT", "c.q IN (1, 2)", "inner"),
        ("LEFT", "c.q NOT IN (1, 2)", "inner"),
        ("LEFT", "abs(c.q) % 7 <> 0", "inner"),
        ("LEFT", "(c.q + 1) IS NOT NULL", "inner"),
        ("LEFT", "1 IN (c.q, 1)", "left"),
        ("LEFT", "3 NOT BETWEEN 5 AND c.q", "left"),
        ("LEFT", "NOT (c.q > 1)", "left"),
        ("LEFT", "c.q IS NULL", "left"),
        ("LEFT", "c.q <=> 1", "left"),
        ("LEFT", "coalesce(c.q, 2) > 1", "left"),
        ("LEFT", "(c.q > 1 OR o.id > 1)", "left"),
    ],
)
def test_an_outer_join_over_raising_expressions_becomes_inner_if_no_null_remains(
    join: str, condition: str, expected: str
) -> None:
    customers = "(SELECT id, length(region) AS q, 10 DIV length(region) AS z FROM customers)"
    view = rewrite(
        output(f"SELECT o.id, c.z FROM orders o {join} JOIN {customers} c ON o.cust = c.id WHERE {condition}")
    )
    rebuilt = only(view, Join)
    assert isinstance(rebuilt, Join)
    assert rebuilt.join == expected


@pytest.mark.parametrize(
    ("condition", "types", "expected"),
    [
        ("{} = 1", "string", False),
        ("{} = 1", "", False),
        ("{} = 1", "bigint", True),
        ("{} = '1'", "string", True),
        ("{} = '1'", "bigint", True),
        ("{} > DATE '2024-01-01'", "varchar(5)", False),
        ("{} IS NULL", "", True),
    ],
)
def test_a_text_that_is_compared_with_a_number_may_raise(condition: str, types: str, expected: bool) -> None:
    before, _, after = condition.partition("{}")
    expr = Expr((0, after) if not before else (before, 0, after))
    assert is_total(expr, ViewFunctions(), lambda _: types) is expected


def test_distinct_without_a_unique_key_stays() -> None:
    view = rewrite(output("SELECT DISTINCT kind FROM events"))
    assert isinstance(only(view, Distinct), Distinct)
    assert isinstance(only(view, Project), Project)


def test_a_condition_does_not_move_below_a_nondeterministic_value() -> None:
    view = rewrite(
        output("SELECT * FROM (SELECT id, monotonically_increasing_id() AS m FROM orders) q WHERE id > 5")
    )
    assert kinds(view) == ["source", "project", "filter", "output"]
    clock = rewrite(output("SELECT * FROM (SELECT id, now() AS t FROM orders) q WHERE id > 5"))
    assert kinds(clock) == ["source", "filter", "project", "output"]


def test_two_nondeterministic_calls_are_not_shared_but_a_common_table_is() -> None:
    twice = output("SELECT uuid() AS u FROM orders UNION ALL SELECT uuid() AS u FROM orders")
    assert kinds(twice).count("project") == 2
    shared = output("WITH v AS (SELECT uuid() AS u FROM orders) SELECT u FROM v UNION ALL SELECT u FROM v")
    assert [
        op.kind for op in walk(shared) if isinstance(op, Project) and "uuid" in op.expressions[0].calls
    ] == ["project"]
    same = output("SELECT upper(kind) AS u FROM events UNION ALL SELECT upper(kind) AS u FROM events")
    assert kinds(same).count("project") == 1
