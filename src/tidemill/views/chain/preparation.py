"""Rewrite a circuit so that its stateful operators read plain columns.

SQL projections below the operators compute these columns:

    join        expressions in keys become columns of its inputs; other conditions become a filter above it
    aggregate   its input becomes a projection of keys and arguments; a FILTER becomes a CASE in the argument
    window      expressions in its PARTITION BY become columns of its input; if a kernel can compute it, so do
                sort keys and arguments, except for the hash that breaks ties
    top-k       expressions in its ORDER BY become columns of its input, except for the hash that breaks ties

The result of the circuit stays the same. If no kernel computes an operator, the chain builder raises
`NoKernel`, and each step recomputes the view.
"""

from collections.abc import Mapping
from dataclasses import replace

from tidemill.views.aggregates.registry import Argument, aggregate
from tidemill.views.circuit.circuit import map_operators
from tidemill.views.circuit.expr import Expr, binary, call, column, merge_parts, text
from tidemill.views.circuit.operators import (
    Aggregate,
    AggregateCall,
    Filter,
    Join,
    JoinKey,
    Operator,
    Project,
    TopK,
    ViewOutput,
    Window,
    WindowCall,
)
from tidemill.views.circuit.rungs import is_native
from tidemill.views.circuit.ties import hash_keys
from tidemill.views.circuit.window_calls import has_kernel, kernel_call


class NoKernel(Exception):
    """A chain cannot compute a view; the message gives the reason."""


class NoKey(Exception):
    """An operator has neither a kernel nor a key; the message gives the reason."""


def prepared(output: ViewOutput) -> ViewOutput:
    """Rewrite a view so that its stateful operators read only columns, not expressions."""
    rewritten = map_operators(output, _prepared)
    assert isinstance(rewritten, ViewOutput)
    return rewritten


def _prepared(op: Operator) -> Operator:
    if isinstance(op, Join):
        return _join(op)
    if isinstance(op, Aggregate):
        return _aggregate(op)
    if isinstance(op, Window):
        return _window(op)
    if isinstance(op, TopK):
        return _top(op)
    return op


def _join(op: Join) -> Operator:
    if not op.keys:
        return op
    lefts, rights = [key.left for key in op.keys], [key.right for key in op.keys]
    left, left_keys = _with_columns(op.left, lefts)
    right, right_keys = _with_columns(op.right, rights)
    keys = tuple(
        JoinKey(column(left_key), column(right_key), key.null_safe)
        for left_key, right_key, key in zip(left_keys, right_keys, op.keys, strict=True)
    )
    width, wide = op.left.width, left.width
    moved = tuple(expr.renumbered(lambda i: i if i < width else i - width + wide) for expr in op.residual)
    inner = op.join == "inner"
    join: Operator = replace(op, left=left, right=right, keys=keys, residual=() if inner else moved)
    if inner and moved:
        join = Filter(join, moved)
    if join.width == op.width:
        return join
    selected = [*range(width), *(() if op.left_only else range(wide, wide + op.right.width))]
    return Project(join, tuple(column(i) for i in selected))


def _window(op: Window) -> Operator:
    forms = [kernel_call(call, ordered=bool(op.order)) for call in op.calls] if has_kernel(op) else []
    keys = [key.value for key in op.order] if forms else []
    read = [form.argument for form in forms if form is not None and form.argument is not None]
    below, places = _with_columns(op.input, [*op.partition, *keys, *read])
    place_of = dict(zip([*op.partition, *keys, *read], places, strict=True))
    window = replace(
        op,
        input=below,
        partition=tuple(column(place_of[expr]) for expr in op.partition),
        order=tuple(replace(key, value=column(place_of[key.value])) for key in op.order)
        if forms
        else op.order,
        calls=tuple(_with_column(call, place_of) for call in op.calls) if forms else op.calls,
    )
    if window.width == op.width:
        return window
    width = op.input.width
    return Project(window, tuple(column(i) for i in [*range(width), *range(below.width, window.width)]))


def _with_column(window_call: WindowCall, place_of: Mapping[Expr, int]) -> WindowCall:
    """Return a call whose argument is a column."""
    if not window_call.arguments or window_call.arguments[0] not in place_of:
        return window_call
    arguments = (column(place_of[window_call.arguments[0]]), *window_call.arguments[1:])
    return replace(window_call, value=call(window_call.name, *arguments), arguments=arguments)


