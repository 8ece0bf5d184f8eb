"""Linear chains fused: projections into one, filters into one, and operators that change nothing left out."""

from dataclasses import replace

from tidemill.views.circuit.circuit import replaced
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.functions import Functions
from tidemill.views.circuit.operators import Distinct, Filter, Operator, Output, Project
from tidemill.views.circuit.properties import unique
from tidemill.views.circuit.tame import steady


def fuse(root: Output, functions: Functions) -> Output:
    """The same view with as few row-by-row operators as it needs."""

    def change(op: Operator) -> Operator:
        if isinstance(op, Project):
            return _projection(op, functions)
        if isinstance(op, Filter) and isinstance(op.input, Filter):
            conditions = dict.fromkeys([*op.input.conditions, *op.conditions])
            return Filter(op.input.input, tuple(conditions))
        return op

    made = replaced(root, change)
    assert isinstance(made, Output)
    return made


def drop_distinct(root: Output) -> Output:
    """Without the distincts of rows that are distinct already, because they hold a key."""
    keys = unique(root)

    def change(op: Operator) -> Operator:
        return op.input if isinstance(op, Distinct) and keys.get(op.input) else op

    made = replaced(root, change)
    assert isinstance(made, Output)
    return made


def _projection(op: Project, functions: Functions) -> Operator:
    below = op.input
    if [expr.column for expr in op.expressions] == list(range(below.width)):
        return below
    if not isinstance(below, Project) or not _fits(op.expressions, below.expressions, functions):
        return op
    merged = tuple(expr.with_columns(lambda i: below.expressions[i]) for expr in op.expressions)
    return _projection(replace(op, input=below.input, expressions=merged), functions)


def _fits(above: tuple[Expr, ...], below: tuple[Expr, ...], functions: Functions) -> bool:
    """Whether one projection can do for two: nothing is computed twice, and nothing steady made unsteady.

    Either the lower one chooses columns and constants, or the upper one does. (In between, an expression
    would land inside another one, perhaps in a branch of a CASE that is never taken.)
    """
    if all(expr.column is not None for expr in below):
        return True
    if not all(expr.column is not None for expr in above):
        return False
    uses = [expr.column for expr in above]
    return all(
        uses.count(i) <= 1 or expr.column is not None or (not expr.columns and steady(expr, functions))
        for i, expr in enumerate(below)
    )
