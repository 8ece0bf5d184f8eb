"""The stateful operators of joins on equality (DBSP-11).

    inner       `StatefulJoin` pairs the rows with equal keys
    outer       it also returns the rows whose key the other side lacks, with NULLs for the other side
    semi, anti  it returns the rows of the left side whose key the right side has, or lacks

If an outer, semi or anti join has a further condition, the key does not tell whether a row has a match. Then
an inner `StatefulJoin` pairs the rows, row expressions check the condition, and `StatefulMatches` counts the
remaining pairs of each row.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.views.chain.source_sharing import SharedRows, SharedSource
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
from tidemill.views.circuit.operators import JoinKind
from tidemill.views.kernels.join import JoinKernel, sorted_by_hash
from tidemill.views.kernels.key_presence import KeyPresence
from tidemill.views.kernels.set_operations import SetKernel
from tidemill.views.trace.consolidation import consolidate, reduce_rows
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.trace import Trace

Tag = Literal["left", "right"]

_UNMATCHED: Mapping[JoinKind, tuple[Tag, ...]] = {
    "left": ("left",),
    "right": ("right",),
    "full": ("left", "right"),
    "anti": ("left",),
}
"""The sides of which a join returns the rows without a match."""

_OTHER: Mapping[Tag, Tag] = {"left": "right", "right": "left"}


@dataclass(frozen=True)
class StatefulJoin:
    """An equi-join of two sides.

    Rows with a NULL in a key that is compared by `=` match nothing. They are neither stored nor sent to the
    range of their key. An outer or anti join returns them as they arrive, in the range of their whole row.

    Args:
        left, right: the column types of each side.
        left_keys, right_keys: the key columns of each side; the columns of a pair have the same type.
        null_safe: for each pair of key columns, whether it is compared by `<=>`.
        shared: for each side, the source whose trace it reads; None if the join stores its own trace.
        kind: which rows the join returns.
    """

    left: tuple[pa.DataType, ...]
    right: tuple[pa.DataType, ...]
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    null_safe: tuple[bool, ...]
    shared: tuple[SharedSource | None, SharedSource | None] = (None, None)
    kind: JoinKind = "inner"

    @property
    def _left_only(self) -> bool:
        return self.kind in {"semi", "anti"}

    @cached_property
    def _kernel(self) -> JoinKernel:
        return JoinKernel(
            layout_of(self.left, self.left_keys),
            layout_of(self.right, self.right_keys),
            self.null_safe,
            self._columns("left"),
            () if self._left_only else self._columns("right"),
        )

    def _columns(self, tag: Tag) -> tuple[tuple[str, str], ...]:
        """Return the columns of a side's trace, each with its name in the output."""
        types, keys = (self.left, self.left_keys) if tag == "left" else (self.right, self.right_keys)
        first = 0 if tag == "left" else len(self.left)
        return tuple((column_name(i, types, keys), f"c{first + i}") for i in range(len(types)))

    @cached_property
    def _presence(self) -> dict[Tag, KeyPresence]:
        """The kernels that return the rows of a side with a match, or those without one."""
        tags: tuple[Tag, ...] = ("left",) if self.kind == "semi" else _UNMATCHED.get(self.kind, ())
        return {
            tag: KeyPresence(self._sides[tag], self._columns(tag), present=self.kind == "semi")
            for tag in tags
        }

    @property
    def _sides(self) -> dict[Tag, Layout]:
        """The sides whose rows are stored. A semi or anti join only counts its right rows by key."""
        left = self._kernel.left
        return {"left": left} if self._left_only else {"left": left, "right": self._kernel.right}

    @property
    def layouts(self) -> dict[str, Layout]:
        sides = zip(self._sides.items(), self.shared, strict=False)
        rows: dict[str, Layout] = {tag: layout for (tag, layout), shared in sides if shared is None}
        return rows | {_counts_of(tag): presence.counts for tag, presence in self._presence.items()}

    @property
    def borrowed(self) -> list[tuple[int, str, Mapping[str, Layout]]]:
        """Return number, name and trace layouts of each side that reads the traces of a source."""
        sides = enumerate(zip(self._sides, self.shared, strict=False))
        return [(side, tag, shared.layouts) for side, (tag, shared) in sides if shared is not None]

    @cached_property
    def out(self) -> pa.Schema:
        return self._kernel.schema

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.right if side else self.left

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        tag: Tag = "right" if side else "left"
        layout, keys = (self._kernel.right, self.right_keys) if side else (self._kernel.left, self.left_keys)
        matchable = _without_null(rows, keys, self.null_safe)
        packed = {}
        if matchable is not None:
            if tag in _UNMATCHED.get(self.kind, ()):
                packed[_unmatchable(tag)] = _by_row(rows.filter(pc.invert(matchable)), self.takes(side))
            rows = rows.filter(matchable)
        table = rows_by_key(rows, layout, keys)
        if tag not in self._sides:
            packed[_counts_of("left")] = self._presence["left"].count(table)
        else:
            packed[tag] = table if self.shared[side] is not None else reduce_rows(table, layout)
        return packed

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        changes: dict[Tag, pa.Table] = {}
        stored: dict[Tag, Trace | SharedRows] = {}
        for (tag, layout), shared in zip(self._sides.items(), self.shared, strict=False):
            rows = concatenated(parts.get(tag, ()), layout)
            if shared is None:
                changes[tag], stored[tag] = self._kernel.consolidate_side(rows, layout), traces[tag]
            else:
                borrowed = {name: traces[f"{tag}.{name}"] for name in shared.layouts}
                changes[tag], stored[tag] = sorted_by_hash(rows), shared.rows(layout, borrowed)
        deltas: dict[str, pa.Table] = {tag: changes[tag] for tag in self._sides if tag in self.layouts}
        out: list[Iterable[pa.Table]] = []
        if not self._left_only:
            out.append(self._kernel.step(changes["left"], changes["right"], stored["left"], stored["right"]))
        for tag, presence in self._presence.items():
            name = _counts_of(tag)
            counted = changes.get(_OTHER[tag], concatenated(parts.get(name, ()), presence.counts))
            deltas[name] = presence.count(counted)
            chosen = presence.step(changes[tag], deltas[name], stored[tag], traces[name])
            out += [self._padded(chosen), self._padded(self._unmatchable_rows(tag, parts))]
        return OperatorOutput(chain.from_iterable(out), deltas, settled=frozenset(deltas))

    def _unmatchable_rows(self, tag: Tag, parts: Parts) -> Iterator[pa.Table]:
        """Yield the changed rows that have a NULL in their key, with the column names of the output."""
        for part in parts.get(_unmatchable(tag), ()):
            names = [name for _, name in self._columns(tag)]
            yield part.drop_columns([HASH]).rename_columns([*names, WEIGHT])

    def _padded(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Add the columns of the other side, with NULLs."""
        for table in tables:
            present = set(table.column_names)
            columns = [
                table[each.name] if each.name in present else pa.nulls(table.num_rows, each.type)
                for each in self.out
            ]
            yield pa.table(columns, schema=self.out)

    def is_local(self, side: int) -> bool:
        """Return whether a side's rows are already in their range, because its source has the same key."""
        return self.shared[side] is not None

    def emits_without_input(self, within: HashRange) -> bool:
        return False


@dataclass(frozen=True)
class StatefulMatches:
    """The rows of one side of a join that have a match, or those that have none.

    Side 0 receives the rows, side 1 the pairs of the join that satisfy its condition, with the columns of the
    rows. The output also has columns for the other side, with NULLs.

    Args:
        types: the column types of the rows.
        matched: whether to return the rows that have a match.
        before: the types of the columns to add before the rows.
        after: the types of the columns to add after the rows.
    """

    types: tuple[pa.DataType, ...]
    matched: bool
    before: tuple[pa.DataType, ...] = ()
    after: tuple[pa.DataType, ...] = ()

    @cached_property
    def _kernel(self) -> SetKernel:
        return SetKernel("matched" if self.matched else "unmatched", numbered_columns(self.types))

    @property
    def layouts(self) -> dict[str, Layout]:
        return {_MATCHES: self._kernel.layout}

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns([*self.before, *self.types, *self.after]))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        rows = _by_row(rows, self.types)
        return {_PAIRS if side else _ROWS: consolidate(rows, self._kernel.side)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        rows, pairs = (concatenated(parts.get(tag, ()), self._kernel.side) for tag in (_ROWS, _PAIRS))
        result = self._kernel.step(rows, pairs, traces[_MATCHES])
        count = result.out.num_rows
        columns = [
            *(pa.nulls(count, kind) for kind in self.before),
            *result.out.columns[:-1],
            *(pa.nulls(count, kind) for kind in self.after),
            result.out[WEIGHT],
        ]
        return OperatorOutput([pa.table(columns, schema=self.out)], {_MATCHES: result.state})

    def emits_without_input(self, within: HashRange) -> bool:
        return False


_MATCHES, _ROWS, _PAIRS = "matches", "rows", "pairs"


def _counts_of(tag: Tag) -> str:
    """Return the name of the trace that counts, for the rows of a side, the rows of the other side by key."""
    return f"{_OTHER[tag]}_keys"


def _unmatchable(tag: Tag) -> str:
    return f"{tag}_nulls"


def _without_null(rows: pa.Table, keys: Sequence[int], null_safe: Sequence[bool]) -> pa.ChunkedArray | None:
    """Return which rows have no NULL in a key that is compared by `=`; None if all rows have none."""
    valid = [
        pc.is_valid(rows[f"c{place}"])
        for place, safe in zip(keys, null_safe, strict=True)
        if not safe and rows[f"c{place}"].null_count
    ]
    return reduce(pc.and_, valid) if valid else None


def _by_row(rows: pa.Table, types: Sequence[pa.DataType]) -> pa.Table:
    """Add the hash of the whole row, so that rows without a key are spread over all ranges."""
    rows = rows.combine_chunks()
    return rows.append_column(HASH, hash_column(rows, numbered_columns(types).names))
