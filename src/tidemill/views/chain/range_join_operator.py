"""The stateful operator of an inner join by comparisons (DBSP-11)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidemill.views.chain.stateful_operator import (
    OperatorOutput,
    Parts,
    Traces,
    concatenated,
    hash_column,
    numbered_columns,
    with_weight,
)
from tidemill.views.kernels.ordered_trace import BLOCKS, ROWS, OrderedTrace
from tidemill.views.kernels.range_join import Comparison, RangeJoin, present
from tidemill.views.kernels.sort_codes import SortColumn
from tidemill.views.trace.consolidation import column, consolidate, reduce_rows
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.trace import Trace

SIDES = ("left", "right")


@dataclass(frozen=True)
class StatefulRangeJoin:
    """An inner join by comparisons. Both sides are in order of the columns of the first comparison.

    Args:
        left, right: the column types of each side.
        comparisons: the comparisons; the columns of a pair have the same type, which has sort codes.
    """

    left: tuple[pa.DataType, ...]
    right: tuple[pa.DataType, ...]
    comparisons: tuple[Comparison, ...]

    @cached_property
    def _kernel(self) -> RangeJoin:
        first = self.comparisons[0]
        left = OrderedTrace(numbered_columns(self.left), 0, (SortColumn(first.left),))
        right = OrderedTrace(numbered_columns(self.right), 0, (SortColumn(first.right),))
        return RangeJoin(left, right, self.comparisons)

    @property
    def _traces(self) -> dict[str, OrderedTrace]:
        return {"left": self._kernel.left, "right": self._kernel.right}

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        return {
            f"{side}.{name}": layout
            for side, ordered in self._traces.items()
            for name, layout in ordered.layouts.items()
        }

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns([*self.left, *self.right]))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.right if side else self.left

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        places = {each.right if side else each.left for each in self.comparisons}
        rows = present(rows, [f"c{place}" for place in sorted(places)]).combine_chunks()
        packed = rows.append_column(HASH, hash_column(rows, []))
        return {SIDES[side]: reduce_rows(packed, self._traces[SIDES[side]].change_layout)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        changes: dict[str, pa.Table] = {}
        deltas: dict[str, pa.Table] = {}
        stored: dict[str, Mapping[str, Trace]] = {}
        for side, ordered in self._traces.items():
            layout = ordered.change_layout
            stored[side] = {name: traces[f"{side}.{name}"] for name in (ROWS, BLOCKS)}
            change = consolidate(concatenated(parts.get(side, ()), layout), layout)
            changes[side] = change.combine_chunks()
            if change.num_rows:
                opened = ordered.open(change, stored[side])
                rows = opened.read(np.zeros(len(opened.group), bool))
                deltas |= {f"{side}.{name}": delta for name, delta in opened.changes(rows).items()}
        return OperatorOutput(self._pairs(changes, stored), deltas, settled=frozenset(deltas))

    def _pairs(
        self, changes: Mapping[str, pa.Table], stored: Mapping[str, Mapping[str, Trace]]
    ) -> Iterator[pa.Table]:
        for left, right in self._kernel.pairs(changes["left"], changes["right"], stored):
            columns = [left[f"c{n}"] for n in range(len(self.left))]
            columns += [right[f"c{n}"] for n in range(len(self.right))]
            weights = column(left, WEIGHT) * column(right, WEIGHT)
            yield pa.table([*columns, pa.array(weights)], schema=self.out)

    def emits_without_input(self, within: HashRange) -> bool:
        return False
