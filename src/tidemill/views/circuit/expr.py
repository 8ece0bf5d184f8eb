"""Scalar expressions: Spark SQL text with placeholders for columns and for the time of the step.

This module does not interpret expressions. Spark evaluates the text, with its own functions, types and rules
for NULL and overflow. Rewrites only need to know which columns an expression reads and which functions it
calls. An `Expr` stores both separately from the text, so that columns can be renumbered without parsing.

A column is a position in the input of the operator. For an operator with two inputs, the columns of the left
input come first.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class ClockValue(Enum):
    """The time of the step, in the three types that SQL has for the current time."""

    TIMESTAMP = "current_timestamp()"
    DATE = "current_date()"
    LOCAL = "localtimestamp()"


Part = str | int | ClockValue

ATOM = re.compile(r"[\w.]+|'[^'\\]*'|\([^()]*\)")
TIME_WINDOW = re.compile(r"window ?\(")
SESSION_WINDOW = re.compile(r"session_window ?\(")


@dataclass(frozen=True, slots=True)
class Expr:
    """Spark SQL text in parts: text, a column by its position, or the time of the step.

    `calls` are the functions that the expression calls, in lower case. They decide whether the expression is
    deterministic. Expressions with equal parts are equal: the text is in the normal form of
    `tidemill.views.sql.sql_text` (single spaces, no comments).
    """

    parts: tuple[Part, ...]
    calls: frozenset[str] = frozenset()

    @property
    def columns(self) -> frozenset[int]:
        return frozenset(part for part in self.parts if isinstance(part, int))

    @property
    def column(self) -> int | None:
        """The position of the column if the expression is a single column; otherwise None."""
        only = self.parts[0] if len(self.parts) == 1 else None
        return only if isinstance(only, int) else None

    @property
    def reads_clock(self) -> bool:
        return any(isinstance(part, ClockValue) for part in self.parts)

    @property
    def is_time_window(self) -> bool:
        """Whether the expression is a call of `window(…)`, which Spark accepts only in a select list."""
        return isinstance(self.parts[0], str) and TIME_WINDOW.match(self.parts[0]) is not None

    @property
    def is_session_window(self) -> bool:
        """Whether the expression is a call of `session_window(…)`, which Spark merges within a group."""
        return isinstance(self.parts[0], str) and SESSION_WINDOW.match(self.parts[0]) is not None

    def sql(
        self, column: Callable[[int], str] | None = None, now: Mapping[ClockValue, str] | None = None
    ) -> str:
        """Return the text, with a name for every column (default `c0`, `c1`, …) and a value for the time."""
        name = column or "c{}".format
        pieces = []
        for part in self.parts:
            if isinstance(part, ClockValue):
                pieces.append((now or {}).get(part, part.value))
            else:
                pieces.append(part if isinstance(part, str) else name(part))
        return "".join(pieces)

    def renumbered(self, position: Callable[[int], int]) -> "Expr":
        """Return the expression with the positions of its columns changed."""
        return Expr(tuple(position(p) if isinstance(p, int) else p for p in self.parts), self.calls)

    def with_columns(self, values: Callable[[int], "Expr"]) -> "Expr":
        """Return the expression with its columns replaced by other expressions."""
        parts: list[Part] = []
        calls = set(self.calls)
        alone = len(self.parts) == 1
        for part in self.parts:
            if isinstance(part, int):
                value = values(part)
                calls |= value.calls
                parts += value.parts if alone else value.parenthesized().parts
            else:
                parts.append(part)
        return Expr(merge_parts(parts), frozenset(calls))

    def parenthesized(self) -> "Expr":
        """Return the expression in parentheses; a column, a name, a number or a simple string needs none."""
        if len(self.parts) == 1:
            only = self.parts[0]
            if not isinstance(only, str) or ATOM.fullmatch(only):
                return self
        return Expr(merge_parts(("(", *self.parts, ")")), self.calls)

    def __str__(self) -> str:
        return self.sql()


def merge_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Merge adjacent texts, so that equal expressions have equal parts."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, str) and isinstance(last, str):
            merged[-1] = last + part
        elif part != "":
            merged.append(part)
    return tuple(merged)


def column(index: int) -> Expr:
    """Return the expression that is just this column."""
    return Expr((index,))


def text(sql: str, *calls: str) -> Expr:
    """Return a constant: Spark SQL without columns."""
    return Expr((sql,), frozenset(calls))


def call(name: str, *arguments: Expr) -> Expr:
    """Return a function call."""
    parts: list[Part] = [f"{name}("]
    calls = {name.lower()}
    for number, argument in enumerate(arguments):
        if number:
            parts.append(", ")
        parts += argument.parts
        calls |= argument.calls
    return Expr(merge_parts([*parts, ")"]), frozenset(calls))


def cast(value: Expr, current: str, target: str) -> Expr:
    """Cast a value of type `current`; a column that has the target type already stays as it is."""
    if value.column is not None and current == target:
        return value
    return Expr(merge_parts(("CAST(", *value.parts, f" AS {target})")), value.calls | {"cast"})


def binary(left: Expr, operator: str, right: Expr) -> Expr:
    """Return two expressions with an operator between them."""
    parts = (*left.parenthesized().parts, f" {operator} ", *right.parenthesized().parts)
    return Expr(merge_parts(parts), left.calls | right.calls)
