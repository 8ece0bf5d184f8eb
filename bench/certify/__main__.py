"""Certification: how much time it adds to the first run of a pipeline with 40 new views.

Each repetition runs the pipeline twice, each time in a new process and a new home: first without
certificates, then with the certificates of the first run. The difference is what certification adds.

Keys, targets and how to read them: bench/README.md.
"""

from pathlib import Path
from typing import Any

from bench import machine
from bench.comparison import Series
from bench.report import Report, at_most, main
from bench.side import Side

VIEWS = 40
ROWS = 10_000
REPETITIONS = 3
LIMIT_S = 0.3


def measure(report: Report) -> None:
    views = 10 if report.quick else VIEWS
    new = Series("bench/ours/first_run.py", "s", settings="no certificates")
    known = Series("bench/ours/first_run.py", "s", settings="all certificates")
    with machine.scratch("certify") as folder:
        for number in range(1 if report.quick else REPETITIONS):
            stored = _run(report, new, folder / f"new-{number}", views, [])
            _run(report, known, folder / f"known-{number}", views, stored)
    added = new.median - known.median
    raw = {"new": new.as_json(), "known": known.as_json(), "views": views, "rows": ROWS}
    report.figure("per_view_s", added / views, raw, target=at_most(LIMIT_S))


def _run(report: Report, series: Series, home: Path, views: int, certificates: list[Any]) -> list[Any]:
    """Run the pipeline once, and return the certificates."""
    with Side("bench.ours.first_run") as side:
        report.versions["ours"] = side.versions
        timed = side.ask_timed("run", home=str(home), views=views, rows=ROWS, certificates=certificates)
    answer = timed.answer
    expected = 0 if certificates else views
    if answer["certified"] != expected:
        raise RuntimeError(f"{answer['certified']} views were certified in this run, not {expected}")
    report.say(f"{series.settings}: {answer['took_s']:.1f} s, {timed.cpu_s:.1f} CPU seconds")
    series.values.append(answer["took_s"])
    series.cpu_s.append(timed.cpu_s)
    return list(answer["certificates"])


if __name__ == "__main__":
    main("certify", __doc__, measure)
