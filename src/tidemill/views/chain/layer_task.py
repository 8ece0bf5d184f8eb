"""One layer of a chain in one range of hash space: what a task computes, and what it reports.

`compute_layer` is a function of the packets it receives and of the version file. A repeated task gives the
same rows and the same runs, in a bundle with another name (DBSP-46). Packets travel between layers through
Spark's shuffle, or stay in the process; neither is decided here.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from tidemill.errors import StepLost
from tidemill.views.chain.chain import Chain, Edge, PlacedOperator
from tidemill.views.chain.compact_rows import COMPACTED_ROWS, compacted
from tidemill.views.chain.native_operators import StatefulJoin
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


class Packet(NamedTuple):
    """Rows on their way: to which range, to which operator, and what they are there."""

    range: int
    operator: int
    tag: str
    table: pa.Table


@dataclass(frozen=True)
class StepPlan:
    """What all tasks of a step know.

    Args:
        chain: what is computed.
        active: the numbers of the operators that take part.
        ranges: hash space, one range for each task of a layer.
        first: operators remember nothing, and are given whole inputs: traces are built, or built anew.
        job: which of the chain's jobs.
        kept: the operators whose traces are written; None is all.
    """

    chain: Chain
    active: frozenset[int]
    ranges: tuple[HashRange, ...]
    job: int = 0
    first: bool = False
    kept: frozenset[int] | None = None

    @property
    def depth(self) -> int:
        """How many layers the job has."""
        return self.chain.depth(self.job)

    @property
    def mine(self) -> frozenset[int]:
        """The operators of this job that take part."""
        return frozenset(
            one.number for one in self.chain.operators if one.number in self.active and one.job == self.job
        )

    def layer(self, number: int) -> list[PlacedOperator]:
        """The operators that a layer computes."""
        return [
            one
            for one in self.chain.operators
            if one.number in self.mine and not isinstance(one.operator, OutputSink) and one.layer == number
        ]

    def leaving(self, origin: int | str) -> list[Edge]:
        return [edge for edge in self.chain.leaving(origin) if edge.target in self.mine]

    def typed(self, number: int) -> dict[int, list[Edge]]:
        """Of a layer's operators the edges on which Spark has to compute something."""
        found = {
            one.number: [e for e in self.leaving(one.number) if e.plain is None] for one in self.layer(number)
        }
        return {operator: edges for operator, edges in found.items() if edges}

    def send(
        self, edge: Edge, rows: pa.Table, here: int | None = None, *, narrow: bool = False
    ) -> Iterator[Packet]:
        """The packets of rows at the end of an edge."""
        return self.deliver(edge.target, edge.side, rows, here, narrow=narrow)

    def deliver(
        self, number: int, side: int, rows: pa.Table, here: int | None = None, *, narrow: bool = False
    ) -> Iterator[Packet]:
        """The packets of rows for a side of an operator.

        Args:
            number: of the operator.
            side: which of its sides.
            rows: c0, c1, … as the side takes them, and `_w`.
            here: the range in which they were made; rows that do not travel stay there.
            narrow: they leave the process, and are to have few octets (`compacted`).
        """
        operator = self.chain.operators[number].operator
        for tag, table in operator.pack(side, _typed(operator, side, rows)).items():
            small = table
            if narrow and table.num_rows >= COMPACTED_ROWS:
                small = compacted(table, operator.layouts.get(tag))
            stays = operator.local if isinstance(operator, OutputSink) else _stays(operator, side)
            if stays or len(self.ranges) == 1:
                parts = [((here or 0) if stays else 0, small)]
            else:
                parts = list(enumerate(split(small, self.ranges, column(table, HASH))))
            for to, part in parts:
                for portion in split_rows(part):
                    yield Packet(to, number, tag, portion)


