"""The protocol of stateful operators: how they receive rows, what they output, and which traces they have.

An operator holds no connections, so it can be pickled and sent to tasks. Rows arrive at one of its *sides*,
with the columns c0, c1, … and `_w`. Before the exchange, `pack` adds the hash of each row's key and may
combine rows. The output has the columns of `out`, again c0, c1, … and `_w`.

The hash is not Spark's (see ADR 16). It depends only on the Arrow values of the key, so it is the same
wherever a row comes from. Rows can therefore go from one kernel to the next without passing through Spark.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from tidemill.views.kernels.canonical_keys import canonical_keys, has_floats
from tidemill.views.trace.consolidation import chunk
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.key_hash import key_hashes, row_hashes
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.trace import Trace

Parts = Mapping[str, Sequence[pa.Table]]
"""For each tag, the packed tables from all tasks."""

Traces = Mapping[str, Trace]


class OperatorOutput(NamedTuple):
    """The result of one operator in a step.

    Args:
        out: the change in the operator's rows, in pieces whose rows may cancel each other out.
        deltas: the change of each trace.
        aside: how many rows a source set aside in the step (DBSP-21).
        exhausted: in how many groups the min or max must be read again before the step can end.
        settled: the traces whose delta is already consolidated (`consolidate`).
        rewritten: how many rows did not change themselves, but the results of a window function for them did.
    """

    out: Iterable[pa.Table]
    deltas: Mapping[str, pa.Table]
    aside: int = 0
    exhausted: int = 0
    settled: frozenset[str] = frozenset()
    rewritten: int = 0


class StatefulOperator(Protocol):
    """An operator with traces, as a step computes it."""

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The layouts of its traces by name."""
        ...

    @property
    def out(self) -> pa.Schema:
        """The columns of its output: c0, c1, … and `_w`."""
        ...

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        """Return the column types of a side."""
        ...

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        """Pack the rows of one side for the exchange; return a table for each tag, with the column `_h`."""
        ...

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        """Compute a step in one range; the first step receives the complete input."""
        ...

    def emits_without_input(self, within: HashRange) -> bool:
        """Return whether its first step outputs rows in this range even if it receives none."""
        ...


def numbered_columns(types: Iterable[pa.DataType]) -> pa.Schema:
    """Return a schema with the columns c0, c1, … of these types."""
    return pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(types)])


def with_weight(schema: pa.Schema) -> pa.Schema:
    """Add a weight to these columns."""
    return schema.append(pa.field(WEIGHT, pa.int64()))


def hash_column(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Hash the key columns; keys that Spark groups together have the same hash."""
    return pa.array(key_hashes([chunk(rows, name) for name in names], rows.num_rows))


def concatenated(parts: Sequence[pa.Table], layout: Layout) -> pa.Table:
    """Concatenate tables of one layout."""
    return pa.concat_tables([layout.empty(), *(layout.conform(part) for part in parts)])


def layout_of(types: Sequence[pa.DataType], keys: Sequence[int]) -> Layout:
    """Return the layout of a trace with this key: the key first, then the columns that are not part of it."""
    key_fields = [pa.field(f"k{n}", types[place]) for n, place in enumerate(keys)]
    rest = [pa.field(column_name(i, types, keys), kind) for i, kind in enumerate(types)]
    return Layout(pa.schema([*key_fields, *(each for each in rest if each.name.startswith("p"))]), len(keys))


def column_name(place: int, types: Sequence[pa.DataType], keys: Sequence[int]) -> str:
    """Return the name of a column in a trace with this key.

    A key column with floats is also stored with its original values: -0.0 is the same key as 0.0, but not the
    same value.
    """
    separate = place not in keys or has_floats(types[place])
    return f"p{place}" if separate else f"k{keys.index(place)}"


def rows_by_key(rows: pa.Table, layout: Layout, keys: Sequence[int]) -> pa.Table:
    """Convert rows c0, c1, … to the columns of a trace with this key.

    Add the hash of the key, and keep the columns that begin with `_`.
    """
    arrays = {f"k{n}": rows[f"c{place}"] for n, place in enumerate(keys)}
    arrays |= {name: rows[f"c{name[1:]}"] for name in layout.names if name.startswith("p")}
    arrays |= {name: rows[name] for name in rows.column_names if name.startswith("_")}
    table = canonical_keys(pa.table(arrays).combine_chunks(), layout.key_names)
    hashed_by = [chunk(table, name) for name in layout.hashed_names]
    hashes = row_hashes(hashed_by, table.num_rows, layout.key, fine=layout.fine)
    return table.append_column(HASH, pa.array(hashes))
