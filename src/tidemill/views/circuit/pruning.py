"""Column pruning: nobody computes, carries or keeps in state a column that no one reads.

What is needed of an operator is the union of what all its consumers need, so that sharing is never lost to
it. Sources keep all their columns (their rows are shared by every view of the group); before an operator
with state a projection leaves out what only a filter below it needed.
"""

from dataclasses import replace

from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.ids import expressions_of
from tidemill.views.circuit.operators import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    Join,
    JoinKey,
    Operator,
    Project,
    Scalar,
    SetOp,
    SortKey,
    TemporalFilter,
    TopK,
    UnionAll,
    ViewOutput,
    Window,
)

Places = dict[int, int]


def prune(root: ViewOutput) -> ViewOutput:
    """The same view with no column that nobody reads."""
    order = list(walk(root))
    needed: dict[Operator, set[int]] = {op: set() for op in order}
    needed[root] = set(range(root.width))
    for op in reversed(order):
        for child, columns in zip(op.inputs, _needs(op, needed[op]), strict=True):
            needed[child] |= columns
    made: dict[Operator, tuple[Operator, Places]] = {}
    for op in order:
        made[op] = _rebuilt(op, needed[op], [made[child] for child in op.inputs])
    output = made[root][0]
    assert isinstance(output, ViewOutput)
    return output


def _read(op: Operator) -> set[int]:
    return {place for expr in expressions_of(op) for place in expr.columns}


def _needs(op: Operator, wanted: set[int]) -> list[set[int]]:
    """What an operator needs of each input if these of its own columns are wanted."""
    if isinstance(op, Project):
        return [{place for i in wanted for place in op.expressions[i].columns}]
    if isinstance(op, Filter | TemporalFilter | TopK):
        return [wanted | _read(op)]
    if isinstance(op, Generate):
        return [{i for i in wanted if i < op.input.width} | set(op.call.columns)]
    if isinstance(op, UnionAll):
        return [set(wanted) for _ in op.parts]
    if isinstance(op, Join):
        width = op.left.width
        both = {place for expr in op.residual for place in expr.columns} | wanted
        left = {i for i in both if i < width}
        right = {i - width for i in both if i >= width}
        for key in (*op.keys, *op.null_aware):
            left |= key.left.columns
            right |= key.right.columns
        return [left, right]
    if isinstance(op, Aggregate):
        kept = [call.value for i, call in enumerate(op.calls) if len(op.groups) + i in wanted]
        return [{place for expr in (*op.groups, *kept) for place in expr.columns}]
    if isinstance(op, Window):
        width = op.input.width
        calls = [call for i, call in enumerate(op.calls) if width + i in wanted]
        read = [call.value for call in calls]
        read += [*op.partition, *(key.value for key in (*op.order, *op.ties))] if calls else []
        return [{i for i in wanted if i < width} | {place for expr in read for place in expr.columns}]
    if isinstance(op, Scalar):
        return [{i for i in wanted if i < op.input.width}, {0} if op.input.width in wanted else set()]
    # Distinct, set operations, outputs and opaque queries need every column.
    return [set(range(child.width)) for child in op.inputs]


def _rebuilt(op: Operator, wanted: set[int], below: list[tuple[Operator, Places]]) -> tuple[Operator, Places]:
    """The operator over its new inputs, and where each wanted column of the old one stands now."""
    if isinstance(op, Project):
        keep = sorted(wanted)
        child, places = below[0]
        exprs = tuple(_moved(op.expressions[i], places) for i in keep)
        return Project(child, exprs), {old: new for new, old in enumerate(keep)}
    if isinstance(op, Filter):
        child, places = below[0]
        return Filter(child, tuple(_moved(one, places) for one in op.conditions)), places
    if isinstance(op, TemporalFilter):
        child, places = below[0]
        return replace(op, input=child, value=_moved(op.value, places)), places
    if isinstance(op, TopK):
        child, places = _narrow(*below[0], wanted | _read(op))
        return replace(op, input=child, order=_orders(op.order, places)), places
    if isinstance(op, Generate):
        child, places = below[0]
        made = Generate(child, _moved(op.call, places), op.produces, op.outer)
        width = op.input.width
        return made, {**places, **{width + i: child.width + i for i in range(op.produces)}}
    if isinstance(op, UnionAll):
        keep = sorted(wanted)
        parts = tuple(_narrow(child, places, wanted)[0] for child, places in below)
        return UnionAll(parts), {old: new for new, old in enumerate(keep)}
    if isinstance(op, Join):
        return _join(op, wanted, below)
    if isinstance(op, Aggregate):
        return _aggregate(op, wanted, below[0])
    if isinstance(op, Window):
        return _window(op, wanted, below[0])
    if isinstance(op, Scalar):
        child, places = below[0]
        if op.input.width not in wanted:
            return child, places
        value, value_places = _narrow(*below[1], {0})
        assert value_places == {0: 0}
        return Scalar(child, value), {**places, op.input.width: child.width}
    if isinstance(op, Distinct | SetOp | ViewOutput):
        inputs = [
            _narrow(child, places, set(range(old.width)))[0]
            for (child, places), old in zip(below, op.inputs, strict=True)
        ]
        return op.with_inputs(inputs), {i: i for i in range(op.width)}
    return op.with_inputs([child for child, _ in below]), {i: i for i in range(op.width)}


