"""Where a step is computed: by a Spark job, or in the runner itself (DBSP-41).

A job costs a few hundred milliseconds before the first row is looked at, and more for each of its layers; the
kernels of a small step need a few dozen. The runner has the cores of one machine, and each time an expression
stands on the way it has to ask Spark; but nothing passes through Java. What either would take is estimated
from the plan and from the rows that changed, and the estimate is told with what it came to.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Final, NamedTuple

from tidemill.errors import UsageError
from tidemill.views.chain.layer_task import StepPlan
from tidemill.views.spark.sizes import InputSize
from tidemill.views.trace.hash_space import SLICES

SETTING: Final = "TIDEMILL_PLACE"
"""Of the runner's environment: `spark` or `runner`, for all steps; else each step is estimated."""


class Venue(StrEnum):
    """Where a step is computed."""

    SPARK = "spark"
    RUNNER = "runner"


MOST_ROWS: Final = 2_000_000
MOST_BYTES: Final = 32 * 1024**2
"""A step with more changes than that, or larger ones, is Spark's: it has more memory."""

THREAD_ROWS: Final = 50_000
"""Changes for which the runner takes one more thread."""

# Seconds, as they were measured on two cores with warm processes (docs/explanation/performance.md).
_JOB: Final = 0.25
_LAYER: Final = 0.07
_ASKED: Final = 0.10
_ROW: Final = 0.8e-6
_MOVED: Final = 0.4e-6


class Estimate(NamedTuple):
    """A place, and what the step will take there, about."""

    place: Venue
    seconds: float


def threads_for(size: InputSize) -> int:
    """How many threads of the runner compute a step."""
    return max(1, min(len(os.sched_getaffinity(0)), size.rows // THREAD_ROWS, SLICES))


def choose(plan: StepPlan, tables: Iterable[str], size: InputSize, cores: int) -> Estimate:
    """Where a step should be computed.

    Args:
        plan: of the step.
        tables: the inputs that moved.
        size: how much changed.
        cores: how many tasks of Spark run at once.
    """
    rows = size.rows
    layers = asked = 0
    for number in range(plan.chain.jobs):
        part = replace(plan, job=number)
        typed = sum(1 for layer in range(1, part.depth + 1) if part.typed(layer))
        layers += part.depth + typed
        given = tables if number == 0 else [one.table for one in plan.chain.queries]
        asked += typed + sum(any(edge.plain is None for edge in part.leaving(one)) for one in given)
        asked += sum(1 for one in plan.chain.queries if number and part.leaving(one.table))
    spark = plan.chain.jobs * _JOB + layers * _LAYER + rows * layers * (_ROW + _MOVED) / max(1, cores)
    runner = asked * _ASKED + rows * layers * _ROW / threads_for(size)
    wanted = os.environ.get(SETTING, "")
    if wanted not in ("", *Venue):
        raise UsageError(
            f"{SETTING} is {wanted!r}", hint="it is spark, runner, or not set: then each step is estimated"
        )
    small = runner < spark and rows <= MOST_ROWS and size.stored_bytes <= MOST_BYTES
    place = Venue(wanted or (Venue.RUNNER if small else Venue.SPARK))
    return Estimate(place, runner if place is Venue.RUNNER else spark)
