"""Version files: both formats, the share of a task, damage; and the changes of a version against a model."""

import json
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import ObjectConflict, TraceCorrupt, TraceError, TraceFormat, TraceMissing
from tidemill.objects.memory import MemoryObjects
from tidemill.testing import FakeClock
from tidemill.views.trace import version_file
from tidemill.views.trace.hash_space import ALL, GRAINS, HashRange, ranges
from tidemill.views.trace.run_table import (
    COLUMNS,
    FILE,
    HEAD,
    HIGH,
    LENGTH,
    LOW,
    OFFSET,
    ROWS,
    TRACE,
    AddedRun,
    MergedRuns,
    RunCut,
    RunEntry,
    RunTable,
)
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import decode_version, encode_version, read_version, write_version

FORMATS = pytest.mark.parametrize("form", [1, 2])
KEY = "versions/1"


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(FakeClock())


def large_version(tasks: int, traces: int, steps: int, form: int = 2) -> TraceVersion:
    """A version as `steps` steps of `tasks` tasks leave it, with a wide run from a step of one task."""
    names = [f"trace-{n:02}" for n in range(traces)]
    version = TraceVersion(steps=dict.fromkeys(names, 0), format=form)
    chance = random.Random(1)
    for step in range(1, steps + 1):
        added = [
            AddedRun(
                name,
                RunEntry(f"runs/{step}-{task}", *within.grains, n, chance.randrange(50, 10**6), 50, step),
            )
            for n, name in enumerate(names)
            for task, within in enumerate(ranges(tasks))
        ]
        version = version.apply(step, added).version
    wide = [AddedRun(name, RunEntry("runs/wide", 5, GRAINS - 3, 0, 100, 50, 1_000_000)) for name in names]
    return version.apply(steps + 1, wide).version


@FORMATS
def test_a_version_file_is_written_once_and_read_back(objects: MemoryObjects, form: int) -> None:
    entry = RunEntry("runs/é", 0, 9, 0, 10, 5, 7)
    runs = RunTable.of({"t": (entry,), "u": (entry, entry)})
    version = TraceVersion(3, "1.0", {"t": 3, "u": None, "empty": 3}, runs, form)
    write_version(objects, KEY, version)
    write_version(objects, KEY, version)  # a retry after a lost answer
    read = read_version(objects, KEY)
    assert read == version != version.apply(4).version
    assert read.traces == {"t": (entry,), "u": (entry, entry)}
    assert read.format == read.apply(4).version.format == form, "the next version has the same format"
    with pytest.raises(ObjectConflict):
        write_version(objects, KEY, TraceVersion(4))
    write_version(objects, "versions/2", TraceVersion(format=form))
    assert read_version(objects, "versions/2").traces == {}


@FORMATS
@pytest.mark.parametrize("tasks", [1, 7, 64])
def test_each_task_reads_the_pieces_of_its_range(objects: MemoryObjects, tasks: int, form: int) -> None:
    version = large_version(64, traces=3, steps=20, form=form)
    write_version(objects, KEY, version)
    for within in ranges(tasks):
        share = read_version(objects, KEY, within)
        assert (share.step, share.steps) == (version.step, version.steps)
        for trace in version.steps:
            expected = version.entries(trace, within, version.step)
            assert sorted(share.entries(trace, within, version.step)) == sorted(expected)
        assert len(share.runs) <= len(version.runs) // tasks + 20 * 3 * 2 + 3


def test_a_task_of_a_large_version_fetches_only_its_share() -> None:
    class CountingObjects(MemoryObjects):
        requests = fetched = 0

        def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
            bodies = super()._get_ranges(key, ranges)
            self.requests += len(ranges) > 0
            self.fetched += sum(map(len, bodies))
            return bodies

        def get(self, key: str) -> Any:
            raise AssertionError("a task reads the whole file")

    objects = CountingObjects(FakeClock())
    body = encode_version(large_version(256, traces=40, steps=5), KEY)
    objects.put(KEY, body)
    share = read_version(objects, KEY, ranges(256)[200])
    assert len(share.runs) == 40 * 6
    assert objects.requests == 2
    assert objects.fetched < version_file.FIRST_BYTES + len(body) / 50


@FORMATS
def test_an_error_names_an_unreadable_version_file(objects: MemoryObjects, form: int) -> None:
    with pytest.raises(TraceMissing, match="versions/9"):
        read_version(objects, "versions/9")
    with pytest.raises(TraceMissing, match="versions/9"):
        read_version(objects, "versions/9", HashRange(0, 7))
    runs = RunTable.of({"t": (RunEntry("f", 0, 9, 0, 10, 5, 7),)})
    good = encode_version(TraceVersion(3, "1.0", {"t": 3}, runs, form), KEY)
    objects.put(KEY, good.replace(b'"format":%d' % form, b'"format":3', 1))
    for within in (ALL, HashRange(0, 7)):
        with pytest.raises(TraceFormat, match=rf"{KEY}.*format 3") as caught:
            read_version(objects, KEY, within)
        assert "upgrade" in str(caught.value)
    for at in range(len(good)):
        with pytest.raises(TraceError, match=KEY):
            decode_version(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], KEY)
        with pytest.raises(TraceCorrupt, match=KEY):
            decode_version(good[:at], KEY)
        objects.put(KEY, good[:at])
        with pytest.raises(TraceCorrupt, match=KEY):
            read_version(objects, KEY, HashRange(0, 7))


