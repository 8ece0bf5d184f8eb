"""When the clock will change a view: the next moment at which a row passes a temporal filter (DBSP-22).

`WHERE at > now() - INTERVAL 1 DAY` loses a row a day after its time, and nothing has to be published for it.
Of every such filter of a view the nearest value that the clock has not passed yet is asked for, over the
tables of the step; when the filter's bound will pass it is found by evaluating the bound at times to come.
The earliest of those is the group's alarm: a step before it would find nothing.

It is an early bound: a row that a later operator throws away wakes the view as well, and the step finds that
nothing changed. It is never late, as long as the bound grows with time (`is_monotonic`).
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
"""The last minute of the year 9999: what happens later happens never."""

POINTS = 200
"""Times at which one query evaluates a bound."""

_SECOND, _HOUR, _DAY = 1_000_000, 3_600_000_000, 86_400_000_000
_NEAR = sorted(sign * far for sign in (-1, 1) for far in (0, 1, _SECOND, _HOUR, _DAY, 32 * _DAY, 400 * _DAY))


@dataclass(frozen=True)
class ClockUse:
    """What a view asks of the clock.

    - filters: its temporal filters whose bounds grow with time: the moments at which they change a row are
      known beforehand.
    - other: it asks in another way as well: it may be another one at any time.
    """

    filters: tuple[TemporalFilter, ...] = ()
    other: bool = False


def clock_use(sql: str, output: ViewOutput, columns: Sequence[str]) -> ClockUse | None:
    """What a query asks of the clock, by its circuit; None for one that does not ask."""
    if not reads_clock(sql, columns):
        return None
    found: list[TemporalFilter] = []
    other = False
    for operator in walk(output):
        if isinstance(operator, TemporalFilter) and is_monotonic(str(operator.bound)):
            found.append(operator)
            other |= operator.value.reads_clock
        else:
            other |= _asks(operator)
    return ClockUse(tuple(found), other)


def _asks(operator: Operator) -> bool:
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
    """The next moment (µs since 1970) at which one of these filters may let a row in or out; None for never.

    Args:
        spark: a session with the pinned settings.
        filters: of one view.
        frames: what the view reads, by its names, as in the step.
        now: the time of the step.
        tag: unique among the queries of this moment.
    """
    found = []
    for place, one in enumerate(filters):
        nearest = _nearest(spark, one, frames, now, f"{tag}_{place}")
        if nearest is not None:
            found.append(_passed(spark, one, nearest, now))
    times = [time for time in found if time is not None]
    return min(times) if times else None


def _nearest(
    spark: "SparkSession", one: TemporalFilter, frames: "Mapping[str, DataFrame]", now: int, tag: str
) -> int | None:
    """Of the values that the bound has not passed the first, in µs; None if there is none."""
    renderer = Renderer(clock_values(now))
    names, tables = common_tables(one.input, renderer)
    value, bound = renderer.text(one.value), renderer.text(one.bound)
    left = ">=" if _strictly(one) else ">"
    text = (
        f"WITH {', '.join(tables)}\nSELECT unix_micros(CAST(min(v) AS TIMESTAMP)) FROM (SELECT {value} AS v"
        f" FROM {names[one.input]} WHERE {value} {left} {bound})"
    )
    with queries.over(spark, text, frames, tag) as frame:
        (row,) = frame.collect()
    return None if row[0] is None else int(row[0])


def _strictly(one: TemporalFilter) -> bool:
    """Whether the bound has to be behind a value for the filter to change its mind, and not only at it."""
    return one.comparison in ("<", ">=")


def _passed(spark: "SparkSession", one: TemporalFilter, value: int, now: int) -> int | None:
    """When the bound passes a value that it has not passed at `now`: the first µs."""
    bound = f"unix_micros(CAST({one.bound.sql(None, clock_values('at'))} AS TIMESTAMP))"
    passes = f"{bound} {'>' if _strictly(one) else '>='} {value}"
    (row,) = spark.sql(f"SELECT {bound} FROM (SELECT {now}L AS at)").collect()
    guess = now + value - int(row[0])  # right for every bound that goes as fast as the clock
    low, high = now, LAST_US
    points = [guess + far for far in _NEAR]
    while high - low > 1:
        asked = sorted({point for point in points if low < point < high})
        if not asked:
            apart = max(1, (high - low) // POINTS)
            asked = list(range(low + apart, high, apart))[:POINTS]
        listed = ", ".join(f"({point}L)" for point in asked)
        over = {
            row[0] for row in spark.sql(f"SELECT at FROM VALUES {listed} AS t(at) WHERE {passes}").collect()
        }
        before = [point for point in asked if point not in over]
        low, high = max([low, *before]), min([high, *over])
        points = []
    return None if high >= LAST_US else high
