"""Choose where a chain is executed, in Spark jobs or in the runner, and in how many tasks (DBSP-41).

A Spark job takes a few hundred milliseconds before it reads the first row, and more for each layer. The
kernels of a small step take a few dozen milliseconds. The runner has only the cores of one machine. Its
advantage is that rows do not pass through Java, except where Spark evaluates row expressions. The times
in Spark and in the runner are estimated from the plan and the size of the change. The event of the step
reports the estimate and the actual time.

The number of tasks depends on the number of rows and bytes, so that each task fits the memory of a Python
worker. There are at most 256 tasks, one for each slice of hash space.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemill.errors import FileMismatch, UsageError
from tidemill.spark.lot_reader import read_errors
from tidemill.spark.sessions import parallelism
from tidemill.spark.storage import Storage
from tidemill.views.chain.layer_task import StepPlan, TaskReport
from tidemill.views.spark.executor import ChainExecutor, Inputs
from tidemill.views.spark.in_process_executor import InProcessExecutor, TooLargeInProcess
from tidemill.views.spark.row_expressions import TypesOf, along_edges
from tidemill.views.spark.shared_projection import SharedProjection
from tidemill.views.spark.spark_executor import SparkExecutor
from tidemill.views.spark.step_inputs import LotInput
from tidemill.views.spark.tasks import TaskPaths
from tidemill.views.steps.inputs import LotSlice
from tidemill.views.trace.hash_space import SLICES, ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING: Final = "TIDEMILL_PLACE"
"""An environment variable that fixes where all steps run: `spark` or `runner`.

If it is unset, an estimate decides for each step.
"""

MOST_ROWS: Final = 2_000_000
MOST_BYTES: Final = 32 * 1024**2
"""The largest step that the runner executes. Spark has more memory, so it executes larger steps."""

MOST_VALUES: Final = 8_000_000
"""How many values Spark may compute from changed tables and return to the runner: rows times columns."""

THREAD_ROWS: Final = 50_000
"""How many changed rows the runner gives to each thread."""

TASK_ROWS: Final = 2_000_000
TASK_BYTES: Final = 64 * 1024**2
"""The maximum input of one task: the number of rows, and their compressed bytes.

