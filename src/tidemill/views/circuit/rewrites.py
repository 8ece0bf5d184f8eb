"""All rewrites in their order.
Each leaves the meaning alone, which the interpreter can prove of any query.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tidemill.views.circuit.circuit import replaced
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.functions import ViewFunctions
from tidemill.views.circuit.operators import Distinct, Filter, Operator, Project, ViewOutput
from tidemill.views.circuit.pruning import prune
from tidemill.views.circuit.pushdown import push_down
from tidemill.views.circuit.row_properties import unique
from tidemill.views.circuit.total_expressions import is_deterministic


def fuse(root: ViewOutput, functions: ViewFunctions) -> ViewOutput:
    """The same view with as few row-by-row operators as it needs."""

    def change(op: Operator) -> Operator:
        if isinstance(op, Project):
            return _projection(op, functions)
        if isinstance(op, Filter) and isinstance(op.input, Filter):
            conditions = dict.fromkeys([*op.input.conditions, *op.conditions])
            return Filter(op.input.input, tuple(conditions))
        return op

    made = replaced(root, change)
    assert isinstance(made, ViewOutput)
    return made


def drop_distinct(root: ViewOutput) -> ViewOutput:
    """Without the distincts of rows that are distinct already, because they hold a key."""
    keys = unique(root)

    def change(op: Operator) -> Operator:
        return op.input if isinstance(op, Distinct) and keys.get(op.input) else op

    made = replaced(root, change)
    assert isinstance(made, ViewOutput)
    return made


def _projection(op: Project, functions: ViewFunctions) -> Operator:
    below = op.input
    if [expr.column for expr in op.expressions] == list(range(below.width)):
        return below
    if not isinstance(below, Project) or not _fits(op.expressions, below.expressions, functions):
        return op
    merged = tuple(expr.with_columns(lambda i: below.expressions[i]) for expr in op.expressions)
    return _projection(replace(op, input=below.input, expressions=merged), functions)


def _fits(above: tuple[Expr, ...], below: tuple[Expr, ...], functions: ViewFunctions) -> bool:
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
        uses.count(i) <= 1
        or expr.column is not None
        or (not expr.columns and is_deterministic(expr, functions))
        for i, expr in enumerate(below)
    )


REWRITES: Mapping[str, Callable[[ViewOutput, ViewFunctions], ViewOutput]] = {
    "push down": push_down,
    "drop distinct": lambda output, _: drop_distinct(output),
    "prune": lambda output, _: prune(output),
    "fuse": fuse,
}


def rewrite(output: ViewOutput, functions: ViewFunctions | None = None) -> ViewOutput:
    """The view as it is run. Rewriting twice changes nothing more."""
    known = functions or ViewFunctions()
    for _ in range(10):
        before = output
        for one in REWRITES.values():
            output = one(output, known)
        if output == before:
            break
    return output
