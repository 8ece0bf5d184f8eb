"""Run files and their cache: errors name files that are damaged, missing or too new, or a full disk."""

import base64
import random
import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.test_views_traces import LAYOUT, TraceHistory, content, numbered, table
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.errors import ObjectsFull, TraceCorrupt, TraceError, TraceFormat, TraceMissing
from tidemill.objects.local import LocalObjects
from tidemill.objects.memory import MemoryObjects
from tidemill.testing import FakeClock
from tidemill.views.trace import run_file
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.consolidation import consolidate
from tidemill.views.trace.hash_space import ALL, GRAINS
from tidemill.views.trace.key_hash import key_hashes, row_hashes
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.run_file import BATCH_ROWS
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version_file import read_version, write_version


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(FakeClock())


# --- damaged files


def test_an_error_names_a_missing_run_file(objects: MemoryObjects) -> None:
    history = TraceHistory(objects)
    history.step(table({(1, 1, "a"): 1}))
    objects.delete("runs/00000001")
    history.cache = Cache(objects, None)
    with pytest.raises(TraceMissing, match="runs/00000001"):
        history.trace().lookup(np.array([1]))


def by_key(rows: pa.Table) -> pa.Table:
    """Replace the hashes of rows by those of their keys."""
    hashes = pa.array(key_hashes([rows["k"].combine_chunks()], len(rows)))
    return consolidate(rows.set_column(0, "_h", hashes), LAYOUT)


@pytest.mark.parametrize("stores_hash", [True, False])
def test_every_damage_of_a_run_file_is_noticed(objects: MemoryObjects, stores_hash: bool) -> None:
    history = TraceHistory(objects)
    rows = numbered(50, random.Random(2))
    history.step(rows if stores_hash else by_key(rows))
    (entry,) = history.version.traces["t"]
    assert Cache(objects, None).head(entry, LAYOUT).stores_hash == stores_hash
    body, _ = objects.get("runs/00000001")
    expected = content(history.trace())

    def noticed(at: int) -> bool:
        objects.put("runs/00000001", body[:at] + bytes([body[at] ^ 4]) + body[at + 1 :])
        history.cache = Cache(objects, None)
        try:
            rows = content(history.trace())
        except TraceError as error:
            return "runs/00000001" in error.message
        assert rows == expected
        return False

    assert [at for at in range(len(body)) if not noticed(at)] == []
    for at in (0, 5, 30, len(body) - 30):
        objects.put("runs/00000001", body[:at])
        history.cache = Cache(objects, None)
        with pytest.raises(TraceCorrupt, match="runs/00000001"):
            content(history.trace())


def test_a_run_file_of_a_newer_format_or_with_other_columns_is_refused(objects: MemoryObjects) -> None:
    history = TraceHistory(objects)
    history.step(table({(1, 1, "a"): 1}))
    other = Layout(pa.schema([("k", pa.int64()), ("p", pa.binary())]), 1)
    with pytest.raises(TraceFormat, match="columns"):
        Trace("t", other, history.version.traces["t"], Cache(objects, None)).lookup(np.array([1]))
    body, _ = objects.get("runs/00000001")
    for form in (1, 3):
        objects.put("runs/00000001", body[:8] + bytes([form]) + body[9:])
        with pytest.raises(TraceFormat, match=rf"runs/00000001.*format {form}; this release reads 2"):
            Trace("t", LAYOUT, history.version.traces["t"], Cache(objects, None)).lookup(np.array([1]))