The memory of a task is proportional to its input.
"""

MEMORY_SHARE: Final = 32
"""A task reads at most 1/32 of a Python worker's memory limit: values in memory are several times larger than
compressed values, and there are several copies of them."""

# Seconds, measured on two cores with warm processes (docs/explanation/performance.md).
_JOB: Final = 0.25
_LAYER: Final = 0.07
_EXPRESSION: Final = 0.10
_ROW: Final = 0.8e-6
_MOVED_ROW: Final = 0.4e-6

_MEMORY: Final = "spark.executor.pyspark.memory"
_UNITS: Final = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class ExecutionPlace(StrEnum):
    """Where a step is executed."""

    SPARK = "spark"
    RUNNER = "runner"


class InputSize(NamedTuple):
    """A number of rows and their stored bytes."""

    rows: int
    stored_bytes: int

    def __add__(self, other: object) -> "InputSize":
        assert isinstance(other, InputSize)
        return InputSize(self.rows + other.rows, self.stored_bytes + other.stored_bytes)

    def times(self, copies: int) -> "InputSize":
        return InputSize(self.rows * copies, self.stored_bytes * copies)


EMPTY: Final = InputSize(0, 0)


class Estimate(NamedTuple):
    """Where a step runs, and its estimated duration there."""

    place: ExecutionPlace
    seconds: float


class Execution(NamedTuple):
    """The executor that ran a chain, and the estimate for the place where it ran."""

    executor: ChainExecutor
    estimate: Estimate


def execute(
    spark: "SparkSession",
    storage: Storage,
    plan: StepPlan,
    inputs: Inputs,
    size: InputSize,
    paths: TaskPaths,
    types_of: TypesOf,
) -> Execution:
    """Execute a chain where it is estimated to run faster. If it is too large for the runner, use Spark.

    Args:
        spark: the session.
        storage: the object storage.
        plan: the plan of the step; this function sets its ranges.
        inputs: the rows of each changed table.
        size: the size of the inputs.
        paths: where tasks read and write.
        types_of: returns the Spark types of a view's columns.
    """
    estimate = choose(plan, inputs, size, parallelism(spark))
    if estimate.place is ExecutionPlace.RUNNER:
        in_process = replace(plan, ranges=ranges(max(threads_for(size), len(plan.ranges))))
        try:
            executor: ChainExecutor = InProcessExecutor(spark, storage, in_process, paths, types_of)
            return Execution(_run(executor, inputs), estimate)
        except (TooLargeInProcess, MemoryError):
            estimate = estimate._replace(place=ExecutionPlace.SPARK)
    plan = replace(plan, ranges=ranges(max(len(plan.ranges), tasks_for(spark, size.times(_copies(plan))))))
    return Execution(_run(SparkExecutor(spark, storage, plan, paths, types_of), inputs), estimate)


def _run(executor: ChainExecutor, inputs: Inputs) -> ChainExecutor:
    """Run a chain. If a file does not have the declared columns, let Spark read the files in a second run."""
    plan = executor.plan
    views = [view for view, _ in executor.paths.folders]
    try:
        with read_errors(executor.storage):
            return executor.run(inputs)
    except (FileMismatch, TooLargeInProcess, MemoryError) as error:
        delete_changes(executor.storage, executor.reports, views)  # the next attempt writes them again
        if not isinstance(error, FileMismatch):
            raise
    by_spark = {
        name: replace(rows, by_spark=True) if isinstance(rows, LotInput) else rows
        for name, rows in inputs.items()
    }
    again = replace(
        executor,
        plan=plan,
        reports=[],
        changes=type(executor.changes)(),
        plan_s=0.0,
        job_s=0.0,
        recomputed_rows=0,
    )
    return _run(again, by_spark)


def delete_changes(storage: Storage, reports: Iterable[TaskReport], views: Collection[str]) -> None:
    """Delete the changes that an incomplete step wrote for these views, so that no reader uses them."""
    for view, key, *_ in (file for report in reports for file in report.files):
        if view in views:
            storage.objects.delete(key)


# --- place


def choose(plan: StepPlan, tables: Iterable[str], size: InputSize, cores: int) -> Estimate:
    """Decide where a step runs.

    Args:
        plan: the plan of the step.
        tables: the inputs that changed.
        size: the size of the changes.
        cores: how many Spark tasks run at the same time.
    """
    tables = list(tables)
    rows = size.rows
    layers = in_process_layers = calls = 0
    for number in range(plan.chain.jobs):
        job = replace(plan, job=number)
        layers += job.depth + _spark_layers(job)
        job = replace(job, by_arrow=True)
        spark_layers = _spark_layers(job)
        in_process_layers += job.depth + spark_layers
        inputs = tables if number == 0 else [query.table for query in plan.chain.queries]
        calls += spark_layers + sum(
            any(not job.is_direct(edge) for edge in job.leaving(table)) for table in inputs
        )
        calls += sum(1 for query in plan.chain.queries if number and job.leaving(query.table))
    spark = plan.chain.jobs * _JOB + layers * _LAYER + rows * layers * (_ROW + _MOVED_ROW) / max(1, cores)
    runner = calls * _EXPRESSION + rows * in_process_layers * _ROW / threads_for(size)
    setting = os.environ.get(SETTING, "")
    if setting not in ("", *ExecutionPlace):
        raise UsageError(
            f"invalid value of {SETTING}: {setting!r}",
            hint="set it to spark or runner; if it is unset, Tidemill chooses the faster one for each step",
        )
    small = runner < spark and rows <= MOST_ROWS and size.stored_bytes <= MOST_BYTES
    small = small and rows * _computed_columns(replace(plan, by_arrow=True), tables) <= MOST_VALUES
    place = ExecutionPlace(setting or (ExecutionPlace.RUNNER if small else ExecutionPlace.SPARK))
    return Estimate(place, runner if place is ExecutionPlace.RUNNER else spark)


def _spark_layers(job: StepPlan) -> int:
    """Return after how many layers of a job Spark evaluates row expressions."""
    return sum(1 for layer in range(1, job.depth + 1) if job.spark_edges(layer))


def _computed_columns(plan: StepPlan, tables: Iterable[str]) -> int:
    """Return how many columns Spark computes from the table that needs the most."""
    return max((_projection(plan, table).width for table in tables), default=0)


def _projection(plan: StepPlan, table: str) -> SharedProjection:
    edges = [
        edge for edge in plan.leaving(table) if not plan.is_direct(edge) and not edge.expressions.explodes
    ]
    return along_edges(edges, plan, lambda _: ())


# --- tasks


def threads_for(size: InputSize) -> int:
    """Return how many threads of the runner execute a step."""
    return max(1, min(len(os.sched_getaffinity(0)), size.rows // THREAD_ROWS, SLICES))


def size_of(slices: Iterable[LotSlice]) -> InputSize:
    """Return the size of lots."""
    items = [item for lot in slices for item in lot.objects]
    return InputSize(sum(item.rows or 0 for item in items), sum(item.size for item in items))


def _copies(plan: StepPlan) -> int:
    """Return how many times one layer can receive the rows of the step: once for each edge that leads to it.

    A task holds the rows of all operators of its layer.
    """
    chain = plan.chain
    layers = Counter(
        (chain.operators[edge.target].job, chain.operators[edge.target].layer)
        for edge in chain.edges
        if edge.target in plan.active
    )
    return max(layers.values(), default=1)


def tasks_for(spark: "SparkSession", size: InputSize) -> int:
    """Return how many tasks a layer has.

    This is a multiple of the number of tasks that Spark runs at the same time, and at most 256.
    """
    cores = parallelism(spark)
    limit = worker_bytes(spark.conf.get(_MEMORY, "") or "", cores)
    task_bytes = TASK_BYTES if limit is None else max(1, min(TASK_BYTES, limit // MEMORY_SHARE))
    needed = max(1, -(-size.rows // TASK_ROWS), -(-size.stored_bytes // task_bytes))
    return min(SLICES, -(-needed // cores) * cores)


def worker_bytes(setting: str, cores: int) -> int | None:
    """Return the memory of one Python worker, from Spark's setting for an executor; None if unlimited.

    >>> worker_bytes("2g", 4)
    536870912
    """
    match = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)b?\s*", setting.lower())
    if match is None or not int(match[1]):
        return None
    return int(match[1]) * _UNITS[match[2] or "m"] // max(1, cores)
