"""Row expressions: the conditions and expressions between two stateful operators (DBSP-10).

Rows have the columns c0, c1, … and a weight `_w`. Spark evaluates the steps in order, so an expression that
can raise an error is evaluated only for the rows that the earlier steps kept. Row expressions that only
select columns do not need Spark: `plain` returns these columns.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tidemill.views.circuit.expr import Expr, column, text


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
        return RowExpressions((*self.steps, FilterStep(tuple(conditions)))) if conditions else self

    def select(self, expressions: Sequence[Expr]) -> "RowExpressions":
        """Add a step that computes the columns.

        Two such steps become one if the second only selects columns.
        """
        columns = tuple(expressions)
        last = self.steps[-1] if self.steps else None
        if isinstance(last, SelectStep) and all(expr.column is not None for expr in columns):
            merged = tuple(last.expressions[expr.column or 0] for expr in columns)
            return RowExpressions((*self.steps[:-1], SelectStep(merged)))
        return RowExpressions((*self.steps, SelectStep(columns)))

    def explode(self, step: ExplodeStep) -> "RowExpressions":
        return RowExpressions((*self.steps, step))

    def cast(self, types: Sequence[str], targets: Sequence[str]) -> "RowExpressions":
        """Cast columns of these types to the target types."""
        if list(types) == list(targets):
            return self
        return self.select(
            [
                column(i) if kind == target else Expr(("CAST(", i, f" AS {target})"), frozenset({"cast"}))
                for i, (kind, target) in enumerate(zip(types, targets, strict=True))
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
    def explodes(self) -> bool:
        return any(isinstance(step, ExplodeStep) for step in self.steps)

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


def _expressions(step: RowStep) -> tuple[Expr, ...]:
    if isinstance(step, FilterStep):
        return step.conditions
    return step.expressions if isinstance(step, SelectStep) else (step.call,)


NULL = text("NULL")
