"""A chain without Spark: circuits written by hand, and steps that are computed in memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.objects.memory import MemoryObjects
from tidemill.testing import FakeClock
from tidemill.views.chain.builder import ChainBuilder
from tidemill.views.chain.chain import Chain, InputKind
from tidemill.views.chain.join_operators import StatefulJoin
from tidemill.views.chain.layer_task import (
    Packet,
    StepPlan,
    TaskReport,
    TaskState,
    complete_changes,
    compute_layer,
    packets_by_range,
    select_columns,
)
from tidemill.views.chain.source_operators import ChangesSource
from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.expr import column
from tidemill.views.circuit.ids import Pins
from tidemill.views.circuit.operators import (
    InputTable,
    Join,
    JoinKey,
    LiteralRows,
    Opaque,
    Operator,
    Project,
    Scalar,
    SparkColumn,
    ViewOutput,
    Window,
)
from tidemill.views.trace import row_equality
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.hash_space import ALL, ranges
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version, write_version

ARROW = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}

Rows = Iterable[tuple[tuple[Any, ...], int]]
"""(row, weight)"""


# --- circuits


def source(table: str, *types: str, key: tuple[int, ...] = ()) -> InputTable:
    return InputTable(table, tuple(SparkColumn(f"x{n}", kind) for n, kind in enumerate(types)), key)


def project(op: Operator, *places: int) -> Project:
    return Project(op, tuple(map(column, places)))


def join(left: Operator, right: Operator, *keys: tuple[int, int], null_safe: bool = False) -> Join:
    pairs = tuple(JoinKey(column(left_key), column(right_key), null_safe) for left_key, right_key in keys)
    return Join("inner", left, right, pairs)


def types_of(*roots: Operator) -> dict[Operator, tuple[str, ...]]:
    """Return the types of every operator: an expression and row_number are an int, other windows a bigint."""
    types: dict[Operator, tuple[str, ...]] = {}
    for op in walk(*roots):
        below = [types[child] for child in op.inputs]
        match op:
            case InputTable():
                types[op] = tuple(item.type for item in op.columns)
            case Project():
                types[op] = tuple(
                    "int" if item.column is None else below[0][item.column] for item in op.expressions
                )
            case Window():
                types[op] = (
                    *below[0],
                    *("int" if each.name == "row_number" else "bigint" for each in op.calls),
                )
            case Join() if not op.left_only:
                types[op] = below[0] + below[1]
            case Scalar():
                types[op] = below[0] + below[1][:1]
            case LiteralRows() | Opaque():
                types[op] = ("int",) * op.width
            case _:
                types[op] = below[0]
    return types


def built(views: Mapping[str, Operator], kinds: Mapping[str, str]) -> Chain:
    """Build the chain of these operators as views; tables that `kinds` omits allow deletes."""
    outputs = {
        name: ViewOutput(op, tuple(f"y{n}" for n in range(len(types_of(op)[op]))))
        for name, op in views.items()
    }
    circuit = Circuit(outputs)
    tables = {table.table: InputKind("changes") for table in circuit.sources()}
    tables |= {table: InputKind(kind) for table, kind in kinds.items()}
    types = types_of(*outputs.values())
    return ChainBuilder(circuit, types, circuit.ids(Pins()), ARROW.__getitem__, tables).build(list(outputs))


def without_sharing(chain: Chain) -> Chain:
    """Return the chain with a trace in every join, and with sources that store whole rows."""
    operators = []
    for placed in chain.operators:
        operator = placed.operator
        if isinstance(operator, StatefulJoin):
            operator = replace(operator, shared=(None, None))
        elif isinstance(operator, ChangesSource):
            operator = replace(operator, key=())
        operators.append(replace(placed, operator=operator, borrowed=()))
    return replace(chain, operators=tuple(operators))


# --- hashes


@contextmanager
def masked_hashes(mask: int) -> Iterator[None]:
    """Keep only these bits of all hashes, so that many rows and keys share a hash."""
    real, left = row_equality._mixed, np.uint64(mask)  # all hashes are made by this function
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_equality, "_mixed", lambda numbers, rows: real(numbers, rows) & left)
        yield


# --- steps


class MemoryChain:
    """A chain with its state in memory.

    Args:
        chain: a chain of one job without Spark's row expressions.
    """

    def __init__(self, chain: Chain) -> None:
        assert chain.jobs == 1
        self.chain = chain
        self.objects = MemoryObjects(FakeClock())
        self.version = TraceVersion.empty(chain.traces)

    def step(self, changes: Mapping[str, Rows], count: int) -> dict[int, list[pa.Table]]:
        """Compute a step in so many ranges and commit it; return the output of each operator."""
        number = self.version.step + 1
        plan = StepPlan(self.chain, frozenset(range(len(self.chain.operators))), ranges(count))
        outputs, reports = self._run(plan, changes, number)
        trace_changes = complete_changes(plan, reports)
        outcome = self.version.apply(number, trace_changes.added, trace_changes.merged)
        assert not outcome.late
        write_version(self.objects, f"versions/{number}", outcome.version)
        self.version = read_version(self.objects, f"versions/{number}")
        return outputs

    def load(self, inputs: Mapping[str, Rows], count: int) -> dict[int, list[pa.Table]]:
        """Compute everything from complete inputs without state, and store nothing."""
        active = frozenset(range(len(self.chain.operators)))
        plan = StepPlan(self.chain, active, ranges(count), first=True, stored=frozenset())
        outputs, reports = self._run(plan, inputs, 0)
        assert complete_changes(plan, reports) == ((), ())
        return outputs

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of all traces with this name."""
        cache, rows = Cache(self.objects, None), []
        for placed in self.chain.operators:
            if name in placed.traces:
                layout = placed.operator.layouts[name]
                trace = Trace.of(self.version, placed.traces[name], layout, cache, ALL, self.version.step)
                rows += [row for table in trace.scan() for row in table.to_pylist()]
        return rows

    def _run(
        self, plan: StepPlan, changes: Mapping[str, Rows], number: int
    ) -> tuple[dict[int, list[pa.Table]], list[TaskReport]]:
        packets = [
            packet for table, rows in changes.items() for packet in self._input_packets(plan, table, rows)
        ]
        outputs: dict[int, list[pa.Table]] = {placed.number: [] for placed in self.chain.operators}
        reports: list[TaskReport] = []
        cache = Cache(self.objects, None)
        for layer in range(1, plan.depth + 1):
            parts = packets_by_range(packets)
            for at in range(len(plan.ranges)):
                bundle, report = Bundle(self.objects, f"runs/{number}/{layer}-{at}"), TaskReport(layer, at)
                state = TaskState(self.version, cache, bundle)
                for placed, piece in compute_layer(plan, layer, at, parts.get(at, {}), state, report):
                    outputs[placed.number].append(piece)
                    for edge in plan.leaving(placed.number):
                        assert edge.plain is not None
                        packets += plan.send(edge, select_columns(piece, edge.plain), at)
                bundle.write()
                reports.append(report)
        return outputs, reports

    def _input_packets(self, plan: StepPlan, table: str, rows: Rows) -> Iterator[Packet]:
        weighted = list(rows)
        for edge in plan.leaving(table):
            assert edge.plain is not None
            kinds = self.chain.operators[edge.target].operator.takes(edge.side)
            selected = zip(edge.plain, kinds, strict=True)
            columns = [pa.array([row[place] for row, _ in weighted], kind) for place, kind in selected]
            weights = pa.array([weight for _, weight in weighted], pa.int64())
            names = [*(f"c{n}" for n in range(len(kinds))), "_w"]
            yield from plan.send(edge, pa.table([*columns, weights], names=names))


def rows_of(tables: Sequence[pa.Table]) -> list[tuple[tuple[Any, ...], int]]:
    """Return rows with their weights."""
    listed = (
        row for table in tables for row in zip(*(array.to_pylist() for array in table.columns), strict=True)
    )
    return [(tuple(values), weight) for *values, weight in listed]
