"""Row expressions between two kernels: in which order conditions and expressions are evaluated."""

import pytest

from tidemill.views.chain.row_expressions import ExplodeStep, FilterStep, RowExpressions, SelectStep
from tidemill.views.circuit.expr import Expr, binary, call, column, text

CAST = Expr(("CAST(", 1, " AS INT)"), frozenset({"cast"}))
IS_NUMBER = call("regexp_like", column(1), text("'^[0-9]+$'"))
PAIR = (column(0), CAST)


def sql(expressions: RowExpressions) -> list[object]:
    """Return the steps as text."""
    steps: list[object] = []
    for step in expressions.steps:
        if isinstance(step, FilterStep):
            steps.append({expr.sql() for expr in step.conditions})
        else:
            steps.append(
                [expr.sql() for expr in step.expressions] if isinstance(step, SelectStep) else "explode"
            )
    return steps


@pytest.mark.rule("DBSP-10")
def test_a_condition_is_evaluated_before_the_expressions_below_it() -> None:
    rows = RowExpressions().select((column(1), CAST)).where([call("regexp_like", column(0), text("'x'"))])
    assert sql(rows) == [{"regexp_like(c1, 'x')"}, ["c1", "CAST(c1 AS INT)"]]
    above = rows.where([binary(column(1), ">", text("5"))])
    assert sql(above)[0] == {"regexp_like(c1, 'x')", "(CAST(c1 AS INT)) > 5"}
    first, second = above.steps[0].conditions  # type: ignore[union-attr]
    assert first.calls == {"regexp_like"}, "the condition that was there first protects the other one"
    assert second.calls == {"cast"}


def test_a_condition_on_generated_columns_stays_after_the_generator() -> None:
    rows = RowExpressions().explode(ExplodeStep(call("explode", column(1)), 2, 1, outer=False))
    assert sql(rows.where([IS_NUMBER, binary(column(2), ">", text("5"))])) == [
        {"regexp_like(c1, '^[0-9]+$')"},
        "explode",
        {"c2 > 5"},
    ]


@pytest.mark.rule("DBSP-10")
def test_a_value_that_is_used_once_is_computed_where_it_is_used() -> None:
    rows = RowExpressions().select(PAIR)
    case = Expr(("CASE WHEN ", 0, " > 0 THEN ", 1, " END"))
    assert sql(rows.select([case])) == [["CASE WHEN c0 > 0 THEN (CAST(c1 AS INT)) END"]]
    twice = rows.select([case, column(1)])
    assert len(twice.steps) == 2, "Spark does not compute a value twice either"
    named = rows.select([Expr(("struct(", 1, ".f)"), frozenset({"struct"}))])
    assert len(named.steps) == 2, "the name of the field would be lost"
    assert len(rows.where([Expr(("struct(", 1, ") = c", 0), frozenset({"struct"}))]).steps) == 2
    assert sql(rows.select([column(1), column(0)])) == [["CAST(c1 AS INT)", "c0"]]
