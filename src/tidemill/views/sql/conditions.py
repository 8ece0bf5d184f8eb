"""Conditions between two inputs: which are equalities of one side with the other, and so keys of a join."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.functions import Functions
from tidemill.views.circuit.operators import Key
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
