"""What is known of the rows of an operator:
whether they are only ever added, and which columns are unique.
"""

from itertools import product

from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    InputTable,
    Join,
    LiteralRows,
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

Keys = frozenset[frozenset[int]]
NONE: Keys = frozenset()
ONE_ROW: Keys = frozenset({frozenset()})


def append_only(root: Operator) -> dict[Operator, bool]:
    """For every operator: if the tables it reads only grow, do its own rows only grow?

    An inner or semi join of growing inputs grows. An outer or anti join does not: a match takes a row back.
    """
    found: dict[Operator, bool] = {}
    for op in walk(root):
        below = all(found[child] for child in op.inputs)
        if isinstance(op, InputTable):
            found[op] = op.append_only
        elif isinstance(op, LiteralRows):
            found[op] = True
        elif isinstance(op, Filter | Project | Generate):
            clock = isinstance(op, Filter) and any(one.reads_clock for one in op.conditions)
            clock |= isinstance(op, Project) and any(one.reads_clock for one in op.expressions)
            found[op] = below and not clock
        elif isinstance(op, UnionAll | Distinct | ViewOutput):
            found[op] = below
        elif isinstance(op, TemporalFilter):
            # `value < now()` holds for ever once it holds.
            found[op] = below and op.comparison in {"<", "<="}
        elif isinstance(op, Join):
            found[op] = below and op.join in {"inner", "cross", "semi"}
        elif isinstance(op, SetOp):
            found[op] = below and op.operation == "intersect"
        else:
            found[op] = False
    return found


def unique(root: Operator) -> dict[Operator, Keys]:
    """For every operator the sets of columns whose values no two rows share; the empty set:
    at most one row.
    """
    found: dict[Operator, Keys] = {}
    for op in walk(root):
        found[op] = _unique(op, found)
    return found


def _unique(op: Operator, found: dict[Operator, Keys]) -> Keys:
    every = frozenset(range(op.width))
    if isinstance(op, InputTable):
        return frozenset({frozenset(op.key)}) if op.key else NONE
    if isinstance(op, LiteralRows):
        return ONE_ROW if len(op.rows) == 1 else NONE
    if isinstance(op, Filter | TemporalFilter | Window | Scalar | ViewOutput):
        return found[op.input]
    if isinstance(op, TopK):
        return ONE_ROW if op.limit == 1 else found[op.input]
    if isinstance(op, Project):
        place: dict[int, int] = {}
        for i, expr in enumerate(op.expressions):
            if expr.column is not None:
                place.setdefault(expr.column, i)
        kept = [key for key in found[op.input] if key <= place.keys()]
        return frozenset(frozenset(place[i] for i in key) for key in kept)
    if isinstance(op, Distinct):
        return found[op.input] | {every}
    if isinstance(op, Aggregate):
        if op.sets is not None:
            return NONE
        return frozenset({frozenset(range(len(op.groups)))})
    if isinstance(op, SetOp):
        return found[op.left] | (frozenset() if op.keep_all else frozenset({every}))
    if isinstance(op, Join):
        return _joined(op, found)
    return NONE


def _joined(op: Join, found: dict[Operator, Keys]) -> Keys:
    left, right = found[op.left], found[op.right]
    if op.left_only:
        return left
    width = op.left.width
    moved = frozenset(frozenset(i + width for i in key) for key in right)
    if op.join == "full":
        return NONE  # a row filled on the left and one filled on the right may look alike
    keys = {one | other for one, other in product(left, moved)}
    if op.join in {"inner", "left"} and matches_one(op, found, left=False):
        keys |= left
    if op.join in {"inner", "right"} and matches_one(op, found, left=True):
        keys |= moved
    return frozenset(keys)


def matches_one(op: Join, found: dict[Operator, Keys], *, left: bool) -> bool:
    """Whether a row of the other side meets at most one row of this side."""
    exprs = [key.left if left else key.right for key in op.keys if not key.null_safe]
    bound = {expr.column for expr in exprs if expr.column is not None}
    return any(key <= bound for key in found[op.left if left else op.right])
