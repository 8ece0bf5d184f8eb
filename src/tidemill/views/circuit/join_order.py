"""Inner joins put in an order in which each has keys.

`FROM a, b, c WHERE a.x = c.x AND b.y = c.y` is written as cross products. Here the relations are taken in the
order in which they were written, but one that is bound by equality to those already taken goes first; so a
cross product is left only where there is no key at all. Columns come out in the order they had.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill.views.circuit.expr import Expr, both, column
from tidemill.views.circuit.functions import ViewFunctions
from tidemill.views.circuit.operators import Filter, Join, JoinKey, Operator, Project
from tidemill.views.circuit.total_expressions import equal_columns, is_total


class ConditionPusher(Protocol):
    """The pass that puts conditions down; see `tidemill.views.circuit.pushdown`."""

    functions: ViewFunctions

    def shared(self, op: Operator) -> bool:
        """Whether several operators read it."""

    def pushed(self, op: Operator, conditions: Sequence[Expr]) -> Operator:
        """The rows of an operator for which the conditions hold."""


@dataclass(frozen=True)
class JoinPredicate:
    """A condition over the columns of all relations; with both its sides if it is an equality."""

    expr: Expr
    sides: tuple[Expr, Expr] | None = None
    null_safe: bool = False


@dataclass(frozen=True)
class JoinRelation:
    """A relation, and where its columns begin among those of all."""

    operator: Operator
    offset: int

    def has(self, place: int) -> bool:
        return self.offset <= place < self.offset + self.operator.width


def inner_joins(root: Join, conditions: Sequence[Expr], pusher: ConditionPusher) -> Operator:
    """A tree of inner joins, and conditions above it, as joins in a good order."""
    leaves: list[JoinRelation] = []
    predicates: list[JoinPredicate] = []
    late: list[Expr] = []
    _collect(root, 0, leaves, predicates, late, pusher, top=True)
    predicates += [_predicate(one, 0) for one in conditions]
    owners = [_owners(leaves, one) for one in predicates]
    down: list[list[Expr]] = [[] for _ in leaves]
    left: list[tuple[JoinPredicate, frozenset[int]]] = []
    for one, owner in zip(predicates, owners, strict=True):
        if len(owner) == 1 and is_total(one.expr, pusher.functions):
            (place,) = owner
            offset = leaves[place].offset
            down[place].append(_shifted(one.expr, -offset))
        else:
            left.append((one, owner))
    below = [pusher.pushed(leaf.operator, down[place]) for place, leaf in enumerate(leaves)]
    return _ordered(leaves, below, left, late)


def _collect(
    op: Operator,
    offset: int,
    leaves: list[JoinRelation],
    predicates: list[JoinPredicate],
    late: list[Expr],
    pusher: ConditionPusher,
    *,
    top: bool = False,
) -> None:
    """Take a tree of inner joins apart; filters between them go along if they may."""
    if isinstance(op, Join) and op.join in {"inner", "cross"} and (top or not pusher.shared(op)):
        _collect(op.left, offset, leaves, predicates, late, pusher)
        middle = offset + op.left.width
        _collect(op.right, middle, leaves, predicates, late, pusher)
        for key in op.keys:
            sides = (_shifted(key.left, offset), _shifted(key.right, middle))
            operator = "<=>" if key.null_safe else "="
            predicates.append(JoinPredicate(both(sides[0], operator, sides[1]), sides, key.null_safe))
        for expr in op.residual:
            if is_total(expr, pusher.functions):
                predicates.append(_predicate(expr, offset))
            else:
                late.append(_shifted(expr, offset))
    elif (
        isinstance(op, Filter) and not pusher.shared(op) and _tame(op, pusher) and isinstance(op.input, Join)
    ):
        _collect(op.input, offset, leaves, predicates, late, pusher)
        predicates += [_predicate(expr, offset) for expr in op.conditions]
    else:
        leaves.append(JoinRelation(op, offset))


def _shifted(expr: Expr, by: int) -> Expr:
    return expr.renumbered(lambda i: i + by)


def _predicate(condition: Expr, offset: int) -> JoinPredicate:
    pair = equal_columns(condition)
    sides = (column(pair[0] + offset), column(pair[1] + offset)) if pair else None
    return JoinPredicate(_shifted(condition, offset), sides, pair is not None and pair[2])


def _tame(op: Filter, pusher: ConditionPusher) -> bool:
    return all(is_total(one, pusher.functions) for one in op.conditions)


def _owners(leaves: list[JoinRelation], predicate: JoinPredicate) -> frozenset[int]:
    return frozenset(p for p, leaf in enumerate(leaves) if any(leaf.has(i) for i in predicate.expr.columns))


def _key(
    leaves: list[JoinRelation], predicate: JoinPredicate, taken: set[int], new: int
) -> tuple[Expr, Expr] | None:
    """The predicate's sides, that of the relations taken first;
    None if it is no key between them and a new one.
    """
    if predicate.sides is None:
        return None
    owners = [_owners(leaves, JoinPredicate(side)) for side in predicate.sides]
    first, second = predicate.sides
    if owners[0] and owners[0] <= taken and owners[1] == {new}:
        return first, second
    if owners[1] and owners[1] <= taken and owners[0] == {new}:
        return second, first
    return None


def _ordered(
    leaves: list[JoinRelation],
    below: list[Operator],
    predicates: list[tuple[JoinPredicate, frozenset[int]]],
    late: list[Expr],
) -> Operator:
    made = below[0]
    taken = {0}
    places = {leaves[0].offset + i: i for i in range(below[0].width)}
    waiting = list(range(1, len(leaves)))
    rest = list(predicates)
    while waiting:
        bound = [n for n in waiting if any(_key(leaves, one, taken, n) for one, _ in rest)]
        new = bound[0] if bound else waiting[0]
        waiting.remove(new)
        keys: list[JoinKey] = []
        residual: list[Expr] = []
        offset, width = leaves[new].offset, made.width
        behind = {offset + i: width + i for i in range(below[new].width)}
        still = []
        for one, owner in rest:
            sides = _key(leaves, one, taken, new)
            if sides is not None:
                left = sides[0].renumbered(lambda i: places[i])
                keys.append(JoinKey(left, _shifted(sides[1], -offset), one.null_safe))
            elif owner <= taken | {new}:
                residual.append(one.expr.renumbered(lambda i, now={**places, **behind}: now[i]))  # type: ignore[misc]
            else:
                still.append((one, owner))
        rest = still
        taken.add(new)
        places.update(behind)
        kind = "inner" if keys or residual else "cross"
        made = Join(kind, made, below[new], tuple(dict.fromkeys(keys)), tuple(dict.fromkeys(residual)))  # type: ignore[arg-type]
    conditions = [one.expr for one, _ in rest] + late
    if conditions:
        made = Filter(made, tuple(one.renumbered(lambda i: places[i]) for one in conditions))
    order = tuple(column(places[i]) for i in range(len(places)))
    if [one.column for one in order] != list(range(made.width)):
        made = Project(made, order)
    return made
