"""Pipelines with one view each, stepped through the public API: rows are appended and deleted, a runner in
this process watches and steps.

The group is paused while the rows of a step arrive and resumed afterwards, so that they form one step. Its
time is from the call of `resume` until the step's commit is reported: wake-up, planning, the job, the objects
and the transaction. The rows are durable before that, which is timed separately.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import tidemill as tm
from bench import machine
from bench.answering import answer
from tidemill.events import Event
from tidemill.spark.sessions import SparkSettings
from tidemill.views.trace.cache_folder import ENVIRONMENT

PATIENCE_S = 1_800.0
TIMED = ("plan_s", "job_s", "load_s", "kernel_s", "place", "rung")


class StepFailed(Exception):
    """A step was not committed."""


class Heard:
    """The events of one pipeline, each with its time."""

    def __init__(self) -> None:
        self._events: list[tuple[float, Event]] = []
        self._more = threading.Condition()

    def tell(self, event: Event) -> None:
        with self._more:
            self._events.append((time.perf_counter(), event))
            self._more.notify_all()

    def mark(self) -> int:
        with self._more:
            return len(self._events)

    def since(self, mark: int) -> list[tuple[float, Event]]:
        with self._more:
            return self._events[mark:]

    def wait(self, mark: int, enough: Callable[[Event], bool], alive: Callable[[], bool]) -> float:
        """Return when the first such event after a mark was emitted."""
        end = time.perf_counter() + PATIENCE_S
        for at in itertools.count(mark):
            while self.mark() <= at:
                with self._more:
                    self._more.wait(1.0)
                if not alive():
                    raise StepFailed("the runner ended")
                if time.perf_counter() > end:
                    raise StepFailed(f"no commit within {PATIENCE_S:.0f} s")
            moment, event = self.since(at)[0]
            if enough(event):
                return moment
            if type(event).__name__ in ("RunFailed", "StepAbandoned"):
                raise StepFailed(str(event))
        raise AssertionError


class Kept:
    """A pipeline with one view, and its runner."""

    def __init__(self, home: Path, spark: SparkSettings, name: str, sql: str, ddl: Mapping[str, str]) -> None:
        self.home = home
        self.pipeline = tm.Pipeline(name, home=home, spark=spark)
        self.tables = {
            table: self.pipeline.dataset(table, columns, deletes=True) for table, columns in ddl.items()
        }
        self.view = self.pipeline.view(name, sql)
        self.heard = Heard()
        self._stop = threading.Event()
        self._runner = threading.Thread(target=self._run, name=f"runner-{name}", daemon=True)
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            self.pipeline.run(watch=True, emit=self.heard.tell, stop=self._stop)
        except BaseException as error:
            self._error = error
            raise

    def arrive(self, files: Mapping[str, Sequence[str]]) -> float:
        """Append and delete the rows of these files; return the seconds."""
        spent = 0.0
        for key, paths in files.items():
            table, _, way = key.partition("_")
            if table not in self.tables:
                continue
            for path in paths:
                rows = pq.read_table(path)
                began = time.perf_counter()
                dataset = self.tables[table]
                (dataset.delete if way == "out" else dataset.append)(rows)
                spent += time.perf_counter() - began
        return spent

    def start(self) -> dict[str, Any]:
        """Start the runner, and wait for the first step: the bulk load."""
        mark, began = self.heard.mark(), time.perf_counter()
        self._runner.start()
        ended = self.heard.wait(mark, _is_commit, self._alive)
        runs = [at for at, event in self.heard.since(mark) if type(event).__name__ == "RunStarted"]
        return self._told(mark, runs[0] if runs else began, ended) | {"until_first_step_s": ended - began}

    def pause(self) -> None:
        self.pipeline.pause(self.view.name)

    def step(self) -> dict[str, Any]:
        """Process the rows that have arrived."""
        mark, began = self.heard.mark(), time.perf_counter()
        self.pipeline.resume(self.view.name)
        ended = self.heard.wait(mark, _is_commit, self._alive)
        return self._told(mark, began, ended)

    def _told(self, mark: int, began: float, ended: float) -> dict[str, Any]:
        figures: dict[str, Any] = {"ms": (ended - began) * 1e3}
        for at, event in self.heard.since(mark):
            name = type(event).__name__
            if name == "RecordWritten":
                figures["until_record_ms"] = (at - began) * 1e3
            if name == "StepTimed":
                figures |= {key: getattr(event, key) for key in TIMED if hasattr(event, key)}
                figures["incremental"] = self.view.name in getattr(event, "views", ())
        return figures

    def _alive(self) -> bool:
        if self._error is not None:
            raise StepFailed(f"the runner ended: {self._error}") from self._error
        return self._runner.is_alive()

    def sizes(self) -> dict[str, int]:
        """Return the bytes in object storage: of the input, and of everything else."""
        total = sum(path.stat().st_size for path in (self.home / "objects").rglob("*") if path.is_file())
        given = sum(lot.size for table in self.tables.values() for lot in table.lots())
        return {"input_bytes": given, "other_bytes": total - given}

    def end(self) -> None:
        self._stop.set()
        if self._runner.is_alive():
            self._runner.join(60)
        self.pipeline.close()


def _is_commit(event: Event) -> bool:
    return type(event).__name__ == "StepCommitted" and bool(getattr(event, "views", ()))


class Views:
    """All pipelines of this process, which share one Spark session."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._settings = SparkSettings()

    def open(self, memory: str, cache: str) -> dict[str, Any]:
        os.environ[ENVIRONMENT] = cache  # the local cache is stored with the bench's other files
        self._settings = SparkSettings(master="local[2]", conf={"spark.driver.memory": memory})
        return {"master": "local[2]", "conf": self._settings.conf, "else": "as Tidemill sets it"}

    def declare(self, name: str, home: str, view: str, sql: str, ddl: dict[str, str]) -> None:
        self._kept[name] = Kept(Path(home), self._settings, view, sql, ddl)

    def arrive(self, name: str, files: dict[str, list[str]], pause: bool = True) -> float:
        if pause:
            self._kept[name].pause()
        return self._kept[name].arrive(files)

    def start(self, name: str) -> dict[str, Any]:
        return self._kept[name].start()

    def step(self, name: str) -> dict[str, Any]:
        return self._kept[name].step()

    def table(self, name: str, path: str) -> int:
        table = self._kept[name].view.df().toArrow()
        pq.write_table(table, path)
        return int(table.num_rows)

    def explain(self, name: str) -> str:
        return str(self._kept[name].view.explain())

    def sizes(self, name: str) -> dict[str, int]:
        return self._kept[name].sizes()

    def end(self, name: str) -> None:
        self._kept.pop(name).end()


if __name__ == "__main__":
    views = Views()
    names = ("open", "declare", "arrive", "start", "step", "table", "explain", "sizes", "end")
    answer({name: getattr(views, name) for name in names}, versions=machine.versions("pyspark", "pyarrow"))
