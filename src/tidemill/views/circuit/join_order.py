"""Join order: put inner joins in an order in which each join has keys.

`FROM a, b, c WHERE a.x = c.x AND b.y = c.y` means cross products with a filter. This module joins the
relations in the order in which they are written, but prefers a relation that an equality connects to the
relations already joined. So a cross product remains only if no key exists. The columns keep their order.

A relation with exactly one row, such as `SELECT avg(amount) FROM orders`, needs no product: its columns are
added to every row, like the value of a scalar subquery.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill.views.circuit.expr import Expr, Part, binary, column, merge_parts
from tidemill.views.circuit.operators import Aggregate, Filter, Join, JoinKey, Operator, Project, Scalar
from tidemill.views.circuit.total_expressions import equal_columns


class ConditionPusher(Protocol):
    """The pass that pushes conditions down: `tidemill.views.circuit.rewrites.PushDown`."""

    def is_total(self, expr: Expr, op: Operator) -> bool:
        """Return whether an expression over the columns of an operator raises no error on any row."""

    def shared(self, op: Operator) -> bool:
        """Return whether several operators read this operator."""

    def never_raises(self, op: Operator) -> bool:
        """Return whether no expression of the operator or below it can raise an error."""

    def pushed(self, op: Operator, conditions: Sequence[Expr]) -> Operator:
        """Apply deterministic conditions to an operator, as far down as necessary."""


@dataclass(frozen=True)
class JoinPredicate:
    """A condition over the columns of all relations, and its two sides if it is an equality."""

    expr: Expr
    sides: tuple[Expr, Expr] | None = None
    null_safe: bool = False


@dataclass(frozen=True)
class JoinRelation:
    """A relation, and the position of its first column among the columns of all relations."""

    operator: Operator
    offset: int

    def has(self, position: int) -> bool:
        return self.offset <= position < self.offset + self.operator.width


def inner_joins(root: Join, conditions: Sequence[Expr], pusher: ConditionPusher) -> Operator:
    """Rebuild a tree of inner joins, and the conditions above it, as joins with keys."""
    leaves: list[JoinRelation] = []
    predicates: list[JoinPredicate] = []
    not_total: list[Expr] = []
    _collect(root, 0, leaves, predicates, not_total, pusher, top=True)
    predicates += [_predicate(condition, 0) for condition in conditions]
    pushed_down: list[list[Expr]] = [[] for _ in leaves]
    remaining: list[tuple[JoinPredicate, frozenset[int]]] = []
    raising = _with_raising_keys(leaves, predicates, root, pusher)
    for predicate in predicates:
        relations = _owners(leaves, predicate)
        total = pusher.is_total(predicate.expr, root)
        number = min(relations, default=0)
        # A condition that may raise an error moves only if it may protect an expression from one.
        protects = number in raising or not pusher.never_raises(leaves[number].operator)
        if len(relations) == 1 and (total or protects):
            offset = leaves[number].offset
            pushed_down[number].append(_shifted(predicate.expr, -offset))
        elif not total and predicate.sides is None:
            not_total.append(predicate.expr)
        else:
            remaining.append((predicate, relations))
    inputs = [pusher.pushed(leaf.operator, pushed_down[number]) for number, leaf in enumerate(leaves)]
    return _ordered(leaves, inputs, remaining, not_total)


def _collect(
    op: Operator,
    offset: int,
    leaves: list[JoinRelation],
    predicates: list[JoinPredicate],
    not_total: list[Expr],
    pusher: ConditionPusher,
    *,
    top: bool = False,
) -> None:
    """Collect the relations and conditions of a tree of inner joins, including its movable filters."""
    if isinstance(op, Join) and op.join in {"inner", "cross"} and (top or not pusher.shared(op)):
        _collect(op.left, offset, leaves, predicates, not_total, pusher)
        middle = offset + op.left.width
        _collect(op.right, middle, leaves, predicates, not_total, pusher)
        for key in op.keys:
            sides = (_shifted(key.left, offset), _shifted(key.right, middle))
            operator = "<=>" if key.null_safe else "="
            predicates.append(JoinPredicate(binary(sides[0], operator, sides[1]), sides, key.null_safe))
        for expr in op.residual:
            if pusher.is_total(expr, op):
                predicates.append(_predicate(expr, offset))
            else:
                not_total.append(_shifted(expr, offset))
    elif (
        isinstance(op, Filter)
        and not pusher.shared(op)
        and _all_total(op, pusher)
        and isinstance(op.input, Join)
    ):
        _collect(op.input, offset, leaves, predicates, not_total, pusher)
        predicates += [_predicate(expr, offset) for expr in op.conditions]
    else:
        leaves.append(JoinRelation(op, offset))


def _shifted(expr: Expr, by: int) -> Expr:
    return expr.renumbered(lambda i: i + by)


def _predicate(condition: Expr, offset: int) -> JoinPredicate:
    pair = equal_columns(condition)
    sides = (column(pair[0] + offset), column(pair[1] + offset)) if pair else None
    return JoinPredicate(_shifted(condition, offset), sides, pair is not None and pair[2])


def _all_total(op: Filter, pusher: ConditionPusher) -> bool:
    return all(pusher.is_total(condition, op) for condition in op.conditions)


def _owners(leaves: list[JoinRelation], predicate: JoinPredicate) -> frozenset[int]:
    return frozenset(p for p, leaf in enumerate(leaves) if any(leaf.has(i) for i in predicate.expr.columns))


def _with_raising_keys(
    leaves: list[JoinRelation], predicates: list[JoinPredicate], root: Join, pusher: ConditionPusher
) -> frozenset[int]:
    """Return the relations for which a key of a join may raise an error."""
    sides = [
        side for predicate in predicates for side in predicate.sides or () if not pusher.is_total(side, root)
    ]
    return frozenset(number for side in sides for number in _owners(leaves, JoinPredicate(side)))


def _key(
    leaves: list[JoinRelation], predicate: JoinPredicate, joined: set[int], new: int
) -> tuple[Expr, Expr] | None:
    """Return the sides of a predicate, the side of the joined relations first.

    Return None if the predicate is not a key between the joined relations and the new one.
    """
    if predicate.sides is None:
        return None
    owners = [_owners(leaves, JoinPredicate(side)) for side in predicate.sides]
    first, second = predicate.sides
    if owners[0] and owners[0] <= joined and owners[1] == {new}:
        return first, second
    if owners[1] and owners[1] <= joined and owners[0] == {new}:
        return second, first
    return None


def _ordered(
    leaves: list[JoinRelation],
    inputs: list[Operator],
    predicates: list[tuple[JoinPredicate, frozenset[int]]],
    not_total: list[Expr],
) -> Operator:
    waiting = sorted(range(len(leaves)), key=lambda n: has_one_row(inputs[n]))  # stable: others come first
    first = waiting.pop(0)
    result = inputs[first]
    joined = {first}
    places = {leaves[first].offset + i: i for i in range(inputs[first].width)}
    remaining = list(predicates)
    while waiting:
        connected = [
            n for n in waiting if any(_key(leaves, predicate, joined, n) for predicate, _ in remaining)
        ]
        new = connected[0] if connected else waiting[0]
        waiting.remove(new)
        keys: list[JoinKey] = []
        residual: list[Expr] = []
        offset, width = leaves[new].offset, result.width
        new_places = {offset + i: width + i for i in range(inputs[new].width)}
        later = []
        for predicate, owner in remaining:
            sides = _key(leaves, predicate, joined, new)
            if sides is not None:
                left = sides[0].renumbered(lambda i: places[i])
                keys.append(JoinKey(left, _shifted(sides[1], -offset), predicate.null_safe))
            elif owner <= joined | {new}:
                residual.append(predicate.expr.renumbered(lambda i, now={**places, **new_places}: now[i]))  # type: ignore[misc]
            else:
                later.append((predicate, owner))
        remaining = later
        joined.add(new)
        places.update(new_places)
        if not keys and not residual and has_one_row(inputs[new]):
            result = _with_row(result, inputs[new])
            continue
        kind = "inner" if keys or residual else "cross"
        result = Join(kind, result, inputs[new], tuple(dict.fromkeys(keys)), tuple(dict.fromkeys(residual)))  # type: ignore[arg-type]
    conditions = [predicate.expr for predicate, _ in remaining] + not_total
    if conditions:
        result = Filter(result, tuple(expr.renumbered(lambda i: places[i]) for expr in conditions))
    order = tuple(column(places[i]) for i in range(len(places)))
    if [expr.column for expr in order] != list(range(result.width)):
        result = Project(result, order)
    return result


def has_one_row(op: Operator) -> bool:
    """Return whether an operator always returns exactly one row."""
    if isinstance(op, Project | Scalar):
        return has_one_row(op.input)
    if isinstance(op, Join):
        return op.join == "cross" and has_one_row(op.left) and has_one_row(op.right)
    return isinstance(op, Aggregate) and not op.groups and op.sets is None


def _with_row(op: Operator, row: Operator) -> Operator:
    """Append the columns of an operator with one row. One operator adds them all, as a struct."""
    width = op.width
    if row.width == 1:
        return Scalar(op, row)
    parts: list[Part] = []
    for i in range(row.width):
        parts += [f"{', ' if i else ''}'f{i}', ", i]
    struct = Expr(merge_parts(("named_struct(", *parts, ")")), frozenset({"named_struct"}))
    added = Scalar(op, Project(row, (struct,)))
    fields = (Expr((width, f".f{i}")) for i in range(row.width))
    return Project(added, (*(column(i) for i in range(width)), *fields))
