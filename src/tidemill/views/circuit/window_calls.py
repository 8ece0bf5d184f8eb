"""Which window functions have a kernel, and what a kernel must know about a call.

A kernel takes calls that name, argument, offset, default and frame describe completely: without DISTINCT and
IGNORE NULLS. (The compiler turns FILTER into a CASE.) It takes frames of ROWS with any offsets, and frames of
RANGE that end at the current row or are unbounded. The types of the columns may still prevent it
(`chain.window_operators`).
"""

import re
from dataclasses import dataclass

from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.operators import Filter, Operator, Project, Window, WindowCall

RANKS = frozenset({"row_number", "rank", "dense_rank"})
_PLAIN = RANKS | {"percent_rank", "cume_dist"}
_WITH_OFFSET = {"lag": 1, "lead": 1, "nth_value": 1, "ntile": 0}
"""The place of the argument that is a number."""
_OF_FRAME = frozenset(
    {"sum", "avg", "mean", "count", "min", "max", "first", "first_value", "last", "last_value"}
)
_PICKS = frozenset({"first", "first_value", "last", "last_value", "nth_value"})
_SAME_AS = {"mean": "avg"}

_BOUND = r"(UNBOUNDED (?:PRECEDING|FOLLOWING)|CURRENT ROW|\d+ (?:PRECEDING|FOLLOWING))"
_FRAME = re.compile(rf"(ROWS|RANGE) (?:BETWEEN {_BOUND} AND {_BOUND}|{_BOUND})", re.IGNORECASE)


@dataclass(frozen=True)
class KernelFrame:
    """A frame of rows or of peers; an offset is negative before the current row, and None is unbounded."""

    rows: bool
    start: int | None
    end: int | None


@dataclass(frozen=True)
class KernelCall:
    """A call that a kernel can compute.

    Args:
        name: the function.
        argument: the column or expression that it reads, if any.
        offset: its number: how far lag and lead look, which row nth_value returns, the parts of ntile.
        frame: its frame.
        default: what lag and lead return where there is no such row, if it is not NULL.
    """

    name: str
    argument: Expr | None
    offset: int
    frame: KernelFrame
    default: Expr | None = None

    @property
    def read(self) -> tuple[Expr, ...]:
        """The expressions that it reads."""
        return tuple(expr for expr in (self.argument, self.default) if expr is not None)


def kernel_call(call: WindowCall, *, ordered: bool) -> KernelCall | None:
    """Return what a kernel must know about a call; None if no kernel can compute it.

    Args:
        call: the call.
        ordered: whether its window has an ORDER BY.
    """
    frame = _frame(call.frame, ordered=ordered)
    arguments = list(call.arguments)
    if frame is None or not _is_plain(call):
        return None
    offset = 1
    if call.name in _WITH_OFFSET:
        place = _WITH_OFFSET[call.name]
        if len(arguments) > place:
            number = arguments.pop(place).sql()
            if not number.isdigit() or len(number) > 9 or int(number) == 0:
                return None
            offset = int(number)
        elif call.name in {"nth_value", "ntile"} and (place or call.name == "nth_value"):
            return None
    default = arguments.pop() if call.name in {"lag", "lead"} and len(arguments) == 2 else None
    takes = 1 if call.name in _OF_FRAME or _WITH_OFFSET.get(call.name) else 0
    if call.name not in _PLAIN | _OF_FRAME | _WITH_OFFSET.keys():
        return None
    if len(arguments) != takes and not (call.name == "count" and call.value.sql() == "count(*)"):
        return None
    if call.name in _PICKS and not frame.rows:  # ties would decide which row of the peers it is
        return None
    name, argument = _SAME_AS.get(call.name, call.name), arguments[0] if arguments else None
    return KernelCall(name, argument, offset, frame, default)


def has_kernel(op: Window) -> bool:
    """Return whether a kernel can compute all calls of a window; column types may still prevent it."""
    return all(kernel_call(call, ordered=bool(op.order)) is not None for call in op.calls)


def _is_plain(call: WindowCall) -> bool:
    """Return whether the text of a call is its name with its arguments, and nothing else."""
    arguments = ", ".join(argument.sql() for argument in call.arguments)
    text = call.value.sql().lower()
    return text in {f"{call.name}({arguments})".lower(), "count(*)"}


def _frame(text: str, *, ordered: bool) -> KernelFrame | None:
    if not text:
        return (
            KernelFrame(rows=False, start=None, end=0)
            if ordered
            else KernelFrame(rows=True, start=None, end=None)
        )
    match = _FRAME.fullmatch(text)
    if match is None:
        return None
    kind, start, end, only = (group and group.upper() for group in match.groups())
    rows = kind == "ROWS"
    first, last = _offset(start or only), _offset(end) if end else 0
    if not rows and not (first in {None, 0} and last in {None, 0}):
        return None
    if (first is not None and last is not None and first > last) or (
        "FOLLOWING" in (start or "") and first is None
    ):
        return None
    return KernelFrame(rows, first, last)


def _offset(bound: str) -> int | None:
    if bound.startswith("UNBOUNDED"):
        return None
    if bound == "CURRENT ROW":
        return 0
    number = int(bound.split(maxsplit=1)[0])
    return -number if bound.endswith("PRECEDING") else number


# --- filters on ranks ---------------------------------------------------------------------------------------

_AT_MOST = re.compile(r" (<=|<|=|==) (\d{1,9})")
_AT_LEAST = re.compile(r"(\d{1,9}) (>=|>|=|==) ")


def rank_limit(op: Filter) -> tuple[Window, int, int] | None:
    """Return the window whose ranks a filter limits, the call, and the highest rank that is needed."""
    below: Operator = op.input
    places: list[int | None] = list(range(below.width))
    if isinstance(below, Project):
        places = [expression.column for expression in below.expressions]
        below = below.input
    if not isinstance(below, Window):
        return None
    for condition in op.conditions:
        limited = _limited(condition)
        place = places[limited[0]] if limited else None
        if limited is None or place is None or place < below.input.width:
            continue
        call = place - below.input.width
        if below.calls[call].name in RANKS:
            return below, call, limited[1]
    return None


def _limited(condition: Expr) -> tuple[int, int] | None:
    """Return the column that a condition compares with a number, and the highest value that passes."""
    match condition.parts:
        case (int(place), str(text)) if compared := _AT_MOST.fullmatch(text):
            operator, number = compared.groups()
            return place, int(number) - (operator == "<")
        case (str(text), int(place)) if compared := _AT_LEAST.fullmatch(text):
            number, operator = compared.groups()
            return place, int(number) - (operator == ">")
    return None