@dataclass
class TaskReport:
    """What one task tells the driver.

    Args:
        layer, range: which task.
        operators: the operators it has computed.
        kept: what it added to traces.
        seconds: the time it took, without waiting for rows.
        rows: how many came in.
        files: what it wrote for views: (view, key, rows, size, digest).
        aside: of sources, how many rows are set aside after the step, by operator.
        exhausted: groups of an operator that need their values read again, by operator.
    """

    layer: int
    range: int
    operators: list[int] = field(default_factory=list)
    kept: TraceChanges = field(default_factory=TraceChanges)
    seconds: float = 0.0
    rows: int = 0
    files: list[tuple[str, str, int, int, str]] = field(default_factory=list)
    aside: dict[str, int] = field(default_factory=dict)
    exhausted: dict[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        rest = {name: value for name, value in vars(self).items() if name != "kept"}
        return json.dumps([rest, self.kept.encode().decode()]).encode()

    @classmethod
    def decode(cls, body: bytes) -> "TaskReport":
        rest, kept = json.loads(body)
        return cls(**rest, kept=TraceChanges.decode(kept.encode()))


def _stays(operator: StatefulOperator, side: int) -> bool:
    return isinstance(operator, StatefulJoin) and operator.stays(side)


def _typed(operator: StatefulOperator, side: int, rows: pa.Table) -> pa.Table:
    """Rows in the types that are known: sessions may call UTC otherwise, and say what cannot be NULL."""
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
    here: int,
    parts: Mapping[int, Mapping[str, Sequence[pa.Table]]],
    state: TaskState,
    told: TaskReport,
) -> Iterator[tuple[PlacedOperator, pa.Table]]:
    """Run the operators of a layer in a range; what each gives, in pieces. The caller writes the bundle.

    Args:
        plan: of the step.
        layer: which.
        here: the number of the range.
        parts: the packed tables that came, by operator and tag.
        state: the traces.
        told: what there is to tell is added to it, and complete when all pieces are read.
    """
    within = plan.ranges[here]
    for placed in plan.layer(layer):
        mine = parts.get(placed.number, {})
        told.operators.append(placed.number)
        told.rows += sum(table.num_rows for tables in mine.values() for table in tables)
        spines = _spines(plan, placed, within, state)
        came = any(table.num_rows for tables in mine.values() for table in tables)
        if not came and not (plan.first and placed.operator.speaks_first(within)):
            merged = [
                TraceChanges((), tuple(spines[name].merges(state.bundle, MERGED_ROWS)))
                for name in placed.traces
            ]
            told.kept = TraceChanges.together([told.kept, *merged])
            continue
        given = placed.operator.step(mine, spines, first=plan.first)
        if given.exhausted:
            told.exhausted[str(placed.number)] = given.exhausted
        if given.aside:
            told.aside[str(placed.number)] = given.aside
        for piece in _pieces(given):
            yield placed, piece
        if plan.kept is not None and placed.number not in plan.kept:
            continue
        told.kept = TraceChanges.together(
            [
                told.kept,
                *(
                    spines[name].extend(delta, state.bundle, settled=name in given.settled)
                    for name, delta in given.deltas.items()
                ),
            ]
        )


MERGED_ROWS = 65_536
"""Rows that merges may rewrite in a range to which nothing came."""


def _spines(plan: StepPlan, placed: PlacedOperator, within: HashRange, state: TaskState) -> dict[str, Trace]:
    layouts, version = placed.operator.layouts, state.version
    mine = ((name, trace, layouts[name]) for name, trace in placed.traces.items())
    return {
        name: Trace(trace, layout, (), state.cache, within)
        if plan.first
        else Trace.of(version, trace, layout, state.cache, within, version.step)
        for name, trace, layout in (*mine, *placed.borrowed)
    }


def _pieces(given: OperatorOutput) -> Iterator[pa.Table]:
    """The output in tables that are neither tiny nor huge."""
    for some in batched(given.out, 4 * BATCH_ROWS, BATCH_BYTES):
        yield pa.concat_tables(some)


def select_columns(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    """The columns at these places as c0, c1, …, with the weight."""
    names = [f"c{place}" for place in places]
    numbered = [f"c{i}" for i in range(len(names))]
    return pa.table([rows[name] for name in [*names, WEIGHT]], names=[*numbered, WEIGHT])


def packets_by_range(packets: Iterable[Packet]) -> dict[int, dict[int, dict[str, list[pa.Table]]]]:
    """Packets by range, operator and tag."""
    found: dict[int, dict[int, dict[str, list[pa.Table]]]] = {}
    for packet in packets:
        tags = found.setdefault(packet.range, {}).setdefault(packet.operator, {})
        tags.setdefault(packet.tag, []).append(packet.table)
    return found


def complete_changes(plan: StepPlan, every: Sequence[TaskReport]) -> TraceChanges:
    """What all tasks kept; `StepLost` unless each operator told once of each range (DBSP-46)."""
    wanted = {
        (one.number, here)
        for layer in range(1, plan.depth + 1)
        for one in plan.layer(layer)
        for here in range(len(plan.ranges))
    }
    seen: dict[tuple[int, int], int] = {}
    for told in every:
        for operator in told.operators:
            seen[operator, told.range] = seen.get((operator, told.range), 0) + 1
    twice = sorted(key for key, count in seen.items() if count > 1)
    missing = sorted(wanted - seen.keys())
    if twice or missing or seen.keys() - wanted:
        raise StepLost(
            f"a step is not whole: of {len(wanted)} tasks {len(missing)} told nothing, {len(twice)} twice"
        )
    return TraceChanges.together(told.kept for told in every)


def timings(every: Iterable[TaskReport]) -> dict[str, Any]:
    """Where the time of a step went inside of kernels: the sum, and the slowest task of each layer."""
    tasks = list(every)
    layers = {told.layer for told in tasks}
    slowest = {layer: max(told.seconds for told in tasks if told.layer == layer) for layer in layers}
    return {"kernel_s": sum(told.seconds for told in tasks), "critical_s": sum(slowest.values())}
