"""Column lineage: from which columns of its tables each column of a view is computed.

A column is *direct* input if its values are in the result, as they are or computed: identity, transformation
or aggregation. The other columns that a query reads are *indirect* input: they decide which rows there are,
how rows are combined, or how they are ordered.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.operators import (
    Aggregate,
    Filter,
    Generate,
    InputTable,
    Join,
    LiteralRows,
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


class Direct(IntEnum):
    """How a column is computed from another; the largest applies if there are several ways."""

    IDENTITY = 1
    TRANSFORMATION = 2
    AGGREGATION = 3


class Indirect(IntEnum):
    """How a column has an effect on rows, although its values are not in the result."""

    FILTER = 1
    JOIN = 2
    GROUP_BY = 3
    SORT = 4
    WINDOW = 5


@dataclass(frozen=True, order=True)
class SourceColumn:
    """A column of a table that a view reads."""

    table: str
    column: str


Sources = Mapping[SourceColumn, Direct]


@dataclass(frozen=True)
class ColumnLineage:
    """The lineage of a view.

    - columns: the direct inputs of each column, by name.
    - indirect: the columns that the whole view depends on.
    """

    columns: Mapping[str, Sources]
    indirect: Mapping[SourceColumn, Indirect]


def column_lineage(output: ViewOutput) -> ColumnLineage:
    """Return the lineage of the columns of a view."""
    known: dict[Operator, list[Sources]] = {}
    indirect: dict[SourceColumn, Indirect] = {}
    for operator in walk(output):
        inputs = [known[each] for each in operator.inputs]
        known[operator] = _columns(operator, inputs)
        for kind, expressions, columns in _indirect(operator, inputs):
            for source in _of(expressions, columns, Direct.TRANSFORMATION):
                indirect.setdefault(source, kind)
    return ColumnLineage(dict(zip(output.names, known[output], strict=True)), indirect)


def _columns(operator: Operator, inputs: list[list[Sources]]) -> list[Sources]:
    """Return the direct inputs of each column of an operator."""
    match operator:
        case InputTable():
            return [{SourceColumn(operator.table, each.name): Direct.IDENTITY} for each in operator.columns]
        case LiteralRows():
            return [{} for _ in range(operator.width)]
        case Project():
            return [_value(expression, inputs[0]) for expression in operator.expressions]
        case Generate():
            produced = _of([operator.call], inputs[0], Direct.TRANSFORMATION)
            return [*inputs[0], *(produced for _ in range(operator.produces))]
        case UnionAll():
            return [_merged(columns) for columns in zip(*inputs, strict=True)]
        case Join():
            return inputs[0] if operator.left_only else [*inputs[0], *inputs[1]]
        case Aggregate():
            keys = [_value(expression, inputs[0]) for expression in operator.groups]
            calls = [_of([call.value], inputs[0], Direct.AGGREGATION) for call in operator.calls]
            return [*keys, *calls, *([{}] if operator.sets is not None else [])]
        case Window():
            arguments = (call.arguments for call in operator.calls)
            return [*inputs[0], *(_of(each, inputs[0], Direct.AGGREGATION) for each in arguments)]
        case Scalar():
            return [*inputs[0], inputs[1][0]]
        case Opaque():
            everything = _merged([column for columns in inputs for column in columns])
            computed = {source: max(kind, Direct.TRANSFORMATION) for source, kind in everything.items()}
            return [computed for _ in range(operator.width)]
    return inputs[0]


def _indirect(
    operator: Operator, inputs: list[list[Sources]]
) -> list[tuple[Indirect, Iterable[Expr], list[Sources]]]:
    """Return the expressions of an operator that decide about rows, each with the columns that it reads."""
    match operator:
        case Filter():
            return [(Indirect.FILTER, operator.conditions, inputs[0])]
        case TemporalFilter():
            return [(Indirect.FILTER, [operator.value], inputs[0])]
        case Join():
            keys = (*operator.keys, *operator.null_aware)
            return [
                (Indirect.JOIN, [key.left for key in keys], inputs[0]),
                (Indirect.JOIN, [key.right for key in keys], inputs[1]),
                (Indirect.JOIN, operator.residual, [*inputs[0], *inputs[1]]),
            ]
        case SetOp():
            everything = [Expr((place,)) for place in range(operator.right.width)]
            return [(Indirect.FILTER, everything, inputs[1])]
        case Aggregate():
            return [(Indirect.GROUP_BY, operator.groups, inputs[0])]
        case TopK():
            return [(Indirect.SORT, [key.value for key in operator.order], inputs[0])]
        case Window():
            order = [key.value for key in operator.order]
            return [(Indirect.WINDOW, [*operator.partition, *order], inputs[0])]
    return []


def _value(expression: Expr, columns: list[Sources]) -> Sources:
    if expression.column is not None:
        return columns[expression.column]
    return _of([expression], columns, Direct.TRANSFORMATION)


def _of(expressions: Iterable[Expr], columns: list[Sources], kind: Direct) -> Sources:
    """Return the inputs of expressions, which compute in this way."""
    sources: dict[SourceColumn, Direct] = {}
    for expression in expressions:
        for place in sorted(expression.columns):
            for source, inner in columns[place].items():
                sources[source] = max(inner, kind, sources.get(source, kind))
    return sources


def _merged(columns: Iterable[Sources]) -> Sources:
    sources: dict[SourceColumn, Direct] = {}
    for column in columns:
        for source, kind in column.items():
            sources[source] = max(kind, sources.get(source, kind))
    return sources
