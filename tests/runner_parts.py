"""Functions for the tests of runners: what makes a part, without Spark."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.worker_tasks import note
from tidemill.errors import DiskFull
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject
from tidemill.publish.parts import PartSink, PartTask, SinkWritten
from tidemill.runner import future_run
from tidemill.testing.threads import STUCK_S

OUT = DatasetId("out")


def part(
    number: int | str, folder: Path | str, *, attempt: str = "a1", retries: int = 0, **options: str
) -> PartTask:
    """A task of this module; what it does is in its options."""
    return PartTask(
        kind="arc",
        pipeline="shop",
        author="arc:shop/clean",
        code="c0",
        attempt=attempt,
        lot="2026-01-01",
        part=str(number),
        key=f"arc:shop/clean/2026-01-01/0/c0/{number}",
        sinks=(PartSink(dataset=OUT),),
        retries=retries,
        options={"folder": str(folder), **options},
    )


def make(task: PartTask) -> Sequence[SinkWritten]:
    """Do what the options say, and note it: "go" waits for a file, "fail" raises while its file is there."""
    place, folder = future_run.current(), task.options["folder"]
    note(folder, f"began {task.part} {place.epoch}")
    if "together" in task.options:
        _together(folder, int(task.options["together"]))
    if "go" in task.options:
        wait_for(Path(folder) / task.options["go"], heeds="deaf" not in task.options)
    if "fail" in task.options and (Path(folder) / task.options["fail"]).exists():
        raise ValueError(f"no {task.part}")
    if "full" in task.options and (Path(folder) / task.options["full"]).exists():
        raise DiskFull("no space")
    if "slow" in task.options:
        threading.Event().wait(float(task.options["slow"]))
    if "exit" in task.options and not (Path(folder) / task.options["exit"]).exists():
        os._exit(9)
    sink = task.sinks[0]
    objects = tuple(
        StoredObject(uri=f"{place.data_prefix(task, sink)}/{n}.parquet", size=n)
        for n in range(int(task.options.get("objects", "1")))
    )
    note(folder, f"ended {task.part} {place.epoch}")
    return [SinkWritten(dataset=sink.dataset, objects=objects, rows=7)]


def wait_for(path: Path, *, heeds: bool) -> None:
    """Until a file is there, or our turn is over."""
    pause = threading.Event()
    while not path.exists():
        if heeds:
            future_run.check()
        pause.wait(0.005)


_gathered: dict[str, threading.Barrier] = {}
_lock = threading.Lock()


def _together(folder: str, count: int) -> None:
    """Return when as many turns of this process are in here at the same time."""
    with _lock:
        barrier = _gathered.setdefault(folder, threading.Barrier(count))
    barrier.wait(STUCK_S)
