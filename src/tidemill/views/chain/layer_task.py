"""The task that computes one layer of a chain in one range of hash space, and its report.

`compute_layer` depends only on the packets it receives and on the version file. A repeated task returns the
same rows and the same runs, in a bundle with another name (DBSP-46). The executor decides whether packets
travel between layers through Spark's shuffle or stay in the process.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from tidemill.errors import StepLost, TraceFormat
from tidemill.views.chain.chain import Chain, Edge, PlacedOperator
from tidemill.views.chain.compact_rows import COMPACTED_ROWS, compacted
from tidemill.views.chain.join_operators import StatefulJoin
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.chain.stateful_operator import OperatorOutput, StatefulOperator
from tidemill.views.trace.batches import BATCH_BYTES, BATCH_ROWS, batched, split_rows
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.consolidation import column
from tidemill.views.trace.hash_space import HashRange, split
from tidemill.views.trace.layout import HASH, WEIGHT
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import TraceChanges, TraceVersion

CODE = "1"
"""The version of the kernels, as stored in version files. It changes when kernels use state differently."""

CONTINUED = frozenset({"", CODE})
"""The versions of kernels whose state these kernels continue; none for a version without state."""


class Packet(NamedTuple):
    """Rows sent to an operator in a range; the operator uses the tag to distinguish kinds of rows."""

    range: int
    operator: int
    tag: str
    table: pa.Table


@dataclass(frozen=True)
class StepPlan:
    """The plan of one job of a step, which all its tasks share.

    Args:
        chain: the chain to compute.
        active: the numbers of the operators to run.
        ranges: a division of hash space, with one range for each task of a layer.
        first: whether the step builds or rebuilds traces. Then traces are empty and inputs are complete.
        job: the number of the job in the chain.
        stored: the operators whose traces are written; None for all.
        by_arrow: whether Arrow evaluates the row expressions that it can.
    """

    chain: Chain
    active: frozenset[int]
    ranges: tuple[HashRange, ...]
    job: int = 0
    first: bool = False
    stored: frozenset[int] | None = None
    by_arrow: bool = False

    @property
    def depth(self) -> int:
        """Return how many layers the job has."""
        return self.chain.depth(self.job)

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Return the numbers of the active operators of this job."""
        return frozenset(n for n in self.active if self.chain.operators[n].job == self.job)

    def layer(self, number: int) -> list[PlacedOperator]:
        """Return the operators that a layer computes."""
        return [
            placed
            for placed in self.chain.operators
            if placed.layer == number
            and placed.number in self.numbers
            and not isinstance(placed.operator, OutputSink)
        ]

    def leaving(self, origin: int | str) -> list[Edge]:
        return [edge for edge in self.chain.leaving(origin) if edge.target in self.numbers]

    def spark_edges(self, number: int) -> dict[int, list[Edge]]:
        """Return, for each operator of a layer, its edges whose row expressions Spark must evaluate."""
        edges = {
            placed.number: [edge for edge in self.leaving(placed.number) if not self.is_direct(edge)]
            for placed in self.layer(number)
        }
        return {operator: leaving for operator, leaving in edges.items() if leaving}

    def is_direct(self, edge: Edge) -> bool:
        """Return whether the rows of an edge need no Spark."""
        return edge.plain is not None or (self.by_arrow and edge.arrow is not None)

    @staticmethod
    def direct_rows(edge: Edge, rows: pa.Table) -> pa.Table:
        """Return the rows of an edge that needs no Spark; raise `NotComputed` if it needs Spark after all."""
        if edge.plain is not None:
            return select_columns(rows, edge.plain)
        assert edge.arrow is not None
        return edge.arrow.apply(rows)

    def send(
        self, edge: Edge, rows: pa.Table, origin: int | None = None, *, compact: bool = False
    ) -> Iterator[Packet]:
        """Pack rows for the target of an edge; see `deliver`."""
        return self.deliver(edge.target, edge.side, rows, origin, compact=compact)

    def deliver(
        self, number: int, side: int, rows: pa.Table, origin: int | None = None, *, compact: bool = False
    ) -> Iterator[Packet]:
        """Pack rows for a side of an operator.

        Args:
            number: the number of the operator.
            side: the side that receives the rows.
            rows: c0, c1, … with the types of the side, and `_w`.
            origin: the range that computed the rows. Rows that need no exchange stay in that range.
            compact: whether the rows leave the process and should use few bytes (`compacted`).
        """
        operator = self.chain.operators[number].operator
        for tag, table in operator.pack(side, _with_types(operator, side, rows)).items():
            packed = table
            if compact and table.num_rows >= COMPACTED_ROWS:
                packed = compacted(table, operator.layouts.get(tag))
            local = operator.local if isinstance(operator, OutputSink) else _is_local(operator, side)
            if local or len(self.ranges) == 1:
                parts = [((origin or 0) if local else 0, packed)]
            else:
                parts = list(enumerate(split(packed, self.ranges, column(table, HASH))))
            for to, part in parts:
                for piece in split_rows(part):
                    yield Packet(to, number, tag, piece)


