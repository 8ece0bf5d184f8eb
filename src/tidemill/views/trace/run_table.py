"""Run tables: the pieces of run files in all traces of a version, as one table of numbers.

A version of a large group lists more than a hundred thousand pieces, and each step adds thousands. So they
are rows of a numpy array, and a step changes all of them with a few array operations. Only pieces that code
looks at become `RunEntry` objects: those of one trace in one range, and those that a merge replaces.

The rows are sorted by trace, and the rows of a trace stay in the order in which they were added. A table is
immutable.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.int64]]

TRACE, FILE, LOW, HIGH, OFFSET, LENGTH, HEAD, ROWS = range(8)
"""The columns of a table. `TRACE` and `FILE` are indexes into its lists of names."""

COLUMNS = 8
_NONE: Numbers = np.empty((0, COLUMNS), np.int64)


class RunEntry(NamedTuple):
    """A piece of a run file that belongs to a trace: the rows of one run in the grains `low` to `high`.

    Args:
        file: the key of the object.
        low: the first grain (see `hash_space`).
        high: the last grain.
        offset: where the run starts in the object.
        length: how many bytes the run has.
        head: how many of these bytes are the head of the run.
        rows: how many rows the piece has; an estimate after a cut, used to plan merges.
    """

    file: str
    low: int
    high: int
    offset: int
    length: int
    head: int
    rows: int

    def within(self, low: int, high: int) -> "RunEntry | None":
        """Return the part of the piece in these grains; None if there is none."""
        first, last = max(self.low, low), min(self.high, high)
        if first > last:
            return None
        share = (last - first + 1) / (self.high - self.low + 1)
        return self._replace(low=first, high=last, rows=round(self.rows * share))


class RunCut(NamedTuple):
    """The grains of a run that a merge replaces."""

    file: str
    offset: int
    low: int
    high: int


class AddedRun(NamedTuple):
    """A new run of a trace."""

    trace: str
    entry: RunEntry


class MergedRuns(NamedTuple):
    """A merge: one piece with the rows of all cuts; no piece if the rows cancelled out."""

    trace: str
    cuts: tuple[RunCut, ...]
    entry: RunEntry | None


class RunTable:
    """The pieces of all traces.

    Args:
        traces: the names of traces, sorted. Those without pieces may be missing.
        files: the keys of run files.
        numbers: one row for each piece, sorted by trace.
    """

    def __init__(
        self, traces: Sequence[str] = (), files: Sequence[str] = (), numbers: Numbers = _NONE
    ) -> None:
        self.traces = tuple(traces)
        self.files = tuple(files)
        self.numbers = numbers
        self._bounds = np.searchsorted(numbers[:, TRACE], np.arange(len(self.traces) + 1))
        self._index = {name: at for at, name in enumerate(self.traces)}

    @classmethod
    def of(cls, traces: Mapping[str, Sequence[RunEntry]]) -> "RunTable":
        """Return a table of these pieces."""
        return cls().changed(
            added=[AddedRun(name, entry) for name, entries in traces.items() for entry in entries]
        )[0]

    def __len__(self) -> int:
        return len(self.numbers)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same pieces in each trace, in any order."""
        return isinstance(other, RunTable) and self._sorted() == other._sorted()

    __hash__ = None  # type: ignore[assignment] # like other tables

    def _sorted(self) -> dict[str, list[RunEntry]]:
        return {name: sorted(entries) for name in self.traces if (entries := self.entries(name))}

    # --- reading

    def of_trace(self, trace: str, low: int, high: int) -> tuple[RunEntry, ...]:
        """Return the parts of a trace's pieces in the grains `low` to `high`."""
        rows = self._rows(trace)
        rows = rows[(rows[:, LOW] <= high) & (rows[:, HIGH] >= low)]
        parts = (self._entry(row).within(low, high) for row in rows.tolist())
        return tuple(part for part in parts if part is not None)

    def entries(self, trace: str) -> tuple[RunEntry, ...]:
        """Return the pieces of a trace."""
        return tuple(self._entry(row) for row in self._rows(trace).tolist())

    def within(self, low: int, high: int) -> "RunTable":
        """Return a table of the pieces that overlap the grains `low` to `high`."""
        numbers = self.numbers
        return RunTable(
            self.traces, self.files, numbers[(numbers[:, LOW] <= high) & (numbers[:, HIGH] >= low)]
        )

    def listed(self) -> frozenset[str]:
        """Return the keys of the files that have a piece."""
        return frozenset(self.files[at] for at in np.unique(self.numbers[:, FILE]).tolist())

    def rows(self) -> dict[str, int]:
        """Return how many rows each trace with pieces has."""
        return {
            name: int(self.numbers[low:high, ROWS].sum())
            for name, low, high in zip(self.traces, self._bounds[:-1], self._bounds[1:], strict=True)
            if low < high
        }

    @property
    def size(self) -> int:
        """The bytes of all runs."""
        return int(self.numbers[:, LENGTH].sum())

    def _rows(self, trace: str) -> Numbers:
        at = self._index.get(trace)
        return _NONE if at is None else self.numbers[self._bounds[at] : self._bounds[at + 1]]

    def _entry(self, row: list[int]) -> RunEntry:
        return RunEntry(self.files[row[FILE]], *row[LOW:])

    # --- changing

    def changed(
        self,
        added: Iterable[AddedRun] = (),
        merged: Iterable[MergedRuns] = (),
        *,
        without: Collection[str] = (),
    ) -> "tuple[RunTable, tuple[MergedRuns, ...]]":
        """Return a table with these changes, and the merges that were dropped.

        Args:
            added: the new pieces.
            merged: the merges; a merge is dropped if one of its cuts is not listed.
            without: traces whose present pieces are removed first.
        """
        numbers = self.numbers
        if without:
            removed = [at for at, name in enumerate(self.traces) if name in without]
            numbers = numbers[~np.isin(numbers[:, TRACE], removed)]
        merges = tuple(merged)
        late: tuple[MergedRuns, ...] = ()
        pieces: list[AddedRun] = []
        if merges:
            cut = self._cut_rows(numbers, merges)
            stack = _Pieces((self.traces[row[TRACE]], self._entry(row)) for row in numbers[cut].tolist())
            late = tuple(merge for merge in merges if not stack.apply(merge))
            numbers, pieces = numbers[~cut], stack.listed()
        return self._with(numbers, [*pieces, *added]), late

    def _cut_rows(self, numbers: Numbers, merges: Sequence[MergedRuns]) -> np.ndarray[Any, np.dtype[np.bool]]:
        """Return which rows belong to runs that these merges cut."""
        files = {file: at for at, file in enumerate(self.files)}
        cuts = {
            (self._index[merge.trace], files[cut.file], cut.offset)
            for merge in merges
            if merge.trace in self._index
            for cut in merge.cuts
            if cut.file in files
        }
        wanted = np.array(sorted(cuts), np.int64).reshape(-1, 3)
        likely = np.flatnonzero(
            np.isin(numbers[:, FILE], np.unique(wanted[:, 1]))
            & np.isin(numbers[:, OFFSET], np.unique(wanted[:, 2]))
        )
        chosen = np.zeros(len(numbers), np.bool)
        rows = numbers[likely][:, [TRACE, FILE, OFFSET]].tolist()
        chosen[[at for at, row in zip(likely.tolist(), rows, strict=True) if tuple(row) in cuts]] = True
        return chosen

    def _with(self, numbers: Numbers, added: Sequence[AddedRun]) -> "RunTable":
        """Return a table of these rows and pieces, with the names that they use."""
        used = np.zeros(len(self.files), np.bool)
        used[numbers[:, FILE]] = True
        files = [self.files[at] for at in np.flatnonzero(used).tolist()]
        present = (self.traces[at] for at in np.unique(numbers[:, TRACE]).tolist())
        traces = sorted({*present, *(run.trace for run in added)})
        index = {name: at for at, name in enumerate(traces)}
        numbers = numbers.copy()
        numbers[:, FILE] = (np.cumsum(used) - 1)[numbers[:, FILE]]
        numbers[:, TRACE] = np.array([index.get(name, -1) for name in self.traces], np.int64)[
            numbers[:, TRACE]
        ]
        if added:
            number = {file: at for at, file in enumerate(files)}
            rows = [
                (index[trace], number.setdefault(entry.file, len(number)), *entry[1:])
                for trace, entry in added
            ]
            files = list(number)
            numbers = np.concatenate([numbers, np.array(rows, np.int64)])
            numbers = numbers[np.argsort(numbers[:, TRACE], kind="stable")]
        return RunTable(traces, files, numbers)


