"""Conditions between two inputs: which are equalities of one side with the other, and so keys of a join."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from tidemill.views.circuit.expr import Expr, both
from tidemill.views.circuit.functions import ViewFunctions
from tidemill.views.circuit.operators import Filter, JoinKey, Operator, TemporalFilter
from tidemill.views.circuit.total_expressions import is_total
from tidemill.views.sql.stage import SelectStage


@dataclass(frozen=True)
class Condition:
    """A condition, with both its sides if it is an equality."""

    expr: Expr
    sides: tuple[Expr, Expr] | None = None
    null_safe: bool = False


def condition(stage: SelectStage, node: exp.Expr, correlated: bool = False) -> Condition:
    """The condition over a stage's columns."""
    expr = stage.expr(node, correlated)
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.EQ | exp.NullSafeEQ):
        sides = (stage.expr(node.this, correlated), stage.expr(node.expression, correlated))
        return Condition(expr, sides, isinstance(node, exp.NullSafeEQ))
    return Condition(expr)


def implied(stage: SelectStage, node: exp.Expr) -> list[Condition]:
    """What every branch of an OR asks for, and so the whole of it does: `(k AND p) OR (k AND q)` implies k.

    A join finds its key there (TPC-H's Q19). The OR itself stays as it is.
    """
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Or):
        return []
    branches = [[condition(stage, one) for one in stage.conjuncts(branch)] for branch in _branches(node)]
    others = [{one.expr for one in branch} for branch in branches[1:]]
    found = [one for one in branches[0] if all(one.expr in other for other in others)]
    return [one for one in found if is_total(one.expr, stage.front.functions)]


def _branches(node: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Or):
        yield from _branches(node.this)
        yield from _branches(node.expression)
    else:
        yield node


def keyed(
    conditions: Sequence[Condition], is_left: Callable[[int], bool], functions: ViewFunctions
) -> tuple[list[JoinKey], list[Expr]]:
    """Keys (each side still numbered as in the condition) and what is left.

    A side must read its own input and nothing else; a constant is no side, and what is not the same twice
    can't be a key.
    """
    keys: list[JoinKey] = []
    rest: list[Expr] = []
    for one in conditions:
        key = _key(one, is_left, functions)
        if key is None:
            rest.append(one.expr)
        else:
            keys.append(key)
    return keys, rest


def _key(one: Condition, is_left: Callable[[int], bool], functions: ViewFunctions) -> JoinKey | None:
    if one.sides is None or any(functions.random(name) for name in one.expr.calls) or one.expr.reads_clock:
        return None
    first, second = one.sides
    sides = [{is_left(place) for place in side.columns} for side in one.sides]
    if sides == [{True}, {False}]:
        return JoinKey(first, second, one.null_safe)
    if sides == [{False}, {True}]:
        return JoinKey(second, first, one.null_safe)
    return None


Comparison = Literal["<", "<=", ">", ">="]
COMPARISONS: dict[type[exp.Expr], Comparison] = {exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
TURNED: dict[Comparison, Comparison] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def filtered_rows(stage: SelectStage, conditions: Sequence[tuple[exp.Expr, Expr]]) -> Operator:
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


def _temporal(stage: SelectStage, node: exp.Expr) -> list[tuple[Expr, Comparison, Expr]]:
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
    stage: SelectStage, left: exp.Expr, comparison: Comparison, right: exp.Expr
) -> tuple[Expr, Comparison, Expr] | None:
    one, other = stage.expr(left), stage.expr(right)
    if _value(stage, one) and _bound(stage, other):
        return one, comparison, other
    if _bound(stage, one) and _value(stage, other):
        return other, TURNED[comparison], one
    return None


def _value(stage: SelectStage, expr: Expr) -> bool:
    steady = not any(stage.front.functions.random(name) for name in expr.calls)
    return bool(expr.columns) and not expr.reads_clock and steady


def _bound(stage: SelectStage, expr: Expr) -> bool:
    return not expr.columns and not any(stage.front.functions.random(name) for name in expr.calls)
