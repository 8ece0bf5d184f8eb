"""Rows are split into batches by number and by bytes; a sink spills many rows to disk."""

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


def test_batches_are_limited_by_rows_and_by_bytes_and_lose_no_row() -> None:
    even = pa.table({"a": pa.array(range(1000), pa.int64())})
    assert [batch.num_rows for batch in split_rows(even, rows=300)] == [300, 300, 300, 100]
    assert max(batch.nbytes for batch in split_rows(even, size=1000)) <= 1000
    assert list(split_rows(even.slice(0, 0))) == []
    uneven = pa.table({"a": ["x"] * 50 + ["y" * 10_000] + ["z"] * 50 + ["w" * 3_000] * 4})
    batches = list(split_rows(uneven, size=4_000))
    assert pa.concat_tables(batches).equals(uneven)
    assert [batch.num_rows for batch in batches if batch.nbytes > 4_000] == [1], "a row is never split"


def test_batches_end_when_they_have_enough_rows_or_bytes() -> None:
    parts = [pa.table({"a": ["x" * size]}) for size in (1, 1, 1000, 1, 1)]
    assert [len(batch) for batch in batched(parts, rows=100, size=500)] == [3, 2]
    assert [len(batch) for batch in batched([*parts, parts[0].slice(0, 0)], rows=2, size=10**6)] == [2, 2, 1]


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
    assert sum(packet.table.num_rows for packet in packets) == count
    assert 1 < len(packets) < 10
    assert max(packet.table.nbytes for packet in packets) <= BATCH_BYTES


@pytest.mark.parametrize("held_bytes", [10**9, 2_000, 1])
def test_a_sink_returns_equal_rows_in_the_same_part(held_bytes: int) -> None:
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
    assert netted.num_rows == net_rows(rows).num_rows, "no row is in two parts"


def test_a_sink_without_identity_spills_rows_in_order() -> None:
    sink = RowSink("", 1_000)
    rows = pa.table({"a": pa.array(range(5_000), pa.int64())})
    for piece in split_rows(rows, rows=50):
        sink.add(piece)
    values = [value for part in sink.parts() for value in part["a"].to_pylist()]
    assert sorted(values) == list(range(5_000))


def test_a_sink_leaves_no_file_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sink = RowSink("", 1)
    sink.add(pa.table({"a": [1]}))
    assert len(list(tmp_path.iterdir())) == 1
    assert [part.num_rows for part in sink.parts()] == [1]
    assert list(tmp_path.iterdir()) == []
