"""Operators with state as one step sees them: how rows reach them, what they give, what they remember.

An operator is a value that reaches tasks by pickling; it is connected to nothing. Rows come to a *side* of it
with the columns c0, c1, … and `_w`; `pack` gives them the hash of their key and may combine them, which
happens before the exchange. What leaves it has the columns of `out`, again c0, c1, … and `_w`.

The hash is ours and not Spark's (see ADR 16): one function of the Arrow values, the same wherever a row comes
from, so that rows which one kernel sends to the next need not pass through Spark.
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
"""Packed tables by their tag, as they came from all tasks."""

Traces = Mapping[str, Trace]


class OperatorOutput(NamedTuple):
    """What an operator makes of a step.

    Args:
        out: its change, in pieces that may cancel each other.
        deltas: what each trace gets.
        aside: how many rows a source has set aside after the step (DBSP-21).
        exhausted: groups whose min or max has to be read again; the step cannot end without them.
        settled: the traces whose delta is in its one form already (`consolidate`).
    """

    out: Iterable[pa.Table]
    deltas: Mapping[str, pa.Table]
    aside: int = 0
    exhausted: int = 0
    settled: frozenset[str] = frozenset()


class StatefulOperator(Protocol):
    """An operator with state."""

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """Its traces."""
        ...

    @property
    def out(self) -> pa.Schema:
        """The columns it gives: c0, c1, … and `_w`."""
        ...

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        """The types of the columns that come to a side."""
        ...

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        """Rows of a side as they are sent: tables with a hash `_h`, by tag."""
        ...

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        """One step in one range; the first one is given everything."""
        ...

    def speaks_first(self, within: HashRange) -> bool:
        """Whether it gives something in this range in its first step even if nothing comes."""
        ...


def numbered_columns(types: Iterable[pa.DataType]) -> pa.Schema:
    """c0, c1, … of these types."""
    return pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(types)])


def with_weight(schema: pa.Schema) -> pa.Schema:
    """These columns and a weight."""
    return schema.append(pa.field(WEIGHT, pa.int64()))


def hash_column(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """The hash of the key: equal for keys that Spark would group together."""
    return pa.array(key_hashes([chunk(rows, name) for name in names], rows.num_rows))


def concatenated(parts: Sequence[pa.Table], layout: Layout) -> pa.Table:
    """Tables of one layout as one."""
    return pa.concat_tables([layout.empty(), *(layout.conform(part) for part in parts)])


def layout_of(types: Sequence[pa.DataType], keys: Sequence[int]) -> Layout:
    """The trace of rows by a key: the key's columns first; a column that is in the key is kept once."""
    mine = [pa.field(f"k{n}", types[place]) for n, place in enumerate(keys)]
    rest = [pa.field(column_name(i, types, keys), kind) for i, kind in enumerate(types)]
    return Layout(pa.schema([*mine, *(each for each in rest if each.name.startswith("p"))]), len(keys))


def column_name(place: int, types: Sequence[pa.DataType], keys: Sequence[int]) -> str:
    """What a trace by this key calls a column. Keys with floats are kept beside the column as it came:
    -0.0 is the same key as 0.0, but not the same value.
    """
    apart = place not in keys or has_floats(types[place])
    return f"p{place}" if apart else f"k{keys.index(place)}"


def rows_by_key(rows: pa.Table, layout: Layout, keys: Sequence[int]) -> pa.Table:
    """Rows c0, c1, … with the columns of a trace by this key, and its hash; others come along."""
    arrays = {f"k{n}": rows[f"c{place}"] for n, place in enumerate(keys)}
    arrays |= {name: rows[f"c{name[1:]}"] for name in layout.names if name.startswith("p")}
    arrays |= {name: rows[name] for name in rows.column_names if name.startswith("_")}
    table = canonical_keys(pa.table(arrays).combine_chunks(), layout.key_names)
    hashed_by = [chunk(table, name) for name in layout.hashed_names]
    hashes = row_hashes(hashed_by, table.num_rows, layout.key, fine=layout.fine)
    return table.append_column(HASH, pa.array(hashes))
