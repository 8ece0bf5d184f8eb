"""A circuit whose operators with state read plain columns: what they compute stands in projections below.

    join        keys that are expressions become columns of its inputs; its further condition a filter above
    aggregate   its input is a projection of its keys and arguments; a FILTER becomes a CASE in the argument

The meaning stays the same, and the interpreter can show it. What no kernel computes yet is refused with
`NoKernel`: then the view is computed otherwise.
"""

from dataclasses import replace

from tidemill.views.aggregates.registry import Argument, aggregate
from tidemill.views.circuit.circuit import replaced
from tidemill.views.circuit.expr import Expr, both, call, column, joined, text
from tidemill.views.circuit.operators import (
    Aggregate,
    AggregateCall,
    Filter,
    Join,
    JoinKey,
    Operator,
    Project,
    ViewOutput,
    Window,
)
from tidemill.views.circuit.rungs import is_native


class NoKernel(Exception):
    """An operator that no kernel computes; says why."""


def prepared(output: ViewOutput) -> ViewOutput:
    """The view with plain columns under its operators with state."""
    made = replaced(output, _prepared)
    assert isinstance(made, ViewOutput)
    return made


def _prepared(op: Operator) -> Operator:
    if isinstance(op, Join):
        return _join(op)
    if isinstance(op, Aggregate):
        return _aggregate(op)
    if isinstance(op, Window):
        return _window(op)
    return op


def _join(op: Join) -> Operator:
    if not op.keys:
        return op
    lefts, rights = [key.left for key in op.keys], [key.right for key in op.keys]
    left, left_at = _with_columns(op.left, lefts)
    right, right_at = _with_columns(op.right, rights)
    keys = tuple(
        JoinKey(column(one), column(other), key.null_safe)
        for one, other, key in zip(left_at, right_at, op.keys, strict=True)
    )
    width, wide = op.left.width, left.width
    moved = tuple(one.renumbered(lambda i: i if i < width else i - width + wide) for one in op.residual)
    inner = op.join == "inner"
    made: Operator = replace(op, left=left, right=right, keys=keys, residual=() if inner else moved)
    if inner and moved:
        made = Filter(made, moved)
    if made.width == op.width:
        return made
    kept = [*range(width), *(() if op.left_only else range(wide, wide + op.right.width))]
    return Project(made, tuple(column(i) for i in kept))


def _window(op: Window) -> Operator:
    below, places = _with_columns(op.input, list(op.partition))
    made = replace(op, input=below, partition=tuple(column(i) for i in places))
    if made.width == op.width:
        return made
    width = op.input.width
    return Project(made, tuple(column(i) for i in [*range(width), *range(below.width, made.width)]))


def _with_columns(op: Operator, wanted: list[Expr]) -> tuple[Operator, list[int]]:
    """The operator with these expressions among its columns, and where."""
    new = [expr for expr in dict.fromkeys(wanted) if expr.column is None]
    place = {expr: op.width + n for n, expr in enumerate(new)}
    found = [place[expr] if expr.column is None else expr.column for expr in wanted]
    if not new:
        return op, found
    return Project(op, (*(column(i) for i in range(op.width)), *new)), found


def _aggregate(op: Aggregate) -> Operator:
    calls = [_plain_call(one) for one in op.calls]
    if any(one is None for one in calls):
        below, places = _with_columns(op.input, list(op.groups))
        return replace(op, input=below, groups=tuple(column(i) for i in places))
    arguments = [argument for one in calls if one is not None for argument in one[1]]
    given_below = tuple(dict.fromkeys([*op.groups, *arguments]))
    place = {expr: n for n, expr in enumerate(given_below)}
    made = []
    for one in calls:
        assert one is not None
        name, given = one
        moved = tuple(column(place[argument]) for argument in given)
        value = call(name, *moved) if moved else text("count(*)", "count")
        made.append(AggregateCall(value, name, moved))
    groups = tuple(column(place[expr]) for expr in op.groups)
    return Aggregate(Project(op.input, given_below), groups, tuple(made), op.sets)


def _plain_call(one: AggregateCall) -> tuple[str, tuple[Expr, ...]] | None:
    """An aggregate as its name and one argument at most; None if it is not of that kind."""
    entry = aggregate(one.name)
    if not is_native(one) or entry.kernel is None:
        return None
    name = entry.same_as or entry.name
    match entry.kernel.argument:
        case Argument.TRUE:
            return name, (_when(_and(one.filter, one.arguments[0]), text("1")),)
        case Argument.ALL_PRESENT:
            return name, _all_present(one)
        case Argument.VALUE:
            if len(one.arguments) != 1:
                return None
            value = _templated(entry.kernel.value, one.arguments[0])
            return name, (value if one.filter is None else _when(one.filter, value),)


def _all_present(one: AggregateCall) -> tuple[Expr, ...]:
    """One argument at most, which is NULL where an argument is NULL or the filter is not true."""
    varying = [argument for argument in one.arguments if _varies(argument)]
    if one.filter is None and len(varying) < 2:
        return tuple(varying)
    condition = one.filter
    for argument in varying:
        condition = _and(condition, _not_null(argument))
    assert condition is not None
    return (_when(condition, text("1")),)


def _templated(template: str, argument: Expr) -> Expr:
    if template == "{}":
        return argument
    before, _, after = template.partition("{}")
    return Expr(joined((before, *argument.parts, after)), argument.calls)


def _varies(argument: Expr) -> bool:
    """Whether it can be NULL: `*` and numbers cannot."""
    if argument.columns or argument.calls:
        return True
    said = argument.sql().strip()
    return not (said == "*" or said.replace(".", "", 1).isdigit())


def _not_null(expr: Expr) -> Expr:
    return Expr(joined((*expr.enclosed().parts, " IS NOT NULL")), expr.calls)


def _and(one: Expr | None, other: Expr) -> Expr:
    return other if one is None else both(one, "AND", other)


def _when(condition: Expr, value: Expr) -> Expr:
    parts = ("CASE WHEN ", *condition.parts, " THEN ", *value.parts, " END")
    return Expr(joined(parts), condition.calls | value.calls)
