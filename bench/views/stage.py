"""Shared by the measurements: generated shops, our runner, plain Spark, and requests to them."""

import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.comparison import Series, rounded
from bench.report import Report
from bench.side import Side
from bench.views.queries import Query
from bench.views.shop import Shop, Step

FIRST_ROWS = 2_500_000
"""More than a runner loads without Spark."""

OURS, RECOMPUTE = "bench.ours.view_steps", "bench.peers.spark_recompute"


class Differs(Exception):
    """A view differs from plain Spark's result: its measurements do not count."""


@dataclass(frozen=True)
class Scale:
    """The amount of work.

    - rows, small: orders in the base, and in the small one that growth is measured from.
    - steps: how many steps are counted, by their number of changes.
    - turns: how often the sides alternate.
    - warm_ups: steps of each view before any is counted.
    - worst: among how many steps to find the slowest.
    """

    rows: int
    small: int
    steps: dict[int, int]
    turns: int
    warm_ups: int
    worst: int
    memory: str
    slow_peers: bool

    @property
    def least_free(self) -> int:
        """Return the disk space that this may need: inputs twice, state, results, shuffles."""
        return 2_000_000_000 + self.rows * 1_500


FULL = Scale(
    rows=10_000_000,
    small=1_000_000,
    steps={1_000: 20, 10_000: 20, 100_000: 20, 1_000_000: 20},
    turns=5,
    warm_ups=30,
    worst=300,
    memory="4g",
    slow_peers=True,
)
QUICK = Scale(
    rows=1_000_000,
    small=100_000,
    steps={1_000: 4, 10_000: 4, 100_000: 2},
    turns=2,
    warm_ups=5,
    worst=20,
    memory="2g",
    slow_peers=False,
)


@dataclass
class Timing:
    """Measurements of steps: milliseconds, CPU seconds, and the engine's own figures for each."""

    ms: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    arrive_ms: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.ms)

    def add(self, other: "Timing") -> None:
        self.ms += other.ms
        self.cpu_s += other.cpu_s
        self.answers += other.answers
        self.arrive_ms += other.arrive_ms

    def of(self, key: str) -> float | None:
        """Return the median of an engine's figure, if it reports it."""
        values = [figures[key] for figures in self.answers if figures.get(key) is not None]
        return statistics.median(values) if values else None

    def series(self, name: str) -> Series:
        return Series(name, "ms", self.ms, self.cpu_s)

    def as_json(self, name: str) -> dict[str, Any]:
        medians = {key: self.of(key) for key in ("until_record_ms", "plan_s", "job_s", "kernel_s")}
        words = {
            key: sorted({str(figures[key]) for figures in self.answers if key in figures})
            for key in ("place", "rung")
        }
        more: dict[str, Any] = {
            "engine": {key: value for key, value in {**medians, **words}.items() if value}
        }
        known = [figures["incremental"] for figures in self.answers if "incremental" in figures]
        if known:
            more["incremental_steps"] = f"{sum(known)} of {len(self.answers)}"
        if self.arrive_ms:
            more["arrive_ms"] = rounded(statistics.median(self.arrive_ms))
        return self.series(name).as_json() | {key: value for key, value in more.items() if value}