def _top(op: TopK) -> Operator:
    """Compute the sort keys below. Kernels can compute the hash that breaks ties."""
    ends = hash_keys(op.order)
    keys = op.order[: len(op.order) - len(ends)]
    below, places = _with_columns(op.input, [key.value for key in keys])
    columns = [replace(key, value=column(place)) for key, place in zip(keys, places, strict=True)]
    top = replace(op, input=below, order=(*columns, *ends))
    return top if top.width == op.width else Project(top, tuple(map(column, range(op.width))))


def _with_columns(op: Operator, expressions: list[Expr]) -> tuple[Operator, list[int]]:
    """Return an operator that has these expressions as columns, and the places of these columns."""
    new = [expr for expr in dict.fromkeys(expressions) if expr.column is None]
    place = {expr: op.width + n for n, expr in enumerate(new)}
    places = [place[expr] if expr.column is None else expr.column for expr in expressions]
    if not new:
        return op, places
    return Project(op, (*(column(i) for i in range(op.width)), *new)), places


def _aggregate(op: Aggregate) -> Operator:
    if any(expr.is_session_window for expr in op.groups):
        return _sessions(op)
    native = [simple for aggregate in op.calls if (simple := _native_call(aggregate)) is not None]
    if len(native) < len(op.calls):
        below, places = _with_columns(op.input, list(op.groups))
        return replace(op, input=below, groups=tuple(column(i) for i in places))
    columns = tuple(
        dict.fromkeys([*op.groups, *(argument for _, arguments in native for argument in arguments)])
    )
    place = {expr: n for n, expr in enumerate(columns)}
    calls = []
    for name, arguments in native:
        moved = tuple(column(place[argument]) for argument in arguments)
        value = call(name, *moved) if moved else text("count(*)", "count")
        calls.append(AggregateCall(value, name, moved))
    groups = tuple(column(place[expr]) for expr in op.groups)
    return Aggregate(Project(op.input, columns), groups, tuple(calls), op.sets)


def _sessions(op: Aggregate) -> Operator:
    """Turn the other keys of a session window into columns."""
    below, places = _with_columns(op.input, [expr for expr in op.groups if not expr.is_session_window])
    columns = iter(places)
    groups = [expr if expr.is_session_window else column(next(columns)) for expr in op.groups]
    return replace(op, input=below, groups=tuple(groups))


def _native_call(aggregate_call: AggregateCall) -> tuple[str, tuple[Expr, ...]] | None:
    """Return the name and at most one argument of a native aggregate; None for any other aggregate."""
    entry = aggregate(aggregate_call.name)
    if not is_native(aggregate_call) or entry.kernel is None:
        return None
    name = entry.same_as or entry.name
    match entry.kernel.argument:
        case Argument.TRUE:
            return name, (_when(_and(aggregate_call.filter, aggregate_call.arguments[0]), text("1")),)
        case Argument.ALL_PRESENT:
            return name, _all_present(aggregate_call, entry.kernel.value)
        case Argument.VALUE:
            if len(aggregate_call.arguments) != 1:
                return None
            value = _templated(entry.kernel.value, aggregate_call.arguments[0])
            return name, (value if aggregate_call.filter is None else _when(aggregate_call.filter, value),)


def _all_present(aggregate_call: AggregateCall, value: str) -> tuple[Expr, ...]:
    """Combine the arguments into at most one. It is NULL if any of them is NULL or the filter is not true."""
    nullable = [
        _templated(value, argument) for argument in aggregate_call.arguments if _is_nullable(argument)
    ]
    if aggregate_call.filter is None and len(nullable) < 2:
        return tuple(nullable)
    condition = aggregate_call.filter
    for argument in nullable:
        condition = _and(condition, _not_null(argument))
    assert condition is not None
    return (_when(condition, text("1")),)


def _templated(template: str, argument: Expr) -> Expr:
    if template == "{}":
        return argument
    before, _, after = template.partition("{}")
    return Expr(merge_parts((before, *argument.parts, after)), argument.calls)


def _is_nullable(argument: Expr) -> bool:
    """Return whether an argument can be NULL: `*` and numbers cannot."""
    if argument.columns or argument.calls:
        return True
    sql = argument.sql().strip()
    return not (sql == "*" or sql.replace(".", "", 1).isdigit())


def _not_null(expr: Expr) -> Expr:
    return Expr(merge_parts((*expr.parenthesized().parts, " IS NOT NULL")), expr.calls)


def _and(first: Expr | None, second: Expr) -> Expr:
    return second if first is None else binary(first, "AND", second)


def _when(condition: Expr, value: Expr) -> Expr:
    parts = ("CASE WHEN ", *condition.parts, " THEN ", *value.parts, " END")
    return Expr(merge_parts(parts), condition.calls | value.calls)
