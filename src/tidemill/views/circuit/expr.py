"""Scalar expressions: Spark SQL text with holes for columns and for the time of the step.

Nobody here knows what an expression computes: Spark evaluates the text, with its own functions, types and
rules for NULL and overflow. What rewrites need is only which columns it reads and which functions it calls,
so these are kept apart from the text, and columns can be renumbered without parsing anything again. A
column is its position in the input of the operator (in both inputs, the left first, where an operator has
two).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class ClockValue(Enum):
    """The time of the step, in the three types in which SQL can ask for it."""

    TIMESTAMP = "current_timestamp()"
    DATE = "current_date()"
    LOCAL = "localtimestamp()"


Part = str | int | ClockValue

ATOM = re.compile(r"[\w.]+|'[^'\\]*'|\([^()]*\)")


@dataclass(frozen=True, slots=True)
class Expr:
    """Spark SQL text in parts: text, a column by its position, or the time of the step.

    `calls` are the functions it calls, in lower case: what decides whether it is deterministic. Equal parts
    mean an equal expression; the text is in the normal form of `tidemill.views.sql.sql_text` (one space, no
    comments).
    """

    parts: tuple[Part, ...]
    calls: frozenset[str] = frozenset()

    @property
    def columns(self) -> frozenset[int]:
        return frozenset(part for part in self.parts if isinstance(part, int))

    @property
    def column(self) -> int | None:
        """The column, if it is nothing but one."""
        only = self.parts[0] if len(self.parts) == 1 else None
        return only if isinstance(only, int) else None

    @property
    def reads_clock(self) -> bool:
        return any(isinstance(part, ClockValue) for part in self.parts)

    def sql(
        self, column: Callable[[int], str] | None = None, now: Mapping[ClockValue, str] | None = None
    ) -> str:
        """The text, with a name for every column (`c0`, `c1`, … unless told) and a value for the time."""
        name = column or "c{}".format
        said = []
        for part in self.parts:
            if isinstance(part, ClockValue):
                said.append((now or {}).get(part, part.value))
            else:
                said.append(part if isinstance(part, str) else name(part))
        return "".join(said)

    def renumbered(self, place: Callable[[int], int]) -> "Expr":
        """The same expression over columns that stand elsewhere."""
        return Expr(tuple(place(p) if isinstance(p, int) else p for p in self.parts), self.calls)

    def with_columns(self, values: Callable[[int], "Expr"]) -> "Expr":
        """The expression with other expressions in the place of its columns."""
        parts: list[Part] = []
        calls = set(self.calls)
        alone = len(self.parts) == 1
        for part in self.parts:
            if isinstance(part, int):
                value = values(part)
                calls |= value.calls
                parts += value.parts if alone else value.enclosed().parts
            else:
                parts.append(part)
        return Expr(joined(parts), frozenset(calls))

    def enclosed(self) -> "Expr":
        """In parentheses, unless it is a column, a name, a number or a simple string."""
        if len(self.parts) == 1:
            only = self.parts[0]
            if not isinstance(only, str) or ATOM.fullmatch(only):
                return self
        return Expr(joined(("(", *self.parts, ")")), self.calls)

    def __str__(self) -> str:
        return self.sql()


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts with neighbouring texts put together, so that equal expressions have equal parts."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, str) and isinstance(last, str):
            merged[-1] = last + part
        elif part != "":
            merged.append(part)
    return tuple(merged)


def column(index: int) -> Expr:
    """A column and nothing else."""
    return Expr((index,))


def text(sql: str, *calls: str) -> Expr:
    """A constant: Spark SQL without any column."""
    return Expr((sql,), frozenset(calls))


def call(name: str, *arguments: Expr) -> Expr:
    """A call of a function."""
    parts: list[Part] = [f"{name}("]
    calls = {name.lower()}
    for place, argument in enumerate(arguments):
        if place:
            parts.append(", ")
        parts += argument.parts
        calls |= argument.calls
    return Expr(joined([*parts, ")"]), frozenset(calls))


def both(left: Expr, operator: str, right: Expr) -> Expr:
    """Two expressions and an operator between them."""
    parts = (*left.enclosed().parts, f" {operator} ", *right.enclosed().parts)
    return Expr(joined(parts), left.calls | right.calls)
