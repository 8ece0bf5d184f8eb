"""The rung of every operator (linear, native, keyed or full), and the reason for the rung (DBSP-17).

Each operator uses the fastest rung that gives the right result. `scan` is True for an operator whose step may
read a whole trace or table even if little changed. A view is not incremental if one of its operators has
`scan`, has the rung full, or is not deterministic.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidemill.views.aggregates.registry import Argument, aggregate
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.comparisons import comparisons
from tidemill.views.circuit.functions import CLOCK, RANDOM, ViewFunctions
from tidemill.views.circuit.ids import expressions_of
from tidemill.views.circuit.operators import (
    Aggregate,
    AggregateCall,
    Distinct,
    Filter,
    Generate,
    InputTable,
    Join,
    LiteralRows,
    Opaque,
    Operator,
    Project,
    Scalar,
    Sessions,
    SetOp,
    TemporalFilter,
    TopK,
    UnionAll,
    ViewOutput,
    Window,
)
from tidemill.views.circuit.row_properties import append_only
from tidemill.views.circuit.sessions import session_form, session_key
from tidemill.views.circuit.ties import row_order
from tidemill.views.circuit.window_calls import has_kernel


class Rung(Enum):
    """How an operator is kept up to date, the best way first."""

    LINEAR = "linear"
    NATIVE = "native"
    KEYED = "keyed"
    FULL = "full"


@dataclass(frozen=True)
class OperatorRung:
    """The rung of an operator, and the reason for it."""

    rung: Rung
    reason: str
    scan: bool = False
    deterministic: bool = True

    @property
    def incremental(self) -> bool:
        return self.rung is not Rung.FULL and not self.scan and self.deterministic


def rungs(root: Operator, functions: ViewFunctions | None = None) -> dict[Operator, OperatorRung]:
    """Return the rung of the root and of every operator below it."""
    known_functions = functions or ViewFunctions()
    grows = append_only(root)
    return {op: _rung_of(op, known_functions, grows) for op in walk(root)}


def _rung_of(op: Operator, functions: ViewFunctions, grows: Mapping[Operator, bool]) -> OperatorRung:
    random = _random(op, functions)
    clock = reads_clock(op)
    if isinstance(op, Opaque):
        extra = f"; {', '.join(random)} is not deterministic" if random else ""
        return OperatorRung(
            Rung.FULL, f"recomputed as a whole: {op.reason}{extra}", scan=True, deterministic=not random
        )
    if clock and not isinstance(op, TemporalFilter):
        reason = "reads the clock, but not in a condition like column < now(): recomputed when time passes"
        return OperatorRung(Rung.FULL, reason, scan=True, deterministic=not random)
    rung = RULES[type(op)](op, grows)
    if random:
        reason = f"{', '.join(random)} is not deterministic: the value is stored with each row"
        worst = rung.rung if rung.rung in {Rung.KEYED, Rung.FULL} else Rung.KEYED
        return OperatorRung(worst, reason, rung.scan, deterministic=False)
    return rung


def _random(op: Operator, functions: ViewFunctions) -> list[str]:
    calls = set(op.calls) if isinstance(op, Opaque) else {n for e in expressions_of(op) for n in e.calls}
    return sorted(name for name in calls if functions.is_random(name) or name in RANDOM)


def reads_clock(op: Operator) -> bool:
    """Return whether the operator itself uses the current time."""
    if isinstance(op, Opaque):
        return any(name in CLOCK for name in op.calls)
    return any(expr.reads_clock for expr in expressions_of(op))


# --- one function per kind of operator ----------------------------------------------------------------------


def _row_by_row(_op: Operator, _: Mapping[Operator, bool]) -> OperatorRung:
    return OperatorRung(Rung.LINEAR, "row by row: needs only the changed rows")


def _source(op: InputTable, _: Mapping[Operator, bool]) -> OperatorRung:
    if op.key:
        return OperatorRung(
            Rung.NATIVE, "the rows are stored in a trace; a new row replaces the stored row with the same key"
        )
    return OperatorRung(
        Rung.LINEAR, "append-only: every row is new" if op.append_only else "passes its changes on"
    )


def _temporal(_op: TemporalFilter, _: Mapping[Operator, bool]) -> OperatorRung:
    return OperatorRung(
        Rung.FULL, "rows start or stop matching as time passes: recomputed when that happens", scan=True
    )


def _join(op: Join, _: Mapping[Operator, bool]) -> OperatorRung:
    if op.join in {"semi", "anti"} and not (op.keys or op.residual or op.null_aware):
        reason = "EXISTS without a condition: when its value changes, all rows are read again"
        return OperatorRung(Rung.NATIVE, reason, scan=True)
    if op.join == "inner" and not op.keys and comparisons(op):
        return OperatorRung(Rung.NATIVE, "each side is kept in order: a change is joined with its range")
    if not op.keys:
        if op.join == "null-aware anti":
            reason = "NOT IN without another key: a NULL on the right affects every row"
        else:
            reason = (
                "no equality between the sides: each changed row is compared with all rows of the other side"
            )
        return OperatorRung(Rung.FULL, reason, scan=True)
    reason = "each side is indexed by the join key"
    if op.join in {"left", "right", "full"}:
        reason += "; counts the rows of each key to find those without a partner"
    elif op.join != "inner":
        reason = "the left side is indexed by the join key; counts the right rows of each key"
    if op.join != "inner" and (op.residual or op.null_aware):
        reason = "each side is indexed by the join key; counts the pairs of each row that meet the condition"
    return OperatorRung(Rung.NATIVE, reason)


def _sets(_op: Distinct | SetOp, _: Mapping[Operator, bool]) -> OperatorRung:
    return OperatorRung(Rung.NATIVE, "counts each distinct row")


def _aggregate(op: Aggregate, grows: Mapping[Operator, bool]) -> OperatorRung:
    session = session_key(op)
    if session is not None and session_form(op.input, op.groups[session]) is None:
        reason = "session_window without a fixed gap: Spark merges the sessions of changed keys again"
        return OperatorRung(Rung.KEYED, reason)
    slow = [call for call in op.calls if not is_native(call)]
    if slow:
        names = ", ".join(sorted({_called(call) for call in slow}))
        if not op.groups:
            return OperatorRung(Rung.FULL, f"{names} without GROUP BY: all rows are in one group", scan=True)
        if op.sets is not None:
            return OperatorRung(
                Rung.FULL, f"{names} with grouping sets: a row is in several groups", scan=True
            )
        return OperatorRung(Rung.KEYED, f"{names}: Spark recomputes the changed groups")
    extremes = sorted({call.name for call in op.calls if _is_extreme(call)})
    reason = "keeps totals for each group" if op.groups else "keeps totals for all rows"
    if session is not None:
        reason = "keeps the rows of each key in order of time, and totals for each session"
    if extremes:
        values = "the best value of each group"
        if not grows[op.input]:
            values = "the best 16 values of each group, and reads more when they are used up"
        reason += f"; for {' and '.join(extremes)}, keeps {values}"
    if any(call.distinct and not aggregate(call.name).ignores_duplicates for call in op.calls):
        reason += "; for DISTINCT, counts each distinct value of a group"
    return OperatorRung(Rung.NATIVE, reason)


def is_native(call: AggregateCall) -> bool:
    """Return whether a kernel can compute the call; the types of its arguments may still prevent it."""
    kernel = aggregate(call.name).kernel
    if kernel is not None and kernel.argument is Argument.ORDERED:
        return row_order(call) is not None
    if kernel is None or not call.plain:
        return False
    of_rows = any(argument.sql() == "*" for argument in call.arguments)
    return not call.distinct or not (of_rows or kernel.argument is Argument.PAIR)


def _is_extreme(call: AggregateCall) -> bool:
    kernel = aggregate(call.name).kernel
    return kernel is not None and kernel.accumulator.is_extreme


def _called(call: AggregateCall) -> str:
    return f"{call.name}(DISTINCT)" if call.distinct else call.name


def _window(op: Window, _: Mapping[Operator, bool]) -> OperatorRung:
    if has_kernel(op):
        rows = "each partition" if op.partition else "all rows"
        return OperatorRung(Rung.NATIVE, f"keeps {rows} in order, and rewrites the rows whose results change")
    if not op.partition:
        return OperatorRung(
            Rung.FULL, "a window without PARTITION BY: all rows are in one partition", scan=True
        )
    return OperatorRung(Rung.KEYED, "Spark recomputes the changed partitions")


def _sessions(_op: Sessions, _: Mapping[Operator, bool]) -> OperatorRung:
    return OperatorRung(Rung.NATIVE, "keeps the rows of each key in order, and rewrites sessions that change")


MOST_TOP_ROWS = 1_000
"""Up to this LIMIT, with its OFFSET, a kernel keeps the first rows."""


def _top(op: TopK, _: Mapping[Operator, bool]) -> OperatorRung:
    if op.limit is not None and op.limit + op.offset <= MOST_TOP_ROWS:
        reason = "keeps the first rows and some more, and reads others when they are used up"
        return OperatorRung(Rung.NATIVE, reason)
    return OperatorRung(Rung.FULL, "the first rows depend on the order of all rows", scan=True)


def _scalar(_op: Scalar, _: Mapping[Operator, bool]) -> OperatorRung:
    reason = "every row contains this value: when the value changes, all rows are read and written again"
    return OperatorRung(Rung.NATIVE, reason, scan=True)


RULES: Mapping[type[Operator], Callable[[Any, Mapping[Operator, bool]], OperatorRung]] = {
    InputTable: _source,
    LiteralRows: _row_by_row,
    Filter: _row_by_row,
    TemporalFilter: _temporal,
    Project: _row_by_row,
    Generate: _row_by_row,
    UnionAll: _row_by_row,
    Join: _join,
    Distinct: _sets,
    SetOp: _sets,
    Aggregate: _aggregate,
    Window: _window,
    Sessions: _sessions,
    TopK: _top,
    Scalar: _scalar,
    ViewOutput: _row_by_row,
}
