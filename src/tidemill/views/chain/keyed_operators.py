"""The stateful operators before and after the query of a keyed operator (DBSP-17).

`GatherRows` collects the rows of the changed keys. `ReplaceRows` replaces the stored result of these keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

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
from tidemill.views.kernels.key_matching import distinct_keys
from tidemill.views.trace.consolidation import consolidate
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.layout import HASH, WEIGHT, Layout


@dataclass(frozen=True)
class GatherRows:
    """One input of a keyed operator: stores its rows by key, and outputs all rows of the changed keys.

    Side 0 receives rows; side 1 receives keys that changed in another input of the operator. The output is
    not a change: it is the current rows, each with its count.
    """

    types: tuple[pa.DataType, ...]
    key: tuple[int, ...]

    @cached_property
    def _layout(self) -> Layout:
        return layout_of(self.types, self.key)

    @property
    def layouts(self) -> dict[str, Layout]:
        return {"main": self._layout}

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types if side == 0 else tuple(self.types[place] for place in self.key)

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        if side == 1:
            return {"keys": _keys(rows, self._layout.key_names)}
        table = rows_by_key(rows, self._layout, self.key)
        packed = {"rows": consolidate(table, self._layout)}
        if packed["rows"].num_rows < table.num_rows:
            # If the rows of a key cancel out, the result for this key must still be computed again.
            names = self._layout.key_names
            packed["keys"] = distinct_keys([table.select([HASH, *names])], names)
        return packed

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        delta = concatenated(parts.get("rows", ()), self._layout)
        names = [HASH, *self._layout.key_names]
        keys = pa.concat_tables(
            [delta.select(names), *(part.select(names) for part in parts.get("keys", ()))]
        )
        gathered = keyed_rows.rows_of_keys(keys, traces["main"], delta)
        chosen = [column_name(i, self.types, self.key) for i in range(len(self.types))]
        rows = gathered.select([*chosen, WEIGHT]).rename_columns(self.out.names)
        return OperatorOutput([rows], {"main": delta})

    def emits_without_input(self, within: HashRange) -> bool:
        return False


@dataclass(frozen=True)
class ReplaceRows:
    """The result of a keyed operator: replaces the stored rows of a key with the rows that Spark computed.

    Side 0 receives results: the operator's columns, then the key. Side 1 receives the keys that changed.
    """

    types: tuple[pa.DataType, ...]
    keys: tuple[pa.DataType, ...]

    @cached_property
    def _layout(self) -> Layout:
        keys = [pa.field(f"k{n}", kind) for n, kind in enumerate(self.keys)]
        rest = [pa.field(f"p{n}", kind) for n, kind in enumerate(self.types)]
        return Layout(pa.schema([*keys, *rest]), len(self.keys))

    @property
    def layouts(self) -> dict[str, Layout]:
        return {"main": self._layout}

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return (*self.types, *self.keys) if side == 0 else self.keys

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        if side == 1:
            return {"keys": _keys(rows, self._layout.key_names)}
        width = len(self.types)
        names = [f"p{n}" for n in range(width)] + [f"k{n}" for n in range(len(self.keys))]
        table = canonical_keys(rows.rename_columns([*names, WEIGHT]).combine_chunks(), self._layout.key_names)
        table = table.append_column(HASH, hash_column(table, self._layout.key_names))
        return {"rows": consolidate(table, self._layout)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        results = concatenated(parts.get("rows", ()), self._layout)
        names = [HASH, *self._layout.key_names]
        of_results = results.select(names)
        # Spark marks a column without NULLs, such as a time window, as not nullable.
        changed = [part.select(names).cast(of_results.schema) for part in parts.get("keys", ())]
        keys = pa.concat_tables([of_results, *changed])
        stored = keyed_rows.rows_of_keys(keys, traces["main"])
        change = keyed_rows.replacement(results, stored, self._layout)
        chosen = [f"p{n}" for n in range(len(self.types))]
        return OperatorOutput(
            [change.select([*chosen, WEIGHT]).rename_columns(self.out.names)], {"main": change}
        )

    def emits_without_input(self, within: HashRange) -> bool:
        return False


def _keys(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the distinct keys c0, c1, … with their hash."""
    table = rows.select([f"c{n}" for n in range(len(names))]).rename_columns(list(names)).combine_chunks()
    table = canonical_keys(table, list(names))
    return distinct_keys([table.append_column(HASH, hash_column(table, names))], list(names))