@dataclass
class TaskReport:
    """What one task reports to the driver.

    Args:
        layer, range: identify the task.
        operators: the operators it computed.
        changes: the changes of its traces.
        seconds: the time it took, not counting the time it waited for rows.
        rows: the number of rows it received.
        files: the files it wrote for views: (view, key, rows, size, digest).
        aside: for each source operator, how many rows it set aside in the step.
        exhausted: for each operator, in how many groups the values must be read again.
        rewritten: how many rows of window functions did not change themselves, but their results did.
        work: for each operator, the rows it received, the rows it returned, and its seconds.
    """

    layer: int
    range: int
    operators: list[int] = field(default_factory=list)
    changes: TraceChanges = field(default_factory=TraceChanges)
    seconds: float = 0.0
    rows: int = 0
    files: list[tuple[str, str, int, int, str]] = field(default_factory=list)
    aside: dict[str, int] = field(default_factory=dict)
    exhausted: dict[str, int] = field(default_factory=dict)
    rewritten: int = 0
    work: dict[str, tuple[int, int, float]] = field(default_factory=dict)

    def encode(self) -> bytes:
        rest = {name: value for name, value in vars(self).items() if name != "changes"}
        return json.dumps([rest, self.changes.encode().decode()]).encode()

    @classmethod
    def decode(cls, body: bytes) -> "TaskReport":
        rest, changes = json.loads(body)
        return cls(**rest, changes=TraceChanges.decode(changes.encode()))


def _is_local(operator: StatefulOperator, side: int) -> bool:
    return isinstance(operator, StatefulJoin) and operator.is_local(side)


def _with_types(operator: StatefulOperator, side: int, rows: pa.Table) -> pa.Table:
    """Cast rows to the declared types, as a session may name UTC differently or mark columns as NOT NULL."""
    for place, kind in enumerate(operator.takes(side)):
        if rows.schema.field(place).type != kind:
            name = f"c{place}"
            rows = rows.set_column(place, pa.field(name, kind), rows.column(place).cast(kind))
    return rows


class TaskState(NamedTuple):
    """Where a task reads and writes traces."""

    version: TraceVersion
    cache: Cache
    bundle: Bundle


def compute_layer(
    plan: StepPlan,
    layer: int,
    range_number: int,
    parts: Mapping[int, Mapping[str, Sequence[pa.Table]]],
    state: TaskState,
    report: TaskReport,
) -> Iterator[tuple[PlacedOperator, pa.Table]]:
    """Run the operators of a layer in a range and yield the output of each in pieces.

    The caller writes the bundle.

    Args:
        plan: the plan of the step.
        layer: the number of the layer.
        range_number: the number of the range.
        parts: for each operator and tag, the packed tables that arrived.
        state: where traces are read and written.
        report: receives the task's results. It is complete once the caller has read all pieces.
    """
    check_code(state.version)
    within = plan.ranges[range_number]
    for placed in plan.layer(layer):
        received = parts.get(placed.number, {})
        rows = sum(table.num_rows for tables in received.values() for table in tables)
        report.operators.append(placed.number)
        report.rows += rows
        traces = _traces(plan, placed, within, state)
        if not rows and not (plan.first and placed.operator.emits_without_input(within)):
            merged = [
                TraceChanges((), tuple(traces[name].merges(state.bundle, MERGED_ROWS)))
                for name in placed.traces
            ]
            report.changes = TraceChanges.combine([report.changes, *merged])
            continue
        began, returned = time.perf_counter(), 0
        output = placed.operator.step(received, traces, first=plan.first)
        seconds = time.perf_counter() - began
        if output.exhausted:
            report.exhausted[str(placed.number)] = output.exhausted
        report.rewritten += output.rewritten
        if output.aside:
            report.aside[str(placed.number)] = output.aside
        for piece in _pieces(output):
            returned += piece.num_rows
            yield placed, piece
        report.work[str(placed.number)] = (rows, returned, seconds)
        if plan.stored is not None and placed.number not in plan.stored:
            continue
        extended = [
            traces[name].extend(delta, state.bundle, settled=name in output.settled)
            for name, delta in output.deltas.items()
        ]
        report.changes = TraceChanges.combine([report.changes, *extended])


