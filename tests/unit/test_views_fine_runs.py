"""Traces whose hash is of a key and of the rest of the row: as files, and looked up by the key alone."""

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
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import RunEntry, TraceVersion

LAYOUT = Layout(pa.schema([("k", pa.int64()), ("l", pa.int32()), ("p", pa.float64())]), 2, fine=True)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(FakeClock())


def table(rows: list[tuple[Any, Any, Any]], seed: int = 0) -> pa.Table:
    """Rows with their hashes and weights, in their one form."""
    columns = [pa.array([row[n] for row in rows], each.type) for n, each in enumerate(LAYOUT.columns)]
    hashes = pa.array(fine_hashes(columns[:2], columns[2:], len(rows)))
    chance = random.Random(seed)
    weights = pa.array([chance.choice([-1, 1, 2]) for _ in rows], pa.int64())
    return consolidate(pa.table([hashes, *columns, weights], schema=LAYOUT.schema), LAYOUT)


def hashes_by_key(rows: pa.Table) -> Any:
    return key_hashes([rows[name].combine_chunks() for name in LAYOUT.key_names], rows.num_rows)


def written(objects: MemoryObjects, *runs: pa.Table) -> TraceVersion:
    """A version with these runs."""
    bundle = Bundle(objects, "runs")
    entries = [bundle.add(LAYOUT, rows, *ALL.grains) for rows in runs]
    bundle.write()
    return TraceVersion(1, "", {"t": tuple(one for one in entries if one is not None)}, {"t": 1})


def spine_of(objects: MemoryObjects, version: TraceVersion, within: HashRange = ALL, **options: Any) -> Trace:
    return Trace.of(version, "t", LAYOUT, Cache(objects, None, **options), within, 1)


