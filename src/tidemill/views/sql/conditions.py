"""Conditions: find those that are keys of a join, and those that compare a column with the clock.

`is_monotonic` tells whether a bound that depends on the clock only grows (DBSP-22). Such a bound passes the
value of each row only once, and Tidemill can predict when. The check knows the functions of the clock,
intervals that are added or subtracted, casts between dates and timestamps, and truncation to a unit. Any
other bound counts as not monotonic. A timestamp minus a month is not monotonic: on 30 and 31 March the result
is on the last day of February, so on the morning of the 31st the result is earlier than on the evening
before. A date minus a month is monotonic.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal

from sqlglot import exp

from tidemill.errors import QueryError
from tidemill.views.circuit.expr import Expr, binary
from tidemill.views.circuit.functions import ViewFunctions
from tidemill.views.circuit.operators import Filter, JoinKey, Operator, TemporalFilter
from tidemill.views.circuit.total_expressions import is_total
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.parser import ParsedQuery
from tidemill.views.sql.stage import SelectStage


@dataclass(frozen=True)
class Condition:
    """A condition, and its two sides if it is an equality."""

    expr: Expr
    sides: tuple[Expr, Expr] | None = None
    null_safe: bool = False


def parse_condition(stage: SelectStage, node: exp.Expr, correlated: bool = False) -> Condition:
    """Translate a condition over the columns of a stage."""
    expr = stage.expr(node, correlated)
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.EQ | exp.NullSafeEQ):
        sides = (stage.expr(node.this, correlated), stage.expr(node.expression, correlated))
        return Condition(expr, sides, isinstance(node, exp.NullSafeEQ))
    return Condition(expr)


def implied(stage: SelectStage, node: exp.Expr) -> list[Condition]:
    """Return the conditions that all branches of an OR contain: `(k AND p) OR (k AND q)` implies k.

    They can be keys of a join (as in Q19 of TPC-H). The OR itself stays unchanged.
    """
    shared, _ = _factors(stage, node)
    return [condition for condition in shared if is_total(condition.expr, stage.context.functions)]


def factored(stage: SelectStage, node: exp.Expr) -> list[Condition]:
    """Return conditions of a subquery that together equal a condition that reads the outer query.

    `(k AND p) OR (k AND q)` becomes `k` and `p OR q`. So k can be the key of a join, and `p OR q` a filter of
    the subquery, as in Q41 of TPC-DS.
    """
    whole = parse_condition(stage, node, correlated=True)
    if whole.expr.reads_clock:
        return [whole]
    shared, branches = _factors(stage, node, correlated=True)
    if not shared:
        return [whole]
    keys = {condition.expr for condition in shared}
    rest = [[each.expr for each in branch if each.expr not in keys] for branch in branches]
    if not all(rest):  # one branch has no other condition
        return shared
    alternatives = [reduce(partial(_joined, "AND"), branch) for branch in rest]
    return [*shared, Condition(reduce(partial(_joined, "OR"), alternatives))]


def _joined(operator: str, left: Expr, right: Expr) -> Expr:
    return binary(left, operator, right)


def _factors(
    stage: SelectStage, node: exp.Expr, *, correlated: bool = False
) -> tuple[list[Condition], list[list[Condition]]]:
    """Return the conditions that all branches of an OR contain, and those of each branch."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Or):
        return [], []
    branches = [
        [parse_condition(stage, condition, correlated) for condition in stage.conjuncts(branch)]
        for branch in _branches(node)
    ]
    others = [{condition.expr for condition in branch} for branch in branches[1:]]
    return [
        condition for condition in branches[0] if all(condition.expr in other for other in others)
    ], branches


def _branches(node: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Or):
        yield from _branches(node.this)
        yield from _branches(node.expression)
    else:
        yield node


def join_keys(
    conditions: Sequence[Condition], is_left: Callable[[int], bool], functions: ViewFunctions
) -> tuple[list[JoinKey], list[Expr]]:
    """Split conditions into keys of a join and the residual; positions stay as in the conditions.

    In a key, each side reads columns of its own input only. A constant is not a side, and a nondeterministic
    expression cannot be part of a key.
    """
    keys: list[JoinKey] = []
    residual: list[Expr] = []
    for condition in conditions:
        key = _key(condition, is_left, functions)
        if key is None:
            residual.append(condition.expr)
        else:
            keys.append(key)
    return keys, residual


def _key(condition: Condition, is_left: Callable[[int], bool], functions: ViewFunctions) -> JoinKey | None:
    if (
        condition.sides is None
        or any(functions.is_random(name) for name in condition.expr.calls)
        or condition.expr.reads_clock
    ):
        return None
    first, second = condition.sides
    sides = [{is_left(position) for position in side.columns} for side in condition.sides]
    if sides == [{True}, {False}]:
        return JoinKey(first, second, condition.null_safe)
    if sides == [{False}, {True}]:
        return JoinKey(second, first, condition.null_safe)
    return None


