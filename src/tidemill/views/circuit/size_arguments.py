"""Size arguments: lengths and counts that decide how much memory a function call needs.

`repeat(s, n)` builds a text of n copies. With the highest integer, Spark asks Java for an array of 2 GB, and
the Java process ends. So certification must not use extreme values for the columns that such arguments read
(`sized_columns`).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.ids import expressions_of
from tidemill.views.circuit.operators import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    InputTable,
    Join,
    Opaque,
    Operator,
    Project,
    Scalar,
    SetOp,
    TemporalFilter,
    TopK,
    UnionAll,
    ViewOutput,
    Window,
)

SIZE_ARGUMENTS: Final[Mapping[str, Collection[int]]] = {
    "array_insert": (1,),
    "array_repeat": (1,),
    "format_number": (1,),
    "lpad": (1,),
    "repeat": (1,),
    "rpad": (1,),
    "sequence": (0, 1, 2),
    "space": (0,),
}
"""The positions of the arguments that decide how large the result is."""

_TOKENS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|\w+|->|[(),]""", re.DOTALL)


def sized_columns(output: ViewOutput) -> dict[str, set[str]]:
    """Return, for each table, the columns that size arguments of a view depend on."""
    sized: dict[Operator, set[int]] = {}
    tables: dict[str, set[str]] = {}
    for op in reversed(list(walk(output))):
        columns = sized.pop(op, set())
        if isinstance(op, InputTable):
            if columns:
                tables.setdefault(op.table, set()).update(op.columns[i].name for i in columns)
            continue
        for child, read, origins in zip(op.inputs, _read(op), _origins(op, columns), strict=True):
            sized.setdefault(child, set()).update(read | origins)
    return tables


def _read(op: Operator) -> list[set[int]]:
    """Return the columns of each input that are read by size arguments of this operator."""
    if isinstance(op, Opaque):
        return _all_columns(op) if SIZE_ARGUMENTS.keys() & set(op.calls) else [set() for _ in op.inputs]
    if isinstance(op, Join):
        keys = (*op.keys, *op.null_aware)
        left, right = _split(_columns_of(op.residual), op.left.width)
        return [
            left | _columns_of(key.left for key in keys),
            right | _columns_of(key.right for key in keys),
        ]
    columns = _columns_of(expressions_of(op))
    assert len(op.inputs) == 1 or not columns, f"which input do the expressions of {op.kind} read?"
    return [columns for _ in op.inputs]


def _origins(op: Operator, columns: set[int]) -> list[set[int]]:
    """Return the columns of each input from which these columns of an operator are computed."""
    if isinstance(op, Filter | TemporalFilter | TopK | Distinct | ViewOutput | UnionAll | SetOp):
        return [set(columns) for _ in op.inputs]
    if isinstance(op, Project):
        return [_all_of(op.expressions[i] for i in columns)]
    if isinstance(op, Aggregate):
        values = (*op.groups, *(call.value for call in op.calls))
        return [_all_of(values[i] for i in columns if i < len(values))]
    if isinstance(op, Join):
        return [*_split(columns, op.left.width)]
    if isinstance(op, Generate | Window | Scalar):
        width = op.input.width
        passed, added = _split(columns, width)
        if isinstance(op, Scalar):
            return [passed, {0} if added else set()]
        calls = (op.call,) * op.produces if isinstance(op, Generate) else tuple(c.value for c in op.calls)
        return [passed | _all_of(calls[i] for i in added)]
    return _all_columns(op) if columns else [set() for _ in op.inputs]


def _split(columns: set[int], width: int) -> tuple[set[int], set[int]]:
    """Divide columns into those of the first input and the others."""
    return {i for i in columns if i < width}, {i - width for i in columns if i >= width}


def _all_columns(op: Operator) -> list[set[int]]:
    return [set(range(child.width)) for child in op.inputs]


def _all_of(expressions: "Iterator[Expr]") -> set[int]:
    return {column for expr in expressions for column in expr.columns}


def _columns_of(expressions: "Collection[Expr] | Iterator[Expr]") -> set[int]:
    return {column for expr in expressions for column in columns_in_sizes(expr)}


def columns_in_sizes(expr: Expr) -> set[int]:
    """Return the columns that size arguments of an expression read; all its columns if that is unclear."""
    if not SIZE_ARGUMENTS.keys() & expr.calls:
        return set()
    columns: set[int] = set()
    calls: list[tuple[str, int]] = []  # the open parentheses: name of the function, position of the argument
    name = ""
    for part in expr.parts:
        if isinstance(part, int):
            if any(position in SIZE_ARGUMENTS.get(call, ()) for call, position in calls):
                columns.add(part)
            continue
        for token in _TOKENS.findall(part) if isinstance(part, str) else ():
            if token == "->":  # noqa: S105 - the parameter of a lambda function may be a size
                return set(expr.columns)
            if token == "(":  # noqa: S105
                calls.append((name, 0))
            elif token == ")" and calls:  # noqa: S105
                calls.pop()
            elif token == "," and calls:  # noqa: S105
                calls[-1] = (calls[-1][0], calls[-1][1] + 1)
            name = token.lower()
    return columns if not calls else set(expr.columns)
