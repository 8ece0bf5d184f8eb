"""Operators with state as one step sees them: how rows reach them, what they give, what they remember.

A station is a value that reaches tasks by pickling; it is connected to nothing. Rows come to a *side* of it
with the columns c0, c1, … and `_w`; `pack` gives them the hash of their key and may combine them, which
happens before the exchange. What leaves it has the columns of `out`, again c0, c1, … and `_w`.

The hash is ours and not Spark's (see ADR 16): one function of the Arrow values, the same wherever a row comes
from, so that rows which one kernel sends to the next need not pass through Spark.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.views.kernels import finals, keyed
from tidemill.views.kernels.aggregate import GLOBAL_HASH, Agg, Aggregate
from tidemill.views.kernels.align import distinct_keys
from tidemill.views.kernels.canonical import canonical, has_floats
from tidemill.views.kernels.identity import identifiable, identity
from tidemill.views.kernels.join import Join
from tidemill.views.kernels.setops import SetOperation
from tidemill.views.kernels.source import Source
from tidemill.views.trace.consolidate import chunk, column, consolidate
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import distinct
from tidemill.views.trace.slices import Range, hash_bounds
from tidemill.views.trace.spine import Spine
from tidemill.views.trace.words import class_ids, code_rows

Parts = Mapping[str, Sequence[pa.Table]]
"""Packed tables by their tag, as they came from all tasks."""

Traces = Mapping[str, Spine]

ASIDE = "aside"


class Given(NamedTuple):
    """What a station makes of a step.

    Args:
        out: its change, in pieces that may cancel each other.
        deltas: what each trace gets.
        aside: how many rows a source has set aside after the step (DBSP-21).
        exhausted: groups whose min or max has to be read again; the step cannot end without them.
    """

    out: Iterable[pa.Table]
    deltas: Mapping[str, pa.Table]
    aside: int = 0
    exhausted: int = 0


class Station(Protocol):
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

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> Given:
        """One step in one range; the first one is given everything."""
        ...

    def speaks_first(self, within: Range) -> bool:
        """Whether it gives something in this range in its first step even if nothing comes."""
        ...


def _all(name: str) -> str:
    """The trace of all values of a min or max."""
    return f"{name}.all"


def columns(types: Iterable[pa.DataType]) -> pa.Schema:
    """c0, c1, … of these types."""
    return pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(types)])


def weighted(schema: pa.Schema) -> pa.Schema:
    """These columns and a weight."""
    return schema.append(pa.field(WEIGHT, pa.int64()))


def hashed(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """The hash of the key: equal for keys that Spark would group together."""
    if not names:
        return pa.array(np.full(rows.num_rows, GLOBAL_HASH, np.int64))
    coded = code_rows([chunk(rows, name) for name in names], rows.num_rows)
    return pa.array(coded.mix.view(np.int64))


def together(parts: Sequence[pa.Table], layout: Layout) -> pa.Table:
    """Tables of one layout as one."""
    return pa.concat_tables([layout.empty(), *(layout.conform(part) for part in parts)])


@dataclass(frozen=True)
class JoinStation:
    """An inner equi-join of two sides.

    Args:
        left, right: the types of the columns of each side.
        left_keys, right_keys: which of them are the key, pair by pair of the same type.
        null_safe: which pairs are compared by `<=>`.
    """

    left: tuple[pa.DataType, ...]
    right: tuple[pa.DataType, ...]
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    null_safe: tuple[bool, ...]

    @cached_property
    def _kernel(self) -> Join:
        mine, theirs = _layout(self.left, self.left_keys), _layout(self.right, self.right_keys)
        width = len(self.left)
        return Join(
            mine,
            theirs,
            self.null_safe,
            tuple((_name(i, self.left, self.left_keys), f"c{i}") for i in range(width)),
            tuple((_name(i, self.right, self.right_keys), f"c{width + i}") for i in range(len(self.right))),
        )

    @property
    def layouts(self) -> dict[str, Layout]:
        return {"left": self._kernel.left, "right": self._kernel.right}

    @cached_property
    def out(self) -> pa.Schema:
        return self._kernel.schema

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.right if side else self.left

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        tag, keys = ("left", self.left_keys) if side == 0 else ("right", self.right_keys)
        layout = self.layouts[tag]
        for place, safe in zip(keys, self.null_safe, strict=True):
            if not safe and rows[f"c{place}"].null_count:  # it matches nothing: it need not travel
                rows = rows.filter(pc.is_valid(rows[f"c{place}"]))
        return {tag: consolidate(_keyed(rows, layout, keys), layout)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> Given:
        mine = together(parts.get("left", ()), self._kernel.left)
        theirs = together(parts.get("right", ()), self._kernel.right)
        joined = self._kernel.step(mine, theirs, traces["left"], traces["right"])
        return Given(joined.out, {"left": joined.left, "right": joined.right})

    def speaks_first(self, within: Range) -> bool:
        return False


@dataclass(frozen=True)
class AggregateStation:
    """Groups with count, sum, avg, min and max. Rows have the key first, then the values, then `_w`.

    Where rows can be taken away, all values of a min or max are kept beside its best few: a group that has
    used these up is filled again from its values alone (DBSP-13), and nobody else's are read.

    Args:
        kernel: what is added up.
        results: the types of the aggregates' values, as Spark's analysis of the query says.
    """

    kernel: Aggregate
    results: tuple[pa.DataType, ...]

    def __post_init__(self) -> None:
        for agg, result in zip(self.kernel.aggs, self.results, strict=True):
            finals.check(agg.kind, self._argument(agg), result)

    def _argument(self, agg: Agg) -> pa.DataType | None:
        return None if agg.column is None else self.kernel.values.field(agg.column).type

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        every = {_all(name): self.kernel.layouts[name] for name in self._extremes if self.kernel.best > 1}
        return {**self.kernel.layouts, **every}

    @cached_property
    def _extremes(self) -> list[str]:
        return [agg.name for agg in self.kernel.aggs if agg.kind in {"min", "max"}]

    @cached_property
    def out(self) -> pa.Schema:
        return weighted(columns([*(each.type for each in self.kernel.keys), *self.results]))

    def _shown(self, table: pa.Table) -> pa.Table:
        """The kernel's rows with the values that Spark's own aggregates have."""
        names = [each.name for each in self.kernel.schema if each.name not in {HASH, WEIGHT}]
        keys = len(self.kernel.keys)
        made, at = [table[name] for name in names[:keys]], keys
        for agg, result in zip(self.kernel.aggs, self.results, strict=True):
            argument = self._argument(agg)
            raw = names[at : at + finals.raw_width(agg.kind, argument)]
            made.append(finals.finish(agg.kind, argument, result, [chunk(table, name) for name in raw]))
            at += len(raw)
        return pa.Table.from_arrays([*made, table[WEIGHT]], names=self.out.names)

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return tuple(each.type for each in (*self.kernel.keys, *self.kernel.values))

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        names = [*self.kernel.keys.names, *self.kernel.values.names]
        rows = rows.rename_columns([*names, WEIGHT]).combine_chunks()
        hashes = hashed(rows, self.kernel.keys.names)
        return self.kernel.accumulate(rows.append_column(HASH, hashes))

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> Given:
        whole = {tag: together(parts.get(tag, ()), one) for tag, one in self.kernel.layouts.items()}
        made = self.kernel.step([whole], traces, first=first)
        deltas = dict(made.traces)
        out = [made.out]
        exhausted = 0
        if self.kernel.best > 1:
            deltas |= {_all(name): whole[name] for name in self._extremes}
            if made.pending is not None:
                again = self.kernel.refill(made.pending, self._values(made.pending, whole, traces))
                out.append(again.out)
                deltas |= {
                    name: pa.concat_tables([deltas[name], again.traces[name]]) for name in self._extremes
                }
        elif made.pending is not None:
            exhausted = made.pending.num_rows
        return Given([self._shown(table) for table in out], deltas, exhausted=exhausted)

    def _values(
        self, pending: pa.Table, whole: Mapping[str, pa.Table], traces: Traces
    ) -> dict[str, pa.Table]:
        """All values that these groups have after the step, of each min and max."""
        hashes = distinct(column(pending, HASH))
        found = {}
        for name in self._extremes:
            mine = whole[name].filter(pc.is_in(whole[name][HASH], pa.array(hashes)))
            found[name] = pa.concat_tables([traces[_all(name)].lookup(hashes), mine])
        return found

    def speaks_first(self, within: Range) -> bool:
        low, high = hash_bounds(*within.grains)
        return self.kernel.always and low <= GLOBAL_HASH <= high


@dataclass(frozen=True)
class SetStation:
    """DISTINCT, INTERSECT and EXCEPT: how often each row is there on each side."""

    kernel_kind: str
    types: tuple[pa.DataType, ...]

    @cached_property
    def _kernel(self) -> SetOperation:
        return SetOperation(self.kernel_kind, columns(self.types))  # type: ignore[arg-type]

    @property
    def layouts(self) -> dict[str, Layout]:
        return {"main": self._kernel.layout}

    @property
    def out(self) -> pa.Schema:
        return self._kernel.schema

    @cached_property
    def _side(self) -> Layout:
        return Layout(columns(self.types), len(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        names = [f"c{i}" for i in range(len(self.types))]
        rows = canonical(rows.combine_chunks(), names)
        packed = rows.append_column(HASH, hashed(rows, names))
        return {"right" if side else "left": consolidate(packed, self._side)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> Given:
        left, right = (together(parts.get(tag, ()), self._side) for tag in ("left", "right"))
        counted = self._kernel.step(left, right, traces["main"])
        return Given([counted.out], {"main": counted.state})

    def speaks_first(self, within: Range) -> bool:
        return False


@dataclass(frozen=True)
class ChangesStation:
    """The source operator of a dataset that allows deletes: no row is there fewer than no times (DBSP-21)."""

    types: tuple[pa.DataType, ...]

    @cached_property
    def _layout(self) -> Layout:
        return Layout(columns(self.types), len(self.types))

    @property
    def layouts(self) -> dict[str, Layout]:
        return {"main": self._layout, ASIDE: self._layout}

    @cached_property
    def out(self) -> pa.Schema:
        return weighted(columns(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        packed = rows.append_column(HASH, hashed(rows, self._layout.names))
        return {"main": consolidate(packed, self._layout)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> Given:
        delta = together(parts.get("main", ()), self._layout)
        admitted = Source(columns(self.types)).step(delta, traces["main"])
        aside = 0
        if admitted.quarantine.num_rows or traces[ASIDE].rows:
            known = pa.concat_tables([self._layout.empty(), *traces[ASIDE].scan(), admitted.quarantine])
            aside = consolidate(known, self._layout).num_rows
        return Given(
            [admitted.out.select(self.out.names)],
            {"main": admitted.state, ASIDE: admitted.quarantine},
            aside=aside,
        )

    def speaks_first(self, within: Range) -> bool:
        return False


@dataclass(frozen=True)
class UpsertsStation:
    """The source operator of a keyed dataset: the stored row of a key goes, the last written comes (LOT-40).

    Rows have the dataset's columns, then whether they delete, then the position and the ordinal that say
    which write is the last.
    """

    types: tuple[pa.DataType, ...]
    key: tuple[int, ...]

    @cached_property
    def _layout(self) -> Layout:
        return _layout(self.types, self.key)

    @cached_property
    def _writes(self) -> Layout:
        extra = [("_gone", pa.bool_()), ("_position", pa.int64()), ("_ordinal", pa.int64())]
        fields = [*self._layout.columns, *(pa.field(name, kind) for name, kind in extra)]
        return Layout(pa.schema(fields), len(self.key))

    @property
    def layouts(self) -> dict[str, Layout]:
        return {"main": self._layout}

    @cached_property
    def out(self) -> pa.Schema:
        return weighted(columns(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return (*self.types, pa.bool_(), pa.int64(), pa.int64())

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        names = [f"c{i}" for i in range(len(self.types))]
        rows = rows.rename_columns([*names, "_gone", "_position", "_ordinal", WEIGHT])
        return {"writes": self._last(self._writes.conform(_keyed(rows, self._layout, self.key)))}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> Given:
        last = self._last(together(parts.get("writes", ()), self._writes))
        there = last.filter(pc.invert(last["_gone"])).select(self._layout.schema.names)
        change = keyed.exchange(last.select([HASH, *self._layout.key_names]), there, traces["main"])
        names = [_name(i, self.types, self.key) for i in range(len(self.types))]
        return Given([change.select([*names, WEIGHT]).rename_columns(self.out.names)], {"main": change})

    def speaks_first(self, within: Range) -> bool:
        return False

    def _last(self, writes: pa.Table) -> pa.Table:
        """Of each key the write with the greatest position, and there the greatest ordinal."""
        if writes.num_rows == 0:
            return writes
        writes = writes.combine_chunks()
        coded = code_rows([chunk(writes, name) for name in self._layout.key_names], writes.num_rows)
        ids = class_ids(coded)
        order = np.lexsort((column(writes, "_ordinal"), column(writes, "_position"), ids))
        ends = np.append(ids[order][1:] != ids[order][:-1], True)
        return writes.take(pa.array(order[ends]))


@dataclass(frozen=True)
class GatherStation:
    """One input of a keyed operator: remembers its rows by key, and gives all rows of the keys that changed.

    Side 0 takes rows; the others take keys that changed elsewhere, in another input of the operator. What it
    gives is no change but rows as they are now, with how often each is there.
    """

    types: tuple[pa.DataType, ...]
    key: tuple[int, ...]

    @cached_property
    def _layout(self) -> Layout:
        return _layout(self.types, self.key)

    @property
    def layouts(self) -> dict[str, Layout]:
        return {"main": self._layout}

    @cached_property
    def out(self) -> pa.Schema:
        return weighted(columns(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types if side == 0 else tuple(self.types[place] for place in self.key)

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        if side == 1:
            return {"keys": _keys(rows, self._layout.key_names)}
        table = _keyed(rows, self._layout, self.key)
        packed = {"rows": consolidate(table, self._layout)}
        if packed["rows"].num_rows < table.num_rows:
            # A key whose rows cancel out is among those whose result is taken back: it is computed again.
            names = self._layout.key_names
            packed["keys"] = distinct_keys([table.select([HASH, *names])], names)
        return packed

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> Given:
        delta = together(parts.get("rows", ()), self._layout)
        names = [HASH, *self._layout.key_names]
        keys = pa.concat_tables(
            [delta.select(names), *(part.select(names) for part in parts.get("keys", ()))]
        )
        found = keyed.rows_of_keys(keys, traces["main"], delta)
        chosen = [_name(i, self.types, self.key) for i in range(len(self.types))]
        rows = found.select([*chosen, WEIGHT]).rename_columns(self.out.names)
        return Given([rows], {"main": delta})

    def speaks_first(self, within: Range) -> bool:
        return False


@dataclass(frozen=True)
class ReplaceStation:
    """The result of a keyed operator: what is stored for a key goes, what Spark computed for it comes.

    Side 0 takes results, the operator's columns and behind them the key; side 1 takes the keys that changed.
    """

    types: tuple[pa.DataType, ...]
    keys: tuple[pa.DataType, ...]

    @cached_property
    def _layout(self) -> Layout:
        mine = [pa.field(f"k{n}", kind) for n, kind in enumerate(self.keys)]
        rest = [pa.field(f"p{n}", kind) for n, kind in enumerate(self.types)]
        return Layout(pa.schema([*mine, *rest]), len(self.keys))

    @property
    def layouts(self) -> dict[str, Layout]:
        return {"main": self._layout}

    @cached_property
    def out(self) -> pa.Schema:
        return weighted(columns(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return (*self.types, *self.keys) if side == 0 else self.keys

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        if side == 1:
            return {"keys": _keys(rows, self._layout.key_names)}
        width = len(self.types)
        names = [f"p{n}" for n in range(width)] + [f"k{n}" for n in range(len(self.keys))]
        table = canonical(rows.rename_columns([*names, WEIGHT]).combine_chunks(), self._layout.key_names)
        table = table.append_column(HASH, hashed(table, self._layout.key_names))
        return {"rows": consolidate(table, self._layout)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> Given:
        results = together(parts.get("rows", ()), self._layout)
        names = [HASH, *self._layout.key_names]
        given = [part.select(names) for part in parts.get("keys", ())]
        keys = pa.concat_tables([results.select(names), *given])
        change = keyed.exchange(keys, results, traces["main"])
        chosen = [f"p{n}" for n in range(len(self.types))]
        return Given([change.select([*chosen, WEIGHT]).rename_columns(self.out.names)], {"main": change})

    def speaks_first(self, within: Range) -> bool:
        return False


@dataclass(frozen=True)
class OutputStation:
    """Where the changes of a view arrive. Packets have its columns, both halves of a row's identity and `_w`;
    rows come with the identity if Spark has to compute it (`asks_spark`), else without.

    It remembers nothing. Rows meet by the first half of their identity, unless they meet already where they
    come from (`local`): then they do not travel.
    """

    view: str
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    local: bool = field(default=False, compare=False)

    @property
    def layouts(self) -> dict[str, Layout]:
        return {}

    @property
    def identified(self) -> bool:
        """Whether rows have their identity with them."""
        return not isinstance(self, SpillStation)

    @cached_property
    def asks_spark(self) -> bool:
        """Whether Spark computes the identity of its rows."""
        return self.identified and not all(map(identifiable, self.types))

    @cached_property
    def out(self) -> pa.Schema:
        return weighted(columns([*self.types, *([pa.int64()] * 2 if self.identified else [])]))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        *given, weights = rows.columns
        if self.identified and not self.asks_spark:
            given += identity(given)
        rows = pa.Table.from_arrays([*given, weights], schema=self.out)  # whatever Spark says of NULLs
        if not self.identified:
            return {"rows": rows}
        return {"rows": rows.append_column(HASH, rows[f"c{len(self.types)}"])}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> Given:
        raise AssertionError("a view's rows are written, not computed")

    def speaks_first(self, within: Range) -> bool:
        return False


@dataclass(frozen=True)
class SpillStation(OutputStation):
    """Rows that a later job of the step reads: they are written as they are, where they were made."""


def _keys(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Keys c0, c1, … with their hash, each once."""
    table = rows.select([f"c{n}" for n in range(len(names))]).rename_columns(list(names)).combine_chunks()
    table = canonical(table, list(names))
    return distinct_keys([table.append_column(HASH, hashed(table, names))], list(names))


