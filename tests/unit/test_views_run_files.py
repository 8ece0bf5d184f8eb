"""Run files and their cache: what is damaged, missing, too new or without room is told by its name."""

import base64
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.test_views_traces import LAYOUT, Trace, content, numbered, table
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.errors import ObjectsFull, TraceCorrupt, TraceError, TraceFormat, TraceMissing
from tidemill.objects.local import LocalObjects
from tidemill.objects.memory import MemoryObjects
from tidemill.testing import FakeClock
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.run import BATCH_ROWS
from tidemill.views.trace.slices import ALL, GRAINS
from tidemill.views.trace.spine import Spine
from tidemill.views.trace.version import read_version, write_version


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(FakeClock())


# --- files that are not what they were


def test_a_run_file_that_is_missing_is_named(objects: MemoryObjects) -> None:
    trace = Trace(objects)
    trace.step(table({(1, 1, "a"): 1}))
    objects.delete("runs/00000001")
    trace.cache = Cache(objects, None)
    with pytest.raises(TraceMissing, match="runs/00000001"):
        trace.spine().lookup(np.array([1]))


def test_no_damage_of_a_run_file_goes_unnoticed(objects: MemoryObjects) -> None:
    # but for the end mark of the Arrow stream, which nobody reads
    trace = Trace(objects)
    trace.step(numbered(50, random.Random(2)))
    body, _ = objects.get("runs/00000001")
    wanted = content(trace.spine())

    def noticed(at: int) -> bool:
        objects.put("runs/00000001", body[:at] + bytes([body[at] ^ 4]) + body[at + 1 :])
        trace.cache = Cache(objects, None)
        try:
            rows = content(trace.spine())
        except TraceError as error:
            return "runs/00000001" in error.message
        assert rows == wanted
        return False

    assert [at for at in range(len(body)) if not noticed(at)] == list(range(len(body) - 8, len(body)))
    for at in (0, 5, 30, len(body) - 30):
        objects.put("runs/00000001", body[:at])
        trace.cache = Cache(objects, None)
        with pytest.raises(TraceCorrupt, match="runs/00000001"):
            content(trace.spine())


def test_a_run_file_of_a_newer_format_or_with_other_columns_is_refused(objects: MemoryObjects) -> None:
    trace = Trace(objects)
    trace.step(table({(1, 1, "a"): 1}))
    other = Layout(pa.schema([("k", pa.int64()), ("p", pa.binary())]), 1)
    with pytest.raises(TraceFormat, match="columns"):
        Spine("t", other, trace.version.traces["t"], Cache(objects, None)).lookup(np.array([1]))
    body, _ = objects.get("runs/00000001")
    objects.put("runs/00000001", body[:8] + b"\2" + body[9:])
    with pytest.raises(TraceFormat, match=r"runs/00000001.*format 2"):
        Spine("t", LAYOUT, trace.version.traces["t"], Cache(objects, None)).lookup(np.array([1]))


# A run and a version as the first release wrote them: whatever changes, these are read (DBSP-4).
GOLDEN_RUN = (
    "bZKN|ZE0+50RR910RR915CH%Hs%7oh`~Uy{|NsC02LJ#7000000ssI2HrxTFPyqk{000005CQ-"
    "I00000|NsC02mt^95C8xG000UA3;+fI1po*D3IG5A009I53;+NC2mlBG000C42mk;81ONa41ONa4pa1{>U;qFBGynhq1ONa4fdBv"
    "h000335C8xG6aWAK1ONa4000000ssI2Uv~fiaR2}R00001KmY&$tpET2000365C8xG7ytkO1ONa4000000RR91Z~y=R1ONm81ONa"
    "4)c^ng000335C8xG6aWAK1ONa4000000RR91YXATM#Q*>Q00001KmY&$5C9Ya2ml5E2LKEJ000mG5C8xG000335C8xG8~^|S1ONa"
    "4000000ssI2UuXaT2mlNK2ml8F2mk;800001KmY&$00000|NsC0Kmh;%6aWAK000003;-"
    "Aa1^@*B2mlNK3;+NC00RU78~^|S$N&HU00000000003;-Sg5C8-"
    "K2mlNK3;+NCzyJUMBme*a7ytkO0ssI20000000000000I62ml8F1^@s6000012><{9000000000000000000000000000000Apig"
    "X00000C;$Ke000000000000000C;$Ke00000ApigX00000Pyhe`000005&!@I00000XaE2J000009RL6T00000hyVZp000005&!@"
    "I00000pa1{>000000000000000pa1{>00000ApigX00000000001ONa40ssI20000000000000000ssI20000000000000000ssI"
    "2000000RR91000000ssI20000000000000005C8xG00000D77#BAP|870Q>*{|NsC0{|5j70000000000000005C8xG00000D77#"
    "BAP|87009610000000IC20000000000000000RR9100000D77#BAOQ&g00961000003;+NC00000D77#BAPivu00000009610096"
    "1000000RR9100000D77#BAOQ&g0AT<C000005C8xG00000D77#BAP|8700RI3000000RR90|NsC0{{R3000000|NsC000000"
)
GOLDEN_VERSION = (
    b'{"format":1,"crc":2526635314}\n{"name":"versions/golden","step":3,"code":"1","steps":{"t":3},'
    b'"files":["runs/golden"],"traces":{"t":[[0,0,65535,0,872,336,2]]}}'
)


