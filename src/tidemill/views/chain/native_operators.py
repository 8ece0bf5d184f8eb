"""The native operators: joins, groups, and sets of rows (DBSP-11 to DBSP-13)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import TypeRefused
from tidemill.views.chain.source_sharing import SharedSource
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
from tidemill.views.kernels.canonical_keys import canonical_keys
from tidemill.views.kernels.group_by import BINS, MAIN, GroupAggregate, GroupKernel
from tidemill.views.kernels.join import JoinKernel, sorted_by_hash
from tidemill.views.kernels.set_operations import SetKernel
from tidemill.views.trace.consolidation import chunk, column, consolidate, reduced
from tidemill.views.trace.hash_space import HashRange, hash_bounds
from tidemill.views.trace.key_hash import GLOBAL_HASH
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import distinct


def _all(name: str) -> str:
    """The trace of all values of a min or max."""
    return f"{name}.all"


@dataclass(frozen=True)
class StatefulJoin:
    """An inner equi-join of two sides.

    Args:
        left, right: the types of the columns of each side.
        left_keys, right_keys: which of them are the key, pair by pair of the same type.
        null_safe: which pairs are compared by `<=>`.
        lent: for each side whose rows a source remembers, what is read there.
    """

    left: tuple[pa.DataType, ...]
    right: tuple[pa.DataType, ...]
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    null_safe: tuple[bool, ...]
    lent: tuple[SharedSource | None, SharedSource | None] = (None, None)

    @cached_property
    def _kernel(self) -> JoinKernel:
        mine, theirs = layout_of(self.left, self.left_keys), layout_of(self.right, self.right_keys)
        width = len(self.left)
        return JoinKernel(
            mine,
            theirs,
            self.null_safe,
            tuple((column_name(i, self.left, self.left_keys), f"c{i}") for i in range(width)),
            tuple(
                (column_name(i, self.right, self.right_keys), f"c{width + i}") for i in range(len(self.right))
            ),
        )

    @property
    def _sides(self) -> dict[str, Layout]:
        return {"left": self._kernel.left, "right": self._kernel.right}

    @property
    def layouts(self) -> dict[str, Layout]:
        mine = zip(self._sides.items(), self.lent, strict=True)
        return {tag: layout for (tag, layout), lent in mine if lent is None}

    @property
    def borrowed(self) -> list[tuple[int, str, Mapping[str, Layout]]]:
        """The sides whose rows sources remember: number and name, and the traces of the source."""
        sides = enumerate(zip(self._sides, self.lent, strict=True))
        return [(side, tag, lent.layouts) for side, (tag, lent) in sides if lent is not None]

    @cached_property
    def out(self) -> pa.Schema:
        return self._kernel.schema

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.right if side else self.left

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        tag, keys = ("left", self.left_keys) if side == 0 else ("right", self.right_keys)
        layout = self._sides[tag]
        for place, safe in zip(keys, self.null_safe, strict=True):
            if not safe and rows[f"c{place}"].null_count:  # it matches nothing: it need not travel
                rows = rows.filter(pc.is_valid(rows[f"c{place}"]))
        packed = rows_by_key(rows, layout, keys)
        return {tag: packed if self.lent[side] is not None else reduced(packed, layout)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        changes, known = {}, []
        for (tag, layout), lent in zip(self._sides.items(), self.lent, strict=True):
            rows = concatenated(parts.get(tag, ()), layout)
            changes[tag] = self._kernel.added_up(rows, layout) if lent is None else sorted_by_hash(rows)
            theirs = {name: traces[f"{tag}.{name}"] for name in lent.layouts} if lent is not None else {}
            known.append(traces[tag] if lent is None else lent.rows(layout, theirs))
        out = self._kernel.step(changes["left"], changes["right"], *known)
        deltas = {tag: changes[tag] for tag in self.layouts}
        return OperatorOutput(out, deltas, settled=frozenset(deltas))

    def stays(self, side: int) -> bool:
        """Whether what comes to a side is in its range already: a source has the rows by the same key."""
        return self.lent[side] is not None

    def speaks_first(self, within: HashRange) -> bool:
        return False


@dataclass(frozen=True)
class StatefulAggregate:
    """Groups with native aggregates. Rows have the key first, then the values, then `_w`.

    Where rows can be taken away, all values of a min or max are kept beside its best few: a group that has
    used these up is filled again from its values alone (DBSP-13), and nobody else's are read.

    Args:
        kernel: what is added up.
        results: the types of the aggregates' values, as Spark's analysis of the query says.
    """

    kernel: GroupKernel
    results: tuple[pa.DataType, ...]

    def __post_init__(self) -> None:
        for agg, result in zip(self.kernel.aggs, self.results, strict=True):
            argument = self._argument(agg)
            if not agg.kernel.takes(argument, result):
                raise TypeRefused(f"no exact {agg.kind} over {argument}", hint="the operator can run keyed")

    def _argument(self, agg: GroupAggregate) -> pa.DataType | None:
        return None if agg.column is None else self.kernel.values.field(agg.column).type

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        every = {_all(name): self.kernel.layouts[name] for name in self._extremes if self.kernel.best > 1}
        return {**self.kernel.layouts, **every}

    @cached_property
    def _extremes(self) -> list[str]:
        return [agg.name for agg in self.kernel.aggs if agg.kernel.accumulator.is_extreme]

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns([*(each.type for each in self.kernel.keys), *self.results]))

    def _shown(self, table: pa.Table) -> pa.Table:
        """The kernel's rows with the values that Spark's own aggregates have."""
        names = [each.name for each in self.kernel.schema if each.name not in {HASH, WEIGHT}]
        keys = len(self.kernel.keys)
        made, at = [table[name] for name in names[:keys]], keys
        for agg, result in zip(self.kernel.aggs, self.results, strict=True):
            argument = self._argument(agg)
            raw = names[at : at + agg.kernel.raw_width(argument)]
            made.append(agg.kernel.final([chunk(table, name) for name in raw], argument, result))
            at += len(raw)
        return pa.Table.from_arrays([*made, table[WEIGHT]], names=self.out.names)

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return tuple(each.type for each in (*self.kernel.keys, *self.kernel.values))

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        names = [*self.kernel.keys.names, *self.kernel.values.names]
        rows = rows.rename_columns([*names, WEIGHT]).combine_chunks()
        hashes = hash_column(rows, self.kernel.keys.names)
        return self.kernel.accumulate(rows.append_column(HASH, hashes))

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        whole = {tag: concatenated(parts.get(tag, ()), one) for tag, one in self.kernel.layouts.items()}
        made = self.kernel.step([whole], traces, first=first)
        deltas = dict(made.traces)
        out = [made.out]
        exhausted = 0
        if self.kernel.best > 1:
            deltas |= {_all(name): made.values[name] for name in self._extremes}
            if made.pending is not None:
                again = self.kernel.refill(made.pending, self._values(made.pending, whole, traces))
                out.append(again.out)
                deltas |= {
                    name: pa.concat_tables([deltas[name], again.traces[name]]) for name in self._extremes
                }
        elif made.pending is not None:
            exhausted = made.pending.num_rows
        settled = frozenset({MAIN, BINS, *map(_all, self._extremes)} & deltas.keys())
        return OperatorOutput(
            [self._shown(table) for table in out], deltas, exhausted=exhausted, settled=settled
        )

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

    def speaks_first(self, within: HashRange) -> bool:
        low, high = hash_bounds(*within.grains)
        return self.kernel.always and low <= GLOBAL_HASH <= high


@dataclass(frozen=True)
class StatefulSet:
    """DISTINCT, INTERSECT and EXCEPT: how often each row is there on each side."""

    kernel_kind: str
    types: tuple[pa.DataType, ...]

    @cached_property
    def _kernel(self) -> SetKernel:
        return SetKernel(self.kernel_kind, numbered_columns(self.types))  # type: ignore[arg-type]

    @property
    def layouts(self) -> dict[str, Layout]:
        return {"main": self._kernel.layout}

    @property
    def out(self) -> pa.Schema:
        return self._kernel.schema

    @cached_property
    def _side(self) -> Layout:
        return Layout(numbered_columns(self.types), len(self.types))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        names = [f"c{i}" for i in range(len(self.types))]
        rows = canonical_keys(rows.combine_chunks(), names)
        packed = rows.append_column(HASH, hash_column(rows, names))
        return {"right" if side else "left": consolidate(packed, self._side)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        left, right = (concatenated(parts.get(tag, ()), self._side) for tag in ("left", "right"))
        counted = self._kernel.step(left, right, traces["main"])
        return OperatorOutput([counted.out], {"main": counted.state})

    def speaks_first(self, within: HashRange) -> bool:
        return False
