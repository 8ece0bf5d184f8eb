"""Ordered traces: the rows of each group in order, divided into blocks (DBSP-14).

A change to a group of a million rows must not read the group. So an ordered trace divides a long group into
*blocks* of consecutive rows. Two traces store it:

    rows     every row with the number of its block. The hash of a row is that of its group, but the lower
             half is the number of the block. So one lookup finds the rows of one block, and all blocks of a
             group are in the same range of hash space.
    blocks   for each block, its *bound* and how many rows it has. The bound is a place in the order, and all
             rows of the block are at this place or after it. Further sums per block are up to the caller.

A row belongs to the last block whose bound is not after it; rows before all bounds belong to the first block.
If the first block is divided, it gets a new bound: those of the new blocks may be before its old one.
A group that was never divided has no bounds, and all its rows are in block 0. Block numbers say nothing about
the order. A block that loses its last row disappears, because both traces add up.

A step reads the blocks that its caller asks for (`OrderedChange.read`). It divides a block with too many
rows, and gives the rows of a block with few rows to the block before it.

The order must be complete. So it ends with the hash that breaks ties (`tidemill.views.circuit.ties`), if the
results depend on it, and with a hash of all columns, which also differs for values that are equal in Spark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidemill.errors import WeightNegative
from tidemill.views.kernels.key_matching import distinct_keys, positions
from tidemill.views.kernels.row_identity import row_identity
from tidemill.views.kernels.sort_codes import SortColumn, sort_codes
from tidemill.views.trace.consolidation import chunk, column, consolidate
from tidemill.views.trace.key_hash import UPPER
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import I64, distinct
from tidemill.views.trace.row_equality import code_rows
from tidemill.views.trace.trace import Trace

ROWS, BLOCKS = "rows", "blocks"
BLOCK = "b"
BLOCK_ROWS = 128
"""How many rows a new block has. A block is divided when it has twice as many different rows."""
_FEW = 4  # a block with less than 1/4 of BLOCK_ROWS is merged with the block before it

_OLD, _DELTA = "_o", "_d"
_TIES = ("h0", "h1", "h2")
_NUMBER_BITS = 32

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class OrderedTrace:
    """The columns and the order of an ordered trace.

    Args:
        columns: the columns of a row, the key of its group first.
        key: how many columns the key has.
        order: the sort keys; places count the columns of a row.
        hashed: the columns that the hash that breaks ties covers; none if the order needs no such hash.
        sums: the names of further sums that each block has.
    """

    columns: pa.Schema
    key: int
    order: tuple[SortColumn, ...]
    hashed: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()

    @cached_property
    def change_layout(self) -> Layout:
        """The layout of rows without their block, which a step receives."""
        return Layout(self.columns, self.key)

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """The layouts of the traces by name."""
        fields, number = list(self.columns), pa.field(BLOCK, pa.int64())
        bound = [pa.field(f"o{n}", fields[key.place].type) for n, key in enumerate(self.order)]
        bound += [pa.field(name, pa.int64()) for name in _TIES]
        keys = fields[: self.key]
        return {
            ROWS: Layout(pa.schema([*keys, number, *fields[self.key :]]), self.key),
            BLOCKS: Layout(pa.schema([*keys, number, *bound]), self.key, (WEIGHT, *self.sums)),
        }

    def open(self, change: pa.Table, traces: Mapping[str, Trace]) -> "OrderedChange":
        """Find the blocks of the rows that changed.

        Args:
            change: the consolidated change, with the columns of `change_layout`.
            traces: the traces before the step.
        """
        groups = distinct_keys([change.select([HASH, *self._keys])], self._keys)
        listed = consolidate(traces[BLOCKS].lookup(distinct(column(groups, HASH))), self.layouts[BLOCKS])
        of_listed = positions(groups, listed, self._keys)
        if not (of_listed >= 0).all():  # another key with the same hash
            listed, of_listed = listed.filter(pa.array(of_listed >= 0)), of_listed[of_listed >= 0]
        return OrderedChange(self, change, traces[ROWS], groups, listed.combine_chunks(), of_listed)

    @property
    def _keys(self) -> list[str]:
        return self.change_layout.key_names

    def bounds(self, rows: pa.Table) -> list[pa.Array]:
        """Return the places of rows in the order, as the columns of a bound."""
        values = [chunk(rows, self.columns.names[key.place]) for key in self.order]
        return [*values, *map(pa.array, self.ties(rows))]

    def ties(self, rows: pa.Table) -> list[I64]:
        """Return hashes that order rows with equal sort keys."""
        count = rows.num_rows
        halves = [np.zeros(count, np.int64)] * 2
        if self.hashed and count:
            halves = [half.to_numpy() for half in row_identity([rows[name] for name in self.hashed])]
        names = self.columns.names
        return [*halves, code_rows([chunk(rows, name) for name in names], count, "differ").mix.view(np.int64)]

    def codes(self, values: Sequence[pa.Array]) -> list[I64]:
        """Return the sort codes of these values, one array for each sort key."""
        return [
            code
            for key, array in zip(self.order, values, strict=True)
            for code in sort_codes(array, descending=key.descending, nulls_first=key.nulls_first)
        ]


class OrderedChange:
    """The blocks of the groups that a step changes, in the order of their groups and rows.

    Attributes:
        group, number: for each block, its group and its block number.
        old, new: how many rows each block has before and after the step. Both are 0 for a block of a group
            without bounds until it is read; such a block must be read.
        block: for each changed row, its block.
        peers: for each changed row, the first and the last block that can have rows with the same sort keys.
        bound_peers: for each block, the first block that can have rows with the sort keys of its bound.
        first, last: for each group, its first and its last block.
        unlisted: which blocks belong to groups without bounds.
    """

    def __init__(
        self,
        ordered: OrderedTrace,
        change: pa.Table,
        rows: Trace,
        groups: pa.Table,
        listed: pa.Table,
        of_listed: I64,
    ) -> None:
        self._ordered, self._change, self._rows, self._groups = ordered, change, rows, groups
        of_change = positions(groups, change, ordered._keys)
        group, peer, bound, order = _joint_order(ordered, listed, of_listed, change, of_change)
        places = order[bound]  # the listed blocks in order
        unlisted = np.setdiff1d(np.arange(groups.num_rows), of_listed)
        of_blocks = np.concatenate([of_listed[places], unlisted])
        by_group = np.argsort(of_blocks, kind="stable")
        peer_starts = peer[np.searchsorted(group, unlisted)]
        self._at = np.concatenate([places, np.full(len(unlisted), -1)])[by_group]
        self._listed = listed
        self.group: I64 = of_blocks[by_group]
        self.unlisted: Bools = self._at < 0
        self.number: I64 = np.where(self.unlisted, 0, take_or_zero(column(listed, BLOCK), self._at))
        self.first: I64 = np.searchsorted(self.group, np.arange(groups.num_rows))
        self.last: I64 = np.searchsorted(self.group, np.arange(groups.num_rows), "right") - 1
        block_peer = np.concatenate([peer[bound], peer_starts])[by_group]
        rank = np.empty(len(by_group), np.int64)
        rank[by_group] = np.arange(len(by_group))
        # In the joint order, a row comes after the bounds at or before it.
        before = np.cumsum(bound) - 1
        known = (before >= 0) & (of_listed[places][np.maximum(before, 0)] == group) if len(places) else bound
        at = np.where(known, rank[np.maximum(before, 0)], self.first[group])
        row = order[~bound] - listed.num_rows
        self.block: I64 = np.empty(change.num_rows, np.int64)
        self.block[row] = at[~bound]
        peers = np.empty(change.num_rows, np.int64)
        peers[row] = peer[~bound]
        lowest = self.first[of_change]
        self.peers: tuple[I64, I64] = (
            np.maximum(np.searchsorted(block_peer, peers) - 1, lowest),
            np.maximum(np.searchsorted(block_peer, peers, "right") - 1, lowest),
        )
        self.bound_peers: I64 = np.maximum(
            np.searchsorted(block_peer, block_peer) - 1, self.first[self.group]
        )
        self._weights = column(change, WEIGHT)
        self.old: I64 = take_or_zero(column(listed, WEIGHT), self._at)
        delta = np.zeros(len(self.group), np.int64)
        np.add.at(delta, self.block, self._weights)
        self.new: I64 = np.where(self.unlisted, 0, self.old + delta)

    def sums(self, name: str) -> I64:
        """Return a further sum of each block before the step; 0 for a group without bounds."""
        values: I64 = take_or_zero(column(self._listed, name), self._at)
        return values

    def before(self, counts: I64) -> I64:
        """Return for each block the sum over the blocks before it in its group."""
        total = np.cumsum(counts) - counts
        total -= total[self.first][self.group]
        return total

    def read(self, needed: Bools) -> "OrderedRows":
        """Return the old and new rows of some blocks; blocks to be divided or merged are read as well."""
        ordered = self._ordered
        needed = needed | self.unlisted | (self.new > 2 * BLOCK_ROWS) | self._is_small()
        stored = self._read_stored(needed)
        in_needed = needed[self.block]
        changed = self._change if in_needed.all() else self._change.filter(pa.array(in_needed))
        rows = _with_two_weights(ordered, stored, self._with_block(changed, self.block[in_needed]))
        block = self._blocks_of(rows)
        order, peer = self._sorted(rows, block)
        rows, block = rows.take(pa.array(order)).combine_chunks(), block[order]
        old, delta = column(rows, _OLD), column(rows, _DELTA)
        if ((old < 0) | (old + delta < 0)).any():
            raise WeightNegative("the change deletes a row that is not in the input of a window function")
        self._fill_unlisted(block, old, old + delta)
        return OrderedRows(
            rows.select([HASH, *ordered.layouts[ROWS].names]), needed, block, old, old + delta, peer
        )

    def _is_small(self) -> Bools:
        """Return the blocks whose rows the block before them takes."""
        shrunk = (self.new > 0) & (self.new < self.old) & (_FEW * self.new < BLOCK_ROWS)
        small: Bools = shrunk & (self.first[self.group] < np.arange(len(self.group)))
        return small

    def _read_stored(self, needed: Bools) -> pa.Table:
        of_groups = column(self._groups, HASH) & UPPER
        hashes = of_groups[self.group[needed]] | self.number[needed]
        stored = self._rows.lookup(distinct(hashes)).combine_chunks()
        blocks = self._blocks_of(stored)
        kept = (blocks >= 0) & take_or_zero(needed, blocks)
        return stored if kept.all() else stored.filter(pa.array(kept))

    def _blocks_of(self, rows: pa.Table) -> I64:
        """Return the block of each row that has a block number; -1 for a row of no block."""
        keys = self._ordered._keys
        group = positions(_with_upper(self._groups), _with_upper(rows.select([HASH, *keys])), keys)
        codes = (self.group << _NUMBER_BITS) | self.number
        order = np.argsort(codes)
        wanted = (group << _NUMBER_BITS) | column(rows, BLOCK)
        place = np.minimum(np.searchsorted(codes[order], wanted), len(codes) - 1)
        blocks: I64 = np.where((codes[order][place] == wanted) & (group >= 0), order[place], -1)
        return blocks

    def _with_block(self, rows: pa.Table, block: I64) -> pa.Table:
        """Return rows with their block number, and its hash."""
        hashes = (column(rows, HASH) & UPPER) | self.number[block]
        layout = self._ordered.layouts[ROWS]
        columns = {name: rows[name] for name in rows.column_names}
        columns |= {HASH: pa.array(hashes), BLOCK: pa.array(self.number[block])}
        return pa.table([columns[name] for name in layout.schema.names], schema=layout.schema)

    def _sorted(self, rows: pa.Table, block: I64) -> tuple[I64, Bools]:
        """Return the order of rows, and which rows have other sort keys than the row before them."""
        ordered = self._ordered
        codes = ordered.codes([chunk(rows, ordered.columns.names[key.place]) for key in ordered.order])
        order = np.lexsort((*reversed(codes), block))
        group = self.group[block]
        peer = _changes([group, *codes], order)
        tied = ~_changes([block, *codes], order)
        tied[:-1] |= tied[1:]
        if tied.any():
            where = np.flatnonzero(tied)
            chosen = order[where]
            ties = ordered.ties(rows.take(pa.array(chosen)).combine_chunks())
            run = np.cumsum(
                _changes([block[chosen], *(code[chosen] for code in codes)], np.arange(len(chosen)))
            )
            order[where] = chosen[np.lexsort((*reversed(ties), run))]
        return order, peer

    def _fill_unlisted(self, block: I64, old: I64, new: I64) -> None:
        """Count the rows of groups without bounds, which have been read now."""
        for counts, weights in ((self.old, old), (self.new, new)):
            read = np.zeros(len(counts), np.int64)
            np.add.at(read, block, weights)
            counts[self.unlisted] = read[self.unlisted]

    # --- writing

    def changes(
        self, rows: "OrderedRows", sums: Mapping[str, tuple[I64, I64]] | None = None
    ) -> dict[str, pa.Table]:
        """Return the changes of the traces.

        Args:
            rows: the blocks that were read.
            sums: for each further sum, what each row adds to it before and after the step.
        """
        ordered, table = self._ordered, rows.rows
        layout = ordered.layouts[ROWS]
        home, piece, number = self._targets(rows)
        stays = number == self.number[rows.block]
        unread = ~rows.needed[self.block]
        pieces = [
            self._with_block(self._change.filter(pa.array(unread)), self.block[unread]),
            _weighted(table, np.where(stays, rows.new, 0) - rows.old),
            _weighted(self._renumbered(table, number), np.where(stays, 0, rows.new)),
        ]
        adds = {WEIGHT: (rows.old, rows.new), **(sums or {})}
        divided = np.zeros(len(self.group), bool)
        divided[rows.block[piece > 0]] = True
        divided[1:] &= self.group[1:] != self.group[:-1]  # only the first block of a group gets another bound
        bounds = [
            self._listed_changes(rows, home, (piece == 0) & ~divided[rows.block], adds),
            self._new_bounds(rows, piece, number, divided, {name: new for name, (_, new) in adds.items()}),
        ]
        return {
            ROWS: consolidate(pa.concat_tables(pieces), layout),
            BLOCKS: consolidate(pa.concat_tables(bounds), ordered.layouts[BLOCKS]),
        }

    def _targets(self, rows: "OrderedRows") -> tuple[I64, I64, I64]:
        """Return where each row that was read belongs: a block, a piece of it, and the number of this piece.

        Piece 0 is the block itself.
        """
        alive = np.flatnonzero(rows.new > 0)
        block = rows.block[alive]
        different = np.bincount(block, minlength=len(self.group))
        pieces = np.where(different > 2 * BLOCK_ROWS, -(-different // BLOCK_ROWS), 1)
        nth = np.arange(len(alive)) - np.searchsorted(block, block)
        piece = np.zeros(len(rows.block), np.int64)
        piece[alive] = nth * pieces[block] // different[block]
        # A small block stays as it is if it, or the block before it, is divided.
        merged = self._is_small() & rows.needed & (pieces == 1)
        merged[1:] &= pieces[:-1] == 1
        home_of = np.maximum.accumulate(np.where(merged, -1, np.arange(len(merged))))
        home = home_of[rows.block]
        extra = pieces - 1
        highest = np.zeros(len(self.first), np.int64)
        np.maximum.at(highest, self.group, self.number)
        number_of = highest[self.group] + 1 + self.before(extra)
        number = np.where(piece > 0, number_of[rows.block] + piece - 1, self.number[home])
        return home, piece, number

    def _listed_changes(
        self, rows: "OrderedRows", home: I64, stays: Bools, adds: Mapping[str, tuple[I64, I64]]
    ) -> pa.Table:
        """Return the changes in the sums of the blocks that have bounds.

        - stays: which rows count for the bound that their block has.
        """
        sums = {}
        for name, (old, new) in adds.items():
            total = np.zeros(len(self.group), np.int64)
            np.add.at(total, rows.block, -old)
            np.add.at(total, home[stays], new[stays])
            sums[name] = total
        sums[WEIGHT] += np.where(rows.needed, 0, self.new - self.old)
        changed = np.logical_or.reduce([total != 0 for total in sums.values()]) & ~self.unlisted
        layout = self._ordered.layouts[BLOCKS]
        listed = self._listed.take(pa.array(self._at[changed])).select([HASH, *layout.names])
        columns = [pa.array(sums[name][changed]) for name in layout.sums]
        return pa.table([*listed.columns, *columns], schema=layout.schema)

    def _new_bounds(
        self, rows: "OrderedRows", piece: I64, number: I64, divided: Bools, adds: Mapping[str, I64]
    ) -> pa.Table:
        """Return the bounds of new pieces, and of the first pieces of `divided` blocks."""
        layout = self._ordered.layouts[BLOCKS]
        fresh = (rows.new > 0) & ((piece > 0) | divided[rows.block])
        chosen = np.flatnonzero(fresh)
        if len(chosen) == 0:
            return layout.empty()
        starts = np.flatnonzero(_changes([rows.block, piece], chosen))
        firsts = rows.rows.take(pa.array(chosen[starts])).combine_chunks()
        ordered = self._ordered
        hashes = column(self._groups, HASH)[self.group[rows.block[chosen[starts]]]]
        sums = [pa.array(np.add.reduceat(adds[name][chosen], starts)) for name in layout.sums]
        keys = [chunk(firsts, name) for name in layout.key_names]
        numbers = pa.array(number[chosen[starts]])
        columns = [pa.array(hashes), *keys, numbers, *ordered.bounds(firsts), *sums]
        return pa.table(columns, schema=layout.schema)

    def _renumbered(self, rows: pa.Table, number: I64) -> pa.Table:
        """Return rows with other block numbers, and the hashes of these blocks."""
        columns = {name: rows[name] for name in rows.column_names}
        columns[HASH] = pa.array((column(rows, HASH) & UPPER) | number)
        columns[BLOCK] = pa.array(number)
        return pa.table(columns)


class OrderedRows(NamedTuple):
    """The old and new rows of the blocks that a step reads, in order.

    Args:
        rows: each different row once, with the columns of the trace `rows` except for the weight.
        needed: which blocks were read.
        block: the block of each row.
        old, new: the weight of each row before and after the step.
        peer: which rows have another group or other sort keys than the row before.
    """

    rows: pa.Table
    needed: Bools
    block: I64
    old: I64
    new: I64
    peer: Bools


def _joint_order(
    ordered: OrderedTrace, listed: pa.Table, of_listed: I64, change: pa.Table, of_change: I64
) -> tuple[I64, I64, Bools, I64]:
    """Sort bounds and changed rows together.

    Returns for each place in the order: the group, a number that differs if the sort keys differ, whether it
    is a bound, and the row; changed rows count from the number of bounds.
    """
    both = []
    for n, key in enumerate(ordered.order):
        name = ordered.columns.names[key.place]
        both.append(pa.concat_arrays([chunk(listed, f"o{n}"), chunk(change, name)]))
    codes = ordered.codes(both)
    ties = [
        np.concatenate([column(listed, name), tie])
        for name, tie in zip(_TIES, ordered.ties(change), strict=True)
    ]
    group = np.concatenate([of_listed, of_change])
    # Stable, so a bound comes before an equal row.
    order: I64 = np.lexsort((*reversed([*codes, *ties]), group))
    peer: I64 = np.cumsum(_changes([group, *codes], order))
    return group[order], peer, order < listed.num_rows, order


def _changes(keys: Sequence[I64], order: I64) -> Bools:
    """Return which rows differ in one of the keys from the row before them in this order."""
    changes = np.zeros(len(order), bool)
    changes[:1] = True
    for key in keys:
        in_order = key[order]
        changes[1:] |= in_order[1:] != in_order[:-1]
    return changes


def take_or_zero(values: Any, places: I64) -> Any:
    """Return the values at these places; 0 for the place -1."""
    return np.append(values, values.dtype.type(0))[places]


def _with_upper(rows: pa.Table) -> pa.Table:
    """Return rows with the half of their hash that comes from the key."""
    return rows.set_column(rows.column_names.index(HASH), HASH, pa.array(column(rows, HASH) & UPPER))


def _with_two_weights(ordered: OrderedTrace, stored: pa.Table, change: pa.Table) -> pa.Table:
    """Combine stored rows with changed ones; each different row has its old weight and the change in it."""
    layout = ordered.layouts[ROWS]
    names = [HASH, *layout.names]
    both = Layout(layout.columns, layout.key, (_OLD, _DELTA))
    zeros = [pa.array(np.zeros(table.num_rows, np.int64)) for table in (stored, change)]
    parts = [
        pa.table([*stored.select(names).columns, stored[WEIGHT], zeros[0]], schema=both.schema),
        pa.table([*change.select(names).columns, zeros[1], change[WEIGHT]], schema=both.schema),
    ]
    return consolidate(pa.concat_tables(parts), both)


def _weighted(rows: pa.Table, weights: I64) -> pa.Table:
    """Return the rows whose weight is not zero."""
    kept = np.flatnonzero(weights)
    return rows.take(pa.array(kept)).append_column(WEIGHT, pa.array(weights[kept]))
