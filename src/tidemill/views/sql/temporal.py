"""WHERE conditions, those about the clock apart: `column < now() - constant` is a temporal filter."""

from collections.abc import Sequence
from typing import Literal

from sqlglot import exp

from tidemill.views.circuit.expr import Expr, both
from tidemill.views.circuit.operators import Filter, Operator, TemporalFilter
from tidemill.views.sql.stage import Stage

Comparison = Literal["<", "<=", ">", ">="]
COMPARISONS: dict[type[exp.Expr], Comparison] = {exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
TURNED: dict[Comparison, Comparison] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def filtered(stage: Stage, conditions: Sequence[tuple[exp.Expr, Expr]]) -> Operator:
    """The stage's rows for which all conditions hold: plain ones first, then one operator per temporal one.

    A condition that reads the clock in any other way stays in a filter, which then is not linear.
    """
    plain: list[Expr] = []
    temporal: list[tuple[Expr, Comparison, Expr]] = []
    for node, expr in conditions:
        found = _temporal(stage, node) if expr.reads_clock else []
        temporal += [one for one in found if one[2].reads_clock]
        plain += [both(value, by, bound) for value, by, bound in found if not bound.reads_clock]
        if not found:
            plain.append(expr)
    operator = Filter(stage.operator, tuple(plain)) if plain else stage.operator
    for value, comparison, bound in temporal:
        operator = TemporalFilter(operator, value, comparison, bound)
    return operator


def _temporal(stage: Stage, node: exp.Expr) -> list[tuple[Expr, Comparison, Expr]]:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Between):
        low = _sides(stage, node.this, ">=", node.args["low"])
        high = _sides(stage, node.this, "<=", node.args["high"])
        return [low, high] if low and high else []
    comparison = COMPARISONS.get(type(node))
    if comparison is None:
        return []
    made = _sides(stage, node.this, comparison, node.args["expression"])
    return [made] if made else []


def _sides(
    stage: Stage, left: exp.Expr, comparison: Comparison, right: exp.Expr
) -> tuple[Expr, Comparison, Expr] | None:
    one, other = stage.expr(left), stage.expr(right)
    if _value(stage, one) and _bound(stage, other):
        return one, comparison, other
    if _bound(stage, one) and _value(stage, other):
        return other, TURNED[comparison], one
    return None


def _value(stage: Stage, expr: Expr) -> bool:
    steady = not any(stage.front.functions.random(name) for name in expr.calls)
    return bool(expr.columns) and not expr.reads_clock and steady


def _bound(stage: Stage, expr: Expr) -> bool:
    return not expr.columns and not any(stage.front.functions.random(name) for name in expr.calls)
