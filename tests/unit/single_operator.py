"""One stateful operator with its traces in memory; it runs steps like tasks do, in any number of ranges."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidemill.objects.memory import MemoryObjects
from tidemill.testing import FakeClock
from tidemill.views.chain.chain import Chain, PlacedOperator
from tidemill.views.chain.layer_task import (
    StepPlan,
    TaskReport,
    TaskState,
    complete_changes,
    compute_layer,
    packets_by_range,
)
from tidemill.views.chain.stateful_operator import StatefulOperator
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.hash_space import ranges
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version, write_version

Row = tuple[Any, ...]
Change = Mapping[int, Sequence[tuple[Row, int]]]
"""Rows with their weights, by side."""


def table(types: Sequence[pa.DataType], rows: Iterable[tuple[Row, int]]) -> pa.Table:
    """Return a table of c0, c1, … and `_w`."""
    rows = list(rows)
    arrays = [pa.array([row[n] for row, _ in rows], kind) for n, kind in enumerate(types)]
    names = [f"c{n}" for n in range(len(types))]
    weights = pa.array([weight for _, weight in rows], pa.int64())
    return pa.table([*arrays, weights], names=[*names, "_w"])


class SingleOperator:
    """An operator, the types of its sides, and the sum of its output so far."""

    def __init__(
        self, operator: StatefulOperator, sides: Sequence[Sequence[pa.DataType]], count: int = 1
    ) -> None:
        self.operator, self.sides = operator, sides
        self.chain = Chain((PlacedOperator(0, "operator", operator, 0, 1, frozenset({"v"})),), ())
        self.objects = MemoryObjects(FakeClock())
        self.cache = Cache(self.objects, None)
        self.count = count
        self.version = TraceVersion.empty(self.chain.traces)
        self.output: Counter[str] = Counter()
        self.reports: list[TaskReport] = []

    def step(self, change: Change, *, first: bool = False, pieces: int = 2) -> Counter[str]:
        """Run a step and commit it; return its output, added up.

        Args:
            change: the rows of each side.
            first: whether traces are empty.
            pieces: how many tasks pack the rows.
        """
        number = self.version.step + 1
        plan = StepPlan(self.chain, frozenset({0}), ranges(self.count), first=first)
        packets = [
            packet
            for side, rows in change.items()
            for piece in range(pieces)
            for packet in plan.deliver(0, side, table(self.sides[side], rows[piece::pieces]))
        ]
        parts, out, self.reports = packets_by_range(packets), Counter[str](), []
        for range_number in range(self.count):
            report = TaskReport(1, range_number)
            bundle = Bundle(self.objects, f"step-{number}/{range_number}", self.cache)
            state = TaskState(TraceVersion() if first else self.version, self.cache, bundle)
            for _, piece in compute_layer(plan, 1, range_number, parts.get(range_number, {}), state, report):
                assert piece.schema.equals(self.operator.out), "the output has the declared columns"
                add(out, piece)
            bundle.write()
            self.reports.append(TaskReport.decode(report.encode()))
        changes = complete_changes(plan, self.reports)
        rebuilt = self.chain.traces if first else ()
        outcome = self.version.apply(number, changes.added, changes.merged, rebuilt=rebuilt)
        assert not outcome.late
        write_version(self.objects, f"versions/{number}", outcome.version)
        self.version = read_version(self.objects, f"versions/{number}")
        self.output = summed([self.output, out])
        return summed([out])

    def state(self) -> dict[str, Counter[str]]:
        """Return all rows of all traces, read range by range."""
        state = {}
        for name, layout in self.operator.layouts.items():
            rows: Counter[str] = Counter()
            for within in ranges(self.count):
                trace = Trace.of(
                    self.version, f"operator.{name}", layout, self.cache, within, self.version.step
                )
                for part in trace.scan():
                    rows.update(map(repr, part.to_pylist()))
            state[name] = rows
        return state


def add(total: Counter[str], rows: pa.Table) -> None:
    """Add rows with a weight to a sum."""
    weights = rows["_w"].to_pylist()
    for row, weight in zip(rows.drop_columns(["_w"]).to_pylist(), weights, strict=True):
        total[repr(tuple(row.values()))] += weight


def summed(counters: Iterable[Counter[str]]) -> Counter[str]:
    """Add up weights; drop rows that cancel out."""
    total: Counter[str] = Counter()
    for counter in counters:
        for row, weight in counter.items():
            total[row] += weight
    return Counter({row: weight for row, weight in total.items() if weight})
