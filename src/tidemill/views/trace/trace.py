"""A trace in one range at one version: look up hashes, scan all rows, and add the changes of a step.

Existing runs never change. `extend` adds the step's rows to a bundle, and merges runs into the same bundle
within a budget. New and merged runs become part of the trace when a version lists them.
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
from tidemill.views.trace.merge_plan import MergePiece, merge_budget, narrow, plan_merges
from tidemill.views.trace.order import distinct
from tidemill.views.trace.run_table import AddedRun, MergedRuns, RunCut, RunEntry
from tidemill.views.trace.version import TraceChanges, TraceVersion

_CHUNK_ROWS = 65_536  # rows gathered at once: buffers of this size stay in the processor's cache
_CHUNK_BYTES = 16 * 1024**2  # fewer rows if they are wide
_MERGE_BYTES = 16 * 1024**2  # rows merged at once: a merge needs several copies of them
_SAMPLE_ROWS = 1024


class Trace:
    """The runs of a trace in a range.

    Args:
        name: the id of the trace.
        layout: its columns.
        entries: its pieces of run files in this range.
        cache: reads the pieces.
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
        """Return the trace in a version; raise `TraceStale` unless it is current up to step `at`."""
        return cls(name, layout, version.entries(name, within, at), cache, within)

    @property
    def rows(self) -> int:
        """About how many rows its runs have together."""
        return sum(entry.rows for entry in self.entries)

    # --- reading

    def lookup(self, hashes: Hashes, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows with these hashes from all runs, not consolidated.

        The cost depends on the number of rows returned, not on the size of the trace.

        Args:
            hashes: sorted and distinct.
            columns: the columns to read besides hash, key and sums; None reads all.
        """
        schema = self._selected(columns)
        return pa.Table.from_batches(list(self._read_rows(hashes, schema.names)), schema)

    def lookups(
        self, hashes: Hashes, columns: Sequence[str] | None = None, *, keys: bool = False
    ) -> Iterator[pa.Table]:
        """Like `lookup`, but yield tables of bounded size with one chunk each.

        This is needed because the rows of one key might not fit into memory.

        Args:
            hashes: sorted and distinct.
            columns: the columns to read besides hash, key and sums; None reads all.
            keys: whether the hashes are key hashes and the trace is fine. Then rows match if the upper half
                of their hash is the same.
        """
        schema = self._selected(columns)
        rows = self._read_rows(hashes, schema.names, keys=keys)
        for batches in batched(rows, 4 * _CHUNK_ROWS, _MERGE_BYTES):
            yield pa.Table.from_batches(batches, schema).combine_chunks()

    def _selected(self, columns: Sequence[str] | None) -> pa.Schema:
        return pa.schema([self.layout.schema.field(name) for name in self.layout.select(columns)])

    def _read_rows(self, hashes: Hashes, names: list[str], *, keys: bool = False) -> Iterator[pa.RecordBatch]:
        rest = ~UPPER if keys else np.int64(0)
        if keys:
            hashes = distinct(hashes & UPPER)
        for entry in self.entries:
            low, high = hash_bounds(entry.low, entry.high)
            in_entry = hashes[np.searchsorted(hashes, low) : np.searchsorted(hashes, high, "right")]
            if len(in_entry):
                for batch in self._cache.batches_with(entry, self.layout, in_entry, rest):
                    yield from _gather(batch, in_entry, names, rest)

    def scan(self, rows: int = 4 * _CHUNK_ROWS) -> Iterator[pa.Table]:
        """Yield the whole trace, consolidated and sorted by hash, about `rows` rows at a time."""
        low, last = self.within.grains
        while low <= last:
            density = self.rows / (last - self.within.grains[0] + 1)
            width = max(1, int(rows / density)) if density else last - low + 1
            piece = narrow(MergePiece(low, min(last, low + width - 1), self.entries), rows, self._count)
            table = consolidate(self._read(piece), self.layout)
            if table.num_rows:
                yield table
            low = piece.high + 1

    # --- writing

    def extend(
        self, delta: pa.Table, bundle: Bundle, budget_rows: int | None = None, *, settled: bool = False
    ) -> TraceChanges:
        """Add the rows of a step to the bundle, and merge some runs into it.

        Args:
            delta: rows of this range, with the columns of the layout.
            bundle: the bundle of the task.
            budget_rows: how many rows merges may rewrite; None derives it from the sizes of step and trace.
            settled: whether the delta is already consolidated.
        """
        fresh = delta if settled else consolidate(delta, self.layout)
        entry = bundle.add(self.layout, fresh, *self.within.grains)
        if budget_rows is None:
            budget_rows = merge_budget(fresh.num_rows, self.rows)
        added = (AddedRun(self.name, entry),) if entry is not None else ()
        return TraceChanges(added, tuple(self.merges(bundle, budget_rows)))

    def merges(self, bundle: Bundle, budget_rows: int) -> Iterator[MergedRuns]:
        """Do the planned merges within the budget."""
        for planned in plan_merges(self.entries, budget_rows):
            for piece in self._split(narrow(planned, budget_rows, self._count)):
                cuts = tuple(
                    RunCut(entry.file, entry.offset, max(entry.low, piece.low), min(entry.high, piece.high))
                    for entry in piece.entries
                )
                table = consolidate(self._read(piece), self.layout)
                yield MergedRuns(self.name, cuts, bundle.add(self.layout, table, piece.low, piece.high))

    def _split(self, piece: MergePiece) -> Iterator[MergePiece]:
        """Split a piece so that the rows of each part take bounded memory."""
        size = sum(
            self._count(entry, piece.low, piece.high) * self._row_bytes(entry, piece)
            for entry in piece.entries
        )
        width = piece.high - piece.low + 1
        step = max(1, width * _MERGE_BYTES // size) if size > _MERGE_BYTES else width
        for low in range(piece.low, piece.high + 1, step):
            yield piece._replace(low=low, high=min(piece.high, low + step - 1))

    def _row_bytes(self, entry: RunEntry, piece: MergePiece) -> int:
        """Estimate from a sample how many bytes a row of a run takes in memory."""
        part = entry.within(piece.low, piece.high)
        assert part is not None, "the runs of a merge cover its piece"
        low, high = hash_bounds(part.low, part.high)
        for batch in self._cache.between(entry, self.layout, low, high):
            return row_bytes(batch.slice(int(np.searchsorted(batch.column(HASH), low)), _SAMPLE_ROWS))
        return 1

    def _read(self, piece: MergePiece) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        for entry in piece.entries:
            part = entry.within(piece.low, piece.high)
            if part is None:
                continue
            low, high = hash_bounds(part.low, part.high)
            for batch in self._cache.between(entry, self.layout, low, high):
                hashes = batch.column(HASH).to_numpy()
                begin, end = np.searchsorted(hashes, low), np.searchsorted(hashes, high, "right")
                if end > begin:
                    batches.append(batch.slice(begin, end - begin))
        return pa.Table.from_batches(batches, self.layout.schema)

    def _count(self, entry: RunEntry, low: int, high: int) -> int:
        part = entry.within(low, high)
        return (
            0
            if part is None
            else self._cache.head(entry, self.layout).count(*hash_bounds(part.low, part.high))
        )


def _gather(
    batch: pa.RecordBatch, targets: Hashes, names: list[str], rest: np.int64
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a sorted batch that have one of the target hashes, ignoring the bits of `rest`."""
    hashes = batch.column(HASH).to_numpy()
    targets = _targets_within(targets, hashes, rest)
    selected = batch.select(names)
    for low, high in _windows(hashes, len(targets)):
        in_window = hashes[low:high]
        window_targets = _targets_within(targets, in_window, rest)
        if len(window_targets):
            yield from _gather_window(selected.slice(low, high - low), in_window, window_targets, rest)


def _targets_within(targets: Hashes, hashes: Hashes, rest: np.int64) -> Hashes:
    """Return the targets between the first and the last of the hashes."""
    first, last = hashes[0] & ~rest, hashes[-1]
    return targets[np.searchsorted(targets, first) : np.searchsorted(targets, last, "right")]


def _windows(hashes: Hashes, targets: int) -> Iterator[tuple[int, int]]:
    """Divide the rows for the search: many targets are searched in windows that fit the processor's cache."""
    width = _CHUNK_ROWS if targets > _CHUNK_ROWS // 16 else len(hashes)
    for low in range(0, len(hashes) if targets else 0, width):
        yield low, min(low + width, len(hashes))


def _gather_window(
    selected: pa.RecordBatch, hashes: Hashes, targets: Hashes, rest: np.int64
) -> Iterator[pa.RecordBatch]:
    at_once = min(_CHUNK_ROWS, max(1, _CHUNK_BYTES // row_bytes(selected)))
    if len(targets) * 8 >= len(hashes):  # similar sizes: search the distinct hashes in the targets
        keys = hashes & ~rest if rest else hashes
        begin = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        end = np.append(begin[1:], len(hashes))
        different = keys[begin]
        if not np.array_equal(different, targets):
            hit = targets[np.minimum(np.searchsorted(targets, different), len(targets) - 1)] == different
            begin, end = begin[hit], end[hit]
    else:
        begin = np.searchsorted(hashes, targets)
        hit = hashes[np.minimum(begin, len(hashes) - 1)] & ~rest == targets
        begin, targets = begin[hit], targets[hit]
        end = np.searchsorted(hashes, targets | rest, "right")
    total = int((end - begin).sum())
    if total == len(hashes):  # all rows match, as when every group changed
        yield from (selected.slice(first, at_once) for first in range(0, len(hashes), at_once))
        return
    rows = begin if total == len(begin) else expand(begin, end)
    for first in range(0, total, at_once):
        yield pc.take(selected, pa.array(rows[first : first + at_once]), boundscheck=False)


def expand(begin: Hashes, end: Hashes) -> Hashes:
    """Return the numbers begin[0] to end[0] - 1, then begin[1] to end[1] - 1, and so on."""
    counts = end - begin
    shift = np.repeat(begin - (np.cumsum(counts) - counts), counts)
    return shift + np.arange(len(shift))