def check_code(version: TraceVersion) -> None:
    """Raise `TraceFormat` if other kernels wrote the state, which these would misread (DBSP-44)."""
    if version.code not in CONTINUED:
        raise TraceFormat(
            f"the state at step {version.step} was written by kernels of version {version.code!r}; this"
            f" release has version {CODE}",
            hint="use the release that wrote it, or move the state with `tidemill upgrade`",
        )


MERGED_ROWS = 65_536
"""How many rows merges may rewrite in a range that received no rows."""


def _traces(plan: StepPlan, placed: PlacedOperator, within: HashRange, state: TaskState) -> dict[str, Trace]:
    layouts, version = placed.operator.layouts, state.version
    owned = ((name, trace, layouts[name]) for name, trace in placed.traces.items())
    return {
        name: Trace(trace, layout, (), state.cache, within)
        if plan.first
        else Trace.of(version, trace, layout, state.cache, within, version.step)
        for name, trace, layout in (*owned, *placed.borrowed)
    }


def _pieces(output: OperatorOutput) -> Iterator[pa.Table]:
    """Yield the output in tables of a moderate size."""
    for tables in batched(output.out, 4 * BATCH_ROWS, BATCH_BYTES):
        yield pa.concat_tables(tables)


def select_columns(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    """Return the columns at these places as c0, c1, …, with the weight."""
    names = [f"c{place}" for place in places]
    numbered = [f"c{i}" for i in range(len(names))]
    return pa.table([rows[name] for name in [*names, WEIGHT]], names=[*numbered, WEIGHT])


def packets_by_range(packets: Iterable[Packet]) -> dict[int, dict[int, dict[str, list[pa.Table]]]]:
    """Group packets by range, operator and tag."""
    grouped: dict[int, dict[int, dict[str, list[pa.Table]]]] = {}
    for packet in packets:
        tags = grouped.setdefault(packet.range, {}).setdefault(packet.operator, {})
        tags.setdefault(packet.tag, []).append(packet.table)
    return grouped


def complete_changes(plan: StepPlan, reports: Sequence[TaskReport]) -> TraceChanges:
    """Combine the trace changes of all tasks.

    Raises `StepLost` unless each operator is reported exactly once for each range (DBSP-46).
    """
    expected = {
        (placed.number, range_number)
        for layer in range(1, plan.depth + 1)
        for placed in plan.layer(layer)
        for range_number in range(len(plan.ranges))
    }
    counts = Counter((operator, report.range) for report in reports for operator in report.operators)
    repeated = [task for task, count in counts.items() if count > 1]
    missing = expected - counts.keys()
    if repeated or missing or counts.keys() - expected:
        raise StepLost(
            f"reports of a step are missing or repeated: of {len(expected)} tasks,"
            f" {len(missing)} reported nothing and {len(repeated)} reported twice"
        )
    return TraceChanges.combine(report.changes for report in reports)


def work_by_operator(chain: Chain, reports: Iterable[TaskReport]) -> dict[str, tuple[str, int, int, float]]:
    """Return, by the id of each operator that ran: its kind, the rows in and out, and its seconds."""
    work: dict[str, tuple[str, int, int, float]] = {}
    for report in reports:
        for number, (received, returned, seconds) in report.work.items():
            placed = chain.operators[int(number)]
            kind, rows_in, rows_out, time_s = work.get(placed.id, (type(placed.operator).__name__, 0, 0, 0.0))
            work[placed.id] = (kind, rows_in + received, rows_out + returned, time_s + seconds)
    return work


def timings(reports: Iterable[TaskReport]) -> dict[str, Any]:
    """Return the time that a step spent in kernels: the sum, and the slowest task of each layer."""
    slowest: dict[int, float] = {}
    total = 0.0
    for report in reports:
        slowest[report.layer] = max(report.seconds, slowest.get(report.layer, 0.0))
        total += report.seconds
    return {"kernel_s": total, "critical_s": sum(slowest.values())}
