"""Predicate pushdown: conditions move towards the rows they are about, and comma joins become joins by keys.

Only total conditions move (see `total_expressions`). The others stay after the filters that precede them.
Nothing moves into an operator that several operators read: it would no longer be shared.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.functions import ViewFunctions
from tidemill.views.circuit.join_order import inner_joins
from tidemill.views.circuit.operators import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    Join,
    Operator,
    Project,
    Scalar,
    TemporalFilter,
    ViewOutput,
    Window,
)
from tidemill.views.circuit.total_expressions import is_deterministic, is_total


def push_down(root: ViewOutput, functions: ViewFunctions) -> ViewOutput:
    """The same view with its conditions as near to the sources as they may stand."""
    readers = Counter(child for op in walk(root) for child in op.inputs)
    made = PushDown(functions, readers).rebuilt(root)
    assert isinstance(made, ViewOutput)
    return made


@dataclass
class PushDown:
    """One pass over a circuit."""

    functions: ViewFunctions
    readers: Counter[Operator]
    done: dict[Operator, Operator] = field(default_factory=dict)

    def rebuilt(self, op: Operator) -> Operator:
        """The operator with everything below it pushed down."""
        if op not in self.done:
            self.done[op] = self._into(op, ())
        return self.done[op]

    def shared(self, op: Operator) -> bool:
        return self.readers[op] > 1

    def pushed(self, op: Operator, conditions: Sequence[Expr]) -> Operator:
        """The rows of an operator for which the conditions hold; all of them are tame."""
        return filtered(self.rebuilt(op), conditions) if self.shared(op) else self._into(op, conditions)

    def _into(self, op: Operator, conditions: Sequence[Expr]) -> Operator:
        if isinstance(op, Filter):
            return self._filter(op, conditions)
        if isinstance(op, Join) and op.join in {"inner", "cross"}:
            return inner_joins(op, conditions, self)
        if isinstance(op, Join):
            return self._join(op, conditions)
        if isinstance(op, Project):
            return self._project(op, conditions)
        if isinstance(op, Aggregate):
            return self._aggregate(op, conditions)
        if isinstance(op, Distinct | TemporalFilter):
            return replace(op, input=self.pushed(op.input, conditions))
        if isinstance(op, Generate | Scalar):
            return self._appended(op, conditions)
        if isinstance(op, Window):
            return self._window(op, conditions)
        return filtered(op.with_inputs([self.rebuilt(child) for child in op.inputs]), conditions)

    def _filter(self, op: Filter, above: Sequence[Expr]) -> Operator:
        # Conditions that are not tame stay here, behind the tame ones that stood before or beside them.
        moving = [one for one in op.conditions if is_total(one, self.functions)]
        staying = [one for one in op.conditions if one not in moving]
        return filtered(self.pushed(op.input, [*moving, *above]), staying)

    def _join(self, op: Join, conditions: Sequence[Expr]) -> Operator:
        width = op.left.width
        lefts = [
            one
            for one in conditions
            if all(i < width for i in one.columns) and op.join not in {"right", "full"}
        ]
        rights = [one for one in conditions if op.join == "right" and all(i >= width for i in one.columns)]
        rest = [one for one in conditions if one not in lefts and one not in rights]
        left = self.pushed(op.left, lefts)
        right = self.pushed(op.right, [one.renumbered(lambda i: i - width) for one in rights])
        return filtered(replace(op, left=left, right=right), rest)

    def _project(self, op: Project, conditions: Sequence[Expr]) -> Operator:
        # A value that is not the same twice must meet the rows it was written for.
        fixed = not all(is_deterministic(expr, self.functions) or expr.reads_clock for expr in op.expressions)
        moving = [one for one in conditions if not fixed and self._passes(one, op.expressions)]
        rest = [one for one in conditions if one not in moving]
        below = [one.with_columns(lambda i: op.expressions[i]) for one in moving]
        return filtered(replace(op, input=self.pushed(op.input, below)), rest)

    def _aggregate(self, op: Aggregate, conditions: Sequence[Expr]) -> Operator:
        movable = op.groups if op.sets is None else ()
        moving = [one for one in conditions if one.columns and self._passes(one, movable)]
        rest = [one for one in conditions if one not in moving]
        below = [one.with_columns(lambda i: op.groups[i]) for one in moving]
        return filtered(replace(op, input=self.pushed(op.input, below)), rest)

    def _passes(self, one: Expr, given: Sequence[Expr]) -> bool:
        """Whether a condition can be said of what these expressions are made of."""
        if any(i >= len(given) for i in one.columns):
            return False
        return all(given[i].column is not None or is_total(given[i], self.functions) for i in one.columns)

    def _appended(self, op: Generate | Scalar, conditions: Sequence[Expr]) -> Operator:
        width = op.input.width
        # A generator that is not the same twice must meet the same rows.
        fixed = isinstance(op, Generate) and not is_deterministic(op.call, self.functions)
        moving = [one for one in conditions if not fixed and all(i < width for i in one.columns)]
        rest = [one for one in conditions if one not in moving]
        inputs = [self.pushed(op.input, moving), *(self.rebuilt(child) for child in op.inputs[1:])]
        return filtered(op.with_inputs(inputs) if op.inputs else op, rest)

    def _window(self, op: Window, conditions: Sequence[Expr]) -> Operator:
        whole = {expr.column for expr in op.partition}
        moving = [one for one in conditions if one.columns and one.columns <= whole]
        rest = [one for one in conditions if one not in moving]
        return filtered(replace(op, input=self.pushed(op.input, moving)), rest)


def filtered(op: Operator, conditions: Sequence[Expr]) -> Operator:
    """The rows for which all conditions hold, each said once."""
    if not conditions:
        return op
    if isinstance(op, Filter):
        return Filter(op.input, tuple(dict.fromkeys([*op.conditions, *conditions])))
    return Filter(op, tuple(dict.fromkeys(conditions)))
