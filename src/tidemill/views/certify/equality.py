"""What "equal to Spark" means for a view (DBSP-20), read off its circuit.

exact     bit for bit, as Spark's own grouping compares: NaN is equal to itself, -0.0 to 0.0
float     sums, averages and variances of floats: within `bound`; all else of the row exact
ordered   where the order of the query leaves ties, the hash of the row is its last sort key, in the view and
          in the oracle (`circuit.ties`); the query as it was written, which has no such key, must give the
          same wherever Spark has one result for it
approx    approx_*: within their stated error
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.views.aggregates.registry import Precision, precision_of
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import Aggregate, Opaque, Operator, ViewOutput, Window
from tidemill.views.circuit.ties import has_one_result, tie_dependent

FLOAT_BOUND = 1e-9
"""How far floats may be apart, relative to the larger of the two and of 1: far above what the order of a
sum can do to a million values of one size, far below any wrong row."""

APPROX_BOUND = 0.05
"""The stated error of approx_count_distinct, and more than that of the sketches."""


@dataclass(frozen=True)
class Equality:
    """How two results of a view are compared.

    - bound: relative, for floats; 0 for bit for bit.
    - ordered: the result of the query as it was written may hang on ties.
    - settled: that of the circuit does not: all its ties are broken.
    """

    bound: float = 0.0
    ordered: bool = False
    settled: bool = False

    @property
    def name(self) -> str:
        """The class, for people."""
        kinds = ["approx"] if self.bound >= APPROX_BOUND else ["float"] if self.bound else []
        return " and ".join([*kinds, *(["ordered"] if self.ordered else [])]) or "exact"


EXACT = Equality()
_BOUNDS = {Precision.EXACT: 0.0, Precision.FLOAT: FLOAT_BOUND, Precision.APPROXIMATE: APPROX_BOUND}


def equality_of(output: ViewOutput) -> Equality:
    """The class of a view."""
    needed = {precision_of(name) for op in walk(output) for name in _calls(op)}
    bound = max((_BOUNDS[precision] for precision in needed), default=0.0)
    order = tie_dependent(output)
    # The hash of a row with an inexact sum in it is another one after another rounding.
    below = {name for op in order for child in op.inputs for one in walk(child) for name in _calls(one)}
    rounded = any(precision_of(name) is not Precision.EXACT for name in below)
    return Equality(bound, bool(order), bool(order) and not rounded and has_one_result(output))


def _calls(op: Operator) -> set[str]:
    if isinstance(op, Aggregate | Window):
        return {call.name for call in op.calls}
    return set(op.calls) if isinstance(op, Opaque) else set()


Row = tuple[Any, ...]
SHOWN = 5


@dataclass(frozen=True, order=True)
class FloatValue:
    """A float or double of a row."""

    text: str
    """`repr` of it, with one spelling for NaN and for 0."""

    @classmethod
    def of(cls, value: float) -> "FloatValue":
        """A float as a value of a row."""
        return cls("nan" if math.isnan(value) else repr(value + 0.0))

    def near(self, other: "FloatValue", bound: float) -> bool:
        """Are they apart by no more than this, relative to the larger of the two and of 1?"""
        if self == other:
            return True
        one, two = float(self.text), float(other.text)
        if not (math.isfinite(one) and math.isfinite(two)):
            return False
        return abs(one - two) <= bound * max(1.0, abs(one), abs(two))

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class RowDifference:
    """What one has and the other has not."""

    missing: tuple[tuple[Row, int], ...]
    """Rows that plain Spark gives and the view has not, with how many."""

    extra: tuple[tuple[Row, int], ...]

    def __str__(self) -> str:
        return "; ".join(
            f"{said} {_shown(rows)}"
            for said, rows in (("missing", self.missing), ("extra", self.extra))
            if rows
        )


def difference(
    expected: Iterable[Row], found: Iterable[Row], equality: Equality = EXACT
) -> RowDifference | None:
    """How two results differ; None if they are equal by their class."""
    want, have = Counter(expected), Counter(found)
    missing, extra = want - have, have - want
    if equality.bound and missing and extra:
        missing, extra = _paired(missing, extra, equality.bound)
    if not missing and not extra:
        return None
    return RowDifference(_listed(missing), _listed(extra))


def _paired(missing: Counter[Row], extra: Counter[Row], bound: float) -> tuple[Counter[Row], Counter[Row]]:
    """Without the rows that find a partner which differs in floats alone, and by no more than the bound."""
    partners: dict[Row, list[Row]] = {}
    for row in extra.elements():
        partners.setdefault(_without_floats(row), []).append(row)
    left: Counter[Row] = Counter()
    for row in missing.elements():
        same = partners.get(_without_floats(row), [])
        mine = list(_floats(row))
        fit = next(
            (
                place
                for place, one in enumerate(same)
                if all(a.near(b, bound) for a, b in zip(mine, _floats(one), strict=True))
            ),
            None,
        )
        if fit is None:
            left[row] += 1
        else:
            same.pop(fit)
    return left, Counter(row for rows in partners.values() for row in rows)


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
    said = [f"{count} x {row}" if count > 1 else f"{row}" for row, count in rows[:SHOWN]]
    return ", ".join(said) + (f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else "")
