"""Legs: what happens to rows one by one on their way from one operator with state to the next (DBSP-10).

A relation on its way has the columns c0, c1, … and a weight `_w`. Conditions and expressions are Spark SQL
and are evaluated by Spark, one step after the other: what can raise is evaluated on the rows that the steps
before have left, and on no other. A expressions that only chooses columns needs no Spark: `plain` says which.
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
    """Compute the columns anew."""

    stored_name: ClassVar = "Select"

    expressions: tuple[Expr, ...]


@dataclass(frozen=True)
class ExplodeStep:
    """Each row once per row that a generator makes of it; see `circuit.operators.Generate`."""

    stored_name: ClassVar = "Explode"

    call: Expr
    width: int
    produces: int
    outer: bool


RowStep = FilterStep | SelectStep | ExplodeStep


@dataclass(frozen=True)
class RowExpressions:
    """Steps, in order."""

    steps: tuple[RowStep, ...] = ()

    def where(self, conditions: Sequence[Expr]) -> "RowExpressions":
        return RowExpressions((*self.steps, FilterStep(tuple(conditions)))) if conditions else self

    def select(self, expressions: Sequence[Expr]) -> "RowExpressions":
        """Columns computed from those so far; choosing among chosen columns stays one step."""
        chosen = tuple(expressions)
        last = self.steps[-1] if self.steps else None
        if isinstance(last, SelectStep) and all(one.column is not None for one in chosen):
            merged = tuple(last.expressions[one.column or 0] for one in chosen)
            return RowExpressions((*self.steps[:-1], SelectStep(merged)))
        return RowExpressions((*self.steps, SelectStep(chosen)))

    def explode(self, step: ExplodeStep) -> "RowExpressions":
        return RowExpressions((*self.steps, step))

    def cast(self, types: Sequence[str], wanted: Sequence[str]) -> "RowExpressions":
        """With columns of these types made into columns of those wanted."""
        if list(types) == list(wanted):
            return self
        return self.select(
            [
                column(i) if one == other else Expr(("CAST(", i, f" AS {other})"), frozenset({"cast"}))
                for i, (one, other) in enumerate(zip(types, wanted, strict=True))
            ]
        )

    @property
    def digest(self) -> str:
        """The same for the same steps: part of the name of what is stored behind them."""
        said = [
            (step.stored_name, *(one.sql() for one in _expressions(step)), getattr(step, "outer", ""))
            for step in self.steps
        ]
        return hashlib.blake2b(repr(said).encode(), digest_size=6).hexdigest()

    @property
    def explodes(self) -> bool:
        return any(isinstance(step, ExplodeStep) for step in self.steps)

    def plain(self, width: int) -> tuple[int, ...] | None:
        """Which of the `width` columns it chooses, if that is all it does."""
        places = tuple(range(width))
        for step in self.steps:
            if not isinstance(step, SelectStep):
                return None
            chosen = [one.column for one in step.expressions]
            if any(place is None for place in chosen):
                return None
            places = tuple(places[place] for place in chosen if place is not None)
        return places


def _expressions(step: RowStep) -> tuple[Expr, ...]:
    if isinstance(step, FilterStep):
        return step.conditions
    return step.expressions if isinstance(step, SelectStep) else (step.call,)


NULL = text("NULL")