class _Pieces:
    """The pieces of the runs that merges cut."""

    def __init__(self, pieces: Iterable[tuple[str, RunEntry]]) -> None:
        self._of_run: dict[tuple[str, str, int], list[RunEntry]] = {}
        for trace, entry in pieces:
            self._add(trace, entry)

    def _add(self, trace: str, entry: RunEntry) -> None:
        self._of_run.setdefault((trace, entry.file, entry.offset), []).append(entry)

    def apply(self, merge: MergedRuns) -> bool:
        """Replace a merge's cuts with its piece; return False, and change nothing, if a cut is not listed."""
        left: dict[tuple[str, str, int], list[RunEntry]] = {}
        for cut in merge.cuts:
            run = (merge.trace, cut.file, cut.offset)
            pieces = left.get(run, self._of_run.get(run, []))
            if [(piece.low, piece.high) for piece in pieces] == [(cut.low, cut.high)]:
                left[run] = []  # the usual case, without the arithmetic
                continue
            rest: list[RunEntry] = []
            missing = cut.high - cut.low + 1
            for entry in pieces:
                if entry.within(cut.low, cut.high) is None:
                    rest.append(entry)
                    continue
                missing -= min(entry.high, cut.high) - max(entry.low, cut.low) + 1
                around = (entry.within(entry.low, cut.low - 1), entry.within(cut.high + 1, entry.high))
                rest.extend(piece for piece in around if piece is not None)
            if missing:
                return False
            left[run] = rest
        self._of_run |= left
        if merge.entry is not None:
            self._add(merge.trace, merge.entry)
        return True

    def listed(self) -> list[AddedRun]:
        """Return the pieces that are left, and those of the merges."""
        return [AddedRun(run[0], entry) for run, entries in self._of_run.items() for entry in entries]
