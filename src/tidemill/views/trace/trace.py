"""A trace in one range at one version: look up hashes, read it through, and write what changed.

Nothing here changes a run that exists. `extend` adds the step's rows to a bundle, and merges within a budget
into the same bundle; both become part of the trace when a version lists them.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.views.trace.batches import batched, row_bytes
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.consolidation import consolidate
from tidemill.views.trace.hash_space import ALL, Hashes, HashRange, hash_bounds
from tidemill.views.trace.key_hash import UPPER
from tidemill.views.trace.layout import HASH, Layout
from tidemill.views.trace.merge_plan import MergePiece, fitted, merge_budget, plan_merges
from tidemill.views.trace.order import distinct
from tidemill.views.trace.version import AddedRun, MergedRuns, RunCut, RunEntry, TraceChanges, TraceVersion

_CHUNK_ROWS = 65_536  # rows gathered at once: buffers of this size stay in the processor's cache
_CHUNK_BYTES = 16 * 1024**2  # and fewer where they are wide
_MERGE_BYTES = 16 * 1024**2  # rows that are merged at once: several copies of them are there for a while
_SAMPLE_ROWS = 1024


class Trace:
    """The runs of a trace in a range.

    Args:
        name: the trace's id.
        layout: its columns.
        entries: its pieces in this range.
        cache: reads them.
        within: the range.
    """

    def __init__(
        self, name: str, layout: Layout, entries: Sequence[RunEntry], cache: Cache, within: HashRange = ALL
    ) -> None:
        self.name = name
        self.layout = layout
        self.entries = tuple(entries)
        self.within = within
        self._cache = cache

    @classmethod
    def of(
        cls, version: TraceVersion, name: str, layout: Layout, cache: Cache, within: HashRange, at: int
    ) -> "Trace":
        """The trace in a version; `TraceStale` unless it is current to step `at`."""
        return cls(name, layout, version.entries(name, within, at), cache, within)

    @property
    def rows(self) -> int:
        """About how many rows its runs have together."""
        return sum(entry.rows for entry in self.entries)

    # --- reading

    def lookup(self, hashes: Hashes, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows with these hashes, of all runs, not added up; the cost follows the rows found.

        Args:
            hashes: sorted, each once.
            columns: what to read beside hash, key and sums; None is everything.
        """
        schema = self._chosen(columns)
        return pa.Table.from_batches(list(self._found(hashes, schema.names)), schema)

    def lookups(
        self, hashes: Hashes, columns: Sequence[str] | None = None, *, keys: bool = False
    ) -> Iterator[pa.Table]:
        """The same in tables of a bounded size, each in one chunk: a key may have more rows than memory.

        Args:
            hashes: sorted, each once.
            columns: what to read beside hash, key and sums; None is everything.
            keys: the hashes are those of keys, and rows with the upper half of one are wanted: those of a
                trace that is fine.
        """
        schema = self._chosen(columns)
        for some in batched(self._found(hashes, schema.names, keys=keys), 4 * _CHUNK_ROWS, _MERGE_BYTES):
            yield pa.Table.from_batches(some, schema).combine_chunks()

    def _chosen(self, columns: Sequence[str] | None) -> pa.Schema:
        return pa.schema([self.layout.schema.field(name) for name in self.layout.select(columns)])

    def _found(self, hashes: Hashes, names: list[str], *, keys: bool = False) -> Iterator[pa.RecordBatch]:
        rest = ~UPPER if keys else np.int64(0)
        if keys:
            hashes = distinct(hashes & UPPER)
        for entry in self.entries:
            low, high = hash_bounds(entry.low, entry.high)
            wanted = hashes[np.searchsorted(hashes, low) : np.searchsorted(hashes, high, "right")]
            if len(wanted):
                for batch in self._cache.holding(entry, self.layout, wanted, rest):
                    yield from _gather(batch, wanted, names, rest)

    def consolidated(self, hashes: Hashes) -> pa.Table:
        """All rows with these hashes, added up."""
        return consolidate(self.lookup(hashes), self.layout)

    def scan(self, rows: int = 4 * _CHUNK_ROWS) -> Iterator[pa.Table]:
        """The whole trace, added up, about `rows` rows of its runs at a time, in order of the hash."""
        low, last = self.within.grains
        while low <= last:
            thickness = self.rows / (last - self.within.grains[0] + 1)
            width = max(1, int(rows / thickness)) if thickness else last - low + 1
            piece = fitted(MergePiece(low, min(last, low + width - 1), self.entries), rows, self._count)
            table = consolidate(self._read(piece), self.layout)
            if table.num_rows:
                yield table
            low = piece.high + 1

    # --- writing

    def extend(
        self, delta: pa.Table, bundle: Bundle, budget_rows: int | None = None, *, settled: bool = False
    ) -> TraceChanges:
        """Add the rows of a step, and merge some runs; both are in the bundle, and count once it is listed.

        Args:
            delta: rows of this range, with the columns of the layout.
            bundle: the task's.
            budget_rows: how many rows merges may rewrite; None goes by the sizes of the step and the trace.
            settled: the delta is what `consolidate` gave.
        """
        fresh = delta if settled else consolidate(delta, self.layout)
        entry = bundle.add(self.layout, fresh, *self.within.grains)
        if budget_rows is None:
            budget_rows = merge_budget(fresh.num_rows, self.rows)
        added = (AddedRun(self.name, entry),) if entry is not None else ()
        return TraceChanges(added, tuple(self.merges(bundle, budget_rows)))

    def merges(self, bundle: Bundle, budget_rows: int) -> Iterator[MergedRuns]:
        """Merge what is due within the budget."""
        for planned in plan_merges(self.entries, budget_rows):
            for piece in self._holdable(fitted(planned, budget_rows, self._count)):
                cuts = tuple(
                    RunCut(entry.file, entry.offset, max(entry.low, piece.low), min(entry.high, piece.high))
                    for entry in piece.entries
                )
                table = consolidate(self._read(piece), self.layout)
                yield MergedRuns(self.name, cuts, bundle.add(self.layout, table, piece.low, piece.high))

    def _holdable(self, piece: MergePiece) -> Iterator[MergePiece]:
        """The piece, cut so that the rows of each part take a bounded memory."""
        taken = sum(
            self._count(entry, piece.low, piece.high) * self._row_bytes(entry, piece)
            for entry in piece.entries
        )
        width = piece.high - piece.low + 1
        step = max(1, width * _MERGE_BYTES // taken) if taken > _MERGE_BYTES else width
        for low in range(piece.low, piece.high + 1, step):
            yield piece._replace(low=low, high=min(piece.high, low + step - 1))

    def _row_bytes(self, entry: RunEntry, piece: MergePiece) -> int:
        """About how many bytes a row of a run takes in memory: by some rows of it."""
        part = entry.within(piece.low, piece.high)
        assert part is not None, "a merge is of runs that cover it"
        low, high = hash_bounds(part.low, part.high)
        for batch in self._cache.between(entry, self.layout, low, high):
            return row_bytes(batch.slice(int(np.searchsorted(batch.column(HASH), low)), _SAMPLE_ROWS))
        return 1

    def _read(self, piece: MergePiece) -> pa.Table:
        found: list[pa.RecordBatch] = []
        for entry in piece.entries:
            part = entry.within(piece.low, piece.high)
            if part is None:
                continue
            low, high = hash_bounds(part.low, part.high)
            for batch in self._cache.between(entry, self.layout, low, high):
                hashes = batch.column(HASH).to_numpy()
                begin, end = np.searchsorted(hashes, low), np.searchsorted(hashes, high, "right")
                if end > begin:
                    found.append(batch.slice(begin, end - begin))
        return pa.Table.from_batches(found, self.layout.schema)

    def _count(self, entry: RunEntry, low: int, high: int) -> int:
        part = entry.within(low, high)
        return (
            0
            if part is None
            else self._cache.head(entry, self.layout).count(*hash_bounds(part.low, part.high))
        )


def _gather(
    batch: pa.RecordBatch, wanted: Hashes, names: list[str], rest: np.int64
) -> Iterator[pa.RecordBatch]:
    """The rows of a sorted batch that have one of the hashes, whatever the bits of `rest` are."""
    hashes = batch.column(HASH).to_numpy()
    wanted = _among(wanted, hashes, rest)
    chosen = batch.select(names)
    for low, high in _stretches(hashes, len(wanted)):
        here = hashes[low:high]
        some = _among(wanted, here, rest)
        if len(some):
            yield from _gather_here(chosen.slice(low, high - low), here, some, rest)


def _among(wanted: Hashes, hashes: Hashes, rest: np.int64) -> Hashes:
    """Those that are wanted from the first to the last of the hashes."""
    first, last = hashes[0] & ~rest, hashes[-1]
    return wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, last, "right")]


