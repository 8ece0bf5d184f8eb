"""Measure steps of the 22 queries of TPC-H as views, compared with Spark, DuckDB and Structured Streaming.

A step deletes orders with their line items and appends as many, 6,000 line items in all. Keys, targets and
how to read them: bench/README.md.
"""

import math
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import sqlglot

from bench import environment, machine
from bench.comparison import rounded
from bench.report import Report, at_least, at_most, options, tell
from bench.side import Side
from bench.tpch.tables import Tables
from bench.tpch.views import Timing, Views
from tests.integration.tpch import DDL, QUERIES

RECOMPUTE, DUCKDB = "bench.peers.spark_recompute", "bench.peers.duckdb_recompute"
STREAMING = "bench.peers.spark_streaming"
CHANGES = 6_000
STREAMED = ("q1", "q6", "q14", "q19")
"""The queries that Structured Streaming can follow: line items arrive, all other tables stay as they are."""
BYTES_AT_ONE = 30_000_000_000
"""The disk space that the bench may need at scale factor 1: state of 22 groups, copies of the data."""


@dataclass(frozen=True)
class Scale:
    """The amount of work: scale factors, steps that warm up, steps that count, repetitions of each peer."""

    large: float
    small: float
    warm_ups: int
    steps: int
    repetitions: int
    memory: str


FULL = Scale(1.0, 0.3, 3, 7, 3, "4g")
QUICK = Scale(0.01, 0.003, 0, 1, 1, "1g")


def measure(report: Report, scale: Scale, names: Sequence[str]) -> None:
    """Measure both scale factors, then the peers over the large one."""
    report.flags["scale"] = vars(scale)
    with machine.scratch("tpch") as folder:
        free, needed = shutil.disk_usage(folder).free, scale.large * BYTES_AT_ONE
        if free < needed:
            raise OSError(f"{free / 1e9:.0f} GB are free, and {needed / 1e9:.0f} may be needed")
        small, _ = _follow(report, folder / "small", scale, scale.small, names, check=False)
        large, tables = _follow(report, folder / "large", scale, scale.large, names, check=True)
        growth = [large[name] / small[name] for name in large if name in small]
        report.figure("growth", statistics.geometric_mean(growth), target=at_most(1.3))
        spark = _recomputed(report, folder, scale, tables, list(large))
        _compare(report, "spark", large, spark, target=10)
        slowest = min(large, key=lambda name: spark[name] / large[name])
        report.figure("slowest_vs_spark", spark[slowest] / large[slowest], slowest, target=at_least(1))
        if report.quick and not environment.made():
            report.absent("geomean_vs_duckdb")
        else:
            _compare(report, "duckdb", large, _duckdb(report, folder, scale, tables, list(large)))
        if report.quick:
            report.absent("geomean_vs_streaming", why="not run with --quick")
        else:
            _compare(report, "streaming", large, _streamed(report, folder, scale, tables, list(large)))


def _follow(
    report: Report, folder: Path, scale: Scale, factor: float, names: Sequence[str], *, check: bool
) -> tuple[dict[str, float], Tables]:
    """Load the views and run steps; return the median of each view that has steps, and the tables."""
    folder.mkdir()
    tables = Tables(folder, factor, CHANGES, scale.warm_ups + scale.steps)
    timings: dict[str, Timing] = {}
    with Views(folder / "home", tables, list(names), scale.memory) as views:
        report.say(f"scale factor {factor:g}: {len(names)} views loaded in {views.load():.1f} s")
        for number in range(scale.warm_ups + scale.steps):
            views.step(tables.step(), timings if number >= scale.warm_ups else None)
            report.say(f"step {number + 1} of {scale.warm_ups + scale.steps}")
        if check:
            _tell(report, timings)
            _check(report, folder, scale, views, tables)
    shutil.rmtree(folder / "home")
    return {name: statistics.median(timing.ms) for name, timing in timings.items()}, tables


def _tell(report: Report, timings: dict[str, Timing]) -> None:
    """Report the steps of each view, and how many views are incremental; without a step, nothing is read."""
    raw = {
        name: {
            "median_ms": rounded(statistics.median(timing.ms)),
            "worst_ms": rounded(max(timing.ms)),
            "places": sorted(timing.places),
            "recomputed_rows": timing.recomputed_rows,
            "whole": timing.whole,
        }
        for name, timing in timings.items()
    }
    idle = [name for name in QUERIES if name not in timings]
    count = len(idle) + sum(timing.incremental for timing in timings.values())
    report.figure("incremental", count, {"steps": raw, "not_changed": idle}, target=at_least(len(QUERIES)))


