"""Measure no-op futures per second, end to end: submit all of them and get the result of each.

The function takes a number and returns it; results are checked. Both sides have two processes that run
tasks, started and warm. Ours are durable when `map` returns, and so is every result.
"""

import statistics
from pathlib import Path

from bench.comparison import Comparison, rounded, take_turns
from bench.futures import sides
from bench.report import Report, at_least
from bench.side import Side

BESIDE_RAY, BESIDE_DBOS, TRIED, QUICK = 5_000, 2_000, 300, 50


def beside_ray(report: Report, ours: Side, ray: Side | None) -> None:
    """Compare with Ray's tasks with two CPUs."""
    target = at_least(1)
    if ray is None:
        report.absent("vs_ray", target=target)
        return
    report.say("no-ops end to end, beside Ray")
    report.compare("vs_ray", _compare(report, ours, ray, BESIDE_RAY), target=target)


def beside_dbos(report: Report, folder: Path, python: Path | None) -> None:
    """Compare with DBOS's queued workflows on SQLite, with the faster of its settings."""
    target = at_least(10)
    if python is None:
        report.absent("vs_dbos", target=target)
        return
    settings = "tuned" if report.quick else _faster_settings(report, folder, python)
    report.say(f"no-ops end to end, beside DBOS ({settings})")
    file = folder / "dbos.db"
    with sides.ours(report, folder / "dbos") as ours, sides.dbos(report, python, file, settings) as peer:
        report.compare("vs_dbos", _compare(report, ours, peer, BESIDE_DBOS), target=target)


def _compare(report: Report, ours: Side, peer: Side, count: int) -> Comparison:
    count = QUICK if report.quick else count
    return take_turns(
        ours,
        peer,
        prepare=lambda _: None,
        once=lambda side: side.ask_timed("work", count=count),
        work=count,
        unit="futures",
        repetitions=report.repetitions,
    )


def _faster_settings(report: Report, folder: Path, python: Path) -> str:
    report.say("DBOS: its defaults, or tuned")
    medians = {}
    for settings in ("default", "tuned"):
        with sides.dbos(report, python, folder / f"dbos-{settings}.db", settings) as side:
            took = [side.ask("work", count=TRIED) for _ in range(1 + report.repetitions)][1:]
        medians[settings] = rounded(TRIED / statistics.median(took))
    report.flags["dbos_per_second_by_settings"] = medians
    return max(medians, key=lambda name: medians[name])
