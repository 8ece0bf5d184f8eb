"""Traces: run files, versions, merges and the cache; what is damaged or missing is told by its name."""

import base64
import random
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.errors import (
    ObjectConflict,
    ObjectsFull,
    TraceCorrupt,
    TraceError,
    TraceFormat,
    TraceMissing,
    TraceStale,
    UsageError,
    WeightOverflow,
)
from tidemill.objects.local import LocalObjects
from tidemill.objects.memory import MemoryObjects
from tidemill.objects.port import Objects
from tidemill.testing import FakeClock
from tidemill.views.trace import merge
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.consolidate import consolidate
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.order import ascending, lexical
from tidemill.views.trace.run import BATCH_ROWS
from tidemill.views.trace.slices import ALL, GRAINS, Range, grain_of, hash_bounds, ranges, slice_of, split
from tidemill.views.trace.spine import Spine
from tidemill.views.trace.version import (
    Added,
    Cut,
    Entry,
    Merged,
    Version,
    decode_version,
    read_version,
    write_version,
)

LAYOUT = Layout(pa.schema([("k", pa.int64()), ("p", pa.string())]), 1)


def table(rows: dict[tuple[int, int, str], int]) -> pa.Table:
    """(hash, key, payload) -> weight"""
    columns = list(zip(*(([*row, weight]) for row, weight in rows.items()), strict=True)) or [()] * 4
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, LAYOUT.schema, strict=True)],
        schema=LAYOUT.schema,
    )


def numbered(count: int, chance: random.Random) -> pa.Table:
    hashes = np.sort(np.array([chance.randrange(-(2**63), 2**63) for _ in range(count)], np.int64))
    return pa.table(
        [
            pa.array(hashes),
            pa.array(np.arange(count)),
            pa.array([f"row {n}" for n in range(count)]),
            pa.array(np.ones(count, np.int64)),
        ],
        schema=LAYOUT.schema,
    )


def content(spine: Spine) -> Counter[Any]:
    rows: Counter[Any] = Counter()
    for piece in spine.scan(rows=64):
        for row in piece.to_pylist():
            assert row["_w"] != 0
            rows[row["_h"], row["k"], row["p"]] += row["_w"]
    return rows


class Trace:
    """One trace and all its versions."""

    def __init__(self, objects: Objects, cache: Cache | None = None) -> None:
        self.objects = objects
        self.cache = cache or Cache(objects, None)
        self.versions = [Version()]
        self.merged_rows = 0

    @property
    def version(self) -> Version:
        return self.versions[-1]

    def spine(self, version: Version | None = None, within: Range = ALL) -> Spine:
        version = version or self.version
        return Spine.of(version, "t", LAYOUT, self.cache, within, version.step)

    def step(self, delta: pa.Table, budget_rows: int | None = None) -> None:
        step = self.version.step + 1
        bundle = Bundle(self.objects, f"runs/{step:08d}", self.cache)
        kept = self.spine().extend(delta, bundle, budget_rows)
        bundle.write()
        self.merged_rows = sum(each.entry.rows for each in kept.merged if each.entry is not None)
        self.versions.append(self.version.apply(step, kept.added, kept.merged).version)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(FakeClock())


# --- hash space


