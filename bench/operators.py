"""Measure a step of one view per operator, as a multiple of the step of an inner join in the same run.

Every view reads 1,000,000 rows with 22 columns, in groups of 20 rows. A step deletes 500 rows and appends
500, spread over 1,000 groups. The time of a step is that of planning and running its jobs (`StepTimed`),
without the commit. An operator that is recomputed is measured as it is: a view without any trace has no
`StepTimed`, so its time is that from the record of the step to its commit.

Keys, targets and how to read them: bench/README.md.
"""

import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import tidemill as tm
from bench import machine
from bench.report import Report, Target, at_most, options, tell
from tidemill.events import Event
from tidemill.spark.sessions import SparkSettings
from tidemill.views.steps.events import RecordWritten, StepCommitted, StepTimed

ROWS, QUICK_ROWS = 1_000_000, 20_000
CHANGED = 1_000
GROUP = 20
BANDS = 1_000
STEPS, WARM_UPS = 7, 3
MOST_S = 60
"""After this many seconds of a slow view's steps, no further step is measured."""

FILLERS = 18
FACTS = "id BIGINT, k BIGINT, v BIGINT, at TIMESTAMP, " + ", ".join(f"x{n} BIGINT" for n in range(FILLERS))
KEYS = "k BIGINT, name STRING"
LIMITS = "band BIGINT, low BIGINT, high BIGINT"
VALUES = 1_000_000

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """How the rows are spread over the groups: the share of NULL keys, and that of one hot group.

    In the hot group, one of 100 new rows comes first in the order of `v`; the others come last. The changes
    of a step all belong to it.
    """

    nulls: float = 0.0
    hot: float = 0.0

    def facts(self, ids: Ids, groups: int) -> pa.Table:
        """Return the rows with these ids."""
        spread, values = (_scattered(ids, n) for n in (1, 2))
        k, v = spread % groups, values % VALUES
        share = _scattered(ids, 3) % 1_000 / 1_000
        if self.hot:
            in_hot = (share < self.hot) | (ids >= groups * GROUP)
            k = np.where(in_hot, 0, k)
            v = np.where(in_hot & (ids % 100 == 0), -ids, v + ids)
        columns = {
            "id": pa.array(ids),
            "k": pa.array(k, mask=share < self.nulls),
            "v": pa.array(v),
            "at": pa.array(_scattered(ids, 4) % 86_400_000_000, pa.timestamp("us", tz="UTC")),
        }
        return pa.table(columns | {f"x{n}": pa.array(_scattered(ids, 5 + n)) for n in range(FILLERS)})


def _scattered(ids: Ids, salt: int) -> Ids:
    """Return a number of 40 bits for each id."""
    words = (ids.astype(np.uint64) + np.uint64(salt << 40)) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    return (words * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(24)).astype(np.int64)


@dataclass(frozen=True)
class Case:
    """The views of one measurement; the figure is divided by `levels`."""

    views: Mapping[str, str]
    shape: Shape = Shape()
    target: Target | None = None


def _case(sql: str, shape: Shape = Shape(), most: float | None = 3) -> Case:  # noqa: B008 - frozen
    return Case({"view": sql}, shape, None if most is None else at_most(most))


_JOINED = "SELECT f.k, count(*) AS n, sum(f.v) AS s FROM f JOIN d ON f.k = d.k GROUP BY f.k"
_FIRST = "SELECT id, k, v FROM f QUALIFY row_number() OVER (PARTITION BY k ORDER BY v, id) <= "
_NUMBERED = "SELECT id, k, v, row_number() OVER (PARTITION BY k ORDER BY v, id) AS n FROM f"
LEVELS = 10


def _level(level: int) -> str:
    value, below = ("v", "f") if level == 1 else (f"s{level - 1}", f"level_{level - 1}")
    return f"SELECT k, sum({value}) AS s{level}, count(*) AS n FROM {below} GROUP BY k"


CASES: dict[str, Case] = {
    "inner": _case(_JOINED, most=None),
    "outer": _case("SELECT f.id, f.v, d.name FROM f LEFT JOIN d ON f.k = d.k"),
    "semi": _case("SELECT f.id, f.v FROM f LEFT SEMI JOIN d ON f.k = d.k"),
    "distinct": _case("SELECT k, count(DISTINCT v) AS n FROM f GROUP BY k"),
    "row_number": _case(_NUMBERED),
    "topk": _case(_FIRST + "3"),
    "global_topk": _case("SELECT id, k, v FROM f ORDER BY v DESC, id LIMIT 100"),
    "scalar": _case("""
        SELECT d.name, sum(f.v) AS s FROM f JOIN d ON f.k = d.k GROUP BY d.name
        HAVING sum(f.v) > (SELECT avg(v) FROM f)"""),
    "band": _case("SELECT b.band, f.id, f.v FROM f JOIN b ON f.v BETWEEN b.low AND b.high"),
    "session": _case("""
        SELECT k, session_window(at, '10 minutes').start AS begins, count(*) AS n
        FROM f GROUP BY k, session_window(at, '10 minutes')"""),
    "null_keys": _case("SELECT f.id, f.v, d.name FROM f LEFT JOIN d ON f.k = d.k", Shape(nulls=0.2)),
    "wide": _case("SELECT k, stddev(v) AS s FROM f GROUP BY k"),
    "hot_key": _case(_FIRST + "10", Shape(hot=0.3), most=5),
    "hot_join": _case(
        "SELECT f.id, d.name FROM f LEFT JOIN d ON f.k = d.k AND f.v < 0", Shape(hot=0.3), most=None
    ),
    "deep10_ms_per_level": Case(
        {f"level_{level}": _level(level) for level in range(1, LEVELS + 1)}, target=at_most(15)
    ),
}


