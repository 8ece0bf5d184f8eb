"""Rounded values: sums and averages of floats, which plain Spark may round differently each time.

A view adds floats exactly and rounds the total once. Spark rounds after every row, in an order that depends
on partitions. For the n values x of a group, both totals differ by at most n * 2^-53 * sum(|x|). Relative to
the total this is tiny, unless values of different sign cancel each other out: 1e16 + 1 - 1e16 is 1 in a view,
and 0 or 1 in Spark. Averages of integers are exact in both as long as sum(|x|) is at most 2^53.
"""

from collections.abc import Iterator, Mapping

from tidemill.views.aggregates.registry import Precision, precision_of
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.column_types import expression_type
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.operators import (
    Aggregate,
    AggregateCall,
    Distinct,
    Filter,
    Generate,
    Join,
    Opaque,
    Operator,
    Project,
    Scalar,
    SetOp,
    TemporalFilter,
    TopK,
    ViewOutput,
    Window,
    WindowCall,
)

INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
TOTALS = frozenset({"sum", "try_sum"})
AVERAGES = frozenset({"avg", "mean", "try_avg"})
# These depend on the set of values only, so the order of rows does not matter.
OF_SORTED_VALUES = frozenset({"median", "percentile", "percentile_cont", "percentile_disc"})

ROUNDED = (
    "sums and averages of floats are rounded once, but by plain Spark after every row: the results differ by"
    " at most n * 2^-53 * sum(|x|) for n values x"
)
AVERAGED = "averages of integers equal those of plain Spark as long as sum(|x|) is at most 2^53 in each group"
DECIDES = "a condition or a key depends on such a value: rows can differ if the value is within this distance"


def rounding_notes(output: ViewOutput) -> list[str]:
    """Return what a user must know about rounded values in a view; empty if all its values are exact."""
    notes = dict.fromkeys(_roundings(output))
    rounded = rounded_columns(output)
    decides = any(_decides(op, [rounded[child] for child in op.inputs]) for op in rounded)
    return [*notes, *([DECIDES] if decides and notes else [])]


def has_rounded_values(output: ViewOutput) -> bool:
    """Return whether an operator of a view rounds values. Opaque queries are not examined."""
    return any(True for _ in _roundings(output))


def rounded_columns(output: ViewOutput) -> dict[Operator, frozenset[int]]:
    """Return, for each operator, the columns that depend on a rounded value."""
    shown = _shown_types(output)
    rounded: dict[Operator, frozenset[int]] = {}
    for op in walk(output):
        rounded[op] = _rounded_columns(op, [rounded[child] for child in op.inputs], shown)
    return rounded


def _roundings(output: ViewOutput) -> Iterator[str]:
    """Yield the note about each call that rounds its result."""
    shown = _shown_types(output)
    for op in walk(output):
        for number, call in _calls(op):
            note = _rounding(op, call, shown.get((op, number), ""))
            if note:
                yield note


def _calls(op: Operator) -> Iterator[tuple[int, AggregateCall | WindowCall]]:
    if isinstance(op, Aggregate):
        yield from ((len(op.groups) + i, call) for i, call in enumerate(op.calls))
    elif isinstance(op, Window):
        yield from ((op.input.width + i, call) for i, call in enumerate(op.calls))


def _rounding(op: Operator, call: AggregateCall | WindowCall, shown: str) -> str:
    """Return the note about a call; empty if it is exact."""
    if precision_of(call.name) is not Precision.FLOAT or call.name in OF_SORTED_VALUES:
        return ""
    known = expression_type(op.inputs[0], call.arguments[0]) if call.arguments else ""
    if call.name in TOTALS | AVERAGES and (known.startswith("decimal") or shown.startswith("decimal")):
        return ""
    if call.name in TOTALS and (known in INTEGERS or shown == "bigint"):
        return ""
    return AVERAGED if call.name in AVERAGES and known in INTEGERS else ROUNDED


def _shown_types(output: ViewOutput) -> dict[tuple[Operator, int], str]:
    """Return the types of the columns of operators that the view shows unchanged."""
    types: dict[tuple[Operator, int], str] = {}
    for start, kind in enumerate(output.types):
        op, place = output.input, start
        types[op, place] = kind
        while isinstance(op, Project | Filter | TopK | Distinct):
            below = op.expressions[place].column if isinstance(op, Project) else place
            if below is None:
                break
            op, place = op.input, below
            types[op, place] = kind
    return types


def _rounded_columns(
    op: Operator, below: list[frozenset[int]], shown: Mapping[tuple[Operator, int], str]
) -> frozenset[int]:
    """Return the columns of an operator that depend on a rounded value."""
    if isinstance(op, Project):
        return frozenset(i for i, expr in enumerate(op.expressions) if expr.columns & below[0])
    if isinstance(op, Join):
        right = frozenset(i + op.left.width for i in below[1])
        return below[0] if op.left_only else below[0] | right
    if isinstance(op, Aggregate | Window):
        kept = frozenset(
            i
            for i, expr in enumerate(op.groups if isinstance(op, Aggregate) else ())
            if expr.columns & below[0]
        )
        kept |= below[0] if isinstance(op, Window) else frozenset()
        return kept | frozenset(
            number
            for number, call in _calls(op)
            if _rounding(op, call, shown.get((op, number), "")) or call.value.columns & below[0]
        )
    if isinstance(op, Generate):
        added = range(op.input.width, op.width) if op.call.columns & below[0] else ()
        return below[0] | frozenset(added)
    if isinstance(op, Scalar):
        return below[0] | (frozenset({op.input.width}) if below[1] else frozenset())
    if isinstance(op, Opaque):
        return frozenset()
    return frozenset(place for columns in below for place in columns)


def _decides(op: Operator, below: list[frozenset[int]]) -> bool:
    """Return whether rounded values decide which rows an operator returns."""
    if isinstance(op, Distinct | SetOp):
        return any(below)
    if isinstance(op, Join):
        columns = below[0] | frozenset(i + op.left.width for i in below[1])
        keys = (*op.keys, *op.null_aware)
        return any(key.left.columns & below[0] or key.right.columns & below[1] for key in keys) or any(
            expr.columns & columns for expr in op.residual
        )
    deciding: tuple[Expr, ...] = ()
    if isinstance(op, Filter):
        deciding = op.conditions
    elif isinstance(op, TemporalFilter):
        deciding = (op.value,)
    elif isinstance(op, Aggregate):
        deciding = op.groups
    elif isinstance(op, Window):
        deciding = (*op.partition, *(key.value for key in op.order))
    elif isinstance(op, TopK):
        deciding = tuple(key.value for key in op.order)
    return any(expr.columns & below[0] for expr in deciding)
