"""Comparisons in the conditions of a join without an equality, as a kernel can use them.

Only comparisons of one column with another are used. All conditions stay part of a filter above the join.
"""

from typing import Literal, TypeAlias

from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.operators import Join

Sign = Literal["<", "<=", ">", ">="]
Comparison: TypeAlias = tuple[int, Sign, int]
"""`left sign right`: a column of the left input and a column of the right input, each by its place."""

_MIRRORED: dict[str, Sign] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def comparisons(op: Join) -> tuple[Comparison, ...]:
    """Return the comparisons between both inputs in the conditions of a join."""
    compared = (pair for condition in op.residual for pair in _pairs(condition))
    sides = (_sided(first, sign, second, op.left.width) for first, sign, second in compared)
    return tuple(dict.fromkeys(comparison for comparison in sides if comparison is not None))


def _pairs(condition: Expr) -> list[tuple[int, Sign, int]]:
    match condition.parts:
        case (int(first), str(text), int(second)) if text.strip() in _MIRRORED:
            mirrored = _MIRRORED[text.strip()]
            return [(first, _MIRRORED[mirrored], second)]
        case (int(value), " BETWEEN ", int(low), " AND ", int(high)):
            return [(value, ">=", low), (value, "<=", high)]
    return []


def _sided(first: int, sign: Sign, second: int, width: int) -> Comparison | None:
    if first < width <= second:
        return first, sign, second - width
    if second < width <= first:
        return second, _MIRRORED[sign], first - width
    return None
