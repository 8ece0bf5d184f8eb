"""The stateful operator of a scalar subquery: adds the value of the subquery to every row (DBSP-15).

The rows are stored by the hash of the whole row, so all tasks share them. All tasks need the value. So each
slice of hash space stores a copy of it, and a change of the value goes to all slices.

If the value stays the same, only the changed rows are read. If it changes, every row of the output changes,
so all rows are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidemill.errors import ViewFailed
from tidemill.views.chain.stateful_operator import (
    OperatorOutput,
    Parts,
    Traces,
    concatenated,
    hash_column,
    numbered_columns,
    with_weight,
)
from tidemill.views.kernels.whole_rows import rows_after
from tidemill.views.trace.consolidation import chunk, column, consolidate, reduce_rows
from tidemill.views.trace.hash_space import SLICES, HashRange, hash_bounds
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.row_equality import equal_rows
from tidemill.views.trace.trace import Trace

ROWS, VALUE = "rows", "value"
_SLICE = "s"
_SLICE_HASHES = np.array([hash_bounds(256 * n, 256 * n)[0] for n in range(SLICES)])


@dataclass(frozen=True)
class StatefulScalar:
    """Rows with the value of a scalar subquery: NULL if the subquery has no row.

    Side 0 receives rows; side 1 receives the rows of the subquery, which have one column.

    Args:
        types: the column types of the rows.
        value: the type of the value.
    """

    types: tuple[pa.DataType, ...]
    value: pa.DataType

    @property
    def layouts(self) -> dict[str, Layout]:
        return {ROWS: self._rows, VALUE: self._values}

    @cached_property
    def _rows(self) -> Layout:
        return Layout(numbered_columns(self.types), len(self.types))

    @cached_property
    def _values(self) -> Layout:
        return Layout(pa.schema([pa.field(_SLICE, pa.int64()), pa.field("c0", self.value)]), 1)

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns([*self.types, self.value]))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return (self.value,) if side else self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        rows = rows.combine_chunks()
        if side == 0:
            packed = rows.append_column(HASH, hash_column(rows, self._rows.names))
            return {ROWS: reduce_rows(packed, self._rows)}
        copies = rows.take(pa.array(np.repeat(np.arange(rows.num_rows), SLICES)))
        slices = np.tile(np.arange(SLICES), rows.num_rows)
        columns = {HASH: pa.array(_SLICE_HASHES[slices]), _SLICE: pa.array(slices)}
        for name in ("c0", WEIGHT):
            columns[name] = chunk(copies, name)
        return {VALUE: consolidate(pa.table(columns), self._values)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        rows, values = (
            consolidate(concatenated(parts.get(name, ()), layout), layout)
            for name, layout in self.layouts.items()
        )
        before, after = self._value(traces[VALUE], None), self._value(traces[VALUE], values)
        same = bool(equal_rows([before], [after], "differ").all())
        stored = 0 if same else traces[ROWS].rows
        out = [self._with_value(rows, after)] if same else self._replaced(traces[ROWS], rows, before, after)
        return OperatorOutput(
            out, {ROWS: rows, VALUE: values}, settled=frozenset({ROWS, VALUE}), rewritten=stored
        )

    def _value(self, trace: Trace, change: pa.Table | None) -> pa.Array:
        """Return the value, before the step or after a change, as an array of one value."""
        first = trace.within.first
        stored = trace.lookup(_SLICE_HASHES[[first]])
        if change is not None:
            stored = pa.concat_tables([stored, change.filter(pa.array(column(change, _SLICE) == first))])
        present = consolidate(stored, self._values)
        if (column(present, WEIGHT) > 0).sum() > 1 or (column(present, WEIGHT) > 1).any():
            raise ViewFailed("a scalar subquery returned more than one row")
        return chunk(present, "c0") if present.num_rows else pa.nulls(1, self.value)

    def _replaced(
        self, trace: Trace, change: pa.Table, before: pa.Array, after: pa.Array
    ) -> Iterator[pa.Table]:
        """Yield all old rows with the old value, to be removed, and all new rows with the new value."""
        for stored in trace.scan():
            place = stored.column_names.index(WEIGHT)
            removed = stored.set_column(place, WEIGHT, pa.array(-column(stored, WEIGHT)))
            yield self._with_value(removed, before)
        for rows in rows_after(trace, change):
            yield self._with_value(rows, after)

    def _with_value(self, rows: pa.Table, value: pa.Array) -> pa.Table:
        repeated = value.take(pa.array(np.zeros(rows.num_rows, np.int64)))
        columns = [rows[name] for name in self._rows.names]
        return pa.table([*columns, repeated, rows[WEIGHT]], schema=self.out)

    def emits_without_input(self, within: HashRange) -> bool:
        return False