def test_slices_lie_in_the_order_of_the_hash() -> None:
    hashes = np.array([-(2**63), -(2**63) + 2**56, -1, 0, 2**63 - 1], np.int64)
    assert slice_of(hashes).tolist() == [0, 1, 127, 128, 255]
    assert [grain_of(int(value)) // 256 for value in hashes] == [0, 1, 127, 128, 255]
    assert hash_bounds(0, GRAINS - 1) == (-(2**63), 2**63 - 1)


@pytest.mark.parametrize("count", [1, 2, 7, 255, 256])
def test_ranges_cover_hash_space_once(count: int) -> None:
    found = ranges(count)
    assert [n for each in found for n in range(each.first, each.last + 1)] == list(range(256))
    assert max(each.last - each.first for each in found) - min(each.last - each.first for each in found) <= 1


@pytest.mark.parametrize("count", [0, 257])
def test_there_are_1_to_256_ranges(count: int) -> None:
    with pytest.raises(UsageError):
        ranges(count)


def test_an_exchange_sends_each_row_to_its_range() -> None:
    rows = numbered(500, random.Random(3))
    for count in (1, 7):
        parts = split(rows, ranges(count))
        assert sum(part.num_rows for part in parts) == 500
        for part, within in zip(parts, ranges(count), strict=True):
            assert all(within.first <= number <= within.last for number in slice_of(part["_h"].to_numpy()))


# --- sorting


@pytest.mark.parametrize("span", [3, 2**16 + 1, 2**40, 2**63 - 1])
@pytest.mark.parametrize("count", [0, 1, 100, 5_000])
def test_orders_are_those_of_numpy(span: int, count: int) -> None:
    chance = np.random.default_rng(span + count)
    minor, major = (chance.integers(-span - 1, span, count, endpoint=True) for _ in range(2))
    pieces = np.concatenate([np.sort(minor[: count // 2]), np.sort(minor[count // 2 :])])
    assert lexical(minor, major // 7).tolist() == np.lexsort((minor, major // 7)).tolist()
    for values in (minor, pieces, minor.view(np.uint64), np.sort(minor)):
        assert ascending(values).tolist() == np.argsort(values, kind="stable").tolist()


# --- adding up

rows_of = st.dictionaries(
    st.tuples(st.integers(-2, 2), st.integers(0, 2), st.sampled_from(["", "a", "b"])),
    st.integers(-3, 3),
    max_size=12,
)


@settings(max_examples=60)
@given(st.lists(rows_of, max_size=4))
def test_consolidating_adds_up_and_leaves_out_nothing_else(parts: list[dict[Any, int]]) -> None:
    model: Counter[Any] = Counter()
    for part in parts:
        model.update(part)
    found = consolidate(pa.concat_tables([LAYOUT.empty(), *map(table, parts)]), LAYOUT)
    assert {(row["_h"], row["k"], row["p"]): row["_w"] for row in found.to_pylist()} == {
        row: weight for row, weight in model.items() if weight
    }
    assert found.num_rows == sum(1 for weight in model.values() if weight)
    assert found["_h"].to_pylist() == sorted(found["_h"].to_pylist())


def test_a_weight_beyond_64_bits_is_refused() -> None:
    rows = pa.concat_tables([table({(1, 1, "a"): 2**62})] * 2)
    with pytest.raises(WeightOverflow):
        consolidate(rows, LAYOUT)


def test_a_table_with_other_columns_is_refused() -> None:
    with pytest.raises(UsageError, match="missing"):
        LAYOUT.conform(pa.table({"_h": [1]}))
    with pytest.raises(UsageError, match="other types"):
        LAYOUT.conform(pa.table({"_h": [1], "k": ["x"], "p": ["y"], "_w": [1]}))


# --- runs and merges


@settings(max_examples=20)
@given(st.lists(rows_of, min_size=1, max_size=30), st.integers(0, 40))
def test_every_version_shows_its_own_rows_whatever_is_merged_later(
    steps: list[dict[Any, int]], budget_rows: int
) -> None:
    trace = Trace(MemoryObjects(FakeClock()))
    model: Counter[Any] = Counter()
    models = [model]
    for step in steps:
        model = model.copy()
        model.update(step)
        models.append(model)
        trace.step(table(step), budget_rows)
    for version, wanted in zip(trace.versions, models, strict=True):
        assert content(trace.spine(version)) == {row: weight for row, weight in wanted.items() if weight}
    asked = np.array([-1, 0, 2])
    found: Counter[Any] = Counter()
    for row in trace.spine().lookup(asked).to_pylist():
        found[row["_h"], row["k"], row["p"]] += row["_w"]
    assert {row: w for row, w in found.items() if w} == {
        row: w for row, w in model.items() if w and row[0] in asked
    }


@pytest.mark.rule("DBSP-47")
def test_many_steps_leave_few_runs_and_no_step_merges_more_than_its_budget(objects: MemoryObjects) -> None:
    chance = random.Random(1)
    trace = Trace(objects)
    trace.step(numbered(20_000, chance))
    highest, most = 0, 0
    for _ in range(150):
        trace.step(numbered(100, chance), budget_rows=2_000)
        most = max(most, trace.merged_rows)
        heights = Counter(
            n for e in trace.version.traces["t"] for n in range(e.low // 256, e.high // 256 + 1)
        )
        highest = max(highest, *heights.values())
    assert highest <= 3 * merge.FAN
    assert 0 < most <= 2 * 2_000
    assert len(content(trace.spine())) == 20_000 + 150 * 100
    bases = [e for e in trace.version.traces["t"] if e.file == "runs/00000001"]
    assert sum(e.high - e.low + 1 for e in bases) < GRAINS  # the base was merged too, in pieces


def test_a_hash_with_very_many_rows_is_merged_alone(objects: MemoryObjects) -> None:
    trace = Trace(objects)
    for step in range(20):
        hot = {(2**62 + 5, n, "hot"): 1 for n in range(step * 100, step * 100 + 100)}
        cold = {(-(2**62) + n * 2**50, n, "cold"): 1 for n in range(10)}
        trace.step(table(hot | cold), budget_rows=300)
    assert sum(content(trace.spine()).values()) == 20 * 110


def test_what_a_merge_replaces_must_still_be_listed() -> None:
    entry = Entry("a", 0, 99, 0, 10, 5, 1000)
    version = Version(1, "", {"t": (entry,)}, {"t": 1})
    first = Merged("t", (Cut("a", 0, 10, 19),), entry._replace(file="b", low=10, high=19))
    second = Merged("t", (Cut("a", 0, 15, 29),), entry._replace(file="c", low=15, high=29))
    next_version, late = version.apply(2, merged=[first, second])
    assert late == (second,)
    assert [(e.file, e.low, e.high) for e in next_version.traces["t"]] == [
        ("a", 0, 9),
        ("a", 20, 99),
        ("b", 10, 19),
    ]
    assert version.traces["t"] == (entry,)
    nothing, late = next_version.apply(3, merged=[Merged("t", (Cut("b", 0, 10, 19),), None)])
    assert not late
    assert nothing.files() == {"a"}


def test_a_merge_of_a_trace_that_was_rebuilt_is_left_out() -> None:
    entry = Entry("a", 0, 99, 0, 10, 5, 1000)
    version = Version(1, "", {"t": (entry,)}, {"t": 1})
    stale = Merged("t", (Cut("a", 0, 0, 99),), entry._replace(file="b"))
    outcome = version.apply(2, [Added("t", entry._replace(file="new"))], [stale], rebuilt=["t"])
    assert outcome.late == (stale,)
    assert outcome.version.files() == {"new"}


# --- versions


def test_a_trace_is_read_at_the_step_to_which_it_is_current_and_no_other() -> None:
    entry = Entry("a", 0, GRAINS - 1, 0, 10, 5, 7)
    version = Version().apply(1, [Added("t", entry), Added("u", entry)]).version
    version = version.apply(2, stale=["u"]).version
    assert version.entries("t", ALL, 2) == (entry,)
    assert version.entries("never written", ALL, 2) == ()
    for trace, step in (("t", 1), ("t", 3), ("u", 1), ("u", 2), ("never written", 1)):
        with pytest.raises(TraceStale):
            version.entries(trace, ALL, step)
    later = version.apply(3, [Added("u", entry)]).version
    with pytest.raises(TraceStale, match="u is stale"):
        later.entries("u", ALL, 3)  # a run more does not make up for the one that is missing
    rebuilt = later.apply(4, [Added("u", entry)], rebuilt=["u"]).version
    assert rebuilt.entries("u", ALL, 4) == (entry,)
    assert rebuilt.apply(5, dropped=["u"]).version.files() == {"a"}
    assert "u" not in rebuilt.apply(5, dropped=["u"]).version.steps


def test_a_range_sees_the_pieces_that_reach_into_it() -> None:
    entry = Entry("a", 100, GRAINS - 1, 0, 10, 5, 65_436)
    version = Version().apply(1, [Added("t", entry)]).version
    first, second = (version.entries("t", within, 1) for within in ranges(2))
    assert [(e.low, e.high, e.rows) for e in (*first, *second)] == [
        (100, 32_767, 32_668),
        (32_768, 65_535, 32_768),
    ]


def test_a_version_file_is_written_once_and_read_back(objects: MemoryObjects) -> None:
    entry = Entry("runs/é", 0, 9, 0, 10, 5, 7)
    version = Version(3, "1.0", {"t": (entry,), "u": (entry, entry)}, {"t": 3, "u": None})
    write_version(objects, "versions/1", version)
    write_version(objects, "versions/1", version)  # the answer was lost: it is ours
    assert read_version(objects, "versions/1") == version
    with pytest.raises(ObjectConflict):
        write_version(objects, "versions/1", Version(4))


def test_a_version_file_that_cannot_be_read_is_named(objects: MemoryObjects) -> None:
    with pytest.raises(TraceMissing, match="versions/9"):
        read_version(objects, "versions/9")
    good = Version(3, "1.0", {"t": (Entry("f", 0, 9, 0, 10, 5, 7),)}, {"t": 3}).encode("versions/8")
    objects.put("versions/8", good.replace(b'"format":1', b'"format":2', 1))
    with pytest.raises(TraceFormat, match=r"versions/8.*format 2") as caught:
        read_version(objects, "versions/8")
    assert "newer" in str(caught.value)
    for at in range(len(good)):
        with pytest.raises(TraceError, match="versions/8"):
            decode_version(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], "versions/8")
        with pytest.raises(TraceCorrupt, match="versions/8"):
            decode_version(good[:at], "versions/8")


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
