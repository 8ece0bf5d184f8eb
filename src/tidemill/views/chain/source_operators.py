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
from tidemill.views.trace.consolidation import chunk, column, reduce_rows
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.row_equality import code_rows, value_ids

MAIN = "main"
ASIDE = "aside"


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
    """The source operator of a dataset with a key: replaces a key's stored row with its last write (LOT-40).

    Each row has the dataset's columns, then a flag for deletes, then the position and ordinal that order the
    writes.
    """

    types: tuple[pa.DataType, ...]
    key: tuple[int, ...]

    @cached_property
    def _layout(self) -> Layout:
        return layout_of(self.types, self.key)

    @cached_property
    def _writes(self) -> Layout:
        extra = [("_gone", pa.bool_()), ("_position", pa.int64()), ("_ordinal", pa.int64())]
        fields = [*self._layout.columns, *(pa.field(name, kind) for name, kind in extra)]
        return Layout(pa.schema(fields), len(self.key))

    @property
    def layouts(self) -> dict[str, Layout]:
        return {MAIN: self._layout}

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return (*self.types, pa.bool_(), pa.int64(), pa.int64())

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        names = [f"c{i}" for i in range(len(self.types))]
        rows = rows.rename_columns([*names, "_gone", "_position", "_ordinal", WEIGHT])
        return {"writes": self._last(self._writes.conform(rows_by_key(rows, self._layout, self.key)))}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        last = self._last(concatenated(parts.get("writes", ()), self._writes))
        present = last.filter(pc.invert(last["_gone"])).select(self._layout.schema.names)
        change = keyed_rows.replacement(last.select([HASH, *self._layout.key_names]), present, traces[MAIN])
        names = [column_name(i, self.types, self.key) for i in range(len(self.types))]
        return OperatorOutput(
            [change.select([*names, WEIGHT]).rename_columns(self.out.names)], {MAIN: change}
        )

    def emits_without_input(self, within: HashRange) -> bool:
        return False

    def _last(self, writes: pa.Table) -> pa.Table:
        """Return the last write of each key, by position and then by ordinal."""
        if writes.num_rows == 0:
            return writes
        writes = writes.combine_chunks()
        coded = code_rows([chunk(writes, name) for name in self._layout.key_names], writes.num_rows)
        ids = value_ids(coded)
        order = np.lexsort((column(writes, "_ordinal"), column(writes, "_position"), ids))
        ends = np.append(ids[order][1:] != ids[order][:-1], True)
        return writes.take(pa.array(order[ends]))
