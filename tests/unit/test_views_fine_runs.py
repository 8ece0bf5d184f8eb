"""Fine traces, whose hash comes from the key and from the rest of the row: files, and lookups by key."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.memory_chain import masked_hashes
from tidemill.errors import TraceCorrupt
from tidemill.objects.memory import MemoryObjects
from tidemill.testing import FakeClock
from tidemill.views.trace import run_file, trace
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.consolidation import consolidate
from tidemill.views.trace.hash_space import ALL, HashRange, ranges, slice_of
from tidemill.views.trace.key_hash import UPPER, fine_hashes, key_hashes, row_hashes
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.run_table import RunEntry, RunTable
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import TraceVersion

LAYOUT = Layout(pa.schema([("k", pa.int64()), ("l", pa.int32()), ("p", pa.float64())]), 2, fine=True)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(FakeClock())


def table(rows: list[tuple[Any, Any, Any]], seed: int = 0) -> pa.Table:
    """Return rows with hashes and weights, consolidated."""
    columns = [pa.array([row[n] for row in rows], each.type) for n, each in enumerate(LAYOUT.columns)]
    hashes = pa.array(fine_hashes(columns[:2], columns[2:], len(rows)))
    chance = random.Random(seed)
    weights = pa.array([chance.choice([-1, 1, 2]) for _ in rows], pa.int64())
    return consolidate(pa.table([hashes, *columns, weights], schema=LAYOUT.schema), LAYOUT)


def hashes_by_key(rows: pa.Table) -> Any:
    return key_hashes([rows[name].combine_chunks() for name in LAYOUT.key_names], rows.num_rows)


def written(objects: MemoryObjects, *runs: pa.Table) -> TraceVersion:
    """Write these runs, and return a version that lists them."""
    bundle = Bundle(objects, "runs")
    entries = [bundle.add(LAYOUT, rows, *ALL.grains) for rows in runs]
    bundle.write()
    return TraceVersion(
        1, "", {"t": 1}, RunTable.of({"t": [entry for entry in entries if entry is not None]})
    )


def trace_of(objects: MemoryObjects, version: TraceVersion, within: HashRange = ALL, **options: Any) -> Trace:
    return Trace.of(version, "t", LAYOUT, Cache(objects, None, **options), within, 1)


def listed(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


# --- hashes


def test_the_upper_half_of_a_hash_comes_from_the_key_and_rows_without_a_key_are_spread() -> None:
    rows = table([(n % 5, n % 3, float(n)) for n in range(300)])
    hashes, keys = rows["_h"].to_numpy(), hashes_by_key(rows)
    assert (hashes & UPPER == keys & UPPER).all()
    assert len(np.unique(hashes)) == 300, "rows of a key differ"
    assert (slice_of(hashes) == slice_of(keys)).all(), "a row is in the range of its key"
    for row in ((None, 1), (1, None), (None, None)):
        spread = slice_of(table([(*row, float(n)) for n in range(2_000)])["_h"].to_numpy())
        assert len(np.unique(spread)) == 256


def test_a_hash_depends_on_every_bit_of_a_row_and_on_the_canonical_key() -> None:
    layout = Layout(pa.schema([("k", pa.float64()), ("p", pa.float64())]), 1, fine=True)
    values = pa.array([0.0, -0.0])
    zeros = pa.array([0.0, 0.0])
    assert len(set(fine_hashes([zeros], [values], 2).tolist())) == 2
    assert len(set((fine_hashes([values], [values], 2) & UPPER).tolist())) == 1
    same = fine_hashes([values], [zeros], 2).tolist()
    assert len(set(same)) == 1
    rows = pa.table([pa.array(same), zeros, values, pa.array([1, -1])], schema=layout.schema)
    assert consolidate(rows, layout).num_rows == 2, (
        "-0.0 and 0.0 are two rows, even if their hashes are equal"
    )


# --- files

NULLS = [(None if n % 7 == 0 else n % 11, None if n % 5 == 0 else n % 3, n / 4) for n in range(500)]


def test_a_fine_hash_is_not_stored_and_recomputed_when_read(
    objects: MemoryObjects,
) -> None:
    rows = table(NULLS)
    version = written(objects, rows)
    (entry,) = version.traces["t"]
    assert not Cache(objects, None).head(entry, LAYOUT).stores_hash
    scanned = pa.concat_tables(trace_of(objects, version).scan()).combine_chunks()
    assert scanned.equals(rows)
    targets = rows["_h"].to_numpy()[::50]
    assert trace_of(objects, version).lookup(targets)["_h"].to_pylist() == targets.tolist()


def test_fine_hashes_that_do_not_follow_from_the_row_are_stored(objects: MemoryObjects) -> None:
    rows = table(NULLS)
    other = rows.set_column(0, "_h", pa.array(rows["_h"].to_numpy() // 2))
    version = written(objects, other)
    (entry,) = version.traces["t"]
    assert Cache(objects, None).head(entry, LAYOUT).stores_hash
    assert pa.concat_tables(trace_of(objects, version).scan()).combine_chunks().equals(other)


@pytest.mark.parametrize("coarse", [False, True])
def test_a_run_sorted_by_other_fine_hashes_is_refused(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch, coarse: bool
) -> None:
    version = written(objects, table(NULLS))
    if coarse:  # like a release that hashes the key only
        monkeypatch.setattr(
            run_file, "row_hashes", lambda arguments, rows, key, fine: key_hashes(arguments[:key], rows)
        )
    else:
        monkeypatch.setattr(
            run_file, "row_hashes", lambda *arguments, fine: row_hashes(*arguments, fine=fine) ^ 1
        )
    with pytest.raises(TraceCorrupt, match=r"run file 'runs'.* not sorted by the hashes"):
        trace_of(objects, version).lookup(np.array([0]))


# --- lookups by keys


def plainly(runs: list[pa.Table], targets: Any, within: HashRange) -> list[str]:
    """Return the rows that share the upper half of their hash with a target, by comparing all rows."""
    halves = set((targets & UPPER).tolist())
    matching = []
    for rows in runs:
        hashes = rows["_h"].to_numpy()
        in_range = (slice_of(hashes) >= within.first) & (slice_of(hashes) <= within.last)
        in_range &= np.array([half in halves for half in (hashes & UPPER).tolist()])
        matching += listed(rows.filter(pa.array(in_range)))
    return sorted(matching)


@pytest.mark.parametrize("weak", [False, True], ids=["hashes", "weak hashes"])
@pytest.mark.parametrize("at_once", [True, False], ids=["in memory", "batch by batch"])
def test_all_rows_of_a_key_are_found_across_batches(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch, at_once: bool, weak: bool
) -> None:
    monkeypatch.setattr(run_file, "BATCH_ROWS", 20)
    monkeypatch.setattr(trace, "_CHUNK_ROWS", 32)  # so that runs are searched in windows
    if not at_once:
        monkeypatch.setattr("tidemill.views.trace.cache._SMALL_BYTES", 0)
    with masked_hashes(0xF300_0001_0000_0003 if weak else 2**64 - 1):
        # one key with rows in many batches, some with a few, many with one, and rows without a key
        rows = [(1, 1, n / 2) for n in range(40)] + [(2 + n % 6, n % 2, float(n)) for n in range(60)]
        rows += [(100 + n, 0, 0.5) for n in range(80)] + [(None, 1, float(n)) for n in range(30)]
        runs = [table(rows), table(rows[20:130], 1), table(rows[::3], 2)]
        version = written(objects, *runs)
        heads = [Cache(objects, None).head(entry, LAYOUT) for entry in version.traces["t"]]
        assert all(len(head.batches) > 3 for head in heads)
        keys = np.unique(hashes_by_key(pa.concat_tables(runs)))
        big = hashes_by_key(table([(1, 1, 0.0)]))
        absent = np.unique(key_hashes([pa.array(range(900, 940)), pa.array([0] * 40, pa.int32())], 40))
        lookups = [big, keys[:1], keys[-1:], keys[::9], keys[::2], keys, absent, np.union1d(absent, big)]
        for within in (ALL, *ranges(3)):
            trace_in_range = trace_of(objects, version, within)
            for targets in lookups:
                matching = [
                    row for entry in trace_in_range.lookups(targets, keys=True) for row in listed(entry)
                ]
                assert sorted(matching) == plainly(runs, targets, within)
                for entry in trace_in_range.lookups(targets, [], keys=True):
                    assert entry.column_names == ["_h", "k", "l", "_w"]
                    assert all(column.num_chunks == 1 for column in entry.columns)


def test_a_key_is_found_in_the_grains_that_a_merge_left(objects: MemoryObjects) -> None:
    rows = table([(n % 40, 0, float(n)) for n in range(400)])
    version = written(objects, rows)
    (entry,) = version.traces["t"]
    targets = np.unique(hashes_by_key(rows))
    cut = int(np.median(slice_of(targets))) * 256 + 255
    first, last = entry.within(0, cut), entry.within(cut + 1, entry.high)
    assert isinstance(first, RunEntry)
    assert isinstance(last, RunEntry)
    halves = [
        [
            row
            for piece in Trace("t", LAYOUT, [part], Cache(objects, None)).lookups(targets, keys=True)
            for row in listed(piece)
        ]
        for part in (first, last)
    ]
    assert all(halves)
    assert sorted(halves[0] + halves[1]) == listed(rows)
