"""Rewrite a circuit so that its stateful operators read plain columns.

SQL projections below the operators compute these columns:

    join        expressions in keys become columns of its inputs; other conditions become a filter above it,
                or below it; NOT IN with a key becomes an anti join with a condition; EXISTS without a
                condition becomes a scalar
    aggregate   its input becomes a projection of keys and arguments; a FILTER becomes a CASE in the argument;
                a session window becomes an operator below, and its start is the key
    window      expressions in its PARTITION BY become columns of its input; if a kernel can compute it, so do
                sort keys and arguments, except for the hash that breaks ties
    top-k       expressions in its ORDER BY become columns of its input, except for the hash that breaks ties

The result of the circuit stays the same. If no kernel computes an operator, the chain builder raises
`NoKernel`, and each step recomputes the view.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from tidemill.views.aggregates.registry import Accumulator, Argument, TieBreak, aggregate, kernel_of
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
    Scalar,
    Sessions,
    TopK,
    ViewOutput,
    Window,
    WindowCall,
)
from tidemill.views.circuit.rungs import is_native
from tidemill.views.circuit.sessions import SessionForm, session_form, session_key
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
    if isinstance(op, Project) and isinstance(op.input, Project):
        return _without_sessions(op, op.input)
    return op


def _join(op: Join) -> Operator:
    if op.join in {"semi", "anti"} and not (op.keys or op.residual or op.null_aware):
        return _exists(op)
    if not op.keys:
        return op
    op = _filtered_below(_without_null_aware(op))
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


def _without_null_aware(op: Join) -> Join:
    """Turn NOT IN into an anti join: a right row matches if the comparison is true or NULL."""
    if op.join != "null-aware anti":
        return op
    width = op.left.width
    compared = (binary(key.left, "=", key.right.renumbered(lambda i: i + width)) for key in op.null_aware)
    conditions = tuple(call("coalesce", equal, text("true")) for equal in compared)
    return replace(op, join="anti", null_aware=(), residual=(*op.residual, *conditions))


def _filtered_below(op: Join) -> Join:
    """Move the conditions of a join to the input that they read, if only its matching rows are returned."""
    width = op.left.width
    reads_left = [all(i < width for i in condition.columns) for condition in op.residual]
    reads_right = [all(i >= width for i in condition.columns) for condition in op.residual]
    to_left = [op.join in {"right", "semi"} and reads for reads in reads_left]
    to_right = [
        op.join in {"left", "semi", "anti"} and reads and not left
        for reads, left in zip(reads_right, to_left, strict=True)
    ]
    conditions = list(zip(op.residual, to_left, to_right, strict=True))
    lefts = tuple(condition for condition, left, _ in conditions if left)
    rights = tuple(condition.renumbered(lambda i: i - width) for condition, _, right in conditions if right)
    return replace(
        op,
        left=Filter(op.left, lefts) if lefts else op.left,
        right=Filter(op.right, rights) if rights else op.right,
        residual=tuple(condition for condition, left, right in conditions if not (left or right)),
    )


def _exists(op: Join) -> Operator:
    """Turn EXISTS without a condition into a scalar: whether the subquery has a row."""
    counted = Aggregate(Project(op.right, ()), (), (AggregateCall(text("count(*)", "count"), "count", ()),))
    condition = Expr((0, " > 0" if op.join == "semi" else " = 0"))
    width = op.left.width
    kept = Filter(Scalar(op.left, Project(counted, (condition,))), (column(width),))
    return Project(kept, tuple(map(column, range(width))))


def _window(op: Window) -> Operator:
    forms = [kernel_call(call, ordered=bool(op.order)) for call in op.calls] if has_kernel(op) else []
    keys = [key.value for key in op.order] if forms else []
    read = [expr for form in forms if form is not None for expr in form.read]
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
    """Return a call whose argument is a column, and so is the default of lag and lead."""
    if not window_call.arguments or window_call.arguments[0] not in place_of:
        return window_call
    first, *rest = window_call.arguments
    if window_call.name in {"lag", "lead"} and len(rest) == 2:
        rest[1] = column(place_of[rest[1]])
    arguments = (column(place_of[first]), *rest)
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
    session = session_key(op)
    if session is not None:
        form = session_form(op.input, op.groups[session])
        return _keyed_sessions(op) if form is None else _sessions(op, session, form)
    native = [simple for aggregate in op.calls if (simple := _native_call(aggregate)) is not None]
    if len(native) < len(op.calls):
        return _keyed_aggregate(op)
    columns = tuple(
        dict.fromkeys([*op.groups, *(argument for call in native for argument in call.arguments)])
    )
    place = {expr: n for n, expr in enumerate(columns)}
    calls = []
    for native_call in native:
        moved = tuple(column(place[argument]) for argument in native_call.arguments)
        calls.append(
            AggregateCall(_called(native_call, moved), native_call.name, moved, native_call.distinct)
        )
    groups = tuple(column(place[expr]) for expr in op.groups)
    return Aggregate(Project(op.input, columns), groups, tuple(calls), op.sets)


def _called(native: "_NativeCall", arguments: tuple[Expr, ...]) -> Expr:
    """Return the text of a call with these columns as arguments."""
    if not arguments:
        return text("count(*)", "count")
    kernel = kernel_of(native.name)
    if kernel is not None and kernel.argument is Argument.ORDERED:
        (row,) = arguments
        name = "min_by" if kernel.accumulator is Accumulator.LEAST else "max_by"
        return Expr(merge_parts((f"{name}(", *row.parts, ".v, ", *row.parts, ".o)")), frozenset({name}))
    value = call(native.name, *arguments)
    if not native.distinct:
        return value
    return Expr((f"{native.name}(DISTINCT ", *value.parts[1:]), value.calls)


_SESSION = "named_struct('start', "


def _sessions(op: Aggregate, place: int, form: SessionForm) -> Operator:
    """Compute the start of each row's session below, and group by it; the last row gives the end.

    So a row that is appended to a session changes no key of the other rows.
    """
    groups = tuple(form.time if n == place else expr for n, expr in enumerate(op.groups))
    narrow = _keyed_aggregate(replace(op, groups=groups))
    assert isinstance(narrow, Aggregate)
    time = narrow.groups[place]
    partition = tuple(key for n, key in enumerate(narrow.groups) if n != place)
    starts = Sessions(Filter(narrow.input, (_not_null(time),)), partition, time, form.gap_us)
    keys = tuple(column(narrow.input.width) if n == place else key for n, key in enumerate(narrow.groups))
    last = AggregateCall(call("max", time), "max", (time,))
    grouped = _aggregate(replace(narrow, input=starts, groups=keys, calls=(*narrow.calls, last)))
    end = f" + INTERVAL '{form.gap_us / 1_000_000:.6f}' SECOND)"
    window = Expr((_SESSION, place, ", 'end', ", op.width, end), frozenset({"named_struct"}))
    return Project(grouped, tuple(window if n == place else column(n) for n in range(op.width)))


def _without_sessions(op: Project, below: Project) -> Operator:
    """Read the start of a session without its end, if nothing else reads the session window."""
    place = next((n for n, expr in enumerate(below.expressions) if expr.parts[0] == _SESSION), None)
    grouped = below.input
    if place is None or not isinstance(grouped, Aggregate):
        return op
    exprs = []
    for expr in op.expressions:
        parts = list(expr.parts)
        for n, part in enumerate(parts):
            after = parts[n + 1] if n + 1 < len(parts) else ""
            if part == place:
                if not isinstance(after, str) or not re.match(r"\.start\b", after):
                    return op
                parts[n + 1] = after.removeprefix(".start")
        exprs.append(Expr(merge_parts(parts), expr.calls))
    return Project(replace(grouped, calls=grouped.calls[:-1]), tuple(exprs))


def _keyed_sessions(op: Aggregate) -> Operator:
    """Turn the other keys of a session window into columns."""
    below, places = _with_columns(op.input, [expr for expr in op.groups if not expr.is_session_window])
    columns = iter(places)
    groups = [expr if expr.is_session_window else column(next(columns)) for expr in op.groups]
    return replace(op, input=below, groups=tuple(groups))


def _keyed_aggregate(op: Aggregate) -> Operator:
    """Pass only the columns that the aggregate uses, as all of them are stored."""
    read = sorted({place for each in op.calls for expr in _expressions_of(each) for place in expr.columns})
    columns = tuple(dict.fromkeys([*op.groups, *map(column, read)]))
    place = {expr: n for n, expr in enumerate(columns)}

    def moved(expr: Expr) -> Expr:
        return expr.renumbered(lambda i: place[column(i)])

    calls = tuple(
        replace(
            each,
            value=moved(each.value),
            arguments=tuple(map(moved, each.arguments)),
            filter=None if each.filter is None else moved(each.filter),
        )
        for each in op.calls
    )
    groups = tuple(column(place[expr]) for expr in op.groups)
    return replace(op, input=Project(op.input, columns), groups=groups, calls=calls)


def _expressions_of(aggregate_call: AggregateCall) -> Iterator[Expr]:
    yield aggregate_call.value
    yield from aggregate_call.arguments
    if aggregate_call.filter is not None:
        yield aggregate_call.filter


class _NativeCall(NamedTuple):
    """A call of a native aggregate: its name in the kernels, its arguments, and whether it has DISTINCT.

    With DISTINCT, all arguments are NULL in rows that do not count.
    """

    name: str
    arguments: tuple[Expr, ...]
    distinct: bool


def _native_call(aggregate_call: AggregateCall) -> _NativeCall | None:
    """Return a call of a native aggregate with simple arguments; None for any other aggregate."""
    entry = aggregate(aggregate_call.name)
    if not is_native(aggregate_call) or entry.kernel is None:
        return None
    name = entry.same_as or entry.name
    distinct = aggregate_call.distinct and not entry.ignores_duplicates
    match entry.kernel.argument:
        case Argument.TRUE:
            value = _when(_and(aggregate_call.filter, aggregate_call.arguments[0]), text("1"))
            return _NativeCall(name, (value,), distinct)
        case Argument.ALL_PRESENT if distinct:
            return _NativeCall(name, _distinct_present(aggregate_call, entry.kernel.value), distinct)
        case Argument.ALL_PRESENT:
            return _NativeCall(name, _all_present(aggregate_call, entry.kernel.value), distinct)
        case Argument.PAIR:
            pair = aggregate_call.arguments
            if aggregate_call.filter is not None:
                pair = tuple(_when(aggregate_call.filter, value) for value in pair)
            return _NativeCall(name, pair, distinct)
        case Argument.ORDERED:
            return _NativeCall(name, (_ordered_value(aggregate_call),), distinct)
        case Argument.VALUE:
            if len(aggregate_call.arguments) != 1:
                return None
            value = _templated(entry.kernel.value, aggregate_call.arguments[0])
            if aggregate_call.filter is not None:
                value = _when(aggregate_call.filter, value)
            return _NativeCall(name, (value,), distinct)


_ORDER = "named_struct('o', "


def _ordered_value(aggregate_call: AggregateCall) -> Expr:
    """Return a struct of the order that chooses a row, and of its value; NULL if the row does not count.

    The key of max_by and min_by is never NULL in a row that counts.
    """
    value, order = aggregate_call.arguments
    parts = (_ORDER, *order.parts, ", 'v', ", *value.parts, ")")
    row = Expr(merge_parts(parts), value.calls | order.calls | {"named_struct"})
    condition = aggregate_call.filter
    if aggregate(aggregate_call.name).ties is TieBreak.BY:
        condition = _and(condition, Expr(merge_parts(("(", *order.parts, ").k IS NOT NULL")), order.calls))
    return row if condition is None else _when(condition, row)


def _distinct_present(aggregate_call: AggregateCall, template: str) -> tuple[Expr, ...]:
    """Return the arguments of DISTINCT, all of them NULL if one is NULL or the filter is not true."""
    arguments = [_templated(template, argument) for argument in aggregate_call.arguments]
    condition = aggregate_call.filter
    if len(arguments) > 1:
        for argument in filter(_is_nullable, arguments):
            condition = _and(condition, _not_null(argument))
    return tuple(arguments if condition is None else (_when(condition, value) for value in arguments))


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
