"""Window functions over consecutive rows of groups, and which rows a changed row can affect (DBSP-14).

A `RowSequence` has the rows of the blocks that a step reads, as they are before or after the step. Rows that
are equal appear as often as they occur. A *segment* is a stretch of the sequence without gaps. Functions that
depend on all rows before a segment use sums that the ordered trace stores for each block.

A row near the end of a segment may lack some of its neighbours. Its result is then wrong, but in the same way
before and after the step, so it is not returned: `Reach` ensures that all rows whose results can change have
their neighbours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.errors import TypeRefused
from tidemill.views.aggregates.registry import Accumulator, Kernel, kernel_of
from tidemill.views.aggregates.sums import decimals, limb_count, limbs_of
from tidemill.views.kernels.extremes import order_of
from tidemill.views.kernels.ordered_trace import Bools, OrderedChange, OrderedRows
from tidemill.views.trace.consolidation import carry, chunk
from tidemill.views.trace.order import I64

RANKS = frozenset({"row_number", "rank", "dense_rank"})
NEIGHBOURS = frozenset({"lag", "lead"})
DISTRIBUTIONS = frozenset({"percent_rank", "cume_dist", "ntile"})
PICKS = frozenset({"first_value", "last_value", "nth_value", "first", "last", "any_value"})
SESSION = "session_start"
"""Returns the time at which the session of a row begins; `offset` is the gap in microseconds."""
PEERS, SESSIONS = "peers", "sessions"
"""Sums of a block that count the rows with which a run begins: a run of rows with the same sort keys, or a
session. Whether a row begins a run depends on the row before it."""
RUNS = frozenset({PEERS, SESSIONS})


@dataclass(frozen=True)
class Frame:
    """The frame of a window function: `rows` or peers, from `start` to `end`.

    Offsets are relative to the current row, and negative before it; None is unbounded. A frame of peers has
    the offset 0 or None at each end.
    """

    rows: bool
    start: int | None
    end: int | None


WHOLE = Frame(rows=True, start=None, end=None)


@dataclass(frozen=True)
class Reach:
    """Which rows a changed row can affect, and which rows their results depend on.

    Args:
        before, after: so many rows before and after the changed row.
        start, end: all rows up to the start or the end of the group.
        peers: rows with the same sort keys.
        shifted: all rows after the changed row that now have a different number of rows before them.
        sessions: all rows of the same session, before and after the step.
    """

    before: int = 0
    after: int = 0
    start: bool = False
    end: bool = False
    peers: bool = False
    shifted: bool = False
    sessions: bool = False

    def __or__(self, other: "Reach") -> "Reach":
        return Reach(
            max(self.before, other.before),
            max(self.after, other.after),
            self.start or other.start,
            self.end or other.end,
            self.peers or other.peers,
            self.shifted or other.shifted,
            self.sessions or other.sessions,
        )


GROUP = Reach(start=True, end=True)


@dataclass(frozen=True)
class WindowFunction:
    """A window function that a kernel computes.

    Args:
        name: its name.
        type: the type of its result.
        argument: the column of its argument, if it has one.
        kind: the type of this column.
        offset: how many rows away lag and lead look; which row nth_value returns; the parts of ntile; the gap
            of sessions.
        frame: the frame of an aggregate, or of a function that returns a row of its frame.
        default: the column that lag and lead return where there is no such row.
    """

    name: str
    type: pa.DataType
    argument: str | None = None
    kind: pa.DataType | None = None
    offset: int = 1
    frame: Frame = WHOLE
    default: str | None = None

    def __post_init__(self) -> None:
        kernel = kernel_of(self.name)
        if self.name in RANKS | DISTRIBUTIONS:
            fits = self.type == (pa.float64() if self.name in {"percent_rank", "cume_dist"} else pa.int32())
        elif self.name == SESSION:
            fits = self.type == self.kind and self.kind in {pa.timestamp("us"), pa.timestamp("us", "UTC")}
        elif self.name in NEIGHBOURS | PICKS:
            fits = self.type == self.kind
        else:
            fits = kernel is not None and self._takes(kernel)
        if not fits:
            raise TypeRefused(
                f"{self.name} of {self.kind} values cannot be updated row by row",
                hint="no action is needed: Spark recomputes the changed partitions, or the whole view",
            )

    def _takes(self, kernel: Kernel) -> bool:
        if kernel.accumulator is Accumulator.COUNT:
            return bool(self.type == pa.int64())
        assert self.kind is not None
        if kernel.accumulator is Accumulator.SUM:
            return not pat.is_floating(self.kind) and kernel.takes(self.kind, self.type)
        order_of(pa.array([], self.kind))  # raises TypeRefused
        return bool(self.type == self.kind)

    @property
    def accumulator(self) -> Accumulator | None:
        kernel = kernel_of(self.name)
        return None if kernel is None or self.name in PICKS else kernel.accumulator

    @property
    def _adds(self) -> bool:
        return self.accumulator in {Accumulator.COUNT, Accumulator.SUM}

    @property
    def reach(self) -> Reach:
        """Which rows a change can affect."""
        if self.name in {"row_number", "rank"}:
            return Reach(shifted=True, peers=self.name == "rank")
        if self.name == "dense_rank":
            return Reach(end=True, peers=True)
        if self.name in DISTRIBUTIONS:
            return GROUP
        if self.name == SESSION:
            return Reach(before=1, after=1, sessions=True)
        if self.name in NEIGHBOURS:
            ahead = self.offset if self.name == "lead" else -self.offset
            return Reach(before=max(ahead, 0), after=max(-ahead, 0))
        frame = self.frame
        if frame.start is None and frame.end is not None and self._adds:
            return Reach(before=max(frame.end, 0), end=True, peers=not frame.rows)
        if frame.start is None or frame.end is None:
            return GROUP
        return Reach(before=max(frame.end, 0), after=max(-frame.start, 0), peers=not frame.rows)

    # --- sums of the rows before a segment

    @property
    def summed(self) -> tuple[str, ...]:
        """The sums that each block stores for this function."""
        if self.name in {"dense_rank", SESSION}:
            return (PEERS if self.name == "dense_rank" else SESSIONS,)
        if not self._adds or self.frame.start is not None or self.frame.end is None:
            return ()
        return self._sum_names

    @property
    def _sum_names(self) -> tuple[str, ...]:
        names = [f"n.{self.argument or '*'}"]
        if self.accumulator is Accumulator.SUM:
            assert self.kind is not None
            names += [f"s{limb}.{self.argument}" for limb in range(limb_count(self.kind))]
        return tuple(names)

    def adds(self, rows: pa.Table, weights: I64) -> list[I64]:
        """Return what each row adds to `_sum_names`, if it occurs so many times."""
        if self.argument is None:
            return [weights]
        values = chunk(rows, self.argument)
        numbers = weights
        if values.null_count:
            numbers = np.where(values.is_valid().to_numpy(zero_copy_only=False), weights, 0)
        if self.accumulator is Accumulator.COUNT:
            return [numbers]
        return [numbers, *limbs_of(values, weights)]

    def run_starts(self, rows: "RowSequence") -> Bools:
        """Return the rows with which a run begins (`RUNS`), as if each segment began with a run."""
        if self.name != SESSION:
            return rows.new_peers
        assert self.argument is not None
        times = chunk(rows.table, self.argument).view(pa.int64()).to_numpy()
        starts: Bools = np.arange(len(times)) == rows.segment_start
        # The difference of two timestamps may not fit into 64 bits, the end of a session does.
        starts[1:] |= times[1:] > np.minimum(times[:-1], np.iinfo(np.int64).max - self.offset) + self.offset
        return starts

    # --- results

    def values(self, rows: "RowSequence") -> pa.Array:
        """Return the result for each row of a sequence."""
        if self.name == SESSION:
            first = rows.run_begins(SESSIONS, self.run_starts(rows))
            return rows.picked(self.argument, first, first >= rows.segment_start)
        simple = _BY_POSITION.get(self.name)
        if simple is not None:
            return pa.array(simple(rows, self.offset)).cast(self.type)
        if self.name in NEIGHBOURS:
            number = np.arange(len(rows.row)) + (self.offset if self.name == "lead" else -self.offset)
            inside = (number >= rows.segment_start) & (number < rows.segment_end)
            picked = rows.picked(self.argument, number, inside)
            if self.default is None:
                return picked
            return pc.if_else(pa.array(inside), picked, chunk(rows.table, self.default))
        low, high = rows.frame(self.frame)
        if self.name in PICKS:
            last = self.name in {"last_value", "last"}
            number = high - 1 if last else low + (self.offset - 1 if self.name == "nth_value" else 0)
            return rows.picked(self.argument, number, (number >= low) & (number < high))
        if self._adds:
            return self._total(rows, low, high)
        return self._extreme(rows, low, high)

    def _total(self, rows: "RowSequence", low: I64, high: I64) -> pa.Array:
        ones = np.ones(len(rows.row), np.int64)
        totals = []
        for name, added in zip(self._sum_names, self.adds(rows.table, ones), strict=True):
            running = np.append(0, np.cumsum(added))
            total = running[np.maximum(high, low)] - running[low]
            totals.append(total + rows.before(name) if name in self.summed else total)
        count, *limbs = totals
        if self.accumulator is Accumulator.COUNT:
            return pa.array(count)
        assert self.kind is not None
        carried = {str(n): limb for n, limb in enumerate(limbs)}
        carry(carried, tuple(carried))
        scale = self.kind.scale if pat.is_decimal(self.kind) else 0
        kernel = kernel_of(self.name)
        assert kernel is not None
        value, overflows = decimals(list(carried.values()), scale, count > 0)
        raw = [value, pa.array(overflows)]
        return kernel.final([*raw, pa.array(count)] if kernel.counts else raw, self.kind, self.type)

    def _extreme(self, rows: "RowSequence", low: I64, high: I64) -> pa.Array:
        """Return the lowest or highest value of each frame.

        Level n of a table has the best row of each stretch of 2^n rows, so two stretches cover a frame.
        """
        assert self.argument is not None
        values = chunk(rows.table, self.argument)
        codes = order_of(values)
        codes = codes if self.accumulator is Accumulator.LEAST else ~codes
        worst = np.iinfo(np.int64).max
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        rank = np.where(valid, np.unique(codes, return_inverse=True)[1], worst)
        size = np.maximum(high - low, 0)
        level_of = np.frexp(np.maximum(size, 1).astype(np.float64))[1] - 1
        best, lowest = rank, np.full(len(rank), worst)
        for level in range(int(level_of.max(initial=0)) + 1):
            chosen = np.flatnonzero((level_of == level) & (size > 0))
            lowest[chosen] = np.minimum(best[low[chosen]], best[high[chosen] - (1 << level)])
            shifted = np.append(best[1 << level :], np.full(min(1 << level, len(best)), worst))
            best = np.minimum(best, shifted)
        row_of = np.zeros(len(rank) + 1, np.int64)
        row_of[rank[valid]] = np.flatnonzero(valid)
        present = lowest < worst
        return values.take(pa.array(row_of[np.where(present, lowest, 0)], mask=~present))


class _Segments(NamedTuple):
    """The first block of each segment, and the segment of each block that was read."""

    first: I64
    of_block: I64


class RowSequence:
    """The rows of the blocks that were read, before or after a step.

    Args:
        opened: the blocks.
        rows: the rows that were read.
        weights: how often each row occurs.
        counts: how many rows each block has.
        sums: the further sums of each block by name.

    Attributes:
        row: the number of each row among the different rows that were read.
        table: the rows.
        segment: the segment of each row.
        continued: for each kind of run, and for each segment: 1 if its first row continues a run of the row
            before the segment.
    """

    def __init__(
        self,
        opened: OrderedChange,
        rows: OrderedRows,
        weights: I64,
        counts: I64,
        sums: Mapping[str, I64],
    ) -> None:
        self._opened, self._sums, self._counts = opened, sums, counts
        self._distinct = len(weights)
        self.row: I64 = np.repeat(np.arange(len(weights)), weights)
        self.table = rows.rows.take(pa.array(self.row)).combine_chunks()
        self._block = rows.block[self.row]
        self._peer_number = np.cumsum(rows.peer)[self.row]
        starts = rows.needed.copy()
        starts[1:] &= ~rows.needed[:-1] | (opened.group[1:] != opened.group[:-1])
        self._segments = _Segments(np.flatnonzero(starts), np.cumsum(starts) - 1)
        self.segment: I64 = self._segments.of_block[self._block]
        self.continued: dict[str, I64] = {}

    def continuations(self, starts: Bools, stored: I64) -> I64:
        """Return for each segment 1 if its first row continues a run of the row before the segment.

        The two sequences of a step do not differ in this: otherwise, the block of the row before is read.

        Args:
            starts: the rows with which a run begins, as if each segment began with one.
            stored: how many runs begin in each block.
        """
        first = self._segments.first
        counted = np.bincount(self._block[starts], minlength=len(stored))
        continued: I64 = np.where(self._opened.unlisted[first], 0, (counted - stored)[first])
        return continued

    def _begins(self, run: str, starts: Bools) -> I64:
        """Return for each row 1 if a run begins with it, else 0."""
        begins = starts.astype(np.int64)
        first = np.flatnonzero(np.append(True, self.segment[1:] != self.segment[:-1])[: len(starts)])
        begins[first] -= self.continued[run][self.segment[first]]
        return begins

    def first_of_runs(self, run: str, starts: Bools) -> I64:
        """Return for each different row how many runs begin with it: 1 or 0."""
        total = np.zeros(self._distinct, np.int64)
        np.add.at(total, self.row, self._begins(run, starts))
        return total

    def run_begins(self, run: str, starts: Bools) -> I64:
        """Return for each row the first row of its run; a row before its segment, if the run begins there."""
        numbers = np.where(self._begins(run, starts) > 0, np.arange(len(starts)), -1)
        begins: I64 = np.maximum.accumulate(numbers)
        return begins

    @cached_property
    def segment_start(self) -> I64:
        """The first row of the segment of each row."""
        first: I64 = np.searchsorted(self.segment, self.segment)
        return first

    @cached_property
    def segment_end(self) -> I64:
        """The row after the last one of the segment of each row."""
        end: I64 = np.searchsorted(self.segment, self.segment, "right")
        return end

    @cached_property
    def new_peers(self) -> Bools:
        """Which rows are the first of their segment, or have other sort keys than the row before."""
        changes = np.ones(len(self.row), bool)
        number, segment = self._peer_number, self.segment
        changes[1:] = (number[1:] != number[:-1]) | (segment[1:] != segment[:-1])
        return changes

    @cached_property
    def peer_start(self) -> I64:
        """The first row with the same sort keys as each row."""
        starts = np.flatnonzero(self.new_peers)
        first: I64 = np.repeat(starts, np.diff(np.append(starts, len(self.row))))
        return first

    @cached_property
    def peer_end(self) -> I64:
        """The row after the last one with the same sort keys as each row."""
        starts = np.append(np.flatnonzero(self.new_peers), len(self.row))
        end: I64 = np.repeat(starts[1:], np.diff(starts))
        return end

    @cached_property
    def position(self) -> I64:
        """How many rows of the group come before each row."""
        place: I64 = np.arange(len(self.row)) - self.segment_start + self._before(self._counts)
        return place

    @cached_property
    def size(self) -> I64:
        """How many rows the group of each row has."""
        opened = self._opened
        totals = np.add.reduceat(self._counts, opened.first)
        of_row: I64 = totals[opened.group[self._block]]
        return of_row

    @cached_property
    def peers_before(self) -> I64:
        """How many different sort keys the group has up to each row."""
        started = np.cumsum(self.new_peers)
        count: I64 = started - started[self.segment_start] + 1 - self.continued[PEERS][self.segment]
        return count + self.before(PEERS)

    def before(self, name: str) -> I64:
        """Return for each row this sum over the blocks before its segment."""
        return self._before(self._sums[name])

    def _before(self, counts: I64) -> I64:
        before: I64 = self._opened.before(counts)[self._segments.first][self.segment]
        return before

    def frame(self, frame: Frame) -> tuple[I64, I64]:
        """Return the first row of each row's frame, and the row after the last one."""
        number = np.arange(len(self.row))
        low, high = self.segment_start, self.segment_end
        if frame.start is not None:
            low = np.clip(number + frame.start, low, high) if frame.rows else self.peer_start
        if frame.end is not None:
            start = self.segment_start
            high = np.clip(number + frame.end + 1, start, high) if frame.rows else self.peer_end
        return low, high

    def picked(self, name: str | None, numbers: I64, present: Bools) -> pa.Array:
        """Return the values of a column in these rows; NULL where none is present."""
        assert name is not None
        return pc.take(chunk(self.table, name), pa.array(np.where(present, numbers, 0), mask=~present))