class Followed:
    """One of our views, loaded and ready for steps."""

    def __init__(self, stage: "Stage", query: Query, shop: Shop) -> None:
        self.stage = stage
        self.query = query
        self.shop = shop
        self.name = f"{query.name}-{shop.rows}"
        self.ddl = {table: shop.ddl[table] for table in query.tables}
        self.load: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self.stepped = False

    def begin(self) -> None:
        """Append the base through the public API, and load it."""
        side, report = self.stage.ours, self.stage.report
        home = self.stage.folder / "homes" / self.name
        home.parent.mkdir(exist_ok=True)
        sql = self.query.sql
        side.ask("declare", name=self.name, home=str(home), view=self.query.name, sql=sql, ddl=self.ddl)
        files = {f"{table}_in": files_of(self.shop.base / table) for table in self.ddl}
        arrive_s = side.ask("arrive", name=self.name, files=files, pause=False)
        report.say(f"{self.name}: the base was appended in {arrive_s:.1f} s")
        loaded = side.ask_timed("start", name=self.name)
        self.load = loaded.answer | {"arrive_s": arrive_s, "cpu_s": loaded.cpu_s}
        self.sizes = side.ask("sizes", name=self.name)
        report.say(f"{self.name}: loaded in {self.load['ms'] / 1e3:.1f} s")

    def step(self, step: Step, into: Timing) -> None:
        """Append a step's rows, then process them; only the second part is timed."""
        side = self.stage.ours
        files = {key: [path] for key, path in step.files.items()}
        arrived = side.ask("arrive", name=self.name, files=files)
        timed = side.ask_timed("step", name=self.name)
        into.ms.append(timed.answer["ms"])
        into.cpu_s.append(timed.cpu_s)
        into.answers.append(timed.answer)
        into.arrive_ms.append(arrived * 1e3)
        self.stepped = True

    def steps(self, changes: int, count: int) -> Timing:
        """Run this many steps; each is generated, processed and forgotten."""
        timing = Timing()
        for _ in range(count):
            step = self.shop.step(changes)
            self.step(step, timing)
            shutil.rmtree(step.folder)
        return timing

    def warm_up(self, count: int) -> None:
        """Run steps of all sizes except the largest, mostly small ones."""
        large = min(count // 10, 2)
        for changes, number in ((1_000, count - 3 * large), (10_000, 2 * large), (100_000, large)):
            self.steps(changes, number)

    def check(self) -> None:
        """Compare the view with plain Spark over the current tables; raise `Differs`."""
        with self.stage.beside(f"check-{self.name}") as folder:
            ours = folder / "ours.parquet"
            self.stage.ours.ask("table", name=self.name, path=str(ours))
            tables = self.shop.write(folder / "now")
            arguments = {"tables": {table: str(tables / table) for table in self.ddl}, "ddl": self.ddl}
            plain = folder / "plain"
            self.stage.recompute.ask("result", **arguments, sql=self.query.sql, path=str(plain))
            compare(self.name, pq.read_table(ours), pq.read_table(plain))
        self.stage.report.say(f"{self.name}: equal to plain Spark")

    def end(self) -> None:
        self.stage.ours.ask("end", name=self.name)


class Stage:
    """Starts sides when they are first needed; all measurements of a run share them."""

    def __init__(self, report: Report, folder: Path, scale: Scale) -> None:
        self.report = report
        self.folder = folder
        self.scale = scale
        self._stack = ExitStack()
        self._sides: dict[str, Side] = {}
        self._followed: dict[str, Followed] = {}

    def __enter__(self) -> "Stage":
        free = shutil.disk_usage(self.folder).free
        if free < self.scale.least_free:
            raise OSError(
                f"{free / 1e9:.0f} GB are free, and {self.scale.least_free / 1e9:.0f} may be needed"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def ours(self) -> Side:
        return self._shared(OURS, memory=self.scale.memory, cache=str(self.folder / "cache"))

    @property
    def recompute(self) -> Side:
        folder = self.folder / "recompute"
        folder.mkdir(exist_ok=True)
        return self._shared(RECOMPUTE, memory=self.scale.memory, folder=str(folder))

    def _shared(self, module: str, **arguments: Any) -> Side:
        if module not in self._sides:
            self._sides[module] = self._stack.enter_context(self.opened(module, **arguments))
        return self._sides[module]

    @contextmanager
    def opened(self, module: str, *, python: Path | None = None, **arguments: Any) -> Iterator[Side]:
        """Return an open side; its versions and flags are reported."""
        with Side(module, python=python or sys.executable) as side:
            flags = side.ask("open", **arguments)
            self.report.versions |= side.versions
            self.report.flags[side.file] = flags
            yield side

    @contextmanager
    def beside(self, name: str) -> Iterator[Path]:
        """Create a folder that is removed later."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def followed(self, query: Query, rows: int) -> Followed:
        """Return a loaded and warm view over a base of this many orders, shared with earlier measurements."""
        name = f"{query.name}-{rows}"
        if name not in self._followed:
            self.report.say(f"{name}: drawing {rows:,} orders")
            followed = Followed(self, query, Shop(self.folder / "shops" / name, query.kind, rows))
            if not self._followed and self.scale.slow_peers:
                self._first(query)
            followed.begin()
            followed.warm_up(self.scale.warm_ups)
            self.report.say(f"{name}: warm after {self.scale.warm_ups} steps")
            self._followed[name] = followed
        return self._followed[name]

    def _first(self, query: Query) -> None:
        """Load a view with a job and drop it: the first job of a process is mostly Java's start."""
        first = Followed(
            self, query, Shop(self.folder / "shops" / f"first-{query.name}", query.kind, FIRST_ROWS)
        )
        first.begin()
        first.steps(100, 2)
        first.check()
        first.end()

    def reset(self) -> None:
        """Start our side again after a failure, with empty state."""
        self._stack.close()
        self._sides.clear()
        self._followed.clear()
        for name in ("homes", "shops"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def forget(self, followed: Followed) -> None:
        """Stop the runner of a view that is no longer measured."""
        followed.end()
        del self._followed[followed.name]

    def recomputed(self, query: Query, shop: Shop) -> "Recomputed":
        return Recomputed(self, query, shop)


class Recomputed:
    """Recompute the view's result over the current tables, accurate to a tenth of their rows."""

    def __init__(self, stage: Stage, query: Query, shop: Shop) -> None:
        self._stage = stage
        self._query = query
        self._shop = shop
        self._tables, self.rows = shop.base, shop.rows

    def __call__(self) -> tuple[float, float]:
        """Return milliseconds and CPU seconds."""
        if self._shop.count > 1.1 * self.rows:
            self._write()
        ddl = {table: self._shop.ddl[table] for table in self._query.tables}
        tables = {table: str(self._tables / table) for table in self._query.tables}
        return ask_ms(self._stage.recompute, "run", tables=tables, ddl=ddl, sql=self._query.sql)

    def _write(self) -> None:
        folder = self._shop.folder / "now"
        shutil.rmtree(folder, ignore_errors=True)
        self._tables, self.rows = self._shop.write(folder), self._shop.count
        os.sync()  # a recompute must not share the disk with pending writes of its input
        self._stage.report.say(f"the recompute is given tables of {self.rows:,} orders")


def ask_ms(side: Side, do: str, **arguments: Any) -> tuple[float, float]:
    """Run a command that returns its seconds; return milliseconds and CPU seconds."""
    timed = side.ask_timed(do, **arguments)
    return timed.answer * 1e3, timed.cpu_s


def files_of(folder: Path) -> list[str]:
    """Return the files of a table."""
    return [str(path) for path in sorted(folder.glob("*.parquet"))]


def compare(name: str, ours: pa.Table, plain: pa.Table) -> None:
    """Raise `Differs` unless both have the same rows, in any order. There are no NULLs."""
    if ours.column_names != plain.column_names or ours.num_rows != plain.num_rows:
        raise Differs(
            f"{name}: {ours.num_rows} rows of {ours.column_names}, and plain Spark has {plain.num_rows} of "
            f"{plain.column_names}"
        )
    if not plain.num_rows:
        raise Differs(f"{name}: plain Spark has no rows, so nothing was compared")
    by = [(column, "ascending") for column in plain.column_names]
    left, right = ours.sort_by(by), plain.sort_by(by)
    for column in plain.column_names:
        if left[column].type != right[column].type:
            raise Differs(f"{name}: {column} is {left[column].type}, and {right[column].type} in plain Spark")
        if (
            left[column].null_count
            or right[column].null_count
            or not pc.all(pc.equal(left[column], right[column])).as_py()
        ):
            raise Differs(f"{name}: {column} differs from plain Spark")