def _set(column: int, value: int) -> Callable[[dict[str, Any], Any], None]:
    return lambda _, numbers: numbers[column].__setitem__(0, value)


IMPOSSIBLE: list[Callable[[dict[str, Any], Any], None]] = [
    _set(TRACE, 1),
    _set(TRACE, -1),
    _set(FILE, 1),
    _set(FILE, -1),
    _set(LOW, -1),
    _set(HIGH, GRAINS),
    _set(LOW, 10),
    _set(OFFSET, -1),
    _set(HEAD, 0),
    _set(HEAD, 11),
    _set(LENGTH, 0),
    _set(ROWS, -1),
    lambda fields, _: fields["steps"].__setitem__("t", "1"),
    lambda fields, _: fields.__setitem__("step", float("inf")),
    lambda fields, _: fields.__setitem__("traces", ["t", "t"]),
    lambda fields, _: fields.__setitem__("traces", "t"),
    lambda fields, _: fields["sections"][0].__setitem__(0, 300),
    lambda fields, _: fields["sections"][0].__setitem__(2, -1),
    lambda fields, _: fields["sections"][0].__setitem__(3, 10**15),
    lambda fields, _: fields["sections"][0].__setitem__(4, 2),
    lambda fields, _: fields["sections"].append([0, 1]),
]


@pytest.mark.parametrize("change", IMPOSSIBLE)
def test_a_version_file_with_impossible_values_is_damaged(
    objects: MemoryObjects, change: Callable[[dict[str, Any], Any], None]
) -> None:
    fields, numbers = {}, np.array([[0, 0, 0, 9, 0, 10, 5, 7]], np.int64).T.copy()
    fields = {"name": KEY, "step": 3, "code": "", "steps": {"t": 3}, "traces": ["t"]}
    objects.put(KEY, _file(fields, numbers))
    assert read_version(objects, KEY).traces == {"t": (RunEntry("f", 0, 9, 0, 10, 5, 7),)}
    objects.put(KEY, _file(fields, numbers, change))
    for within in (ALL, HashRange(0, 7)):
        with pytest.raises(TraceCorrupt, match=f"version file '{KEY}' is damaged"):
            read_version(objects, KEY, within)


@pytest.mark.parametrize("files", [[None], ["/"], ["../outside"], {"f": 0}, {}, 5])
def test_a_version_file_with_invalid_names_is_damaged(objects: MemoryObjects, files: object) -> None:
    numbers = np.array([[0, 0, 0, 9, 0, 10, 5, 7]], np.int64).T.copy()
    fields = {"name": KEY, "step": 3, "code": "", "steps": {"t": 3}, "traces": ["t"]}
    objects.put(KEY, _file(fields, numbers, files=files))
    with pytest.raises(TraceCorrupt, match=f"version file '{KEY}' is damaged"):
        read_version(objects, KEY)


def _file(
    fields: dict[str, Any],
    numbers: Any,
    change: Callable[[dict[str, Any], Any], None] = lambda *_: None,
    *,
    files: object = ("f",),
) -> bytes:
    """A file of format 2 whose checksums are right, with one section."""
    assert len(numbers) == COLUMNS
    fields = {**fields, "steps": dict(fields["steps"]), "sections": [[0, 255, 0, 0, 1, 0]]}
    numbers = numbers.copy()
    change(fields, numbers)
    raw = version_file._shuffled(numbers.T) + json.dumps(files).encode()
    packed = version_file.pa.compress(raw, codec="zstd", asbytes=True)
    section = fields["sections"][0]
    for at, value in ((2, len(packed)), (3, len(raw)), (5, zlib.crc32(packed))):
        section[at] = section[at] or value
    directory = json.dumps(fields).encode()
    head = json.dumps({"format": 2, "directory": len(directory), "crc": zlib.crc32(directory)})
    return head.encode() + b"\n" + directory + packed


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields["traces"]["t"][0].__setitem__(3, -1),
        lambda fields: fields["traces"]["t"][0].__setitem__(5, 0),
        lambda fields: fields["traces"]["t"][0].__setitem__(2, 10**9),
        lambda fields: fields["traces"]["t"][0].__setitem__(1, 1.5),
        lambda fields: fields["traces"]["t"][0].__setitem__(0, 7),
        lambda fields: fields["traces"]["t"][0].append(7),
        lambda fields: fields["files"].__setitem__(0, None),
        lambda fields: fields["files"].__setitem__(0, "/"),
        lambda fields: fields["files"].append("../outside"),
        lambda fields: fields["steps"].__setitem__("t", "1"),
        lambda fields: fields.__setitem__("step", float("inf")),
    ],
)
def test_a_version_file_of_format_1_with_impossible_values_is_damaged(
    objects: MemoryObjects, change: Callable[[dict[str, Any]], None]
) -> None:
    runs = RunTable.of({"t": (RunEntry("f", 0, 9, 0, 10, 5, 7),)})
    first, _, rest = encode_version(TraceVersion(3, "", {"t": 3}, runs, 1), KEY).partition(b"\n")
    fields = json.loads(rest)
    change(fields)
    body = json.dumps(fields).encode()
    head = json.dumps({**json.loads(first), "crc": zlib.crc32(body)}).encode()
    objects.put(KEY, head + b"\n" + body)
    with pytest.raises(TraceCorrupt, match=f"version file '{KEY}' is damaged"):
        read_version(objects, KEY)