Comparison = Literal["<", "<=", ">", ">="]
COMPARISONS: dict[type[exp.Expr], Comparison] = {exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
REVERSED: dict[Comparison, Comparison] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def filtered_rows(stage: SelectStage, conditions: Sequence[tuple[exp.Expr, Expr]]) -> Operator:
    """Filter the rows of a stage: first by ordinary conditions, then by one operator per temporal condition.

    A condition that reads the clock in any other form stays in the filter, which is then not linear.
    """
    plain: list[Expr] = []
    temporal: list[tuple[Expr, Comparison, Expr]] = []
    for node, expr in conditions:
        comparisons = _temporal(stage, node) if expr.reads_clock else []
        temporal += [sides for sides in comparisons if sides[2].reads_clock]
        plain += [binary(value, by, bound) for value, by, bound in comparisons if not bound.reads_clock]
        if not comparisons:
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
    sides = _sides(stage, node.this, comparison, node.args["expression"])
    return [sides] if sides else []


def _sides(
    stage: SelectStage, left_node: exp.Expr, comparison: Comparison, right_node: exp.Expr
) -> tuple[Expr, Comparison, Expr] | None:
    left, right = stage.expr(left_node), stage.expr(right_node)
    if _value(stage, left) and _bound(stage, right):
        return left, comparison, right
    if _bound(stage, left) and _value(stage, right):
        return right, REVERSED[comparison], left
    return None


def _value(stage: SelectStage, expr: Expr) -> bool:
    deterministic = not any(stage.context.functions.is_random(name) for name in expr.calls)
    return bool(expr.columns) and not expr.reads_clock and deterministic


def _bound(stage: SelectStage, expr: Expr) -> bool:
    return not expr.columns and not any(stage.context.functions.is_random(name) for name in expr.calls)


# --- bounds that grow with the clock ------------------------------------------------------------------------

_CLOCKS = (exp.CurrentTimestamp, exp.CurrentDate, exp.Localtimestamp)
_TRUNCATIONS = {"date_trunc", "trunc", "to_date", "date", "to_timestamp", "timestamp"}
_SHIFTS = {"date_add", "date_sub"}
_FIXED = re.compile(r"\b(week|day|hour|minute|second|millisecond|microsecond)s?\b", re.IGNORECASE)
_MONTHS = re.compile(r"\b(year|quarter|month)s?\b", re.IGNORECASE)
_DATES = {exp.DataType.Type.DATE}
_TIMES = _DATES | {
    exp.DataType.Type.TIMESTAMP,
    exp.DataType.Type.TIMESTAMPNTZ,
    exp.DataType.Type.TIMESTAMPLTZ,
}


def is_monotonic(sql: str) -> bool:
    """Return whether this expression of the clock never decreases as time passes."""
    try:
        query = ParsedQuery(f"SELECT {sql}")
    except (QueryError, NotDecomposed):
        return False
    (node,) = query.tree.expressions
    return _never_decreases(query, node)


def _never_decreases(query: ParsedQuery, node: exp.Expr) -> bool:
    match node:
        case exp.Paren() | exp.Alias():
            return _never_decreases(query, node.this)
        case exp.Cast():
            return node.to.this in _TIMES and _never_decreases(query, node.this)
        case exp.Add() | exp.Sub():
            return _never_decreases(query, node.left) and _adds_interval(query, node.left, node.right)
        case _:
            return isinstance(node, _CLOCKS) or _called(query, node)


def _called(query: ParsedQuery, node: exp.Expr) -> bool:
    """Return whether a function preserves the order of its only argument that reads the clock."""
    if not isinstance(node, exp.Func):
        return False
    text = query.text(node)
    name = text.partition("(")[0].strip().lower()
    inner = [argument for argument in node.args.values() if isinstance(argument, exp.Expr)]
    moving = [argument for argument in inner if argument.find(*_CLOCKS)]
    if len(moving) != 1 or not _never_decreases(query, moving[0]):
        return False
    return name in _TRUNCATIONS or (name in _SHIFTS and not _MONTHS.search(text))


def _adds_interval(query: ParsedQuery, base: exp.Expr, length: exp.Expr) -> bool:
    if length.find(*_CLOCKS) or length.find(exp.Column):
        return False
    text = query.text(length)
    if _MONTHS.search(text):
        return _is_date(base) and not _FIXED.search(text)
    # A number added to a date is a number of days.
    return bool(_FIXED.search(text)) or (_is_date(base) and isinstance(length, exp.Literal))


def _is_date(node: exp.Expr) -> bool:
    if isinstance(node, exp.Paren):
        return _is_date(node.this)
    return isinstance(node, exp.CurrentDate) or (isinstance(node, exp.Cast) and node.to.this in _DATES)
