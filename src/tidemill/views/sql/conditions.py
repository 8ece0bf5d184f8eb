"""Conditions between two inputs: which are equalities of one side with the other, and so keys of a join."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.functions import Functions
from tidemill.views.circuit.operators import Key
from tidemill.views.circuit.tame import tame
from tidemill.views.sql.stage import Stage


@dataclass(frozen=True)
class Condition:
    """A condition, with both its sides if it is an equality."""

    expr: Expr
    sides: tuple[Expr, Expr] | None = None
    null_safe: bool = False


def condition(stage: Stage, node: exp.Expr, correlated: bool = False) -> Condition:
    """The condition over a stage's columns."""
    expr = stage.expr(node, correlated)
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.EQ | exp.NullSafeEQ):
        sides = (stage.expr(node.this, correlated), stage.expr(node.expression, correlated))
        return Condition(expr, sides, isinstance(node, exp.NullSafeEQ))
    return Condition(expr)


def implied(stage: Stage, node: exp.Expr) -> list[Condition]:
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
    return [one for one in found if tame(one.expr, stage.front.functions)]


def _branches(node: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Or):
        yield from _branches(node.this)
        yield from _branches(node.expression)
    else:
        yield node


def keyed(
    conditions: Sequence[Condition], is_left: Callable[[int], bool], functions: Functions
) -> tuple[list[Key], list[Expr]]:
    """Keys (each side still numbered as in the condition) and what is left.

    A side must read its own input and nothing else; a constant is no side, and what is not the same twice
    can't be a key.
    """
    keys: list[Key] = []
    rest: list[Expr] = []
    for one in conditions:
        key = _key(one, is_left, functions)
        if key is None:
            rest.append(one.expr)
        else:
            keys.append(key)
    return keys, rest


def _key(one: Condition, is_left: Callable[[int], bool], functions: Functions) -> Key | None:
    if one.sides is None or any(functions.random(name) for name in one.expr.calls) or one.expr.reads_clock:
        return None
    first, second = one.sides
    sides = [{is_left(place) for place in side.columns} for side in one.sides]
    if sides == [{True}, {False}]:
        return Key(first, second, one.null_safe)
    if sides == [{False}, {True}]:
        return Key(second, first, one.null_safe)
    return None