def _layout(types: Sequence[pa.DataType], keys: Sequence[int]) -> Layout:
    """The trace of rows by a key: the key's columns first; a column that is in the key is kept once."""
    mine = [pa.field(f"k{n}", types[place]) for n, place in enumerate(keys)]
    rest = [pa.field(_name(i, types, keys), kind) for i, kind in enumerate(types)]
    return Layout(pa.schema([*mine, *(each for each in rest if each.name.startswith("p"))]), len(keys))


def _name(place: int, types: Sequence[pa.DataType], keys: Sequence[int]) -> str:
    """What a trace by this key calls a column. Keys with floats are kept beside the column as it came:
    -0.0 is the same key as 0.0, but not the same value.
    """
    apart = place not in keys or has_floats(types[place])
    return f"p{place}" if apart else f"k{keys.index(place)}"


def _keyed(rows: pa.Table, layout: Layout, keys: Sequence[int]) -> pa.Table:
    """Rows c0, c1, … with the columns of a trace by this key, and its hash; others come along."""
    arrays = {f"k{n}": rows[f"c{place}"] for n, place in enumerate(keys)}
    arrays |= {name: rows[f"c{name[1:]}"] for name in layout.names if name.startswith("p")}
    arrays |= {name: rows[name] for name in rows.column_names if name.startswith("_")}
    table = canonical(pa.table(arrays).combine_chunks(), layout.key_names)
    return table.append_column(HASH, hashed(table, layout.key_names))