def _join(op: Join, wanted: set[int], below: list[tuple[Operator, Places]]) -> tuple[Operator, Places]:
    needs = _needs(op, wanted)
    left, lefts = _narrow(*below[0], needs[0])
    right, rights = _narrow(*below[1], needs[1])
    width = op.left.width
    places = {**lefts, **{width + old: left.width + new for old, new in rights.items()}}

    def keys(all_keys: tuple[JoinKey, ...]) -> tuple[JoinKey, ...]:
        return tuple(replace(k, left=_moved(k.left, lefts), right=_moved(k.right, rights)) for k in all_keys)

    residual = tuple(_moved(expr, places) for expr in op.residual)
    made = Join(op.join, left, right, keys(op.keys), residual, keys(op.null_aware))
    return made, lefts if made.left_only else places


def _aggregate(op: Aggregate, wanted: set[int], below: tuple[Operator, Places]) -> tuple[Operator, Places]:
    child, places = below
    groups = len(op.groups)
    kept = [i for i in range(len(op.calls)) if groups + i in wanted]
    calls = []
    for i in kept:
        call = op.calls[i]
        calls.append(
            replace(
                call,
                value=_moved(call.value, places),
                arguments=tuple(_moved(one, places) for one in call.arguments),
                filter=_moved(call.filter, places) if call.filter is not None else None,
            )
        )
    made = Aggregate(child, tuple(_moved(one, places) for one in op.groups), tuple(calls), op.sets)
    found = {i: i for i in range(groups)} | {groups + old: groups + new for new, old in enumerate(kept)}
    if op.sets is not None:
        found[op.width - 1] = made.width - 1
    return made, found


def _window(op: Window, wanted: set[int], below: tuple[Operator, Places]) -> tuple[Operator, Places]:
    width = op.input.width
    kept = [i for i in range(len(op.calls)) if width + i in wanted]
    if not kept:
        return below
    child, places = _narrow(*below, _needs(op, wanted)[0])
    calls = []
    for i in kept:
        call = op.calls[i]
        arguments = tuple(_moved(one, places) for one in call.arguments)
        calls.append(replace(call, value=_moved(call.value, places), arguments=arguments))
    partition = tuple(_moved(one, places) for one in op.partition)
    made = Window(child, partition, _orders(op.order, places), tuple(calls), _orders(op.ties, places))
    return made, {**places, **{width + old: child.width + new for new, old in enumerate(kept)}}


def _narrow(child: Operator, places: Places, wanted: set[int]) -> tuple[Operator, Places]:
    """The child with the wanted columns alone, in their old order."""
    keep = sorted(wanted)
    if [places[i] for i in keep] == list(range(child.width)):
        return child, {old: new for new, old in enumerate(keep)}
    return Project(child, tuple(column(places[i]) for i in keep)), {old: new for new, old in enumerate(keep)}


def _moved(expr: Expr, places: Places) -> Expr:
    return expr.renumbered(lambda i: places[i])


def _orders(order: tuple[SortKey, ...], places: Places) -> tuple[SortKey, ...]:
    return tuple(replace(key, value=_moved(key.value, places)) for key in order)
