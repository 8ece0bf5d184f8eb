"""What takes memory is bounded by bytes: rows of runs in a process, bundles, merges, pairs of a join."""

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.objects.memory import MemoryObjects
from tidemill.testing import FakeClock
from tidemill.views.kernels import key_matching
from tidemill.views.kernels.key_matching import matching_pairs
from tidemill.views.trace import bundle as bundles
from tidemill.views.trace import trace as trace_module
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.consolidation import consolidate
from tidemill.views.trace.hash_space import ALL
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.run_file import BATCH_BYTES
from tidemill.views.trace.run_table import RunEntry
from tidemill.views.trace.trace import Trace

WIDE = Layout(pa.schema([("k", pa.int64()), ("text", pa.string())]), 1)
WIDTH = 10_000


def wide_rows(numbers: range) -> pa.Table:
    """Return wide rows, with hashes spread over all of hash space."""
    spread = (np.array(numbers, np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)).view(np.int64)
    texts = [f"{n:08}" * (WIDTH // 8) for n in numbers]
    table = pa.table([spread, np.array(numbers), texts, np.ones(len(numbers), np.int64)], schema=WIDE.schema)
    return consolidate(table, WIDE)


def written(objects: MemoryObjects, rows: pa.Table, key: str = "runs") -> RunEntry:
    bundle = Bundle(objects, key)
    entry = bundle.add(WIDE, rows, *ALL.grains)
    bundle.write()
    assert entry is not None
    return entry


def held(cache: Cache) -> int:
    """Return how many bytes of rows a cache holds in memory."""
    runs: Any = cache._runs.values()
    return sum(
        batch.nbytes for run in runs for batch in (*run.batches.values(), *([run.whole] if run.whole else []))
    )


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(FakeClock())


def test_batches_of_wide_rows_are_small(objects: MemoryObjects) -> None:
    rows = wide_rows(range(3_000))
    head = Cache(objects, None).head(written(objects, rows), WIDE)
    assert len(head.batches) >= rows.nbytes // BATCH_BYTES
    assert int(head.batches["rows"].max()) * WIDTH <= BATCH_BYTES


def test_a_cache_without_a_folder_drops_what_was_used_longest_ago_and_reads_it_again(
    objects: MemoryObjects,
) -> None:
    rows = wide_rows(range(4_000))
    entry = written(objects, rows)
    cache = Cache(objects, None, memory_bytes=2 * BATCH_BYTES)
    trace = Trace("t", WIDE, (entry,), cache)
    hashes = rows["_h"].to_numpy()
    for part in np.array_split(hashes, 7):
        assert trace.lookup(part).equals(rows.filter(pa.array(np.isin(hashes, part))))
        assert held(cache) <= 2 * BATCH_BYTES
    assert pa.concat_tables(trace.scan(rows=100)).equals(rows)
    assert held(cache) <= 2 * BATCH_BYTES
    before = cache.fetched_bytes
    trace.lookup(hashes[:1])
    trace.lookup(hashes[:1])
    assert cache.fetched_bytes - before <= entry.length / 4, "the second lookup fetches nothing"


def test_a_new_run_does_not_exceed_the_memory_limit(objects: MemoryObjects) -> None:
    cache = Cache(objects, None, memory_bytes=BATCH_BYTES)
    bundle = Bundle(objects, "runs", cache)
    rows = wide_rows(range(2_000))
    entry = bundle.add(WIDE, rows, *ALL.grains)
    bundle.write()
    assert entry is not None
    assert held(cache) <= BATCH_BYTES
    assert Trace("t", WIDE, (entry,), cache).lookup(rows["_h"].to_numpy()).equals(rows)


LIMITED = """
import resource, sys
from pathlib import Path
from tests.unit.test_views_memory import *

objects = MemoryObjects(FakeClock())
rows = wide_rows(range(4_000))
folder = Path(sys.argv[1])
bundle = Bundle(objects, "runs", Cache(objects, folder))
entry = bundle.add(WIDE, rows, *ALL.grains)
bundle.write()
size = max(path.stat().st_size for path in folder.iterdir())
assert size > 30_000_000, size
limit = 120_000_000
resource.setrlimit(resource.RLIMIT_AS, (2**38, resource.RLIM_INFINITY))
cache = Cache(objects, folder, memory_bytes=limit // 4)
trace = Trace("t", WIDE, (entry,), cache)
for part in np.array_split(rows["_h"].to_numpy(), 5):
    assert trace.lookup(part).num_rows == len(part)
    assert cache._held_bytes <= limit // 4, cache._held_bytes
assert cache.fetched_bytes > 0, "the whole file was too large to be mapped"
"""


@pytest.mark.slow
def test_mapped_files_are_limited_if_the_address_space_is(tmp_path: Path) -> None:
    """Run in a separate process, because the limit cannot be raised again."""
    process = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY, "this process has no limit"


def test_a_large_bundle_is_buffered_on_disk(objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [wide_rows(range(n, n + 50)) for n in range(0, 500, 50)]
    small, large = Bundle(objects, "small"), Bundle(objects, "large")
    entries = [small.add(WIDE, rows, *ALL.grains) for rows in runs]
    size = small.write()
    monkeypatch.setattr(bundles, "BUFFER_BYTES", size // 5)
    for rows, entry in zip(runs, entries, strict=True):
        assert entry is not None
        assert large.add(WIDE, rows, *ALL.grains) == entry._replace(file="large")
        assert sum(len(memoryview(part)) for part in large._parts) <= size // 5
    assert large.write() == size
    assert objects.get("large")[0] == objects.get("small")[0]


@pytest.mark.rule("DBSP-47")
def test_a_merge_of_wide_rows_is_split_to_bound_its_memory(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [wide_rows(range(n, 2_000, 20)) for n in range(20)]
    entries = [written(objects, part, f"runs-{n}") for n, part in enumerate(rows)]
    trace = Trace("t", WIDE, entries, Cache(objects, None))
    most = 4_000_000
    monkeypatch.setattr(trace_module, "_MERGE_BYTES", most)
    sizes: list[int] = []

    class Watched(Bundle):
        def add(self, layout: Layout, table: pa.Table, low: int, high: int) -> RunEntry | None:
            sizes.append(table.nbytes)
            return super().add(layout, table, low, high)

    merged = list(trace.merges(Watched(objects, "merged"), 100_000))
    assert sum(merge.entry.rows for merge in merged if merge.entry) == 2_000
    assert len(sizes) >= 5
    assert max(sizes) < 1.5 * most, "hashes are spread about evenly"


@pytest.mark.parametrize("most", [1, 7, 100, 262_144])
def test_pairs_are_yielded_in_bounded_numbers_even_for_one_row(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_matching, "_PAIRS", most)
    left = pa.table({"_h": [1, 2, 3, 5, 9], "k": [1, 2, 3, 5, 9]})
    right = pa.table(
        {"_h": [2] * 30 + [9, 3, 3] + [5] * 11 + [7], "k": [2] * 30 + [9, 3, 4] + [5] * 11 + [7]}
    )
    batches = list(matching_pairs(left, right, ["k"], ["k"]))
    assert max(len(left_rows) for left_rows, _ in batches) <= most
    pairs = sorted((int(a), int(b)) for batch in batches for a, b in zip(*batch, strict=True))
    left_keys, right_keys = left["k"].to_pylist(), right["k"].to_pylist()
    assert pairs == [
        (a, b) for a in range(5) for b in range(len(right_keys)) if left_keys[a] == right_keys[b]
    ]
