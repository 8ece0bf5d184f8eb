"""Column types that a circuit shows without asking Spark.

A circuit knows the types of its tables. A column that comes unchanged from a table has the type of the
table's column, and the result of arithmetic or of `count` is a number. Other columns have an unknown type
here. Spark reports the types of all columns when a chain is built (`interpreter.column_types`).
"""

import re

from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.operators import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    InputTable,
    Join,
    Operator,
    Project,
    Scalar,
    TemporalFilter,
    TopK,
    UnionAll,
    Window,
)

_CAST = re.compile(r"CAST\([^()']* AS (TIMESTAMP(?:_NTZ)?)\)", re.IGNORECASE)
NUMBER = "a number"
COUNTS = frozenset({"count", "count_if", "regr_count", "row_number", "rank", "dense_rank", "ntile"})
TOTALS = frozenset({"sum", "try_sum", "avg", "mean", "try_avg"})
EXTREMES = frozenset({"min", "max"})


def column_type(op: Operator, place: int) -> str:
    """Return the type of a column: the type of a table's column, `NUMBER`, or "" if it is unknown."""
    if isinstance(op, InputTable):
        return op.columns[place].type
    if isinstance(op, Project):
        return expression_type(op.input, op.expressions[place])
    if isinstance(op, Join):
        left = place < op.left.width
        return column_type(op.left, place) if left else column_type(op.right, place - op.left.width)
    if isinstance(op, Aggregate) and place < len(op.groups):
        return expression_type(op.input, op.groups[place])
    if isinstance(op, Aggregate | Window):
        first = len(op.groups) if isinstance(op, Aggregate) else op.input.width
        if place < first:
            return column_type(op.input, place)
        call = op.calls[place - first] if place - first < len(op.calls) else None
        if call is None or call.name in COUNTS | TOTALS:
            return NUMBER  # without a call, it is the grouping id
        return (
            expression_type(op.input, call.arguments[0]) if call.name in EXTREMES and call.arguments else ""
        )
    if isinstance(op, Filter | TemporalFilter | Distinct | TopK | Generate | Scalar):
        return column_type(op.inputs[0], place) if place < op.inputs[0].width else ""
    if isinstance(op, UnionAll):
        kinds = {column_type(part, place) for part in op.parts}
        return kinds.pop() if len(kinds) == 1 else ""
    return ""


def expression_type(op: Operator, expr: Expr) -> str:
    """Return the type of an expression over the columns of an operator; see `column_type`."""
    if expr.column is not None:
        return column_type(op, expr.column)
    text = expr.sql()
    cast = _CAST.fullmatch(text)
    if cast is not None:
        return cast[1].lower()
    return NUMBER if not expr.calls and "'" not in text and any(sign in text for sign in "+-*/%") else ""