def test_state_of_the_first_format_is_read(objects: MemoryObjects) -> None:
    objects.put("runs/golden", base64.b85decode(GOLDEN_RUN))
    objects.put("versions/golden", GOLDEN_VERSION)
    version = read_version(objects, "versions/golden")
    assert version.step == 3
    spine = Spine.of(version, "t", LAYOUT, Cache(objects, None), ALL, 3)
    assert [tuple(row.values()) for piece in spine.scan() for row in piece.to_pylist()] == [
        (-5, 1, "a", 3),
        (7, 2, None, -1),
    ]


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
    trace = Trace(objects, Cache(objects, tmp_path / "cache"))
    trace.step(numbered(100, random.Random(1)))
    write_version(objects, "versions/1", trace.version)
    wanted = content(trace.spine())
    with files_of_at_most(2_000), pytest.raises(ObjectsFull, match="runs/00000002"):
        trace.step(numbered(5_000, random.Random(2)))
    again = Trace(objects, Cache(objects, tmp_path / "other cache"))
    again.versions = [read_version(objects, "versions/1")]
    assert content(again.spine()) == wanted
    assert [info.key for info in objects.list("runs/")] == ["runs/00000001"]
    trace.step(numbered(5_000, random.Random(2)))
    assert len(content(trace.spine())) == 5_100


@pytest.mark.parametrize("place", ["views.trace.before_bundle", "views.trace.after_bundle"])
def test_a_task_that_dies_beside_its_bundle_leaves_nothing_that_a_version_lists(
    objects: MemoryObjects, place: str
) -> None:
    trace = Trace(objects)
    trace.step(table({(1, 1, "a"): 1}))
    with crash.armed(place), pytest.raises(crash.Crashed):
        trace.step(table({(1, 1, "a"): 1}))
    assert sum(content(trace.spine()).values()) == 1
    assert {info.key for info in objects.list("runs/")} - trace.version.files() <= {"runs/00000002"}


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
    spine = Spine("t", LAYOUT, [entry], cache)
    assert len(cache.head(entry, LAYOUT).batches) == 5
    asked = hashes[[10, 2 * BATCH_ROWS + 5]]
    assert spine.lookup(asked)["_h"].to_pylist() == asked.tolist()
    assert cache.fetched_bytes < 0.45 * size
    before = cache.fetched_bytes
    assert spine.lookup(asked).num_rows == 2
    assert spine.lookup(np.array([], np.int64)).num_rows == 0
    assert cache.fetched_bytes == before
    cache.fill([entry], LAYOUT)
    assert spine.lookup(hashes[::1000]).num_rows == len(hashes[::1000])


def test_another_process_reads_what_one_has_kept_and_fetches_nothing(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    trace = Trace(objects, Cache(objects, tmp_path))
    for seed in range(3):
        trace.step(numbered(50, random.Random(seed)))
    wanted = content(trace.spine())
    trace.cache = Cache(objects, tmp_path)
    assert content(trace.spine()) == wanted
    assert trace.cache.fetched_bytes == 0
    for kept in tmp_path.iterdir():
        kept.write_bytes(kept.read_bytes()[:-1])  # cut short: not what it says it is
    trace.cache = Cache(objects, tmp_path)
    assert content(trace.spine()) == wanted
    assert trace.cache.fetched_bytes > 0


def test_the_cache_stays_within_its_limit_and_drops_what_was_not_used_for_longest(
    tmp_path: Path, objects: MemoryObjects
) -> None:
    limit_bytes = 64 * 1024
    trace = Trace(objects, Cache(objects, tmp_path, limit_bytes=limit_bytes))
    for seed in range(40):
        trace.step(numbered(100, random.Random(seed)), budget_rows=0)
        assert sum(kept.stat().st_size for kept in tmp_path.iterdir()) <= limit_bytes
    assert sum(content(trace.spine()).values()) == 4_000  # what is gone from the cache is fetched


def test_a_cache_without_room_keeps_nothing_and_answers(tmp_path: Path, objects: MemoryObjects) -> None:
    trace = Trace(objects, Cache(objects, tmp_path / "cache"))
    with files_of_at_most(100):
        trace.step(numbered(500, random.Random(1)))
        assert len(content(trace.spine())) == 500
    assert not list((tmp_path / "cache").iterdir())
    nowhere = tmp_path / "file"
    nowhere.write_text("not a folder")
    trace.cache = Cache(objects, nowhere / "cache")
    assert len(content(trace.spine())) == 500