class Kept:
    """A pipeline with the views of a case, and the times of its steps."""

    def __init__(self, home: Path, case: Case, rows: int) -> None:
        self._random = np.random.default_rng(1)
        self._shape, self._groups = case.shape, rows // GROUP
        self.pipeline = tm.Pipeline("operators", home=home, spark=SparkSettings(master="local[*]"))
        self._facts = self.pipeline.dataset("f", FACTS, deletes=True)
        keys = self.pipeline.dataset("d", KEYS, deletes=True)
        bands = self.pipeline.dataset("b", LIMITS, deletes=True)
        for name, sql in case.views.items():
            self.pipeline.view(name, sql)
        self._present = np.arange(rows)
        self._next = rows
        self._facts.append(self._rows(self._present))
        matched = np.arange(0, self._groups, 2)
        keys.append(pa.table({"k": matched, "name": [f"name {k % 1000}" for k in matched.tolist()]}))
        lows = np.arange(BANDS) * (VALUES // BANDS)
        bands.append(pa.table({"band": np.arange(BANDS), "low": lows, "high": lows + GROUP}))
        self._run()

    def step(self) -> "Step":
        """Delete some rows and append as many."""
        half = CHANGED // 2
        places = self._random.choice(len(self._present), half, replace=False)
        if self._shape.hot:
            hot = np.flatnonzero(self._rows(self._present[:100_000])["k"].to_numpy() == 0)
            places = self._random.choice(hot, half, replace=False)
        self._facts.delete(self._rows(self._present[places]))
        new = np.arange(self._next, self._next + half)
        self._facts.append(self._rows(new))
        self._next += half
        self._present = np.concatenate([np.delete(self._present, places), new])
        return self._run()

    def _rows(self, ids: Ids) -> pa.Table:
        return self._shape.facts(ids, self._groups)

    def _run(self) -> "Step":
        step = Step()
        report = self.pipeline.run(emit=step.take)
        if not report.ok:
            raise RuntimeError(str(report))
        return step


class Step:
    """Takes the events of a run, and returns the time of its step."""

    def __init__(self) -> None:
        self.timed: StepTimed | None = None
        self._recorded = self._committed = 0.0

    def take(self, event: Event) -> None:
        if isinstance(event, RecordWritten):
            self._recorded = time.perf_counter()
        elif isinstance(event, StepCommitted):
            self._committed = time.perf_counter()
        elif isinstance(event, StepTimed):
            self.timed = event

    @property
    def ms(self) -> float:
        if self.timed is not None and self.timed.views:
            return 1e3 * (self.timed.plan_s + self.timed.job_s)
        return 1e3 * (self._committed - self._recorded)


def measure(report: Report, names: list[str], rows: int) -> None:
    report.flags["rows"] = rows
    with machine.scratch("operators") as folder:
        inner_ms = 0.0
        for name in names:
            case = CASES[name]
            try:
                steps = _steps(folder / name, case, rows, quick=report.quick)
            except Exception as error:  # noqa: BLE001 - told, and the bench fails at its end
                report.failed[name] = f"{type(error).__name__}: {error}"
                report.say(f"{name} failed: {report.failed[name]}")
                continue
            ms = statistics.median(step.ms for step in steps)
            raw = _raw(steps)
            if name == "inner":
                inner_ms = ms
                report.figure("inner_ms", ms, raw)
            elif len(case.views) > 1:
                report.figure(name, ms / len(case.views), raw, target=case.target)
            else:
                report.figure(name, ms / inner_ms, raw, target=case.target)


def _steps(home: Path, case: Case, rows: int, *, quick: bool) -> list[Step]:
    """Return the steps of a case after those that warm up."""
    kept = Kept(home, case, rows)
    try:
        began, steps = time.perf_counter(), list[Step]()
        most, warm_ups = (1, 0) if quick else (WARM_UPS + STEPS, WARM_UPS)
        while len(steps) < most and (len(steps) <= 1 or time.perf_counter() < began + MOST_S):
            steps.append(kept.step())
    finally:
        kept.pipeline.close()
    return steps[min(warm_ups, len(steps) - 1) :]


def _raw(steps: list[Step]) -> dict[str, Any]:
    raw: dict[str, Any] = {"ms": [round(step.ms, 1) for step in steps]}
    timed = [step.timed for step in steps if step.timed is not None and step.timed.views]
    if not timed:
        return raw | {"recomputed": "as a whole"}
    last = timed[-1]
    return raw | {
        "places": sorted({each.place for each in timed}),
        "recomputed_rows": last.recomputed_rows,
        "incremental_share": round(last.incremental_share, 4),
        "kernels_ms": [(kind, round(1e3 * seconds, 1)) for kind, *_, seconds in last.operators.values()],
    }


def main() -> int:
    """Run the bench from the command line."""
    parser = options("operators", __doc__)
    parser.add_argument(
        "--only", action="append", choices=list(CASES), help="measure this and `inner` alone; may be repeated"
    )
    parser.add_argument("--rows", type=int, help="rows of the base, for a trial")
    given = parser.parse_args()
    report = Report("operators", quick=given.quick)
    names = [name for name in CASES if name == "inner" or not given.only or name in given.only]
    measure(report, names, given.rows or (QUICK_ROWS if given.quick else ROWS))
    tell(report, as_json=given.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
