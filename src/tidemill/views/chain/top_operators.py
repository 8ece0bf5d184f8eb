"""The stateful operator of ORDER BY with LIMIT (DBSP-14)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidemill.views.chain.preparation import NoKey
from tidemill.views.chain.stateful_operator import (
    OperatorOutput,
    Parts,
    Traces,
    concatenated,
    hash_column,
    numbered_columns,
    with_weight,
)
from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.operators import TopK
from tidemill.views.circuit.rungs import MOST_TOP_ROWS
from tidemill.views.circuit.ties import hash_keys, hash_of
from tidemill.views.kernels.row_identity import identifiable
from tidemill.views.kernels.sort_codes import SortColumn, sortable
from tidemill.views.kernels.top_rows import ALL, COUNT, TopKernel
from tidemill.views.trace.consolidation import consolidate, reduce_rows
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.layout import HASH, WEIGHT, Layout

BUCKETS = 64
"""How many parts the rows are divided into before the first rows of all parts are merged."""

_GROUP = "g"


@dataclass(frozen=True)
class StatefulTop:
    """The first rows in an order.

    Rows are divided into buckets by a hash. The output is the first rows of each bucket. A second operator
    with one bucket merges them. So all tasks share the work, and when a bucket runs out of rows, only the
    rows of this bucket are read again.

    Args:
        types: the column types.
        order: the sort keys.
        hashed: see `TopKernel`.
        limit: how many rows each bucket returns.
        offset: how many rows each bucket skips first.
        buckets: the number of buckets.
    """

    types: tuple[pa.DataType, ...]
    order: tuple[SortColumn, ...]
    hashed: int
    limit: int
    offset: int = 0
    buckets: int = BUCKETS

    @cached_property
    def _kernel(self) -> TopKernel:
        columns = [pa.field(_GROUP, pa.int32()), *numbered_columns(self.types)]
        return TopKernel(pa.schema(columns), self.order, self.hashed, self.limit, self.offset)

    @property
    def layouts(self) -> dict[str, Layout]:
        return self._kernel.layouts

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        rows = rows.combine_chunks()
        hashes = hash_column(rows, self.out.names[:-1]).to_numpy()
        rows = rows.append_column(_GROUP, pa.array((hashes % self.buckets).astype(np.int32)))
        rows = rows.append_column(HASH, hash_column(rows, [_GROUP]))
        return {ALL: reduce_rows(rows, self._kernel.layout)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        layout = self._kernel.layout
        change = consolidate(concatenated(parts.get(ALL, ()), layout), layout)
        result = self._kernel.step(change, traces)
        rows = result.out.select([*self.out.names[:-1], WEIGHT])
        return OperatorOutput([rows], result.traces, settled=frozenset({ALL, COUNT}))

    def emits_without_input(self, within: HashRange) -> bool:
        return False


def top_operators(
    op: TopK, types: Sequence[str], arrow: Callable[[str], pa.DataType]
) -> tuple[list[Expr], StatefulTop, StatefulTop]:
    """Return the columns that a top-k reads, the operator of each bucket, and the one that merges them.

    Raises `NoKey` if a kernel cannot compute the top-k.

    Args:
        op: the top-k, whose sort keys are columns, except for the hash that breaks ties.
        types: the types of its input.
        arrow: converts Spark types to Arrow types.
    """
    if op.limit is None or op.limit + op.offset > MOST_TOP_ROWS:
        raise NoKey(f"top-k: a kernel keeps at most {MOST_TOP_ROWS} rows")
    ends = hash_keys(op.order)
    if not (ends and types):
        raise NoKey("top-k: its order leaves ties")
    places = [key.value.column for key in op.order[: -len(ends)]]
    order = [
        SortColumn(place, key.descending, key.nulls_first)
        for place, key in zip(places, op.order, strict=False)
        if place is not None
    ]
    columns, kinds = list(map(column, range(len(types)))), list(map(arrow, types))
    hashed = hashed_columns(tuple(key.value for key in ends), types, kinds)
    if not hashed:  # Spark computes the hash
        order += [SortColumn(len(kinds) + n) for n in range(len(ends))]
        columns += [key.value for key in ends]
        kinds += [pa.int64()] * len(ends)
    unsorted = sorted({str(kinds[key.place]) for key in order if not sortable(kinds[key.place])})
    if unsorted:
        raise NoKey(f"top-k: a kernel cannot sort {', '.join(unsorted)} values")
    merged = StatefulTop(tuple(kinds), tuple(order), hashed, op.limit, op.offset, buckets=1)
    return columns, replace(merged, limit=op.limit + op.offset, offset=0, buckets=BUCKETS), merged


def hashed_columns(halves: tuple[Expr, ...], types: Sequence[str], kinds: Sequence[pa.DataType]) -> int:
    """Return of how many leading columns a kernel can compute this hash; 0 if of none."""
    counts = (n for n in range(1, len(types) + 1) if hash_of(types[:n]) == halves)
    count = next(counts, 0)
    return count if all(map(identifiable, kinds[:count])) else 0
