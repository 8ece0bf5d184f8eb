"""Two results of a query compared as multisets, by a class of equality. Pure: rows are values here.

A row is a tuple of values that can be hashed; a float is a `Real`, so that floats can be told from all else
wherever they stand in it, NaN is equal to itself and -0.0 to 0.0.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.views.certify.equality import EXACT, Equality

Row = tuple[Any, ...]
SHOWN = 5


@dataclass(frozen=True, order=True)
class Real:
    """A float or double of a row."""

    text: str
    """`repr` of it, with one spelling for NaN and for 0."""

    @classmethod
    def of(cls, value: float) -> "Real":
        """A float as a value of a row."""
        return cls("nan" if math.isnan(value) else repr(value + 0.0))

    def near(self, other: "Real", bound: float) -> bool:
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
class Difference:
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
) -> Difference | None:
    """How two results differ; None if they are equal by their class."""
    want, have = Counter(expected), Counter(found)
    missing, extra = want - have, have - want
    if equality.bound and missing and extra:
        missing, extra = _paired(missing, extra, equality.bound)
    if not missing and not extra:
        return None
    return Difference(_listed(missing), _listed(extra))


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
    return Real("") if isinstance(value, Real) else value


def _floats(value: Any) -> Iterable[Real]:
    if isinstance(value, Real):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _floats(item)


def _listed(rows: Counter[Row]) -> tuple[tuple[Row, int], ...]:
    return tuple(sorted(rows.items(), key=repr))


def _shown(rows: Sequence[tuple[Row, int]]) -> str:
    said = [f"{count} x {row}" if count > 1 else f"{row}" for row, count in rows[:SHOWN]]
    return ", ".join(said) + (f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else "")
