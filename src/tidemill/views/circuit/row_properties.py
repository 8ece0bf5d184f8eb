"""Properties of the rows of an operator: whether rows are only added, and which columns are unique."""

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
    Sessions,
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
    """Return for every operator whether rows are only added to its result, never removed.

    An inner or semi join of append-only inputs is append-only. An outer or anti join is not: a new match
    removes a row.
    """
    grows: dict[Operator, bool] = {}
    for op in walk(root):
        inputs_grow = all(grows[child] for child in op.inputs)
        if isinstance(op, InputTable):
            grows[op] = op.append_only
        elif isinstance(op, LiteralRows):
            grows[op] = True
        elif isinstance(op, Filter | Project | Generate):
            clock = isinstance(op, Filter) and any(expr.reads_clock for expr in op.conditions)
            clock |= isinstance(op, Project) and any(expr.reads_clock for expr in op.expressions)
            grows[op] = inputs_grow and not clock
        elif isinstance(op, UnionAll | Distinct | ViewOutput):
            grows[op] = inputs_grow
        elif isinstance(op, TemporalFilter):
            # Once `value < now()` is true, it stays true.
            grows[op] = inputs_grow and op.comparison in {"<", "<="}
        elif isinstance(op, Join):
            grows[op] = inputs_grow and op.join in {"inner", "cross", "semi"}
        elif isinstance(op, SetOp):
            grows[op] = inputs_grow and op.operation == "intersect"
        else:
            grows[op] = False
    return grows


def unique(root: Operator) -> dict[Operator, Keys]:
    """Return the unique keys of every operator; an empty key means that the operator has at most one row."""
    keys: dict[Operator, Keys] = {}
    for op in walk(root):
        keys[op] = _unique(op, keys)
    return keys


def may_multiply(op: Join) -> bool:
    """Return whether the result of a join without an equality can have many more rows than its inputs."""
    if op.keys or op.left_only:
        return False
    return not any(frozenset() in unique(child)[child] for child in op.inputs)


def _unique(op: Operator, keys: dict[Operator, Keys]) -> Keys:
    all_columns = frozenset(range(op.width))
    if isinstance(op, InputTable):
        return frozenset({frozenset(op.key)}) if op.key else NONE
    if isinstance(op, LiteralRows):
        return ONE_ROW if len(op.rows) == 1 else NONE
    if isinstance(op, Filter | TemporalFilter | Window | Sessions | Scalar | ViewOutput):
        return keys[op.input]
    if isinstance(op, TopK):
        return ONE_ROW if op.limit == 1 else keys[op.input]
    if isinstance(op, Project):
        positions: dict[int, int] = {}
        for i, expr in enumerate(op.expressions):
            if expr.column is not None:
                positions.setdefault(expr.column, i)
        unique_keys = [key for key in keys[op.input] if key <= positions.keys()]
        return frozenset(frozenset(positions[i] for i in key) for key in unique_keys)
    if isinstance(op, Distinct):
        return keys[op.input] | {all_columns}
    if isinstance(op, Aggregate):
        if op.sets is not None:
            return NONE
        return frozenset({frozenset(range(len(op.groups)))})
    if isinstance(op, SetOp):
        return keys[op.left] | (frozenset() if op.keep_all else frozenset({all_columns}))
    if isinstance(op, Join):
        return _joined(op, keys)
    return NONE


def _joined(op: Join, keys_of: dict[Operator, Keys]) -> Keys:
    left, right = keys_of[op.left], keys_of[op.right]
    if op.left_only:
        return left
    width = op.left.width
    moved = frozenset(frozenset(i + width for i in key) for key in right)
    if op.join == "full":
        return NONE  # a row without a left match and one without a right match can be equal
    keys = {left_key | right_key for left_key, right_key in product(left, moved)}
    if op.join in {"inner", "left"} and matches_one(op, keys_of, left=False):
        keys |= left
    if op.join in {"inner", "right"} and matches_one(op, keys_of, left=True):
        keys |= moved
    return frozenset(keys)


def matches_one(op: Join, keys_of: dict[Operator, Keys], *, left: bool) -> bool:
    """Return whether each row of the other side matches at most one row of this side."""
    exprs = [key.left if left else key.right for key in op.keys if not key.null_safe]
    bound = {expr.column for expr in exprs if expr.column is not None}
    return any(key <= bound for key in keys_of[op.left if left else op.right])
