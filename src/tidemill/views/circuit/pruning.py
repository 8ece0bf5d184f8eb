"""Column pruning: do not compute, carry or store columns that no operator reads.

An operator keeps every column that at least one of its readers needs, so all of them can still share it.
Input tables keep all their columns, because every view of the group shares their rows. If only an earlier
filter needed a column, a projection removes the column before the rows reach a stateful operator.
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
    """Remove the columns that no operator reads."""
    order = list(walk(root))
    needed: dict[Operator, set[int]] = {op: set() for op in order}
    needed[root] = set(range(root.width))
    for op in reversed(order):
        for child, columns in zip(op.inputs, _needs(op, needed[op]), strict=True):
            needed[child] |= columns
    rebuilt: dict[Operator, tuple[Operator, Places]] = {}
    for op in order:
        rebuilt[op] = _rebuilt(op, needed[op], [rebuilt[child] for child in op.inputs])
    output = rebuilt[root][0]
    assert isinstance(output, ViewOutput)
    return output


def _read(op: Operator) -> set[int]:
    return {position for expr in expressions_of(op) for position in expr.columns}


def _needs(op: Operator, needed: set[int]) -> list[set[int]]:
    """Return the columns of each input that an operator needs to compute these columns."""
    if isinstance(op, Project):
        return [{position for i in needed for position in op.expressions[i].columns}]
    if isinstance(op, Filter | TemporalFilter | TopK):
        return [needed | _read(op)]
    if isinstance(op, Generate):
        return [{i for i in needed if i < op.input.width} | set(op.call.columns)]
    if isinstance(op, UnionAll):
        return [set(needed) for _ in op.parts]
    if isinstance(op, Join):
        width = op.left.width
        columns = {position for expr in op.residual for position in expr.columns} | needed
        left = {i for i in columns if i < width}
        right = {i - width for i in columns if i >= width}
        for key in (*op.keys, *op.null_aware):
            left |= key.left.columns
            right |= key.right.columns
        return [left, right]
    if isinstance(op, Aggregate):
        values = [call.value for i, call in enumerate(op.calls) if len(op.groups) + i in needed]
        return [{position for expr in (*op.groups, *values) for position in expr.columns}]
    if isinstance(op, Window):
        width = op.input.width
        calls = [call for i, call in enumerate(op.calls) if width + i in needed]
        read = [call.value for call in calls]
        read += [*op.partition, *(key.value for key in (*op.order, *op.ties))] if calls else []
        return [{i for i in needed if i < width} | {position for expr in read for position in expr.columns}]
    if isinstance(op, Scalar):
        return [{i for i in needed if i < op.input.width}, {0} if op.input.width in needed else set()]
    # Distinct, set operations, outputs and opaque queries need all columns.
    return [set(range(child.width)) for child in op.inputs]


def _rebuilt(
    op: Operator, needed: set[int], inputs: list[tuple[Operator, Places]]
) -> tuple[Operator, Places]:
    """Rebuild an operator over its new inputs; also return the new positions of its needed columns."""
    if isinstance(op, Project):
        keep = sorted(needed)
        child, places = inputs[0]
        exprs = tuple(_moved(op.expressions[i], places) for i in keep)
        return Project(child, exprs), {old: new for new, old in enumerate(keep)}
    if isinstance(op, Filter):
        child, places = inputs[0]
        return Filter(child, tuple(_moved(expr, places) for expr in op.conditions)), places
    if isinstance(op, TemporalFilter):
        child, places = inputs[0]
        return replace(op, input=child, value=_moved(op.value, places)), places
    if isinstance(op, TopK):
        child, places = _narrow(*inputs[0], needed | _read(op))
        return replace(op, input=child, order=_orders(op.order, places)), places
    if isinstance(op, Generate):
        child, places = inputs[0]
        generate = Generate(child, _moved(op.call, places), op.produces, op.outer)
        width = op.input.width
        return generate, {**places, **{width + i: child.width + i for i in range(op.produces)}}
    if isinstance(op, UnionAll):
        keep = sorted(needed)
        parts = tuple(_narrow(child, places, needed)[0] for child, places in inputs)
        return UnionAll(parts), {old: new for new, old in enumerate(keep)}
    if isinstance(op, Join):
        return _join(op, needed, inputs)
    if isinstance(op, Aggregate):
        return _aggregate(op, needed, inputs[0])
    if isinstance(op, Window):
        return _window(op, needed, inputs[0])
    if isinstance(op, Scalar):
        child, places = inputs[0]
        if op.input.width not in needed:
            return child, places
        value, value_places = _narrow(*inputs[1], {0})
        assert value_places == {0: 0}
        return Scalar(child, value), {**places, op.input.width: child.width}
    if isinstance(op, Distinct | SetOp | ViewOutput):
        narrowed = [
            _narrow(child, places, set(range(old.width)))[0]
            for (child, places), old in zip(inputs, op.inputs, strict=True)
        ]
        return op.with_inputs(narrowed), {i: i for i in range(op.width)}
    return op.with_inputs([child for child, _ in inputs]), {i: i for i in range(op.width)}


def _join(op: Join, needed: set[int], inputs: list[tuple[Operator, Places]]) -> tuple[Operator, Places]:
    needs = _needs(op, needed)
    left, lefts = _narrow(*inputs[0], needs[0])
    right, rights = _narrow(*inputs[1], needs[1])
    width = op.left.width
    places = {**lefts, **{width + old: left.width + new for old, new in rights.items()}}

    def keys(all_keys: tuple[JoinKey, ...]) -> tuple[JoinKey, ...]:
        return tuple(replace(k, left=_moved(k.left, lefts), right=_moved(k.right, rights)) for k in all_keys)

    residual = tuple(_moved(expr, places) for expr in op.residual)
    join = Join(op.join, left, right, keys(op.keys), residual, keys(op.null_aware))
    return join, lefts if join.left_only else places


def _aggregate(
    op: Aggregate, needed: set[int], child_places: tuple[Operator, Places]
) -> tuple[Operator, Places]:
    child, places = child_places
    groups = len(op.groups)
    used = [i for i in range(len(op.calls)) if groups + i in needed]
    calls = []
    for i in used:
        call = op.calls[i]
        calls.append(
            replace(
                call,
                value=_moved(call.value, places),
                arguments=tuple(_moved(expr, places) for expr in call.arguments),
                filter=_moved(call.filter, places) if call.filter is not None else None,
            )
        )
    aggregate = Aggregate(child, tuple(_moved(expr, places) for expr in op.groups), tuple(calls), op.sets)
    new_places = {i: i for i in range(groups)} | {groups + old: groups + new for new, old in enumerate(used)}
    if op.sets is not None:
        new_places[op.width - 1] = aggregate.width - 1
    return aggregate, new_places


def _window(op: Window, needed: set[int], child_places: tuple[Operator, Places]) -> tuple[Operator, Places]:
    width = op.input.width
    used = [i for i in range(len(op.calls)) if width + i in needed]
    if not used:
        return child_places
    child, places = _narrow(*child_places, _needs(op, needed)[0])
    calls = []
    for i in used:
        call = op.calls[i]
        arguments = tuple(_moved(expr, places) for expr in call.arguments)
        calls.append(replace(call, value=_moved(call.value, places), arguments=arguments))
    partition = tuple(_moved(expr, places) for expr in op.partition)
    window = Window(child, partition, _orders(op.order, places), tuple(calls), _orders(op.ties, places))
    return window, {**places, **{width + old: child.width + new for new, old in enumerate(used)}}


def _narrow(child: Operator, places: Places, needed: set[int]) -> tuple[Operator, Places]:
    """Project an operator to the needed columns, in their old order."""
    keep = sorted(needed)
    if [places[i] for i in keep] == list(range(child.width)):
        return child, {old: new for new, old in enumerate(keep)}
    return Project(child, tuple(column(places[i]) for i in keep)), {old: new for new, old in enumerate(keep)}


def _moved(expr: Expr, places: Places) -> Expr:
    return expr.renumbered(lambda i: places[i])


def _orders(order: tuple[SortKey, ...], places: Places) -> tuple[SortKey, ...]:
    return tuple(replace(key, value=_moved(key.value, places)) for key in order)
