"""Equality: what "equal to Spark" means for a view (DBSP-20). The class of equality depends on the circuit.

exact     all values are equal by the rules of Spark's GROUP BY: NaN equals NaN, -0.0 equals 0.0
float     sums, averages and variances of floats differ by at most `bound`; the other values are equal
ordered   The query's ORDER BY leaves ties. The view, and the query that it is compared with, use the hash of
          the row as the last sort key (`circuit.ties`). The original query, which has no such key, must give
          the same result, unless Spark has several correct results for it.
approx    approx_* functions are within their stated error
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.views.aggregates.registry import Precision, precision_of
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import Aggregate, Opaque, Operator, ViewOutput, Window
from tidemill.views.circuit.rounding import OF_SORTED_VALUES, has_rounded_values, rounded_columns
from tidemill.views.circuit.ties import has_one_result, tie_dependent

FLOAT_BOUND = 1e-9
"""The allowed difference of floats, relative to the larger absolute value (at least 1).

Adding a million values of similar size in another order changes their sum by far less than this. A wrong row
changes the sum by far more.
"""

APPROX_BOUND = 0.05
"""The stated error of approx_count_distinct, which is larger than the stated error of the sketches."""


@dataclass(frozen=True)
class Equality:
    """How two results of a view are compared.

    - bound: the allowed relative difference of floats; 0 if they must be equal.
    - ordered: the result of the original query may depend on ties.
    - ties_broken: the result of the circuit does not depend on ties, because the circuit breaks all of them.
    """

    bound: float = 0.0
    ordered: bool = False
    ties_broken: bool = False

    @property
    def name(self) -> str:
        """The name of the class, for users."""
        kinds = ["approx"] if self.bound >= APPROX_BOUND else ["float"] if self.bound else []
        return " and ".join([*kinds, *(["ordered"] if self.ordered else [])]) or "exact"


EXACT = Equality()


def equality_of(output: ViewOutput) -> Equality:
    """Return how to compare the results of a view."""
    operators = list(walk(output))
    names = {name for op in operators for name in _calls(op)}
    bound = 0.0
    if any(precision_of(name) is Precision.APPROXIMATE for name in names):
        bound = APPROX_BOUND
    elif names & OF_SORTED_VALUES or any(map(_is_inexact, operators)) or has_rounded_values(output):
        bound = FLOAT_BOUND
    ordered = tie_dependent(output)
    # The hash of a row that contains a rounded value depends on rounding.
    columns = rounded_columns(output)
    below = [child for op in ordered for child in op.inputs]
    rounded = any(columns[child] or any(map(_is_inexact, walk(child))) for child in below)
    return Equality(bound, bool(ordered), bool(ordered) and not rounded and has_one_result(output))


def _is_inexact(op: Operator) -> bool:
    """Return whether an operator has approximate results, or is a text that rounds values."""
    exact = {Precision.EXACT} if isinstance(op, Opaque) else {Precision.EXACT, Precision.FLOAT}
    return any(precision_of(name) not in exact for name in _calls(op))


def _calls(op: Operator) -> set[str]:
    if isinstance(op, Aggregate | Window):
        return {call.name for call in op.calls}
    return set(op.calls) if isinstance(op, Opaque) else set()


Row = tuple[Any, ...]
MOST_SHOWN = 5


@dataclass(frozen=True, order=True)
class FloatValue:
    """A float or double of a row."""

    text: str
    """Its `repr`. Every NaN has the same text, and so do 0.0 and -0.0."""

    @classmethod
    def of(cls, value: float) -> "FloatValue":
        """Return a float as a value of a row."""
        return cls("nan" if math.isnan(value) else repr(value + 0.0))

    def near(self, other: "FloatValue", bound: float) -> bool:
        """Return whether the difference is at most the bound times the larger absolute value (at least 1)."""
        if self == other:
            return True
        first, second = float(self.text), float(other.text)
        if not (math.isfinite(first) and math.isfinite(second)):
            return False
        return abs(first - second) <= bound * max(1.0, abs(first), abs(second))

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class RowDifference:
    """The rows in which two results differ, each with its count."""

    missing: tuple[tuple[Row, int], ...]
    """Rows of plain Spark that the view does not have."""

    extra: tuple[tuple[Row, int], ...]
    """Rows of the view that plain Spark does not return."""

    def __str__(self) -> str:
        return "; ".join(
            f"{label} {_shown(rows)}"
            for label, rows in (("missing", self.missing), ("extra", self.extra))
            if rows
        )


def difference(
    expected: Iterable[Row], actual: Iterable[Row], equality: Equality = EXACT
) -> RowDifference | None:
    """Return how two results differ; None if they are equal."""
    expected_count, actual_count = Counter(expected), Counter(actual)
    missing, extra = expected_count - actual_count, actual_count - expected_count
    if equality.bound and missing and extra:
        missing, extra = _paired(missing, extra, equality.bound)
    if not missing and not extra:
        return None
    return RowDifference(_listed(missing), _listed(extra))


def _paired(missing: Counter[Row], extra: Counter[Row], bound: float) -> tuple[Counter[Row], Counter[Row]]:
    """Remove pairs of rows that differ only in floats, and by no more than the bound."""
    partners: dict[Row, list[Row]] = {}
    for row in extra.elements():
        partners.setdefault(_without_floats(row), []).append(row)
    unpaired: Counter[Row] = Counter()
    for row in missing.elements():
        candidates = partners.get(_without_floats(row), [])
        floats = list(_floats(row))
        match = next(
            (
                index
                for index, partner in enumerate(candidates)
                if all(a.near(b, bound) for a, b in zip(floats, _floats(partner), strict=True))
            ),
            None,
        )
        if match is None:
            unpaired[row] += 1
        else:
            candidates.pop(match)
    return unpaired, Counter(row for rows in partners.values() for row in rows)


def _without_floats(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_without_floats(item) for item in value)
    return FloatValue("") if isinstance(value, FloatValue) else value


def _floats(value: Any) -> Iterable[FloatValue]:
    if isinstance(value, FloatValue):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _floats(item)


def _listed(rows: Counter[Row]) -> tuple[tuple[Row, int], ...]:
    return tuple(sorted(rows.items(), key=repr))


def _shown(rows: Sequence[tuple[Row, int]]) -> str:
    texts = [f"{count} x {row}" if count > 1 else f"{row}" for row, count in rows[:MOST_SHOWN]]
    return ", ".join(texts) + (f" and {len(rows) - MOST_SHOWN} more" if len(rows) > MOST_SHOWN else "")
