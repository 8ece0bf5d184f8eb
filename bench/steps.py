"""Measure what a step costs besides computing its rows.

`version_ms_at_256`: a large group has 256 ranges, 40 traces and 14 runs in each of them. A step reads the
version of its state and writes the next one, and a task reads its share: the sum of the medians. The raw
figures also have the time to apply the changes of the tasks, with merges in an eighth of the ranges.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from bench.report import Report, at_most, main
from tidemill.clock import SYSTEM
from tidemill.objects.local import LocalObjects
from tidemill.views.trace.hash_space import ranges
from tidemill.views.trace.run_table import AddedRun, MergedRuns, RunCut, RunEntry
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version, write_version

LAYERS = 4
FOLDER = "data/name=views%3Ashop%2Fdefault/version=state/lot=S{step:017}/attempt={step:032x}/"
T = TypeVar("T")


def milliseconds(repetitions: int, call: Callable[[int], T]) -> tuple[float, T]:
    """Return the median time of a call, which gets the number of the repetition, and its last result."""
    times = []
    for number in range(repetitions):
        began = time.perf_counter()
        result = call(number)
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times), result


class LargeGroup:
    """The versions of a large group."""

    def __init__(self, tasks: int, traces: int, runs: int) -> None:
        self.chance = random.Random(7)
        self.tasks = ranges(tasks)
        self.names = [f"{self.chance.getrandbits(128):032x}" for _ in range(traces)]
        self.version = TraceVersion.empty(self.names)
        while self.version.step < runs - 1:
            self.version = self.version.apply(self.version.step + 1, self.added()).version

    def added(self) -> list[AddedRun]:
        """Return the new runs of a step: one for each trace and task, in a bundle for each layer."""
        folder = FOLDER.format(step=self.version.step + 1)
        added = []
        for number, within in enumerate(self.tasks):
            files = [
                f"{folder}{layer:02}-{number:03}-{self.chance.getrandbits(64):016x}.runs"
                for layer in range(LAYERS)
            ]
            offset = 0
            for place, name in enumerate(self.names):
                length = self.chance.randrange(2_000, 200_000)
                head, rows = self.chance.randrange(300, 900), self.chance.randrange(100, 50_000)
                entry = RunEntry(files[place % LAYERS], *within.grains, offset, length, head, rows)
                added.append(AddedRun(name, entry))
                offset += length
        return added

    def merged(self) -> list[MergedRuns]:
        """Return merges of six runs each, in an eighth of the ranges of each trace."""
        merged = []
        for name in self.names:
            for within in self.tasks[::8]:
                first, *rest = self.version.runs.of_trace(name, *within.grains)[:6]
                cuts = tuple(RunCut(run.file, run.offset, run.low, run.high) for run in (first, *rest))
                entry = first._replace(file=f"merged/{within.first}", rows=sum(run.rows for run in rest))
                merged.append(MergedRuns(name, cuts, entry))
        return merged


def versions(report: Report) -> dict[str, Any]:
    tasks, traces, runs = (16, 8, 8) if report.quick else (256, 40, 14)
    group = LargeGroup(tasks, traces, runs)
    added, merged = group.added(), group.merged()
    repetitions = 3 if report.quick else 15
    with tempfile.TemporaryDirectory() as folder:
        objects = LocalObjects(Path(folder), SYSTEM, random.Random(1))
        write_version(objects, "version", group.version)
        read_ms, version = milliseconds(repetitions, lambda _: read_version(objects, "version"))
        apply_ms, applied = milliseconds(
            repetitions, lambda _: version.apply(version.step + 1, added, merged)
        )
        assert not applied.late
        write_ms, _ = milliseconds(
            repetitions, lambda number: write_version(objects, f"versions/{number}", applied.version)
        )
        share_ms, _ = milliseconds(
            repetitions, lambda number: read_version(objects, "versions/0", group.tasks[number])
        )
        size = objects.head("versions/0").size
    return {
        "pieces": len(applied.version.runs),
        "bytes": size,
        "read_ms": round(read_ms, 2),
        "apply_ms": round(apply_ms, 2),
        "write_ms": round(write_ms, 2),
        "share_ms": round(share_ms, 2),
    }


def measure(report: Report) -> None:
    raw = versions(report)
    total = sum(raw[part] for part in ("read_ms", "write_ms", "share_ms"))
    report.figure("version_ms_at_256", total, raw, target=at_most(50))


if __name__ == "__main__":
    main("steps", __doc__, measure)
