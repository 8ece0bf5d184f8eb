"""Traces: hash space, consolidation, runs, merges and versions."""

import itertools
import random
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tidemill.errors import (
    TraceStale,
    UsageError,
    WeightOverflow,
)
from tidemill.objects.memory import MemoryObjects
from tidemill.objects.port import Objects
from tidemill.testing import FakeClock
from tidemill.views.trace import merge_plan
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.consolidation import consolidate
from tidemill.views.trace.hash_space import (
    ALL,
    GRAINS,
    HashRange,
    hash_bounds,
    ranges,
    slice_of,
    split,
)
from tidemill.views.trace.key_hash import key_hashes
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.order import ascending, lexical
from tidemill.views.trace.run_table import AddedRun, MergedRuns, RunCut, RunEntry, RunTable
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import TraceVersion

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


def content(trace: Trace) -> Counter[Any]:
    rows: Counter[Any] = Counter()
    for piece in trace.scan(rows=64):
        for row in piece.to_pylist():
            assert row["_w"] != 0
            rows[row["_h"], row["k"], row["p"]] += row["_w"]
    return rows


class TraceHistory:
    """One trace and all its versions."""

    def __init__(self, objects: Objects, cache: Cache | None = None) -> None:
        self.objects = objects
        self.cache = cache or Cache(objects, None)
        self.versions = [TraceVersion.empty(["t"])]
        self.merged_rows = 0

    @property
    def version(self) -> TraceVersion:
        return self.versions[-1]

    def trace(self, version: TraceVersion | None = None, within: HashRange = ALL) -> Trace:
        version = version or self.version
        return Trace.of(version, "t", LAYOUT, self.cache, within, version.step)

    def step(self, delta: pa.Table, budget_rows: int | None = None) -> None:
        step = self.version.step + 1
        bundle = Bundle(self.objects, f"runs/{step:08d}", self.cache)
        changes = self.trace().extend(delta, bundle, budget_rows)
        bundle.write()
        self.merged_rows = sum(each.entry.rows for each in changes.merged if each.entry is not None)
        self.versions.append(self.version.apply(step, changes.added, changes.merged).version)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(FakeClock())


# --- hash space


def test_slices_are_in_the_order_of_the_hash() -> None:
    hashes = np.array([-(2**63), -(2**63) + 2**56, -1, 0, 2**63 - 1], np.int64)
    slices = [0, 1, 127, 128, 255]
    assert slice_of(hashes).tolist() == slices
    for number, value in zip(slices, hashes.tolist(), strict=True):
        low, high = hash_bounds(256 * number, 256 * number + 255)
        assert low <= value <= high
    assert hash_bounds(0, GRAINS - 1) == (-(2**63), 2**63 - 1)


@pytest.mark.parametrize("count", [1, 2, 7, 255, 256])
def test_ranges_cover_hash_space_once(count: int) -> None:
    parts = ranges(count)
    assert [n for each in parts for n in range(each.first, each.last + 1)] == list(range(256))
    assert max(each.last - each.first for each in parts) - min(each.last - each.first for each in parts) <= 1


@pytest.mark.parametrize("count", [0, 257])
def test_there_are_1_to_256_ranges(count: int) -> None:
    with pytest.raises(UsageError):
        ranges(count)


def test_an_exchange_sends_each_row_to_its_range() -> None:
    rows = numbered(500, random.Random(3))
    for count in (1, 2, 3, 7):
        parts = split(rows, ranges(count))
        assert sum(part.num_rows for part in parts) == 500
        for part, within in zip(parts, ranges(count), strict=True):
            slices = slice_of(rows["_h"].to_numpy())
            assert part == rows.filter(pa.array((within.first <= slices) & (slices <= within.last)))
        assert [again for part in parts for again in split(part, ranges(count)) if again.num_rows] == [
            part for part in parts if part.num_rows
        ]


# --- sorting


