"""The stateful operators before and after the query of a recomputed operator (DBSP-17).

An operator without a kernel and without a key is *recomputed*: Spark SQL computes its whole result from its
stored inputs. The operators below it and above it stay incremental. `StoredInput` stores one input, and
outputs all its rows if any input of the operator changed. `StoredResult` compares the new result with the
stored one, and outputs the difference.

A change in one range of hash space affects all ranges. So each packed change also goes to all ranges, as the
tag `WAKE`. The query must run even if no input has a row left, and its result may be empty. So the rows
before and after the query have a *marker*: a row of NULLs with the weight 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

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
from tidemill.views.kernels.whole_rows import replaced_by, rows_after
from tidemill.views.trace.consolidation import consolidate, reduce_rows
from tidemill.views.trace.hash_space import SLICES, HashRange, hash_bounds
from tidemill.views.trace.layout import HASH, WEIGHT, Layout

MAIN = "main"
ROWS = "rows"
WAKE = "wake"

_EVERY_SLICE = pa.table({HASH: pa.array([hash_bounds(256 * n, 256 * n)[0] for n in range(SLICES)])})
"""One row for each slice of hash space, so that every range receives at least one."""


@dataclass(frozen=True)
class _WholeRows:
    """A trace of whole rows. Side 0 receives rows."""

    types: tuple[pa.DataType, ...]

    @cached_property
    def _layout(self) -> Layout:
        return Layout(numbered_columns(self.types), len(self.types))

    @property
    def layouts(self) -> dict[str, Layout]:
        return {MAIN: self._layout}

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns(self.types))

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        wake = {WAKE: _EVERY_SLICE} if rows.num_rows else {}
        if side:
            return wake
        rows = rows.combine_chunks()
        packed = rows.append_column(HASH, hash_column(rows, self._layout.names))
        return {ROWS: reduce_rows(packed, self._layout), **wake}

    def _received(self, parts: Parts) -> pa.Table:
        return consolidate(concatenated(parts.get(ROWS, ()), self._layout), self._layout)


@dataclass(frozen=True)
class StoredInput(_WholeRows):
    """One input of a recomputed operator.

    Side 1 receives the changed rows of the operator's other inputs, without columns. The output is not a
    change: it is all current rows, each with its count, and a marker.
    """

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return () if side else self.types

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        change = self._received(parts)
        rows = (table.select(self.out.names) for table in rows_after(traces[MAIN], change))
        return OperatorOutput(_with_marker(rows, self.out), {MAIN: change}, settled=frozenset({MAIN}))

    def emits_without_input(self, within: HashRange) -> bool:
        return True


@dataclass(frozen=True)
class StoredResult(_WholeRows):
    """The result of a recomputed operator: replaces the stored rows by the rows that Spark computed."""

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        pieces = list(replaced_by(traces[MAIN], self._received(parts)))
        change = pa.concat_tables([self._layout.empty(), *pieces])
        return OperatorOutput([change.select(self.out.names)], {MAIN: change}, settled=frozenset({MAIN}))

    def emits_without_input(self, within: HashRange) -> bool:
        return False


def _with_marker(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    yield from tables
    columns = [pa.nulls(1, each.type) for each in schema if each.name != WEIGHT]
    yield pa.table([*columns, pa.array([0], pa.int64())], schema=schema)
