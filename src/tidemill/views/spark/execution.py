"""Where and in how many tasks a chain is executed: by Spark jobs, or in the runner itself (DBSP-41).

A Spark job costs a few hundred milliseconds before it looks at the first row, and more for each layer. The
kernels of a small step need a few dozen. The runner has the cores of one machine, and calls Spark for each
expression on the way; but no row passes through Java. Both costs are estimated from the plan and the size of
the change, and the event of the step reports the estimate with the time it took.

Tasks are cut by rows and by bytes, so that each fits the memory of a Python worker, up to the 256 slices of
hash space.
"""

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemill.errors import FileUnlike, UsageError
from tidemill.spark.lot_reader import naming
from tidemill.spark.sessions import parallelism
from tidemill.spark.storage import Storage
from tidemill.views.chain.layer_task import StepPlan, TaskReport
from tidemill.views.spark.executor import ChainExecutor, Inputs
from tidemill.views.spark.in_process_executor import InProcessExecutor, TooLargeInProcess
from tidemill.views.spark.row_expressions import TypesOf
from tidemill.views.spark.spark_executor import SparkExecutor
from tidemill.views.spark.step_inputs import LotInput
from tidemill.views.spark.tasks import TaskSite
from tidemill.views.steps.inputs import LotSlice
from tidemill.views.trace.hash_space import SLICES, ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING: Final = "TIDEMILL_PLACE"
"""An environment variable of the runner: `spark` or `runner` for all steps. Unset, each step is estimated."""

MOST_ROWS: Final = 2_000_000
MOST_BYTES: Final = 32 * 1024**2
"""Spark runs a step with more changes, or larger ones: it has more memory."""

THREAD_ROWS: Final = 50_000
"""The runner takes one more thread for each so many changes."""

TASK_ROWS: Final = 2_000_000
TASK_BYTES: Final = 64 * 1024**2
"""About how much of the stored, compressed input one task takes: its memory is proportional to it."""

MEMORY_SHARE: Final = 32
"""A Python worker with limited memory reads one part in so many of it at once: in memory values are several
times larger than compressed, and there are several copies of them."""

# Seconds, measured on two cores with warm processes (docs/explanation/performance.md).
_JOB: Final = 0.25
_LAYER: Final = 0.07
_EXPRESSION: Final = 0.10
_ROW: Final = 0.8e-6
_MOVED_ROW: Final = 0.4e-6

_MEMORY: Final = "spark.executor.pyspark.memory"
_UNITS: Final = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class Venue(StrEnum):
    """Where a step is computed."""

    SPARK = "spark"
    RUNNER = "runner"


class InputSize(NamedTuple):
    """Rows, and the bytes they are stored in."""

    rows: int
    stored_bytes: int

    def __add__(self, other: object) -> "InputSize":
        assert isinstance(other, InputSize)
        return InputSize(self.rows + other.rows, self.stored_bytes + other.stored_bytes)


NOTHING: Final = InputSize(0, 0)


class Estimate(NamedTuple):
    """Where a step runs, and about how long it will take there."""

    place: Venue
    seconds: float


class Execution(NamedTuple):
    """A chain that was executed, and the estimate for the place where it ran."""

    executor: ChainExecutor
    estimate: Estimate


def execute(
    spark: "SparkSession",
    storage: Storage,
    plan: StepPlan,
    inputs: Inputs,
    size: InputSize,
    site: TaskSite,
    types_of: TypesOf,
) -> Execution:
    """Execute a chain where it takes the least time. A step that is too large for the runner moves to Spark.

    Args:
        spark: the session.
        storage: where objects are.
        plan: the step.
        inputs: the rows of each table that changed.
        size: how much that is.
        site: where tasks find things.
        types_of: the Spark types of a view's columns.
    """
    estimate = choose(plan, inputs, size, parallelism(spark))
    if estimate.place is Venue.RUNNER:
        here = replace(plan, ranges=ranges(threads_for(size)))
        try:
            executor: ChainExecutor = InProcessExecutor(spark, storage, here, site, types_of)
            return Execution(_run(executor, inputs), estimate)
        except (TooLargeInProcess, MemoryError):
            estimate = estimate._replace(place=Venue.SPARK)
    return Execution(_run(SparkExecutor(spark, storage, plan, site, types_of), inputs), estimate)


