"""Compute when time alone changes a view: when a temporal filter next adds or drops a row (DBSP-22).

`WHERE at > now() - INTERVAL 1 DAY` drops a row one day after its time, although nothing is published. For
each such filter, a query over the tables of the step finds the nearest value that the filter's bound has not
passed yet. Tidemill then searches
for the moment when the bound passes this value, by computing the bound for future times. The
earliest of these moments is the group's alarm. Before that moment, time alone changes nothing.

An alarm can be early: a row that a later operator drops also causes a step, which then finds no change. An
alarm is never late if the bound grows with time (`is_monotonic`).
"""

# ruff: noqa: S608  # the texts are the user's own query

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.spark import queries
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.ids import expressions_of
from tidemill.views.circuit.interpreter import common_tables
from tidemill.views.circuit.operators import Opaque, Operator, TemporalFilter, ViewOutput
from tidemill.views.circuit.render import Renderer
from tidemill.views.spark.step_time import clock_values, reads_clock
from tidemill.views.sql.conditions import is_monotonic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAST_US = 253_402_300_740_000_000
"""The last minute of the year 9999; later moments count as never."""

POINTS = 200
"""For how many points in time one query evaluates a bound."""

_SECOND, _HOUR, _DAY = 1_000_000, 3_600_000_000, 86_400_000_000
_NEAR = sorted(sign * far for sign in (-1, 1) for far in (0, 1, _SECOND, _HOUR, _DAY, 32 * _DAY, 400 * _DAY))


@dataclass(frozen=True)
class ClockUse:
    """How a view depends on the clock.

    Args:
        filters: its temporal filters with bounds that grow with time, so that their next change can be
            computed.
        other: whether the view also reads the clock in another way, so that it can change at any time.
    """

    filters: tuple[TemporalFilter, ...] = ()
    other: bool = False


def clock_use(sql: str, output: ViewOutput, columns: Sequence[str]) -> ClockUse | None:
    """Return how a query depends on the clock, from its circuit; None if it never reads the clock."""
    if not reads_clock(sql, columns):
        return None
    filters: list[TemporalFilter] = []
    other = False
    for operator in walk(output):
        if isinstance(operator, TemporalFilter) and is_monotonic(str(operator.bound)):
            filters.append(operator)
            other |= operator.value.reads_clock
        else:
            other |= _reads_clock(operator)
    return ClockUse(tuple(filters), other)


def _reads_clock(operator: Operator) -> bool:
    if isinstance(operator, Opaque):
        return reads_clock(operator.sql)
    return any(expr.reads_clock for expr in expressions_of(operator))


def next_crossing(
    spark: "SparkSession",
    filters: Sequence[TemporalFilter],
    frames: "Mapping[str, DataFrame]",
    now: int,
    tag: str,
) -> int | None:
    """Return the next moment (µs since 1970) when one of these filters may add or drop a row; None if never.

    Args:
        spark: a session with the pinned settings.
        filters: the temporal filters of one view.
        frames: the tables that the view reads at the step, by name.
        now: the time of the step.
        tag: a name that no concurrent query uses.
    """
    times = []
    for place, condition in enumerate(filters):
        nearest = _nearest(spark, condition, frames, now, f"{tag}_{place}")
        if nearest is not None:
            times.append(_passing_time(spark, condition, nearest, now))
    return min((time for time in times if time is not None), default=None)


def _nearest(
    spark: "SparkSession", condition: TemporalFilter, frames: "Mapping[str, DataFrame]", now: int, tag: str
) -> int | None:
    """Return the smallest value that the bound has not passed, in µs; None if there is none."""
    renderer = Renderer(clock_values(now))
    names, tables = common_tables(condition.input, renderer)
    value, bound = renderer.text(condition.value), renderer.text(condition.bound)
    left = ">=" if _is_strict(condition) else ">"
    text = (
        f"WITH {', '.join(tables)}\nSELECT unix_micros(CAST(min(v) AS TIMESTAMP)) FROM (SELECT {value} AS v"
        f" FROM {names[condition.input]} WHERE {value} {left} {bound})"
    )
    with queries.over(spark, text, frames, tag) as frame:
        (row,) = frame.collect()
    return None if row[0] is None else int(row[0])


def _is_strict(condition: TemporalFilter) -> bool:
    """Return whether the filter changes only when its bound exceeds a value, not when the two are equal."""
    return condition.comparison in ("<", ">=")


def _passing_time(spark: "SparkSession", condition: TemporalFilter, value: int, now: int) -> int | None:
    """Return the first µs at which the bound has passed a value that it has not passed at `now`."""
    bound = f"unix_micros(CAST({condition.bound.sql(None, clock_values('at'))} AS TIMESTAMP))"
    passes = f"{bound} {'>' if _is_strict(condition) else '>='} {value}"
    (row,) = spark.sql(f"SELECT {bound} FROM (SELECT {now}L AS at)").collect()
    guess = now + value - int(row[0])  # exact if the bound advances at the speed of the clock
    low, high = now, LAST_US
    points = [guess + far for far in _NEAR]
    while high - low > 1:
        tried = sorted({point for point in points if low < point < high})
        if not tried:
            distance = max(1, (high - low) // POINTS)
            tried = list(range(low + distance, high, distance))[:POINTS]
        listed = ", ".join(f"({point}L)" for point in tried)
        passed = {
            row[0] for row in spark.sql(f"SELECT at FROM VALUES {listed} AS t(at) WHERE {passes}").collect()
        }
        before = [point for point in tried if point not in passed]
        low, high = max([low, *before]), min([high, *passed])
        points = []
    return None if high >= LAST_US else high
