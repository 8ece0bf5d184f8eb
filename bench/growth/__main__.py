"""Growth: store rows and objects per live lot, after 1,000 and after 10,000 appends and steps.

Keys, targets and how to read them: bench/README.md.
"""

from bench import machine
from bench.growth.home import Census, GrowingHome
from bench.report import Report, at_most, main

LIMIT = 1.2
EARLY, LATE = 1_000, 10_000


def measure(report: Report) -> None:
    report.versions["ours"] = machine.versions("tidemill", "pyarrow", "msgspec")
    early, late = (100, 200) if report.quick else (EARLY, LATE)
    home = GrowingHome()
    home.grow(early)
    first = home.census()
    report.say(f"after {early:,} appends and steps: {first}")
    for reached in range(2 * early, late + 1, early):
        home.grow(reached - home.appends)
        report.say(f"after {reached:,}: {home.census()}")
    last = home.census()
    report.flags["deaths"] = home.deaths
    figures = {
        "rows_growth": (first.rows_per_lot, last.rows_per_lot),
        "objects_growth": (first.objects_per_lot, last.objects_per_lot),
    }
    for key, (before, after) in figures.items():
        raw = {"before": _raw(first), "after": _raw(last)}
        report.figure(key, after / before, raw, target=at_most(LIMIT))


def _raw(census: Census) -> dict[str, object]:
    return {
        "appends": census.appends,
        "steps": census.steps,
        "live_lots": census.lots,
        "rows": census.rows,
        "objects": census.objects,
        "rows_per_lot": round(census.rows_per_lot, 2),
        "objects_per_lot": round(census.objects_per_lot, 2),
        "rows_by_kind": census.by_kind,
    }


if __name__ == "__main__":
    main("growth", __doc__, measure)