def _run(executor: ChainExecutor, inputs: Inputs) -> ChainExecutor:
    """Run a chain. If a file has other columns than declared, run it again, and let Spark read the files."""
    plan = executor.plan
    views = [view for view, _ in executor.site.folders]
    try:
        with naming(executor.storage):
            return executor.run(inputs)
    except (FileUnlike, TooLargeInProcess, MemoryError) as error:
        delete_changes(executor.storage, executor.reports, views)  # the next attempt writes them again
        if not isinstance(error, FileUnlike):
            raise
    by_spark = {
        name: replace(rows, by_spark=True) if isinstance(rows, LotInput) else rows
        for name, rows in inputs.items()
    }
    again = replace(executor, plan=plan, reports=[], changes=type(executor.changes)(), plan_s=0.0, job_s=0.0)
    return _run(again, by_spark)


def delete_changes(storage: Storage, reports: Iterable[TaskReport], views: Collection[str]) -> None:
    """Delete the changes of views that an incomplete step wrote, so that no reader takes them for all."""
    for view, key, *_ in (file for report in reports for file in report.files):
        if view in views:
            storage.objects.delete(key)


# --- where


def choose(plan: StepPlan, tables: Iterable[str], size: InputSize, cores: int) -> Estimate:
    """Decide where a step runs.

    Args:
        plan: the step.
        tables: the inputs that changed.
        size: how much changed.
        cores: how many Spark tasks run at once.
    """
    rows = size.rows
    layers = calls = 0
    for number in range(plan.chain.jobs):
        part = replace(plan, job=number)
        typed = sum(1 for layer in range(1, part.depth + 1) if part.spark_edges(layer))
        layers += part.depth + typed
        given = tables if number == 0 else [query.table for query in plan.chain.queries]
        calls += typed + sum(any(edge.plain is None for edge in part.leaving(table)) for table in given)
        calls += sum(1 for query in plan.chain.queries if number and part.leaving(query.table))
    spark = plan.chain.jobs * _JOB + layers * _LAYER + rows * layers * (_ROW + _MOVED_ROW) / max(1, cores)
    runner = calls * _EXPRESSION + rows * layers * _ROW / threads_for(size)
    wanted = os.environ.get(SETTING, "")
    if wanted not in ("", *Venue):
        raise UsageError(
            f"{SETTING} is {wanted!r}", hint="use spark or runner, or unset it: then each step is estimated"
        )
    small = runner < spark and rows <= MOST_ROWS and size.stored_bytes <= MOST_BYTES
    place = Venue(wanted or (Venue.RUNNER if small else Venue.SPARK))
    return Estimate(place, runner if place is Venue.RUNNER else spark)


# --- in how many parts


def threads_for(size: InputSize) -> int:
    """How many threads of the runner compute a step."""
    return max(1, min(len(os.sched_getaffinity(0)), size.rows // THREAD_ROWS, SLICES))


def size_of(slices: Iterable[LotSlice]) -> InputSize:
    """The size of lots."""
    items = [item for lot in slices for item in lot.objects]
    return InputSize(sum(item.rows or 0 for item in items), sum(item.size for item in items))


def tasks_for(spark: "SparkSession", size: InputSize) -> int:
    """How many tasks a layer has: as many as run at once, or a multiple if each would get too much."""
    cores = parallelism(spark)
    limit = worker_bytes(spark.conf.get(_MEMORY, "") or "", cores)
    most = TASK_BYTES if limit is None else max(1, min(TASK_BYTES, limit // MEMORY_SHARE))
    wanted = max(1, -(-size.rows // TASK_ROWS), -(-size.stored_bytes // most))
    return min(SLICES, -(-wanted // cores) * cores)


def worker_bytes(setting: str, cores: int) -> int | None:
    """The memory of one Python worker, from Spark's setting for those of an executor; None if not limited.

    >>> worker_bytes("2g", 4)
    536870912
    """
    match = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)b?\s*", setting.lower())
    if match is None or not int(match[1]):
        return None
    return int(match[1]) * _UNITS[match[2] or "m"] // max(1, cores)