def _stretches(hashes: Hashes, wanted: int) -> Iterator[tuple[int, int]]:
    """Where to look at once: for many hashes, in rows that stay in the processor's cache meanwhile."""
    width = _CHUNK_ROWS if wanted > _CHUNK_ROWS // 16 else len(hashes)
    for low in range(0, len(hashes) if wanted else 0, width):
        yield low, min(low + width, len(hashes))


def _gather_here(
    chosen: pa.RecordBatch, hashes: Hashes, wanted: Hashes, rest: np.int64
) -> Iterator[pa.RecordBatch]:
    at_once = min(_CHUNK_ROWS, max(1, _CHUNK_BYTES // row_bytes(chosen)))
    if len(wanted) * 8 >= len(hashes):  # about as many as there are: walk along both
        keys = hashes & ~rest if rest else hashes
        begin = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        end = np.append(begin[1:], len(hashes))
        mine = keys[begin]
        if not np.array_equal(mine, wanted):
            hit = wanted[np.minimum(np.searchsorted(wanted, mine), len(wanted) - 1)] == mine
            begin, end = begin[hit], end[hit]
    else:
        begin = np.searchsorted(hashes, wanted)
        hit = hashes[np.minimum(begin, len(hashes) - 1)] & ~rest == wanted
        begin, wanted = begin[hit], wanted[hit]
        end = np.searchsorted(hashes, wanted | rest, "right")
    total = int((end - begin).sum())
    if total == len(hashes):  # all of them, as where every group has changed
        yield from (chosen.slice(first, at_once) for first in range(0, len(hashes), at_once))
        return
    rows = begin if total == len(begin) else expand(begin, end)
    for first in range(0, total, at_once):
        yield pc.take(chosen, pa.array(rows[first : first + at_once]), boundscheck=False)


def expand(begin: Hashes, end: Hashes) -> Hashes:
    """The numbers begin[0] to end[0] - 1, then begin[1] to end[1] - 1, and so on."""
    counts = end - begin
    shift = np.repeat(begin - (np.cumsum(counts) - counts), counts)
    return shift + np.arange(len(shift))
