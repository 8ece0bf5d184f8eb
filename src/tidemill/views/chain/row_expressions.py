"""Row expressions: the conditions and expressions between two stateful operators (DBSP-10).

Rows have the columns c0, c1, … and a weight `_w`. Spark evaluates the steps in order, so an expression that
can raise an error is evaluated only for the rows that the earlier steps kept. In a plain query, Spark's
optimizer also moves conditions before expressions, and an expression into the one that uses it (perhaps into
a branch of a CASE). The steps are built in the same way (`where`, `select`), so that an expression is
evaluated only on rows on which Spark evaluates it. Row expressions that only select columns do not need
Spark: `plain` returns these columns. In the process of a runner, Arrow evaluates the row expressions that
`views.spark.arrow_compiler` can compile.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tidemill.views.circuit.expr import Expr, cast, column, text


@dataclass(frozen=True)
class FilterStep:
    """Keep the rows for which every condition is true."""

    stored_name: ClassVar = "Where"

    conditions: tuple[Expr, ...]


@dataclass(frozen=True)
class SelectStep:
    """Replace the columns with these expressions."""

    stored_name: ClassVar = "Select"

    expressions: tuple[Expr, ...]


@dataclass(frozen=True)
class ExplodeStep:
    """Call a generator for each row, and return the row once with every result.

    See `circuit.operators.Generate`.
    """

    stored_name: ClassVar = "Explode"

    call: Expr
    width: int
    produces: int
    outer: bool


RowStep = FilterStep | SelectStep | ExplodeStep


@dataclass(frozen=True)
class RowExpressions:
    """The steps, in order."""

    steps: tuple[RowStep, ...] = ()

    def where(self, conditions: Sequence[Expr]) -> "RowExpressions":
        """Add conditions. They are evaluated before expressions, but after earlier conditions."""
        if not conditions:
            return self
        last = self.steps[-1] if self.steps else None
        before = RowExpressions(self.steps[:-1])
        if isinstance(last, FilterStep):
            return before._then(FilterStep(tuple(dict.fromkeys((*last.conditions, *conditions)))))
        if isinstance(last, SelectStep) and all(_replaceable(expr, last.expressions) for expr in conditions):
            values = last.expressions
            moved = [condition.with_columns(lambda i: values[i]) for condition in conditions]
            return before.where(moved)._then(last)
        if isinstance(last, ExplodeStep):
            width = last.width
            moved = [condition for condition in conditions if all(i < width for i in condition.columns)]
            staying = tuple(condition for condition in conditions if condition not in moved)
            exploded = before.where(moved)._then(last)
            return exploded._then(FilterStep(staying)) if staying else exploded
        return self._then(FilterStep(tuple(dict.fromkeys(conditions))))

    def select(self, expressions: Sequence[Expr]) -> "RowExpressions":
        """Add a step that computes the columns.

        Two such steps become one if the second only selects columns, or if it uses every expression of the
        first at most once.
        """
        columns = tuple(expressions)
        last = self.steps[-1] if self.steps else None
        only_selects = all(expr.column is not None for expr in columns)
        if isinstance(last, SelectStep) and (only_selects or _can_merge(last.expressions, columns)):
            values = last.expressions
            merged = tuple(expr.with_columns(lambda i: values[i]) for expr in columns)
            return RowExpressions(self.steps[:-1])._then(SelectStep(merged))
        return self._then(SelectStep(columns))

    def _then(self, step: RowStep) -> "RowExpressions":
        return RowExpressions((*self.steps, step))

    def explode(self, step: ExplodeStep) -> "RowExpressions":
        return self._then(step)

    def cast(self, types: Sequence[str], targets: Sequence[str]) -> "RowExpressions":
        """Cast columns of these types to the target types."""
        if list(types) == list(targets):
            return self
        return self.select(
            [
                cast(column(i), current, target)
                for i, (current, target) in enumerate(zip(types, targets, strict=True))
            ]
        )

    @property
    def digest(self) -> str:
        """Return a hash of the steps.

        If the query of a keyed operator includes the steps, the name of its stored state contains the hash.
        """
        normal_form = [
            (step.stored_name, *(expr.sql() for expr in _expressions(step)), getattr(step, "outer", ""))
            for step in self.steps
        ]
        return hashlib.blake2b(repr(normal_form).encode(), digest_size=6).hexdigest()

    @property
    def computed(self) -> tuple[str, ...]:
        """Return the text of all expressions that do more than select a column."""
        expressions = (expr for step in self.steps for expr in _expressions(step))
        return tuple(expr.sql() for expr in expressions if expr.column is None)

    @property
    def explodes(self) -> bool:
        return any(isinstance(step, ExplodeStep) for step in self.steps)

    def origins(self, width: int) -> list[int | None]:
        """Return which of the `width` columns each result column is; None for a computed one.

        The steps do not explode rows.
        """
        origins: list[int | None] = list(range(width))
        for step in self.steps:
            if isinstance(step, SelectStep):
                selected = [expression.column for expression in step.expressions]
                origins = [None if place is None else origins[place] for place in selected]
        return origins

    def plain(self, width: int) -> tuple[int, ...] | None:
        """Return which of the `width` columns the steps select, or None if the steps do anything else."""
        places = tuple(range(width))
        for step in self.steps:
            if not isinstance(step, SelectStep):
                return None
            selected = [expr.column for expr in step.expressions]
            if any(place is None for place in selected):
                return None
            places = tuple(places[place] for place in selected if place is not None)
        return places


def _can_merge(values: Sequence[Expr], expressions: Sequence[Expr]) -> bool:
    """Return whether values can become part of the expressions that use them, as Spark's optimizer does.

    Each value is used at most once, so that no value is computed twice; columns and constants do not count.
    """
    if not all(_replaceable(expr, values) for expr in expressions):
        return False
    uses = Counter(part for expr in expressions for part in expr.parts if isinstance(part, int))
    return all(uses[place] <= 1 or _is_cheap(value) for place, value in enumerate(values))


def _is_cheap(value: Expr) -> bool:
    return len(value.parts) == 1 and not value.calls


def _replaceable(expr: Expr, values: Sequence[Expr]) -> bool:
    """Return whether the columns of an expression can be replaced by values without other effects.

    `struct(c0.f)` names its field f, but `struct((value).f)` does not.
    """
    return "struct" not in expr.calls or all(values[i].column is not None for i in expr.columns)


def _expressions(step: RowStep) -> tuple[Expr, ...]:
    if isinstance(step, FilterStep):
        return step.conditions
    return step.expressions if isinstance(step, SelectStep) else (step.call,)


NULL = text("NULL")