# --- changes


def modelled(
    traces: dict[str, list[RunEntry]], added: Sequence[AddedRun], merged: Sequence[MergedRuns]
) -> list[MergedRuns]:
    """Change lists of pieces grain by grain; return the merges that came too late."""
    late = []
    for merge in merged:
        pieces = traces.get(merge.trace, [])
        cut_grains = {(cut.file, cut.offset, grain) for cut in merge.cuts for grain in _grains(cut)}
        listed = {(entry.file, entry.offset, grain) for entry in pieces for grain in _grains(entry)}
        if not cut_grains <= listed:
            late.append(merge)
            continue
        left = []
        for entry in pieces:
            kept = [g for g in _grains(entry) if (entry.file, entry.offset, g) not in cut_grains]
            for grain in kept:
                if left and left[-1][:2] == (entry, grain - 1):
                    left[-1] = (entry, grain, left[-1][2])
                else:
                    left.append((entry, grain, grain))
        traces[merge.trace] = [entry._replace(low=low, high=high) for entry, high, low in left]
        traces[merge.trace] += [] if merge.entry is None else [merge.entry]
    for trace, entry in added:
        traces.setdefault(trace, []).append(entry)
    return late


def _grains(piece: RunCut | RunEntry) -> range:
    return range(piece.low, piece.high + 1)


@st.composite
def pieces(draw: st.DrawFn) -> tuple[int, int]:
    low = draw(st.integers(0, 9))
    return low, draw(st.integers(low, 9))


TRACES = st.sampled_from(["a", "b", "c"])
RUNS = st.tuples(st.sampled_from(["f", "g", "h"]), st.sampled_from([0, 10]))
ADDED = st.lists(st.tuples(TRACES, RUNS, pieces()), max_size=4, unique_by=lambda run: (run[0], run[1]))
CUTS = st.lists(st.tuples(st.integers(0, 4), RUNS, pieces()), max_size=3)
MERGED = st.lists(st.tuples(TRACES, CUTS, st.booleans()), max_size=3)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[list[AddedRun], list[MergedRuns]]]:
    changes = []
    for step in range(draw(st.integers(1, 5))):
        added = [
            AddedRun(trace, RunEntry(f"s{step}-{file}", low, high, offset, 10, 5, 100))
            for trace, (file, offset), (low, high) in draw(ADDED)
        ]
        merged = []
        for number, (trace, cuts, empty) in enumerate(draw(MERGED)):
            of_runs = {
                (f"s{of}-{file}", offset): RunCut(f"s{of}-{file}", offset, low, high)
                for of, (file, offset), (low, high) in cuts
            }
            entry = None if empty else RunEntry(f"m{step}-{number}", 0, 9, 0, 10, 5, 100)
            merged.append(MergedRuns(trace, tuple(of_runs.values()), entry))
        changes.append((added, merged))
    return changes


@given(steps())
@pytest.mark.rule("DBSP-37")
def test_changes_are_those_of_a_model_in_both_formats(
    changes: list[tuple[list[AddedRun], list[MergedRuns]]],
) -> None:
    version, model = TraceVersion.empty(["a", "b", "c"]), dict[str, list[RunEntry]]()
    for step, (added, merged) in enumerate(changes, start=1):
        late = modelled(model, added, merged)
        applied = version.apply(step, added, merged)
        assert list(applied.late) == late
        version = applied.version
        for form in (1, 2):
            stored = TraceVersion(version.step, version.code, version.steps, version.runs, form)
            read = decode_version(encode_version(stored, KEY), KEY)
            assert _places(read.traces) == _places(model)
            assert read.files() == {entry.file for entries in model.values() for entry in entries}


def _places(traces: Any) -> dict[str, list[tuple[str, int, int, int]]]:
    return {
        trace: sorted((entry.file, entry.offset, entry.low, entry.high) for entry in entries)
        for trace, entries in traces.items()
        if entries
    }