def _check(report: Report, folder: Path, scale: Scale, views: Views, tables: Tables) -> None:
    """Compare every view with plain Spark over the current tables."""
    now, wrong = folder / "now", []
    files = {name: str(path) for name, path in tables.write(now).items()}
    with Side(RECOMPUTE) as spark:
        spark.ask("open", memory=scale.memory, folder=str(now))
        for name in views.names:
            path = now / f"result-{name}"
            spark.ask("result", tables=files, ddl=DDL, sql=QUERIES[name], path=str(path))
            expected = pq.read_table(path).to_pylist()
            if _bag(expected) != _bag(views.rows(name)):
                wrong.append(name)
    shutil.rmtree(now, ignore_errors=True)  # Spark removes its own files as it ends
    report.figure("right", len(views.names) - len(wrong), {"wrong": wrong}, target=at_least(len(QUERIES)))
    if wrong:
        report.failed["right"] = f"{', '.join(wrong)} differ from Spark"


def _bag(rows: list[dict[str, object]]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in rows)


# --- the peers


def _recomputed(
    report: Report, folder: Path, scale: Scale, tables: Tables, names: list[str]
) -> dict[str, float]:
    """Return how many milliseconds Spark takes to compute and write each query."""
    files = {name: str(path) for name, path in tables.files.items()}
    with _opened(report, RECOMPUTE, folder, scale) as spark:
        return {
            name: _median(report, name, scale, spark, tables=files, ddl=DDL, sql=QUERIES[name])
            for name in names
        }


def _duckdb(report: Report, folder: Path, scale: Scale, tables: Tables, names: list[str]) -> dict[str, float]:
    """Return how many milliseconds DuckDB takes over the same files."""
    with _opened(report, DUCKDB, folder, scale, python=environment.python(report.say)) as duck:
        duck.ask("read", tables={name: str(path) for name, path in tables.files.items()})
        return {
            name: _median(
                report, name, scale, duck, sql=sqlglot.transpile(QUERIES[name], "spark", "duckdb")[0]
            )
            for name in names
        }


def _streamed(
    report: Report, folder: Path, scale: Scale, tables: Tables, names: list[str]
) -> dict[str, float]:
    """Return how many milliseconds Structured Streaming takes for a file with as many new line items."""
    took: dict[str, float] = {}
    base = [str(path) for path in sorted(tables.files["lineitem"].glob("*.parquet"))]
    other = {name: str(path) for name, path in tables.files.items() if name != "lineitem"}
    rows = pq.read_table(base[0]).slice(0, CHANGES)
    for name in (name for name in STREAMED if name in names):
        with ExitStack() as stack:
            streaming = stack.enter_context(_opened(report, STREAMING, folder / f"streaming-{name}", scale))
            sql = QUERIES[name].partition("ORDER BY")[0]
            streaming.ask("start", base=base, table="lineitem", others=other, ddl=DDL, sql=sql)
            steps = []
            for number in range(scale.warm_ups + scale.repetitions):
                path = folder / f"arriving-{name}-{number}" / "lineitem.parquet"
                path.parent.mkdir()
                pq.write_table(rows, path)
                steps.append(streaming.ask("step", path=str(path))["ms"])
            streaming.ask("end")
            took[name] = statistics.median(steps[scale.warm_ups :])
            report.say(f"streaming, {name}: {took[name]:,.0f} ms")
    return took


def _opened(report: Report, module: str, folder: Path, scale: Scale, **options: Any) -> Side:
    """Return a side that is opened when its block begins."""
    return _OpenedSide(report, module, folder / module.rpartition(".")[2], scale.memory, **options)


class _OpenedSide(Side):
    """A side whose command `open` has been answered."""

    def __init__(self, report: Report, module: str, folder: Path, memory: str, **options: Any) -> None:
        super().__init__(module, **options)
        self._report, self._folder, self._memory = report, folder, memory

    def __enter__(self) -> "_OpenedSide":
        super().__enter__()
        self._folder.mkdir(parents=True)
        self._report.flags[self.file] = self.ask("open", memory=self._memory, folder=str(self._folder))
        self._report.versions |= self.versions
        return self


def _median(report: Report, name: str, scale: Scale, side: Side, **arguments: Any) -> float:
    """Run a query once to warm up, then several times; return the median in milliseconds."""
    took: list[float] = [1e3 * side.ask("run", **arguments) for _ in range(1 + scale.repetitions)]
    ms = statistics.median(took[1:])
    report.say(f"{side.module.rpartition('.')[2]}, {name}: {ms:,.0f} ms")
    return ms


def _compare(
    report: Report,
    peer: str,
    ours: dict[str, float],
    theirs: dict[str, float],
    *,
    target: float | None = None,
) -> None:
    """Report how many times faster we are, as the geometric mean over the views that the peer computes."""
    ratios = {name: ms / ours[name] for name, ms in theirs.items()}
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    raw = {
        "ratios": {name: rounded(ratio) for name, ratio in ratios.items()},
        "ms": {name: rounded(ms) for name, ms in theirs.items()},
    }
    report.figure(f"geomean_vs_{peer}", mean, raw, target=None if target is None else at_least(target))


def main() -> int:
    """Run the bench from the command line."""
    parser = options("tpch", __doc__)
    parser.add_argument("--only", action="append", choices=list(QUERIES), help="this query; may be repeated")
    given = parser.parse_args()
    report = Report("tpch", quick=given.quick)
    measure(report, QUICK if given.quick else FULL, given.only or list(QUERIES))
    tell(report, as_json=given.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
