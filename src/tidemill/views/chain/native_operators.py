"""The stateful operators of aggregates and set operations (DBSP-12, DBSP-13)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import TypeRefused
from tidemill.views.chain.stateful_operator import (
    OperatorOutput,
    Parts,
    Traces,
    concatenated,
    hash_column,
    numbered_columns,
    with_weight,
)
from tidemill.views.kernels.canonical_keys import canonical_keys
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import BINS, MAIN, GroupKernel
from tidemill.views.kernels.set_operations import SetKernel
from tidemill.views.trace.consolidation import chunk, column, consolidate
from tidemill.views.trace.hash_space import HashRange, hash_bounds
from tidemill.views.trace.key_hash import GLOBAL_HASH
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import distinct


def _all(name: str) -> str:
    """Return the name of the trace with all values of a min or max."""
    return f"{name}.all"


@dataclass(frozen=True)
class StatefulAggregate:
    """A GROUP BY with native aggregates. Rows have the key first, then the values, then `_w`.

    Side 0 receives the rows. For each column of which distinct values are aggregated, another side receives
    the distinct values of each group, from a `StatefulSet`. These are spread over all ranges by their value,
    so one task need not hold all values of a group.

    If the input can have deletes, a min or max has two traces: one with its best few values, and one with all
    values. When a group has lost its best values, the step reads all values of this group again (DBSP-13).

    Args:
        kernel: the kernel that computes the aggregates.
        results: the types of the aggregates, from Spark's analysis of the query.
    """

    kernel: GroupKernel
    results: tuple[pa.DataType, ...]

    def __post_init__(self) -> None:
        for agg, result in zip(self.kernel.aggs, self.results, strict=True):
            argument = self._argument(agg)
            second = argument if agg.second is None else self.kernel.values.field(agg.second).type
            if not (agg.kernel.takes(argument, result) and agg.kernel.takes(second, result)):
                raise TypeRefused(
                    f"{agg.kind} of {argument} values cannot be updated exactly",
                    hint="no action is needed: Spark recomputes the changed groups, or the whole view",
                )

    def _argument(self, agg: GroupAggregate) -> pa.DataType | None:
        return None if agg.column is None else self.kernel.values.field(agg.column).type

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        every = {_all(name): self.kernel.layouts[name] for name in self._extremes if self.kernel.best > 1}
        return {**self.kernel.layouts, **every}

    @cached_property
    def _extremes(self) -> list[str]:
        return [agg.name for agg in self.kernel.aggs if agg.kernel.accumulator.is_extreme]

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns([*(each.type for each in self.kernel.keys), *self.results]))

    def _with_results(self, table: pa.Table) -> pa.Table:
        """Convert the kernel's rows to the values that Spark's aggregates return."""
        names = [each.name for each in self.kernel.schema if each.name not in {HASH, WEIGHT}]
        keys = len(self.kernel.keys)
        columns, at = [table[name] for name in names[:keys]], keys
        for agg, result in zip(self.kernel.aggs, self.results, strict=True):
            argument = self._argument(agg)
            raw = names[at : at + agg.kernel.raw_width(argument)]
            columns.append(agg.kernel.final([chunk(table, name) for name in raw], argument, result))
            at += len(raw)
        return pa.Table.from_arrays([*columns, table[WEIGHT]], names=self.out.names)

    def _distinct(self, side: int) -> str | None:
        return self.kernel.distinct[side - 1] if side else None

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        values = self.kernel.values_of(self._distinct(side))
        return tuple(each.type for each in (*self.kernel.keys, *values))

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        distinct = self._distinct(side)
        names = [*self.kernel.keys.names, *self.kernel.values_of(distinct).names]
        rows = rows.rename_columns([*names, WEIGHT]).combine_chunks()
        hashes = hash_column(rows, self.kernel.keys.names)
        return self.kernel.accumulate(rows.append_column(HASH, hashes), distinct)

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        received = {
            tag: concatenated(parts.get(tag, ()), layout) for tag, layout in self.kernel.layouts.items()
        }
        result = self.kernel.step([received], traces, first=first)
        deltas = dict(result.traces)
        out = [result.out]
        exhausted = 0
        if self.kernel.best > 1:
            deltas |= {_all(name): result.values[name] for name in self._extremes}
            if result.pending is not None:
                refilled = self.kernel.refill(result.pending, self._values(result.pending, received, traces))
                out.append(refilled.out)
                deltas |= {
                    name: pa.concat_tables([deltas[name], refilled.traces[name]]) for name in self._extremes
                }
        elif result.pending is not None:
            exhausted = result.pending.num_rows
        settled = frozenset({MAIN, BINS, *map(_all, self._extremes)} & deltas.keys())
        return OperatorOutput(
            [self._with_results(table) for table in out], deltas, exhausted=exhausted, settled=settled
        )

    def _values(
        self, pending: pa.Table, received: Mapping[str, pa.Table], traces: Traces
    ) -> dict[str, pa.Table]:
        """Return all values of each min and max that these groups have after the step."""
        hashes = distinct(column(pending, HASH))
        values = {}
        for name in self._extremes:
            changes = received[name].filter(pc.is_in(received[name][HASH], pa.array(hashes)))
            values[name] = pa.concat_tables([traces[_all(name)].lookup(hashes), changes])
        return values

    def emits_without_input(self, within: HashRange) -> bool:
        low, high = hash_bounds(*within.grains)
        return self.kernel.always and low <= GLOBAL_HASH <= high


@dataclass(frozen=True)
class StatefulSet:
    """DISTINCT, INTERSECT and EXCEPT: stores the count of each row on each side."""

    kernel_kind: str
    types: tuple[pa.DataType, ...]

    @cached_property
    def _kernel(self) -> SetKernel:
        return SetKernel(self.kernel_kind, numbered_columns(self.types))  # type: ignore[arg-type]

    @property
    def layouts(self) -> dict[str, Layout]:
        return {"main": self._kernel.layout}

    @property
    def out(self) -> pa.Schema:
        return self._kernel.schema

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        names = [f"c{i}" for i in range(len(self.types))]
        rows = canonical_keys(rows.combine_chunks(), names)
        packed = rows.append_column(HASH, hash_column(rows, names))
        return {"right" if side else "left": consolidate(packed, self._kernel.side)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        left, right = (concatenated(parts.get(tag, ()), self._kernel.side) for tag in ("left", "right"))
        counted = self._kernel.step(left, right, traces["main"])
        return OperatorOutput([counted.out], {"main": counted.state})

    def emits_without_input(self, within: HashRange) -> bool:
        return False
