"""Rows of one side whose key the other side has, or lacks: what a step reads of a key with many rows."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.test_views_types import MemoryTraces
from tidemill.errors import WeightNegative
from tidemill.views.chain.stateful_operator import layout_of, rows_by_key
from tidemill.views.kernels.key_presence import KeyPresence
from tidemill.views.trace.consolidation import consolidate
from tidemill.views.trace.hash_space import Hashes

INT = pa.int64()
SIDE = layout_of((INT, INT), (0,))
MANY = 10_000


class Rows:
    """Stored rows that count how many of them are read."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self.read = 0

    def lookups(self, hashes: Hashes, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        rows = self._rows.filter(pa.array(np.isin(self._rows["_h"].to_numpy(), hashes)))
        self.read += rows.num_rows
        yield rows.select(SIDE.select(columns)).combine_chunks()


def table(*rows: tuple[int, int, int]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [pa.array(column, INT) for column in columns]
    return consolidate(rows_by_key(pa.table(arrays, names=["c0", "c1", "_w"]), SIDE, (0,)), SIDE)


class Stage:
    """One side with many rows of key 1, and the counts of the other side."""

    def __init__(self, *, present: bool) -> None:
        self.kernel = KeyPresence(SIDE, (("k0", "c0"), ("p1", "c1")), present)
        self.rows = Rows(table(*((1, n, 1) for n in range(MANY))))
        self.traces = MemoryTraces()

    def step(self, change: pa.Table, other: pa.Table) -> list[tuple[int, int, int]]:
        trace = self.traces.trace("counts", self.kernel.counts)
        counted = self.kernel.count(other)
        pieces = list(self.kernel.step(change, counted, self.rows, trace))
        self.traces.append("counts", self.kernel.counts, counted)
        return sorted(tuple(row.values()) for piece in pieces for row in piece.to_pylist())


@pytest.mark.parametrize("present", [True, False])
def test_a_changed_row_of_a_key_with_many_rows_reads_none_of_them(present: bool) -> None:
    stage = Stage(present=present)
    if present:
        stage.step(table(), table((1, 0, 1)))
    stage.rows.read = 0
    assert stage.step(table((1, -1, 1), (1, 7, -1)), table()) == [(1, -1, 1), (1, 7, -1)]
    assert stage.rows.read == 0


def test_the_rows_of_a_key_are_read_only_when_its_first_partner_comes_or_its_last_one_goes() -> None:
    stage = Stage(present=True)
    assert len(stage.step(table(), table((1, 0, 1)))) == MANY
    stage.rows.read = 0
    assert stage.step(table(), table((1, 1, 1), (1, 2, 1))) == []
    assert stage.step(table(), table((1, 1, -1), (1, 0, -1))) == []
    assert stage.rows.read == 0
    gone = stage.step(table(), table((1, 2, -1)))
    assert len(gone) == MANY
    assert {weight for _, _, weight in gone} == {-1}


def test_a_row_that_was_never_counted_cannot_be_deleted() -> None:
    with pytest.raises(WeightNegative):
        Stage(present=True).step(table(), table((1, 0, -1)))
