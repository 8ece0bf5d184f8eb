"""Our side: a pipeline with 22 views, each in a group of its own, so that each has its own steps."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow.parquet as pq

import tidemill as tm
from bench.tpch.tables import CHANGING, Step, Tables
from tests.integration.tpch import DDL, QUERIES
from tidemill.events import Event
from tidemill.spark.sessions import SparkSettings
from tidemill.triggers.events import RunStarted
from tidemill.views.steps.events import StepCommitted, StepTimed

SMALL_CUT = 10_000
"""A view that recomputes an operator from so many stored rows still counts as incremental."""


@dataclass
class Timing:
    """The steps of one view: milliseconds from the start of a step to its commit, and what was computed."""

    ms: list[float] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    recomputed_rows: int = 0
    whole: bool = False

    @property
    def incremental(self) -> bool:
        return not self.whole and self.recomputed_rows <= SMALL_CUT


class Views:
    """The pipeline with its views, loaded with the base."""

    def __init__(self, home: Path, tables: Tables, names: list[str], memory: str) -> None:
        settings = SparkSettings(master="local[2]", conf={"spark.driver.memory": memory})
        self.names = names
        self.pipeline = tm.Pipeline("tpch", home=home, spark=settings)
        self._tables = {
            name: self.pipeline.dataset(name, ddl, deletes=name in CHANGING) for name, ddl in DDL.items()
        }
        for name in names:
            self.pipeline.view(name, QUERIES[name], group=f"group_{name}")
        for name, table in self._tables.items():
            for file in sorted(tables.files[name].glob("*.parquet")):
                table.append(pq.read_table(file))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pipeline.close()

    def load(self) -> float:
        """Compute the views for the first time; return the seconds."""
        began = time.perf_counter()
        self._run(Heard())
        return time.perf_counter() - began

    def step(self, step: Step, timings: dict[str, Timing] | None = None) -> None:
        """Let the rows of a step arrive, then run the step of one view after the other."""
        self.pipeline.pause(*self.names)
        for name in CHANGING:
            self._tables[name].delete(step.deleted[name])
            self._tables[name].append(step.appended[name])
        for name in filter(reads_changes, self.names):
            self.pipeline.resume(name)
            heard = Heard()
            self._run(heard)
            self.pipeline.pause(name)
            if timings is not None and heard.committed:
                heard.tell(timings.setdefault(name, Timing()))
        self.pipeline.resume(*self.names)

    def rows(self, name: str) -> list[dict[str, object]]:
        """Return the rows of a view."""
        table = self.pipeline[name].arrow()
        return list(table.to_pylist())

    def _run(self, heard: "Heard") -> None:
        report = self.pipeline.run(emit=heard.take)
        if not report.ok:
            raise RuntimeError(str(report))


def reads_changes(name: str) -> bool:
    """Return whether a query reads a table that the steps change."""
    return any(table in QUERIES[name].split() or f"{table}," in QUERIES[name].split() for table in CHANGING)


class Heard:
    """Takes the events of a run with the step of one view."""

    def __init__(self) -> None:
        self._began = 0.0
        self.committed = 0.0
        self._timed: StepTimed | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, RunStarted) and not self._began:
            self._began = time.perf_counter()
        elif isinstance(event, StepCommitted):
            self.committed = time.perf_counter()
        elif isinstance(event, StepTimed):
            self._timed = event

    def tell(self, timing: Timing) -> None:
        """Add the step to the timing of its view."""
        timing.ms.append(1e3 * (self.committed - self._began))
        timed = self._timed
        timing.whole |= timed is None or not timed.views
        if timed is not None:
            timing.places.add(timed.place)
            timing.recomputed_rows = max(timing.recomputed_rows, timed.recomputed_rows)
