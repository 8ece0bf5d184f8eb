"""Rewrites: change the circuit of a view so that it does less work and gives the same result.

    push down      move conditions towards the input tables, and turn comma joins into joins with keys
    drop distinct  remove DISTINCT over rows that contain a unique key
    prune          remove columns that no operator reads (`pruning`)
    fuse           merge adjacent projections and adjacent filters

Total conditions, which raise no error (`total_expressions`), always move. Another condition moves only below
expressions that may raise an error, because it may protect them: `SELECT * FROM (SELECT CAST(g AS INT) AS n,
g FROM t) WHERE g RLIKE '^[0-9]+$'` casts only numbers. It moves only to where Spark's optimizer moves it too.
Conditions that read the clock or are random do not move. Conditions are not pushed into an operator that
several operators read, because those operators could then no longer share it, unless an expression in it may
raise an error.

Certification compares the rewritten circuit with the original query.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemill.views.circuit.circuit import map_operators, walk
from tidemill.views.circuit.column_types import column_type
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.functions import ViewFunctions
from tidemill.views.circuit.ids import expressions_of
from tidemill.views.circuit.join_order import inner_joins
from tidemill.views.circuit.operators import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    Join,
    JoinKind,
    Operator,
    Project,
    Scalar,
    TemporalFilter,
    ViewOutput,
    Window,
)
from tidemill.views.circuit.pruning import prune
from tidemill.views.circuit.row_properties import unique
from tidemill.views.circuit.total_expressions import is_deterministic, is_total, rejects_null


def push_down(root: ViewOutput, functions: ViewFunctions) -> ViewOutput:
    """Move the conditions of a view as close to its input tables as is safe."""
    readers = Counter(child for op in walk(root) for child in op.inputs)
    result = PushDown(functions, readers).rebuilt(root)
    assert isinstance(result, ViewOutput)
    return result


@dataclass
class PushDown:
    """One pass of predicate pushdown over a circuit."""

    functions: ViewFunctions
    readers: Counter[Operator]
    rebuilt_operators: dict[Operator, Operator] = field(default_factory=dict)
    total_operators: dict[Operator, bool] = field(default_factory=dict)

    def rebuilt(self, op: Operator) -> Operator:
        """Return the operator with all conditions below it pushed down."""
        if op not in self.rebuilt_operators:
            self.rebuilt_operators[op] = self._into(op, ())
        return self.rebuilt_operators[op]

    def shared(self, op: Operator) -> bool:
        """Return whether several operators read this operator, so that it must stay as it is.

        A cross product is never computed for several operators: each of them can have conditions that make it
        a join with keys.
        """
        if isinstance(op, Join) and op.join == "cross":
            return False
        return self.readers[op] > 1 and self.never_raises(op)

    def pushed(self, op: Operator, conditions: Sequence[Expr]) -> Operator:
        """Apply conditions to an operator, as far down as necessary; they must all be deterministic."""
        if self.shared(op):
            return filtered(self.rebuilt(op), conditions)
        if not self.never_raises(op):
            return self._into(op, conditions)
        total, other = _split(conditions, lambda condition: self.is_total(condition, op))
        return filtered(self._into(op, total), other)

    def is_total(self, expr: Expr, op: Operator) -> bool:
        """Return whether an expression over the columns of an operator raises no error on any row."""
        return is_total(expr, self.functions, lambda place: column_type(op, place))

    def never_raises(self, op: Operator) -> bool:
        """Return whether no expression of the operator or below it can raise an error."""
        if op not in self.total_operators:
            here = all(self.is_total(expr, below) for below, expr in _evaluated(op))
            self.total_operators[op] = here and all(map(self.never_raises, op.inputs))
        return self.total_operators[op]

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
        # Conditions that read the clock or are random stay here.
        moving, staying = _split(op.conditions, lambda condition: is_deterministic(condition, self.functions))
        return filtered(self.pushed(op.input, [*moving, *above]), staying)

    def _join(self, op: Join, conditions: Sequence[Expr]) -> Operator:
        width = op.left.width
        if not self.never_raises(op) and (kind := self._without_nulls(op, conditions)) != op.join:
            return self._into(replace(op, join=kind), conditions)
        to_left = op.join not in {"right", "full"}
        lefts, staying = _split(
            conditions, lambda condition: to_left and all(i < width for i in condition.columns)
        )
        rights, staying = _split(
            staying, lambda condition: op.join == "right" and all(i >= width for i in condition.columns)
        )
        left = self.pushed(op.left, lefts)
        right = self.pushed(op.right, [condition.renumbered(lambda i: i - width) for condition in rights])
        return filtered(replace(op, left=left, right=right), staying)

    def _project(self, op: Project, conditions: Sequence[Expr]) -> Operator:
        # A nondeterministic value must be computed for the same rows as before.
        fixed = not all(is_deterministic(expr, self.functions) or expr.reads_clock for expr in op.expressions)
        moving, staying = _split(
            conditions, lambda condition: not fixed and self._passes(condition, op.expressions)
        )
        pushed = [condition.with_columns(lambda i: op.expressions[i]) for condition in moving]
        return filtered(replace(op, input=self.pushed(op.input, pushed)), staying)

    def _aggregate(self, op: Aggregate, conditions: Sequence[Expr]) -> Operator:
        movable = op.groups if op.sets is None else ()
        moving, staying = _split(
            conditions, lambda condition: bool(condition.columns) and self._passes(condition, movable)
        )
        pushed = [condition.with_columns(lambda i: op.groups[i]) for condition in moving]
        return filtered(replace(op, input=self.pushed(op.input, pushed)), staying)

    def _without_nulls(self, op: Join, conditions: Sequence[Expr]) -> JoinKind:
        """Return the kind of join that gives the same result if the conditions drop rows with added NULLs.

        Spark's optimizer makes the same change, and can then push the conditions to both sides.
        """
        rejecting = [condition.columns for condition in conditions if rejects_null(condition, self.functions)]
        left = any(columns <= frozenset(range(op.left.width)) for columns in rejecting)
        right = any(min(columns) >= op.left.width for columns in rejecting)
        kinds: dict[tuple[str, bool, bool], JoinKind] = {
            ("left", False, True): "inner",
            ("left", True, True): "inner",
            ("right", True, False): "inner",
            ("right", True, True): "inner",
            ("full", True, True): "inner",
            ("full", True, False): "left",
            ("full", False, True): "right",
        }
        return kinds.get((op.join, left, right), op.join)

    def _passes(self, condition: Expr, expressions: Sequence[Expr]) -> bool:
        """Return whether the condition can be evaluated before these expressions are computed."""
        if any(i >= len(expressions) or expressions[i].is_session_window for i in condition.columns):
            return False
        return all(
            expressions[i].column is not None or is_deterministic(expressions[i], self.functions)
            for i in condition.columns
        )

    def _appended(self, op: Generate | Scalar, conditions: Sequence[Expr]) -> Operator:
        width = op.input.width
        # A nondeterministic generator must be called for the same rows as before.
        fixed = isinstance(op, Generate) and not is_deterministic(op.call, self.functions)
        moving, staying = _split(
            conditions, lambda condition: not fixed and all(i < width for i in condition.columns)
        )
        inputs = [self.pushed(op.input, moving), *(self.rebuilt(child) for child in op.inputs[1:])]
        return filtered(op.with_inputs(inputs) if op.inputs else op, staying)

    def _window(self, op: Window, conditions: Sequence[Expr]) -> Operator:
        partition_columns = {expr.column for expr in op.partition}
        moving, staying = _split(
            conditions,
            lambda condition: bool(condition.columns) and condition.columns <= partition_columns,
        )
        return filtered(replace(op, input=self.pushed(op.input, moving)), staying)


def _evaluated(op: Operator) -> Iterator[tuple[Operator, Expr]]:
    """Yield the expressions that an operator evaluates on single rows, each with the operator it reads."""
    if isinstance(op, Join):
        for key in (*op.keys, *op.null_aware):
            yield op.left, key.left
            yield op.right, key.right
        yield from ((op, expr) for expr in op.residual)
        return
    exprs: Iterable[Expr] = expressions_of(op)
    if isinstance(op, Aggregate | Window):
        keys = op.groups if isinstance(op, Aggregate) else op.partition
        arguments = [argument for call in op.calls for argument in call.arguments if argument.columns]
        exprs = (*keys, *arguments)
    yield from ((op.inputs[0] if op.inputs else op, expr) for expr in exprs)


def _split(conditions: Sequence[Expr], moves: Callable[[Expr], bool]) -> tuple[list[Expr], list[Expr]]:
    """Divide conditions into those that move below an operator and those that stay above it."""
    moving = [condition for condition in conditions if moves(condition)]
    return moving, [condition for condition in conditions if condition not in moving]


def filtered(op: Operator, conditions: Sequence[Expr]) -> Operator:
    """Add conditions to an operator, without duplicates."""
    if not conditions:
        return op
    if isinstance(op, Filter):
        return Filter(op.input, tuple(dict.fromkeys([*op.conditions, *conditions])))
    return Filter(op, tuple(dict.fromkeys(conditions)))


def fuse(root: ViewOutput, functions: ViewFunctions) -> ViewOutput:
    """Merge adjacent projections and adjacent filters."""

    def change(op: Operator) -> Operator:
        if isinstance(op, Project):
            return _projection(op, functions)
        if isinstance(op, Filter) and isinstance(op.input, Filter):
            conditions = dict.fromkeys([*op.input.conditions, *op.conditions])
            return Filter(op.input.input, tuple(conditions))
        return op

    fused = map_operators(root, change)
    assert isinstance(fused, ViewOutput)
    return fused


def drop_distinct(root: ViewOutput) -> ViewOutput:
    """Remove DISTINCT over rows that are distinct already, because they contain a unique key."""
    keys = unique(root)

    def change(op: Operator) -> Operator:
        return op.input if isinstance(op, Distinct) and keys.get(op.input) else op

    rewritten = map_operators(root, change)
    assert isinstance(rewritten, ViewOutput)
    return rewritten


def _projection(op: Project, functions: ViewFunctions) -> Operator:
    below = op.input
    if [expr.column for expr in op.expressions] == list(range(below.width)):
        return below
    if not isinstance(below, Project) or not _fits(op.expressions, below.expressions, functions):
        return op
    merged = tuple(expr.with_columns(lambda i: below.expressions[i]) for expr in op.expressions)
    return _projection(replace(op, input=below.input, expressions=merged), functions)


def _fits(above: tuple[Expr, ...], below: tuple[Expr, ...], functions: ViewFunctions) -> bool:
    """Return whether two projections can be merged so that every value is computed exactly once per row.

    One of the two must only select columns. Otherwise an expression would become part of another one, perhaps
    in a branch of a CASE that is not evaluated. If the upper one only selects columns, it may select a value
    several times only if that value is a column or a deterministic constant.
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
    """Apply all rewrites until nothing changes."""
    known_functions = functions or ViewFunctions()
    for _ in range(10):
        before = output
        for rewrite_once in REWRITES.values():
            output = rewrite_once(output, known_functions)
        if output == before:
            break
    return output