def test_hashes_that_follow_from_keys_are_not_stored_and_recomputed_when_read(objects: MemoryObjects) -> None:
    computed, stored = TraceHistory(objects), TraceHistory(MemoryObjects(FakeClock()))
    rows = numbered(20_000, random.Random(3))
    computed.step(by_key(rows))
    other_hashes = pa.array(by_key(rows)["_h"].to_numpy() // 2)
    stored.step(by_key(rows).set_column(0, "_h", other_hashes))
    sizes = [trace.version.traces["t"][0].length for trace in (computed, stored)]
    assert sizes[1] - sizes[0] > 5 * len(rows)
    computed.cache = Cache(objects, None)
    assert pa.concat_tables(computed.trace().scan()).combine_chunks().equals(by_key(rows))
    targets = by_key(rows)["_h"].to_numpy()[::100]
    assert computed.trace().lookup(targets)["_h"].to_pylist() == targets.tolist()


def test_a_run_sorted_by_other_hashes_is_refused(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = TraceHistory(objects)
    history.step(by_key(numbered(50, random.Random(2))))
    history.cache = Cache(objects, None)
    monkeypatch.setattr(
        run_file, "row_hashes", lambda *arguments, fine: row_hashes(*arguments, fine=fine) ^ 1
    )
    with pytest.raises(TraceCorrupt, match=r"runs/00000001.* not sorted by the hashes of its keys"):
        content(history.trace())


@pytest.mark.parametrize("width", [10, 100])
def test_hashes_of_wide_keys_are_stored(objects: MemoryObjects, width: int) -> None:
    layout = Layout(pa.schema([("k", pa.string())]), 1)
    keys = pa.array([f"{n:0{width}}" for n in range(100)])
    table = pa.table({"_h": key_hashes([keys], 100), "k": keys, "_w": [1] * 100}, schema=layout.schema)
    bundle = Bundle(objects, "runs")
    entry = bundle.add(layout, consolidate(table, layout), *ALL.grains)
    bundle.write()
    assert entry is not None
    cache = Cache(objects, None)
    assert cache.head(entry, layout).stores_hash == (width > 64)
    scanned = pa.concat_tables(Trace("t", layout, [entry], cache).scan())
    assert scanned.equals(consolidate(table, layout))


# A run and a version as the first release wrote them; every later release must read them (DBSP-4).
GOLDEN_RUN = (
    "bZKN|ZE0+50ssI20RR915CH%H0RR91VF8QE`~Uy{|NsC02LJ#7000000ssI2YlYunSOEY400000Pyzq|00000@q;0y|NsC02mt^9"
    "5C8xG000UA3;+fI1po*D3IG5A009I53;+NC2mlBG000C42mk;81ONa41ONa4pa1{>U;qFBGynhq1ONa4fdBvh000335C8xG6aWAK"
    "1ONa4000000ssI2Uv~fiaR2}R00001KmY&$tpET2000365C8xG7ytkO1ONa4000000RR91Z~y=R1ONm81ONa4)c^ng000335C8xG"
    "6aWAK1ONa4000000RR91YXATM#Q*>Q00001KmY&$5C9Ya2ml5E2LKEJ000mG5C8xG000335C8xG8~^|S1ONa4000000ssI2UuXaT"
    "2mlNK2ml8F2mk;800001KmY&$00000|NsC0Z~*`S6aWAK000003;-Aa1^@*B2mlNK3;+NC00RU78~^|S*Z=?k00000000003;-Sg"
    "5C8-K2mlNK3;+NC-~a#sBme*a7ytkO0ssI20000000000000I62ml8F1^@s6000013jhEB000000000000000000000000000000"
    "8vp<R00000AOHXW000000000000000AOHXW000008UO$Q00000KmY&$000005&!@I00000SO5S30000082|tP00000cmMzZ00000"
    "0000000000cmMzZ00000B>(^b00000pa1{>000005&!@I00000xBvhE000000000000000xBvhE000008UO$Q00000000001poj5"
    "0ssI20000000000000000ssI20000000000000000ssI2000000RR91000000ssI20000000000000000ssI2000000000000000"
    "5C8xG00000D77#BAP`jm03iDZ{{R61agGQ8000005C8xG00000D77#BAP`Le02l!R009687y<wQ000000RR9100000D77#BAOQ&g"
    "00961000005C8xG00000D77#BAP_|W01yEH0RS?<0ssI2000007ytkO00000D77#BAQ+_p0AK(B0RRC20000000062VBi5@0RR91"
    "0RR9100000D77#BAOQ&g0AT<C000005C8xG00000D77#BAP`Le02l-R0096UZU_JX00000bZKN|ZE0+50ssI20RR915CH%H00000"
    "zm4_*kZh|CZF@lFW&no1)Z&U^0ssI2=i4fISOEY40000000IC200000iA<HI|NsC02mt^95C8xG000UA3;+fI1po*D3IG5A009I5"
    "3;+NC2mlBG000C42mk;81ONa41ONa4pa1{>U;qFBGynhq1ONa4fdBvh000335C8xG6aWAK1ONa4000000ssI2Uv~fiaR2}R00001"
    "KmY&$tpET2000365C8xG7ytkO1ONa4000000RR91Z~y=R1ONm81ONa4)c^ng000335C8xG6aWAK1ONa4000000RR91YXATM#Q*>Q"
    "00001KmY&$5C9Ya2ml5E2LKEJ000mG5C8xG000335C8xG8~^|S1ONa4000000ssI2UuXaT2mlNK2ml8F2mk;800001KmY&$00000"
    "|NsC0Kmh;%6aWAK000003;-Aa1^@*B2mlNK3;+NC00RU78~^|SxBvhE00000000003;-Sg5C8-K2mlNK3;+NCzyJUMBme*a7ytkO"
    "0ssI20000000000000I62ml8F1^@s6000012><{90000000000000000000000000000008UO$Q00000AOHXW000005&!@I00000"
    "H~;_u0000082|tP00000SO5S3000000000000000SO5S300000B>(^b00000fB*mh000005&!@I00000m;e9(000000000000000"
    "m;e9(000008UO$Q00000000001ONa40ssI20000000000000000ssI2000000RR91000000ssI20000000000000000ssI200000"
    "00000000005C8xG00000D77#BAP`Le02l!R009687y<wQ000000RR9100000D77#BAOQ&g00961000005C8xG00000D77#BAP_|W"
    "01yEH0RS?<0ssI2000007ytkO00000D77#BAQ+_p0AK(B0RRC20000000062VBi5@0RR910RR9100000D77#BAOQ&g0AT<C00000"
    "5C8xG00000D77#BAP`Le02l-R0096UZU_JX00000"
)
GOLDEN_VERSION = (
    b'{"format":1,"crc":1477154999}'
    b"\n"
    b'{"name":"versions/golden","step":3,"code":"1","steps":{"t":3,"u":3},'
    b'"files":["runs/golden"],"traces":{"t":[[0,0,65535,0,936,344,2]],"u":[[0,0,65535,936,856,344,2]]}}'
)
GOLDEN_ROWS = {
    "t": [(-5, 1, "a", 3), (7, 2, None, -1)],  # hashes that do not follow from the keys
    "u": [
        (-1927404932186805104, 1, "a", 3),
        (7028679571822477414, 2, None, -1),
    ],  # hashes of the keys, which are not stored
}


@pytest.mark.parametrize("name", GOLDEN_ROWS)
def test_state_of_the_first_release_is_read(objects: MemoryObjects, name: str) -> None:
    objects.put("runs/golden", base64.b85decode(GOLDEN_RUN))
    objects.put("versions/golden", GOLDEN_VERSION)
    version = read_version(objects, "versions/golden")
    assert version.step == 3
    trace = Trace.of(version, name, LAYOUT, Cache(objects, None), ALL, 3)
    rows = [tuple(row.values()) for piece in trace.scan() for row in piece.to_pylist()]
    assert rows == GOLDEN_ROWS[name]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_fails_the_step_and_leaves_the_last_version_readable(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path / "objects", SYSTEM, random.Random(1))
    history = TraceHistory(objects, Cache(objects, tmp_path / "cache"))
    history.step(numbered(100, random.Random(1)))
    write_version(objects, "versions/1", history.version)
    expected = content(history.trace())
    with files_of_at_most(2_000), pytest.raises(ObjectsFull, match="runs/00000002"):
        history.step(numbered(5_000, random.Random(2)))
    again = TraceHistory(objects, Cache(objects, tmp_path / "other cache"))
    again.versions = [read_version(objects, "versions/1")]
    assert content(again.trace()) == expected
    assert [info.key for info in objects.list("runs/")] == ["runs/00000001"]
    history.step(numbered(5_000, random.Random(2)))
    assert len(content(history.trace())) == 5_100


@pytest.mark.parametrize("place", ["views.trace.before_bundle", "views.trace.after_bundle"])
def test_a_task_that_is_killed_at_its_bundle_leaves_nothing_that_a_version_lists(
    objects: MemoryObjects, place: str
) -> None:
    history = TraceHistory(objects)
    history.step(table({(1, 1, "a"): 1}))
    with crash.armed(place), pytest.raises(crash.Crashed):
        history.step(table({(1, 1, "a"): 1}))
    assert sum(content(history.trace()).values()) == 1
    assert {info.key for info in objects.list("runs/")} - history.version.files() <= {"runs/00000002"}


# --- the cache


def test_only_the_batches_whose_fences_match_are_fetched(objects: MemoryObjects) -> None:
    rows = 5 * BATCH_ROWS
    chance = np.random.default_rng(1)
    hashes = np.sort(chance.integers(-(2**63), 2**63 - 1, rows))
    big = pa.table(
        [
            pa.array(hashes),
            pa.array(chance.integers(0, 2**60, rows)),
            pa.array(["x"] * rows),
            pa.array(np.ones(rows, np.int64)),
        ],
        schema=LAYOUT.schema,
    )
    bundle = Bundle(objects, "big")
    entry = bundle.add(LAYOUT, big, 0, GRAINS - 1)
    size = bundle.write()
    assert entry is not None
    cache = Cache(objects, None)
    trace = Trace("t", LAYOUT, [entry], cache)
    assert len(cache.head(entry, LAYOUT).batches) == 5
    targets = hashes[[10, 2 * BATCH_ROWS + 5]]
    assert trace.lookup(targets)["_h"].to_pylist() == targets.tolist()
    assert cache.fetched_bytes < 0.45 * size
    before = cache.fetched_bytes
    assert trace.lookup(targets).num_rows == 2
    assert trace.lookup(np.array([], np.int64)).num_rows == 0
    assert cache.fetched_bytes == before
    assert trace.lookup(hashes[::1000]).num_rows == len(hashes[::1000])


def test_another_process_reads_the_cached_files_and_fetches_nothing(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    history = TraceHistory(objects, Cache(objects, tmp_path))
    for seed in range(3):
        history.step(numbered(50, random.Random(seed)))
    expected = content(history.trace())
    history.cache = Cache(objects, tmp_path)
    assert content(history.trace()) == expected
    assert history.cache.fetched_bytes == 0
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-1])  # truncated: its size is wrong
    history.cache = Cache(objects, tmp_path)
    assert content(history.trace()) == expected
    assert history.cache.fetched_bytes > 0


def test_the_cache_stays_within_its_limit_and_drops_the_files_used_longest_ago(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    limit_bytes = 64 * 1024
    history = TraceHistory(objects, Cache(objects, tmp_path, limit_bytes=limit_bytes))
    for seed in range(40):
        history.step(numbered(100, random.Random(seed)), budget_rows=0)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= limit_bytes
    assert sum(content(history.trace()).values()) == 4_000  # dropped runs are fetched again


def test_a_cache_on_a_full_disk_reads_without_caching(tmp_path: Path, objects: MemoryObjects) -> None:
    history = TraceHistory(objects, Cache(objects, tmp_path / "cache"))
    with files_of_at_most(100):
        history.step(numbered(500, random.Random(1)))
        assert len(content(history.trace())) == 500
    assert not list((tmp_path / "cache").iterdir())
    nowhere = tmp_path / "file"
    nowhere.write_text("not a folder")
    history.cache = Cache(objects, nowhere / "cache")
    assert len(content(history.trace())) == 500


def test_a_run_file_whose_columns_cannot_be_read_is_damaged(objects: MemoryObjects) -> None:
    history = TraceHistory(objects)
    history.step(table({(1, 1, "a"): 1}))
    (entry,) = history.version.traces["t"]
    body, _ = objects.get(entry.file)
    *fields, _ = run_file._HEADER.unpack_from(body)
    rest = body[run_file._HEADER.size : entry.head]
    damaged = rest[: -fields[3]] + bytes(fields[3])  # the directory, and a schema of zeros
    header = run_file._HEADER.pack(*fields, zlib.crc32(damaged, fields[4]))
    objects.put(entry.file, header + damaged + body[entry.head :])
    history.cache = Cache(objects, None)
    with pytest.raises(TraceCorrupt, match="the columns of run file"):
        content(history.trace())