def _row_number(rows: RowSequence, _: int) -> I64:
    return rows.position + 1


def _rank(rows: RowSequence, _: int) -> I64:
    ranks: I64 = rows.position - (np.arange(len(rows.row)) - rows.peer_start) + 1
    return ranks


def _dense_rank(rows: RowSequence, _: int) -> I64:
    return rows.peers_before


def _percent_rank(rows: RowSequence, _: int) -> Any:
    return (_rank(rows, 0) - 1) / np.maximum(rows.size - 1, 1)


def _cume_dist(rows: RowSequence, _: int) -> Any:
    return (rows.position - np.arange(len(rows.row)) + rows.peer_end) / rows.size


def _ntile(rows: RowSequence, parts: int) -> I64:
    size, extra = np.divmod(rows.size, parts)
    long = extra * (size + 1)
    tiles: I64 = np.where(
        rows.position < long,
        rows.position // (size + 1),
        extra + (rows.position - long) // np.maximum(size, 1),
    )
    return tiles + 1


_BY_POSITION: Mapping[str, Callable[[RowSequence, int], Any]] = {
    "row_number": _row_number,
    "rank": _rank,
    "dense_rank": _dense_rank,
    "percent_rank": _percent_rank,
    "cume_dist": _cume_dist,
    "ntile": _ntile,
}


def reach_of(functions: Sequence[WindowFunction]) -> Reach:
    """Return which rows a change can affect in any of the functions."""
    reach = Reach()
    for function in functions:
        reach |= function.reach
    return reach