@pytest.mark.parametrize("span", [3, 2**16 + 1, 2**40, 2**63 - 1])
@pytest.mark.parametrize("count", [0, 1, 100, 5_000])
def test_sort_orders_equal_those_of_numpy(span: int, count: int) -> None:
    chance = np.random.default_rng(span + count)
    minor, major = (chance.integers(-span - 1, span, count, endpoint=True) for _ in range(2))
    pieces = np.concatenate([np.sort(minor[: count // 2]), np.sort(minor[count // 2 :])])
    order, starts = lexical(minor, major // 7)
    assert order.tolist() == np.lexsort((minor, major // 7)).tolist()
    listed = list(zip((major // 7)[order].tolist(), minor[order].tolist(), strict=True))
    assert starts.tolist() == [n for n, pair in enumerate(listed) if n == 0 or pair != listed[n - 1]]
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
def test_consolidation_adds_up_and_drops_only_zeros(parts: list[dict[Any, int]]) -> None:
    model: Counter[Any] = Counter()
    for part in parts:
        model.update(part)
    consolidated = consolidate(pa.concat_tables([LAYOUT.empty(), *map(table, parts)]), LAYOUT)
    assert {(row["_h"], row["k"], row["p"]): row["_w"] for row in consolidated.to_pylist()} == {
        row: weight for row, weight in model.items() if weight
    }
    assert consolidated.num_rows == sum(1 for weight in model.values() if weight)
    assert consolidated["_h"].to_pylist() == sorted(consolidated["_h"].to_pylist())


def test_many_rows_of_few_groups_are_consolidated_like_few_rows() -> None:
    chance = np.random.default_rng(5)
    layout = Layout(pa.schema([("k", pa.int32()), ("t", pa.string())]), 2, ("_n", "_s"))
    group = chance.integers(0, 300, 100_000)
    some = [None, *(f"t{n}" for n in range(6))]
    rows = {"k": pa.array((group % 50).astype(np.int32)), "t": pa.array([some[n // 50] for n in group])}
    hashes = key_hashes(list(rows.values()), len(group))
    sums = {name: chance.integers(-5, 6, len(group)) for name in layout.sums}
    table = pa.table({"_h": hashes, **rows, **sums}, schema=layout.schema)
    pieces = [consolidate(table.slice(at, 5_000), layout) for at in range(0, len(group), 5_000)]
    assert consolidate(table, layout).equals(consolidate(pa.concat_tables(pieces), layout))
    large = table.set_column(3, "_n", pa.array(np.full(len(group), 2**62)))
    with pytest.raises(WeightOverflow):
        consolidate(large, layout)


def test_a_weight_beyond_64_bits_is_refused() -> None:
    rows = pa.concat_tables([table({(1, 1, "a"): 2**62})] * 2)
    with pytest.raises(WeightOverflow):
        consolidate(rows, LAYOUT)


def test_a_table_with_other_columns_is_refused() -> None:
    with pytest.raises(UsageError, match="missing"):
        LAYOUT.conform(pa.table({"_h": [1]}))
    with pytest.raises(UsageError, match="wrong types"):
        LAYOUT.conform(pa.table({"_h": [1], "k": ["x"], "p": ["y"], "_w": [1]}))


# --- runs and merges


@settings(max_examples=20)
@given(st.lists(rows_of, min_size=1, max_size=30), st.integers(0, 40))
def test_every_version_shows_its_rows_after_later_merges(
    steps: list[dict[Any, int]], budget_rows: int
) -> None:
    history = TraceHistory(MemoryObjects(FakeClock()))
    model: Counter[Any] = Counter()
    models = [model]
    for step in steps:
        model = model.copy()
        model.update(step)
        models.append(model)
        history.step(table(step), budget_rows)
    for version, expected in zip(history.versions, models, strict=True):
        assert content(history.trace(version)) == {row: weight for row, weight in expected.items() if weight}
    targets = np.array([-1, 0, 2])
    looked_up: Counter[Any] = Counter()
    for row in history.trace().lookup(targets).to_pylist():
        looked_up[row["_h"], row["k"], row["p"]] += row["_w"]
    assert {row: w for row, w in looked_up.items() if w} == {
        row: w for row, w in model.items() if w and row[0] in targets
    }


@pytest.mark.parametrize("each", [1, 3, 40])
@pytest.mark.parametrize("share", [1.0, 0.9, 0.01])
def test_a_lookup_finds_all_most_or_few_rows(each: int, share: float) -> None:
    chance = np.random.default_rng(each)
    hashes = np.unique(chance.integers(-(2**63), 2**63 - 1, 2_000))
    rows = pa.table(
        [
            np.repeat(hashes, each),
            np.arange(len(hashes) * each),
            ["p"] * len(hashes) * each,
            [1] * len(hashes) * each,
        ],
        schema=LAYOUT.schema,
    )
    history = TraceHistory(MemoryObjects(FakeClock()))
    history.step(rows)
    targets = np.sort(
        np.append(chance.choice(hashes, int(share * len(hashes)), replace=False), hashes[7] + 1)
    )
    looked_up = history.trace().lookup(targets)
    assert sorted(looked_up["k"].to_pylist()) == sorted(
        rows.filter(pa.array(np.isin(rows["_h"].to_numpy(), targets)))["k"].to_pylist()
    )
    assert looked_up["_h"].to_pylist() == sorted(looked_up["_h"].to_pylist())


@pytest.mark.slow
@pytest.mark.rule("DBSP-47")
def test_many_steps_leave_few_runs_and_no_step_merges_more_than_its_budget(objects: MemoryObjects) -> None:
    chance = random.Random(1)
    history = TraceHistory(objects)
    history.step(numbered(20_000, chance))
    highest, most = 0, 0
    for _ in range(260):
        history.step(numbered(100, chance), budget_rows=2_000)
        most = max(most, history.merged_rows)
        heights = Counter(
            n for e in history.version.traces["t"] for n in range(e.low // 256, e.high // 256 + 1)
        )
        highest = max(highest, *heights.values())
    assert highest <= 3 * merge_plan.FAN
    assert 0 < most <= 2 * 2_000
    assert len(content(history.trace())) == 20_000 + 260 * 100
    bases = [e for e in history.version.traces["t"] if e.file == "runs/00000001"]
    assert sum(e.high - e.low + 1 for e in bases) < GRAINS  # the base was merged too, in pieces


@pytest.mark.rule("DBSP-47")
def test_a_few_small_runs_do_not_prevent_the_merge_of_many_large_ones() -> None:
    """For any sequence of step sizes, stacks stay low and rows are rewritten only a few times."""
    added = itertools.count()

    def entry(low: int, high: int, rows: int) -> RunEntry:
        return RunEntry(f"run-{next(added)}", low, high, 0, 0, 0, rows)

    version = TraceVersion.empty(["t"]).apply(1, [AddedRun("t", entry(0, GRAINS - 1, 1_000_000))]).version
    highest, rewritten, total = 0, 0, 0
    for rows in [*[100] * 40, *[1_000] * 40, 100, *[10_000] * 40, 100, 100, *[100_000] * 20, *[100] * 40]:
        entries, merges = version.traces["t"], []
        for piece in merge_plan.plan_merges(
            entries, merge_plan.merge_budget(rows, sum(each.rows for each in entries))
        ):
            cuts, merged_rows = [], 0
            for each in piece.entries:
                part = each.within(piece.low, piece.high)
                assert part is not None
                cuts.append(RunCut(each.file, each.offset, part.low, part.high))
                merged_rows += part.rows
            merges.append(MergedRuns("t", tuple(cuts), entry(piece.low, piece.high, merged_rows)))
            rewritten += merged_rows
        version = version.apply(version.step + 1, [AddedRun("t", entry(0, GRAINS - 1, rows))], merges).version
        total += rows
        heights = Counter(n for e in version.traces["t"] for n in range(e.low // 256, e.high // 256 + 1))
        highest = max(highest, *heights.values())
    assert highest <= 2 * merge_plan.FAN
    assert rewritten <= 4 * total


def test_a_hash_with_very_many_rows_is_merged_alone(objects: MemoryObjects) -> None:
    history = TraceHistory(objects)
    for step in range(20):
        hot = {(2**62 + 5, n, "hot"): 1 for n in range(step * 100, step * 100 + 100)}
        cold = {(-(2**62) + n * 2**50, n, "cold"): 1 for n in range(10)}
        history.step(table(hot | cold), budget_rows=300)
    assert sum(content(history.trace()).values()) == 20 * 110


def test_a_merge_is_dropped_unless_all_its_cuts_are_listed() -> None:
    entry = RunEntry("a", 0, 99, 0, 10, 5, 1000)
    version = TraceVersion(1, "", {"t": 1}, RunTable.of({"t": (entry,)}))
    first = MergedRuns("t", (RunCut("a", 0, 10, 19),), entry._replace(file="b", low=10, high=19))
    second = MergedRuns("t", (RunCut("a", 0, 15, 29),), entry._replace(file="c", low=15, high=29))
    next_version, late = version.apply(2, merged=[first, second])
    assert late == (second,)
    assert [(e.file, e.low, e.high) for e in next_version.traces["t"]] == [
        ("a", 0, 9),
        ("a", 20, 99),
        ("b", 10, 19),
    ]
    assert version.traces["t"] == (entry,)
    nothing, late = next_version.apply(3, merged=[MergedRuns("t", (RunCut("b", 0, 10, 19),), None)])
    assert not late
    assert nothing.files() == {"a"}


def test_a_merge_of_a_rebuilt_trace_is_dropped() -> None:
    entry = RunEntry("a", 0, 99, 0, 10, 5, 1000)
    version = TraceVersion(1, "", {"t": 1}, RunTable.of({"t": (entry,)}))
    stale = MergedRuns("t", (RunCut("a", 0, 0, 99),), entry._replace(file="b"))
    outcome = version.apply(2, [AddedRun("t", entry._replace(file="new"))], [stale], rebuilt=["t"])
    assert outcome.late == (stale,)
    assert outcome.version.files() == {"new"}


# --- versions


def test_a_trace_is_readable_only_at_the_step_to_which_it_is_current() -> None:
    entry = RunEntry("a", 0, GRAINS - 1, 0, 10, 5, 7)
    version = (
        TraceVersion.empty(["t", "u", "v"]).apply(1, [AddedRun("t", entry), AddedRun("u", entry)]).version
    )
    version = version.apply(2, stale=["u"]).version
    assert version.entries("t", ALL, 2) == (entry,)
    assert version.entries("v", ALL, 2) == ()
    for trace, step in (("t", 1), ("t", 3), ("u", 1), ("u", 2), ("v", 1), ("never built", 2)):
        with pytest.raises(TraceStale):
            version.entries(trace, ALL, step)
    later = version.apply(3, [AddedRun("u", entry)]).version
    with pytest.raises(TraceStale, match="u is stale"):
        later.entries("u", ALL, 3)  # another run does not replace the missing one
    rebuilt = later.apply(4, [AddedRun("u", entry)], rebuilt=["u"]).version
    assert rebuilt.entries("u", ALL, 4) == (entry,)
    with pytest.raises(UsageError, match="new was never built"):
        rebuilt.apply(5, [AddedRun("new", entry)])
    assert rebuilt.apply(5, [AddedRun("new", entry)], rebuilt=["new"]).version.entries("new", ALL, 5) == (
        entry,
    )
    assert rebuilt.apply(5, dropped=["u"]).version.files() == {"a"}
    assert "u" not in rebuilt.apply(5, dropped=["u"]).version.steps


def test_a_range_has_the_pieces_that_overlap_it() -> None:
    entry = RunEntry("a", 100, GRAINS - 1, 0, 10, 5, 65_436)
    version = TraceVersion.empty(["t"]).apply(1, [AddedRun("t", entry)]).version
    first, second = (version.entries("t", within, 1) for within in ranges(2))
    assert [(e.low, e.high, e.rows) for e in (*first, *second)] == [
        (100, 32_767, 32_668),
        (32_768, 65_535, 32_768),
    ]
