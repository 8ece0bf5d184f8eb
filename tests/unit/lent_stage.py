"""A chain without Spark: circuits written by hand, and steps that are computed range by range here."""

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
from tidemill.views.chain.chain import Chain
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
from tidemill.views.chain.native_operators import StatefulJoin
from tidemill.views.chain.source_operators import ChangesSource
from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.expr import column
from tidemill.views.circuit.ids import Pins
from tidemill.views.circuit.operators import (
    InputTable,
    Join,
    JoinKey,
    Operator,
    Project,
    SparkColumn,
    ViewOutput,
    Window,
)
from tidemill.views.trace import row_equality
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.hash_space import ALL, ranges
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import TraceVersion, read_version, write_version

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
    pairs = tuple(JoinKey(column(one), column(other), null_safe) for one, other in keys)
    return Join("inner", left, right, pairs)


def types_of(*roots: Operator) -> dict[Operator, tuple[str, ...]]:
    """The types of every operator; what is computed is an int, and what a window computes a bigint."""
    found: dict[Operator, tuple[str, ...]] = {}
    for op in walk(*roots):
        below = [found[child] for child in op.inputs]
        match op:
            case InputTable():
                found[op] = tuple(one.type for one in op.columns)
            case Project():
                found[op] = tuple(
                    "int" if one.column is None else below[0][one.column] for one in op.expressions
                )
            case Window():
                found[op] = (*below[0], *("bigint" for _ in op.calls))
            case Join() if not op.left_only:
                found[op] = below[0] + below[1]
            case _:
                found[op] = below[0]
    return found


def built(views: Mapping[str, Operator], kinds: Mapping[str, str]) -> Chain:
    """The chain of these operators as views; tables that are not named allow deletes."""
    outputs = {
        name: ViewOutput(op, tuple(f"y{n}" for n in range(len(types_of(op)[op]))))
        for name, op in views.items()
    }
    circuit = Circuit(outputs)
    tables = {one.table: "changes" for one in circuit.sources()} | dict(kinds)
    types = types_of(*outputs.values())
    return ChainBuilder(circuit, types, circuit.ids(Pins()), ARROW.__getitem__, tables).build(list(outputs))


def apart(chain: Chain) -> Chain:
    """The same, where every join remembers its rows itself, and sources by the whole row."""
    operators = []
    for placed in chain.operators:
        operator = placed.operator
        if isinstance(operator, StatefulJoin):
            operator = replace(operator, lent=(None, None))
        elif isinstance(operator, ChangesSource):
            operator = replace(operator, key=())
        operators.append(replace(placed, operator=operator, borrowed=()))
    return replace(chain, operators=tuple(operators))


# --- hashes


@contextmanager
def hashes_of(mask: int) -> Iterator[None]:
    """Of all hashes, whatever of, these bits are left: rows and keys share them all the time."""
    real, left = row_equality._mixed, np.uint64(mask)  # what all hashes are made by
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_equality, "_mixed", lambda numbers, rows: real(numbers, rows) & left)
        yield


# --- steps


class Machine:
    """A chain with its state in memory.

    Args:
        chain: of one job, in which Spark has nothing to compute.
    """

    def __init__(self, chain: Chain) -> None:
        assert chain.jobs == 1
        self.chain = chain
        self.objects = MemoryObjects(FakeClock())
        self.version = TraceVersion.empty(chain.traces)

    def step(self, changes: Mapping[str, Rows], count: int) -> dict[int, list[pa.Table]]:
        """Compute a step in so many ranges, and commit it; what each operator gave."""
        number = self.version.step + 1
        plan = StepPlan(self.chain, frozenset(one.number for one in self.chain.operators), ranges(count))
        given, told = self._run(plan, changes, number)
        kept = complete_changes(plan, told)
        outcome = self.version.apply(number, kept.added, kept.merged)
        assert not outcome.late
        write_version(self.objects, f"versions/{number}", outcome.version)
        self.version = read_version(self.objects, f"versions/{number}")
        return given

    def load(self, inputs: Mapping[str, Rows], count: int) -> dict[int, list[pa.Table]]:
        """Compute everything from whole inputs, as if nothing were remembered; nothing is kept."""
        every = frozenset(one.number for one in self.chain.operators)
        plan = StepPlan(self.chain, every, ranges(count), first=True, stored=frozenset())
        given, told = self._run(plan, inputs, 0)
        assert complete_changes(plan, told) == ((), ())
        return given

    def rows(self, name: str) -> list[dict[str, Any]]:
        """What is in all traces of this name."""
        cache, found = Cache(self.objects, None), []
        for one in self.chain.operators:
            if name in one.traces:
                layout = one.operator.layouts[name]
                spine = Trace.of(self.version, one.traces[name], layout, cache, ALL, self.version.step)
                found += [row for table in spine.scan() for row in table.to_pylist()]
        return found

    def _run(
        self, plan: StepPlan, changes: Mapping[str, Rows], number: int
    ) -> tuple[dict[int, list[pa.Table]], list[TaskReport]]:
        packets = [packet for table, rows in changes.items() for packet in self._entering(plan, table, rows)]
        given: dict[int, list[pa.Table]] = {one.number: [] for one in self.chain.operators}
        every: list[TaskReport] = []
        cache = Cache(self.objects, None)
        for layer in range(1, plan.depth + 1):
            parts = packets_by_range(packets)
            for here in range(len(plan.ranges)):
                bundle, told = Bundle(self.objects, f"runs/{number}/{layer}-{here}"), TaskReport(layer, here)
                state = TaskState(self.version, cache, bundle)
                for placed, piece in compute_layer(plan, layer, here, parts.get(here, {}), state, told):
                    given[placed.number].append(piece)
                    for edge in plan.leaving(placed.number):
                        assert edge.plain is not None
                        packets += plan.send(edge, select_columns(piece, edge.plain), here)
                bundle.write()
                every.append(told)
        return given, every

    def _entering(self, plan: StepPlan, table: str, rows: Rows) -> Iterator[Packet]:
        many = list(rows)
        for edge in plan.leaving(table):
            assert edge.plain is not None
            kinds = self.chain.operators[edge.target].operator.takes(edge.side)
            chosen_here = zip(edge.plain, kinds, strict=True)
            columns = [pa.array([row[place] for row, _ in many], kind) for place, kind in chosen_here]
            weights = pa.array([weight for _, weight in many], pa.int64())
            names = [*(f"c{n}" for n in range(len(kinds))), "_w"]
            yield from plan.send(edge, pa.table([*columns, weights], names=names))


def rows_of(tables: Sequence[pa.Table]) -> list[tuple[tuple[Any, ...], int]]:
    """Rows and weights."""
    listed = (
        row for table in tables for row in zip(*(one.to_pylist() for one in table.columns), strict=True)
    )
    return [(tuple(values), weight) for *values, weight in listed]
