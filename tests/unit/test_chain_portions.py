"""Rows in portions: by their number and by their bytes; what is large is put aside on its way to files."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.views.chain.chain import Chain, PlacedOperator
from tidemill.views.chain.layer_task import StepPlan
from tidemill.views.chain.source_operators import ChangesSource
from tidemill.views.kernels.zsets import net_rows
from tidemill.views.spark.row_sink import RowSink
from tidemill.views.trace.batches import BATCH_BYTES, batched, split_rows
from tidemill.views.trace.hash_space import ranges


def test_portions_are_limited_by_rows_and_by_bytes_and_lose_nothing() -> None:
    narrow = pa.table({"a": pa.array(range(1000), pa.int64())})
    assert [one.num_rows for one in split_rows(narrow, rows=300)] == [300, 300, 300, 100]
    assert max(one.nbytes for one in split_rows(narrow, size=1000)) <= 1000
    assert list(split_rows(narrow.slice(0, 0))) == []
    uneven = pa.table({"a": ["x"] * 50 + ["y" * 10_000] + ["z"] * 50 + ["w" * 3_000] * 4})
    found = list(split_rows(uneven, size=4_000))
    assert pa.concat_tables(found).equals(uneven)
    assert [one.num_rows for one in found if one.nbytes > 4_000] == [1], "a row is never cut"


def test_heaps_close_when_rows_or_bytes_suffice() -> None:
    parts = [pa.table({"a": ["x" * size]}) for size in (1, 1, 1000, 1, 1)]
    assert [len(some) for some in batched(parts, rows=100, size=500)] == [3, 2]
    assert [len(some) for some in batched([*parts, parts[0].slice(0, 0)], rows=2, size=10**6)] == [2, 2, 1]


@pytest.mark.rule("DBSP-9")
def test_packets_of_wide_rows_are_small() -> None:
    count = 400
    rows = pa.table(
        {
            "c0": pa.array(range(count), pa.int64()),
            "c1": ["w" * 100_000] * count,
            "_w": pa.array([1] * count, pa.int64()),
        }
    )
    operator = ChangesSource((pa.int64(), pa.string()))
    plan = StepPlan(Chain((PlacedOperator(0, "source", operator, 0, 1),), ()), frozenset({0}), ranges(1))
    packets = list(plan.deliver(0, 0, rows))
    assert sum(one.table.num_rows for one in packets) == count
    assert 1 < len(packets) < 10
    assert max(one.table.nbytes for one in packets) <= BATCH_BYTES


@pytest.mark.parametrize("held_bytes", [10**9, 2_000, 1])
def test_rows_that_were_put_aside_come_back_with_all_that_are_equal(held_bytes: int) -> None:
    values = [n % 300 for n in range(2_000)]
    rows = pa.table(
        {
            "a": pa.array(values, pa.int64()),
            "_h": pa.array([(n * 0x9E37_79B9_7F4A_7C15) % 2**63 for n in values], pa.int64()),
            "_w": pa.array([1 if n % 3 else -2 for n in range(2_000)], pa.int64()),
        }
    )
    sink = RowSink("_h", held_bytes)
    for first in range(0, 2_000, 100):
        sink.add(rows.slice(first, 100))
    parts = list(sink.parts())
    assert (len(parts) > 1) == (held_bytes < 10**6)
    netted = pa.concat_tables([net_rows(part) for part in parts])
    assert net_rows(netted).equals(net_rows(rows))
    assert netted.num_rows == net_rows(rows).num_rows, "each row is in one part alone"


def test_rows_that_need_not_meet_are_put_aside_as_they_come() -> None:
    sink = RowSink("", 1_000)
    whole = pa.table({"a": pa.array(range(5_000), pa.int64())})
    for portion in split_rows(whole, rows=50):
        sink.add(portion)
    found = [value for part in sink.parts() for value in part["a"].to_pylist()]
    assert sorted(found) == list(range(5_000))


def test_nothing_stays_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sink = RowSink("", 1)
    sink.add(pa.table({"a": [1]}))
    assert len(list(tmp_path.iterdir())) == 1
    assert [part.num_rows for part in sink.parts()] == [1]
    assert list(tmp_path.iterdir()) == []
