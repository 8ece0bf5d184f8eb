"""The rung of every operator, and the words why: linear, native, keyed or full (DBSP-17).

Each operator runs on the highest rung that is right for it. `scan` marks one whose step may read a whole
trace or table although little changed; a view is incremental when it has neither a scan nor a full
operator, and nothing that is not the same twice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidemill.views.aggregates.registry import aggregate
from tidemill.views.circuit.circuit import walk
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
    SetOp,
    TemporalFilter,
    TopK,
    UnionAll,
    ViewOutput,
    Window,
)
from tidemill.views.circuit.row_properties import append_only


class Rung(Enum):
    """The ladder, the best first."""

    LINEAR = "linear"
    NATIVE = "native"
    KEYED = "keyed"
    FULL = "full"


@dataclass(frozen=True)
class OperatorRung:
    """Where an operator runs, and why there."""

    rung: Rung
    reason: str
    scan: bool = False
    steady: bool = True

    @property
    def incremental(self) -> bool:
        return self.rung is not Rung.FULL and not self.scan and self.steady


def rungs(root: Operator, functions: ViewFunctions | None = None) -> dict[Operator, OperatorRung]:
    """The rung of every operator below and including the root."""
    known = functions or ViewFunctions()
    grows = append_only(root)
    return {op: _placed(op, known, grows) for op in walk(root)}


def _placed(op: Operator, functions: ViewFunctions, grows: Mapping[Operator, bool]) -> OperatorRung:
    random = _random(op, functions)
    clock = _clock(op)
    if isinstance(op, Opaque):
        extra = f"; it calls {', '.join(random)}" if random else ""
        return OperatorRung(Rung.FULL, f"kept whole: {op.reason}{extra}", scan=True, steady=not random)
    if clock and not isinstance(op, TemporalFilter):
        said = "it reads the clock, and not as column < now(): recomputed when time moves"
        return OperatorRung(Rung.FULL, said, scan=True, steady=not random)
    placed = RULES[type(op)](op, grows)
    if random:
        said = f"{', '.join(random)}: not the same twice, so its value is kept with each row"
        worst = placed.rung if placed.rung in {Rung.KEYED, Rung.FULL} else Rung.KEYED
        return OperatorRung(worst, said, placed.scan, steady=False)
    return placed


def _random(op: Operator, functions: ViewFunctions) -> list[str]:
    calls = set(op.calls) if isinstance(op, Opaque) else {n for e in expressions_of(op) for n in e.calls}
    return sorted(name for name in calls if functions.random(name) or name in RANDOM)


def _clock(op: Operator) -> bool:
    if isinstance(op, Opaque):
        return any(name in CLOCK for name in op.calls)
    return any(expr.reads_clock for expr in expressions_of(op))


# --- one rule per kind --------------------------------------------------------------------------------------


def _row_by_row(_op: Operator, _: Mapping[Operator, bool]) -> OperatorRung:
    return OperatorRung(Rung.LINEAR, "row by row: the change alone")


def _source(op: InputTable, _: Mapping[Operator, bool]) -> OperatorRung:
    if op.key:
        return OperatorRung(Rung.NATIVE, "replaces rows by key: the old row is found in its trace")
    return OperatorRung(
        Rung.LINEAR, "append-only: every row is new" if op.append_only else "its changes, as they come"
    )


def _temporal(_op: TemporalFilter, _: Mapping[Operator, bool]) -> OperatorRung:
    return OperatorRung(Rung.FULL, "rows come and go as time passes: recomputed when they do", scan=True)


def _join(op: Join, _: Mapping[Operator, bool]) -> OperatorRung:
    if not op.keys:
        if op.join == "null-aware anti":
            said = "NOT IN without another key: a NULL on the right touches every row"
        else:
            said = "no equality between the sides: the change would meet all of the other one"
        return OperatorRung(Rung.FULL, said, scan=True)
    if op.join == "inner":
        return OperatorRung(Rung.NATIVE, "an index of each side by its key")
    name = "NOT IN with a key" if op.join == "null-aware anti" else f"{op.join} join"
    return OperatorRung(Rung.KEYED, f"{name}: Spark computes the keys that changed")


def _sets(_op: Distinct | SetOp, _: Mapping[Operator, bool]) -> OperatorRung:
    return OperatorRung(Rung.NATIVE, "the weight of every row")


def _aggregate(op: Aggregate, grows: Mapping[Operator, bool]) -> OperatorRung:
    slow = [call for call in op.calls if not is_native(call)]
    if slow:
        named = ", ".join(sorted({_called(call) for call in slow}))
        if not op.groups:
            return OperatorRung(Rung.FULL, f"{named} of everything: one group holds all rows", scan=True)
        if op.sets is not None:
            return OperatorRung(
                Rung.FULL, f"{named} with grouping sets: a row is in several groups", scan=True
            )
        return OperatorRung(Rung.KEYED, f"{named}: Spark computes the groups that changed")
    extremes = sorted({call.name for call in op.calls if _is_extreme(call)})
    said = "sums of each group" if op.groups else "sums of everything"
    if extremes:
        kept = "the best one" if grows[op.input] else "the best 16, refilled when they are used up"
        said += f"; {' and '.join(extremes)} keep {kept} of each group"
    return OperatorRung(Rung.NATIVE, said)


def is_native(call: AggregateCall) -> bool:
    """Whether a kernel computes the aggregate, as far as its call tells; the types may still refuse it."""
    entry = aggregate(call.name)
    return call.plain and entry.kernel is not None and (entry.ignores_duplicates or not call.distinct)


def _is_extreme(call: AggregateCall) -> bool:
    kernel = aggregate(call.name).kernel
    return kernel is not None and kernel.accumulator.is_extreme


def _called(call: AggregateCall) -> str:
    return f"{call.name}(DISTINCT)" if call.distinct else call.name


def _window(op: Window, _: Mapping[Operator, bool]) -> OperatorRung:
    if not op.partition:
        return OperatorRung(
            Rung.FULL, "a window without PARTITION BY: one partition holds all rows", scan=True
        )
    return OperatorRung(Rung.KEYED, "Spark computes the partitions that changed")


def _top(_op: TopK, _: Mapping[Operator, bool]) -> OperatorRung:
    return OperatorRung(Rung.FULL, "the first rows of an order over everything", scan=True)


def _scalar(_op: Scalar, _: Mapping[Operator, bool]) -> OperatorRung:
    return OperatorRung(Rung.FULL, "one value beside every row: when it changes, every row does", scan=True)


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
    TopK: _top,
    Scalar: _scalar,
    ViewOutput: _row_by_row,
}