def listed(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


# --- hashes


def test_the_upper_half_of_a_hash_is_the_keys_and_rows_without_a_key_are_spread() -> None:
    rows = table([(n % 5, n % 3, float(n)) for n in range(300)])
    mine, keys = rows["_h"].to_numpy(), hashes_by_key(rows)
    assert (mine & UPPER == keys & UPPER).all()
    assert len(np.unique(mine)) == 300, "rows of a key differ"
    assert (slice_of(mine) == slice_of(keys)).all(), "a row is in the range of its key"
    for row in ((None, 1), (1, None), (None, None)):
        spread = slice_of(table([(*row, float(n)) for n in range(2_000)])["_h"].to_numpy())
        assert len(np.unique(spread)) == 256


def test_a_hash_is_of_a_row_to_the_bit_and_of_a_key_as_it_is_compared() -> None:
    layout = Layout(pa.schema([("k", pa.float64()), ("p", pa.float64())]), 1, fine=True)
    values = pa.array([0.0, -0.0])
    zeros = pa.array([0.0, 0.0])
    assert len(set(fine_hashes([zeros], [values], 2).tolist())) == 2
    assert len(set((fine_hashes([values], [values], 2) & UPPER).tolist())) == 1
    same = fine_hashes([values], [zeros], 2).tolist()
    assert len(set(same)) == 1
    rows = pa.table([pa.array(same), zeros, values, pa.array([1, -1])], schema=layout.schema)
    assert consolidate(rows, layout).num_rows == 2, "-0.0 and 0.0 are two rows, also behind one hash"


# --- files

NULLS = [(None if n % 7 == 0 else n % 11, None if n % 5 == 0 else n % 3, n / 4) for n in range(500)]


def test_a_hash_that_follows_from_key_and_rest_is_not_stored_and_the_same_when_read(
    objects: MemoryObjects,
) -> None:
    rows = table(NULLS)
    version = written(objects, rows)
    (entry,) = version.traces["t"]
    assert not Cache(objects, None).head(entry, LAYOUT).stores_hash
    found = pa.concat_tables(spine_of(objects, version).scan()).combine_chunks()
    assert found.equals(rows)
    asked = rows["_h"].to_numpy()[::50]
    assert spine_of(objects, version).lookup(asked)["_h"].to_pylist() == asked.tolist()


def test_hashes_that_do_not_follow_are_stored(objects: MemoryObjects) -> None:
    rows = table(NULLS)
    other = rows.set_column(0, "_h", pa.array(rows["_h"].to_numpy() // 2))
    version = written(objects, other)
    (entry,) = version.traces["t"]
    assert Cache(objects, None).head(entry, LAYOUT).stores_hash
    assert pa.concat_tables(spine_of(objects, version).scan()).combine_chunks().equals(other)


@pytest.mark.parametrize("coarse", [False, True])
def test_a_run_that_was_sorted_by_another_hash_of_the_rest_is_refused(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch, coarse: bool
) -> None:
    version = written(objects, table(NULLS))
    if coarse:  # as a release would read it that does not know of the rest
        monkeypatch.setattr(
            run_file, "row_hashes", lambda given, rows, key, fine: key_hashes(given[:key], rows)
        )
    else:
        monkeypatch.setattr(run_file, "row_hashes", lambda *given, fine: row_hashes(*given, fine=fine) ^ 1)
    with pytest.raises(TraceCorrupt, match=r"run file 'runs'.* other hashes"):
        spine_of(objects, version).lookup(np.array([0]))


# --- lookups by keys


def plainly(runs: list[pa.Table], wanted: Any, within: HashRange) -> list[str]:
    """The rows whose hash has the upper half of one that is wanted, by going through all of them."""
    halves = set((wanted & UPPER).tolist())
    found = []
    for rows in runs:
        mine = rows["_h"].to_numpy()
        here = (slice_of(mine) >= within.first) & (slice_of(mine) <= within.last)
        here &= np.array([half in halves for half in (mine & UPPER).tolist()])
        found += listed(rows.filter(pa.array(here)))
    return sorted(found)


@pytest.mark.parametrize("weak", [False, True], ids=["hashes", "weak hashes"])
@pytest.mark.parametrize("whole", [True, False], ids=["in memory", "batch by batch"])
def test_all_rows_of_a_key_are_found_wherever_its_batches_end(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch, whole: bool, weak: bool
) -> None:
    monkeypatch.setattr(run_file, "BATCH_ROWS", 20)
    monkeypatch.setattr(trace, "_CHUNK_ROWS", 32)  # so that runs are gone through in stretches as well
    if not whole:
        monkeypatch.setattr("tidemill.views.trace.cache._SMALL_BYTES", 0)
    with masked_hashes(0xF300_0001_0000_0003 if weak else 2**64 - 1):
        # one key with rows in many batches, some with a few, many with one, and rows without a key
        rows = [(1, 1, n / 2) for n in range(40)] + [(2 + n % 6, n % 2, float(n)) for n in range(60)]
        rows += [(100 + n, 0, 0.5) for n in range(80)] + [(None, 1, float(n)) for n in range(30)]
        runs = [table(rows), table(rows[20:130], 1), table(rows[::3], 2)]
        version = written(objects, *runs)
        heads = [Cache(objects, None).head(one, LAYOUT) for one in version.traces["t"]]
        assert all(len(head.batches) > 3 for head in heads)
        keys = np.unique(hashes_by_key(pa.concat_tables(runs)))
        big = hashes_by_key(table([(1, 1, 0.0)]))
        absent = np.unique(key_hashes([pa.array(range(900, 940)), pa.array([0] * 40, pa.int32())], 40))
        asked = [big, keys[:1], keys[-1:], keys[::9], keys[::2], keys, absent, np.union1d(absent, big)]
        for within in (ALL, *ranges(3)):
            mine = spine_of(objects, version, within)
            for wanted in asked:
                found = [row for one in mine.lookups(wanted, keys=True) for row in listed(one)]
                assert sorted(found) == plainly(runs, wanted, within)
                for one in mine.lookups(wanted, [], keys=True):
                    assert one.column_names == ["_h", "k", "l", "_w"]
                    assert all(column.num_chunks == 1 for column in one.columns)


def test_a_key_is_looked_up_in_the_grains_that_a_merge_has_left(objects: MemoryObjects) -> None:
    rows = table([(n % 40, 0, float(n)) for n in range(400)])
    version = written(objects, rows)
    (entry,) = version.traces["t"]
    wanted = np.unique(hashes_by_key(rows))
    cut = int(np.median(slice_of(wanted))) * 256 + 255
    first, last = entry.within(0, cut), entry.within(cut + 1, entry.high)
    assert isinstance(first, RunEntry)
    assert isinstance(last, RunEntry)
    halves = [
        [
            row
            for one in Trace("t", LAYOUT, [part], Cache(objects, None)).lookups(wanted, keys=True)
            for row in listed(one)
        ]
        for part in (first, last)
    ]
    assert all(halves)
    assert sorted(halves[0] + halves[1]) == listed(rows)
