"""The source operators of datasets that allow deletes and of datasets with a key (DBSP-21, LOT-40)."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.views.chain.stateful_operator import (
    OperatorOutput,
    Parts,
    Traces,
    column_name,
    concatenated,
    hash_column,
    layout_of,
    numbered_columns,
    rows_by_key,
    with_weight,
)
from tidemill.views.kernels import keyed_rows
from tidemill.views.kernels.canonical_keys import canonical_keys
from tidemill.views.kernels.keyed_rows import AdmissionKernel
from tidemill.views.kernels.signed_zeros import with_stored_signs
from tidemill.views.kernels.sort_codes import sort_codes
from tidemill.views.trace.consolidation import chunk, column, reduce_rows
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.row_equality import code_rows, value_ids

MAIN = "main"
ASIDE = "aside"
GONE = "gone"


@dataclass(frozen=True)
class ChangesSource:
    """The source operator of a dataset that allows deletes. It lets no row get a negative count (DBSP-21).

    A delete removes a row that is equal by the rules of Spark's GROUP BY. So floats are stored in the form in
    which Spark groups them, and in which `df()` returns them: -0.0 as 0.0, and all NaNs as one NaN. If an
    older release stored a row with -0.0, a delete removes this row (`signed_zeros`).

    Args:
        types: the column types of the dataset.
        key: the columns by which the trace is sorted, for joins that read it. If this is empty, the trace is
            sorted by the whole row.
    """

    types: tuple[pa.DataType, ...]
    key: tuple[int, ...] = ()

    @cached_property
    def _layout(self) -> Layout:
        if not self.key:
            return Layout(numbered_columns(self.types), len(self.types))
        layout = layout_of(self.types, self.key)
        return replace(layout, fine=bool(layout.rest_names))

    @cached_property
    def _names(self) -> list[str]:
        """The names of the dataset's columns in the traces."""
        if not self.key:
            return self._layout.names
        return [column_name(i, self.types, self.key) for i in range(len(self.types))]

    @property
    def layouts(self) -> dict[str, Layout]:
        return {MAIN: self._layout, ASIDE: self._layout}

    def set_aside(self, quarantine: pa.Table) -> pa.Table:
        """Return the rows that enter the quarantine as c0, c1, … with their negative weights.

        Args:
            quarantine: rows of the trace `aside`.
        """
        entering = quarantine.filter(pc.less(quarantine[WEIGHT], 0))
        return entering.select([*self._names, WEIGHT]).rename_columns(self.out.names)

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        rows = canonical_keys(rows, [f"c{i}" for i in range(len(self.types))])
        if self.key:
            return {MAIN: reduce_rows(rows_by_key(rows, self._layout, self.key), self._layout)}
        packed = rows.append_column(HASH, hash_column(rows, self._layout.names))
        return {MAIN: reduce_rows(packed, self._layout)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        delta = concatenated(parts.get(MAIN, ()), self._layout)
        delta = with_stored_signs(delta, self._layout, traces[MAIN])
        admitted = AdmissionKernel(self._layout).step(delta, traces[MAIN], traces[ASIDE])
        aside = int((column(admitted.quarantine, WEIGHT) < 0).sum())
        return OperatorOutput(
            [admitted.out.select([*self._names, WEIGHT]).rename_columns(self.out.names)],
            {MAIN: admitted.state, ASIDE: admitted.quarantine},
            aside=aside,
            settled=frozenset({MAIN, ASIDE}),
        )

    def emits_without_input(self, within: HashRange) -> bool:
        return False


@dataclass(frozen=True)
class UpsertsSource:
    """The source operator of a dataset with a key: stores the newest write of each key (LOT-40).

    Each row has the dataset's columns, then a flag for deletes, then the numbers of the append and of the row
    in it, which order the writes of a step.

    Without `order`, a write is newer than all writes of earlier steps. With `order`, its values in these
    columns decide, as in Spark: NULL is the oldest. A write with equal values is newer than the stored one.
    A deletion then leaves a tombstone in the trace `gone`, so that an older write that arrives later does not
    bring the row back. Tombstones are not in the trace `main`, which joins read.

    Args:
        types: the column types of the dataset.
        key: the columns of its key.
        order: the columns of its `order_by`.
    """

    types: tuple[pa.DataType, ...]
    key: tuple[int, ...]
    order: tuple[int, ...] = ()

    @cached_property
    def _layout(self) -> Layout:
        return layout_of(self.types, self.key)

    @cached_property
    def _tombstones(self) -> Layout:
        order = [
            pa.field(name, self.types[place]) for name, place in zip(self._order, self.order, strict=True)
        ]
        fields = [self._layout.columns.field(name) for name in self._layout.key_names]
        return Layout(pa.schema([*fields, *order]), len(self.key))

    @cached_property
    def _order(self) -> list[str]:
        """The names of the order columns in the traces."""
        return [column_name(place, self.types, self.key) for place in self.order]

    @cached_property
    def _writes(self) -> Layout:
        extra = [("_gone", pa.bool_()), ("_append", pa.int64()), ("_ordinal", pa.int64())]
        fields = [*self._layout.columns, *(pa.field(name, kind) for name, kind in extra)]
        return Layout(pa.schema(fields), len(self.key))

    @property
    def layouts(self) -> dict[str, Layout]:
        return {MAIN: self._layout, GONE: self._tombstones} if self.order else {MAIN: self._layout}

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return (*self.types, pa.bool_(), pa.int64(), pa.int64())

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        names = [f"c{i}" for i in range(len(self.types))]
        rows = rows.rename_columns([*names, "_gone", "_append", "_ordinal", WEIGHT])
        return {"writes": self._newest(self._writes.conform(rows_by_key(rows, self._layout, self.key)))}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        newest = self._newest(concatenated(parts.get("writes", ()), self._writes))
        keys = newest.select([HASH, *self._layout.key_names])
        stored = {name: keyed_rows.rows_of_keys(keys, traces[name]) for name in self.layouts}
        if self.order:
            known = [self._as_writes(rows, gone=name == GONE) for name, rows in stored.items()]
            newest = self._newest(pa.concat_tables([*known, newest]))
        rows = {MAIN: newest.filter(pc.invert(newest["_gone"])), GONE: newest.filter(newest["_gone"])}
        change = {
            name: keyed_rows.replacement(rows[name].select(layout.schema.names), stored[name], layout)
            for name, layout in self.layouts.items()
        }
        names = [column_name(i, self.types, self.key) for i in range(len(self.types))]
        out = change[MAIN].select([*names, WEIGHT]).rename_columns(self.out.names)
        return OperatorOutput([out], change)

    def emits_without_input(self, within: HashRange) -> bool:
        return False

    def _as_writes(self, stored: pa.Table, *, gone: bool) -> pa.Table:
        """Return stored rows or tombstones as writes that are older than those of the step."""
        count = stored.num_rows
        arrays = {field.name: pa.nulls(count, field.type) for field in self._writes.schema}
        arrays |= {name: stored[name] for name in stored.column_names}
        arrays |= {"_gone": pa.repeat(pa.scalar(gone), count)}
        arrays |= dict.fromkeys(("_append", "_ordinal"), pa.repeat(pa.scalar(-1, pa.int64()), count))
        return self._writes.conform(pa.table(arrays))

    def _newest(self, writes: pa.Table) -> pa.Table:
        """Return the newest write of each key: by the order columns, then by append, then by ordinal."""
        if writes.num_rows == 0:
            return writes
        writes = writes.combine_chunks()
        coded = code_rows([chunk(writes, name) for name in self._layout.key_names], writes.num_rows)
        ids = value_ids(coded)
        declared = [codes for name in self._order for codes in sort_codes(chunk(writes, name))]
        order = np.lexsort((column(writes, "_ordinal"), column(writes, "_append"), *reversed(declared), ids))
        ends = np.append(ids[order][1:] != ids[order][:-1], True)
        return writes.take(pa.array(order[ends]))
