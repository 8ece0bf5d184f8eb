"""From what the kernel of an aggregate gives to what Spark's own aggregate would give: Spark SQL text.

The kernel's results are raw (see `kernels.aggregate`): exact sums as DECIMAL(38, s) with a flag for those
that do not fit, counts, doubles that are rounded already. The text below makes of them a value of the type
that Spark's analysis of the query says, and raises where Spark's aggregate would.
"""

import re
from typing import Literal

from tidemill.errors import TypeRefused
from tidemill.views.circuit.expr import Expr, column, joined

Kind = Literal["count_rows", "count", "sum", "avg", "min", "max"]

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_FLOATING = frozenset({"float", "double"})


def raw_width(kind: Kind, argument: str) -> int:
    """How many columns the kernel gives for an aggregate over values of this type."""
    if kind in {"sum", "avg"} and argument not in _FLOATING:
        return 2 if kind == "sum" else 3
    return 1


def final(kind: Kind, argument: str, result: str, first: int) -> Expr:
    """The aggregate's value out of raw columns that begin at `first`.

    Args:
        kind: which aggregate.
        argument: the type of what is aggregated, as Spark writes it.
        result: the type of the result, from Spark's analysis.
        first: the position of its first raw column.
    """
    if kind in {"count", "count_rows", "min", "max"} or argument in _FLOATING:
        return column(first)
    if argument not in _WHOLE and not _DECIMAL.fullmatch(argument):
        raise TypeRefused(f"no exact {kind} over {argument}", hint="the operator can run keyed")
    over = f"raise_error('the {kind} overflows {result}')"
    if kind == "sum":
        return _guarded(first + 1, over, ["CAST(", first, f" AS {result})"])
    total, count = first, first + 2
    exact = _DECIMAL.fullmatch(argument)
    if exact is None:
        value: list[str | int] = ["(CAST(", total, " AS DOUBLE) / ", count, ")"]
    else:
        digits, scale = min(38, int(exact[1]) + 10), int(exact[2])
        shown = _DECIMAL.fullmatch(result)
        if shown is None or _quotient_scale(digits, scale) < int(shown[2]):
            raise TypeRefused(f"no exact avg over {argument}", hint="the operator can run keyed")
        wide = f"DECIMAL({digits},{scale})"
        divided: list[str | int] = ["(CAST(", total, f" AS {wide}) / CAST(", count, " AS DECIMAL(20,0)))"]
        value = ["CAST(", *divided, f" AS {result})"]
    return _guarded(first + 1, over, ["CASE WHEN ", count, " > 0 THEN ", *value, " END"])


def _quotient_scale(digits: int, scale: int) -> int:
    """How many decimals Spark keeps of a DECIMAL(digits, scale) over a count. Its own avg divides without
    that limit, so the text is right only where these are no fewer than the result has.
    """
    wanted = max(6, scale + 21)
    whole = digits - scale
    return wanted if whole + wanted <= 38 else max(38 - whole, 6)


def _guarded(flag: int, over: str, value: list[str | int]) -> Expr:
    parts: list[str | int] = ["CASE WHEN ", flag, f" THEN {over} ELSE ", *value, " END"]
    return Expr(joined(parts), frozenset({"cast", "raise_error"}))
