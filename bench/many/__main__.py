"""Many views: idle runs, small steps and the first run of pipelines with 200 and 40 views; stray deletes.

Keys, targets and how to read them: bench/README.md.
"""

from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.report import Report, at_most, main
from bench.side import Side


def measure(report: Report) -> None:
    views, first_views, rows = (20, 4, 2_000) if report.quick else (200, 40, 100_000)
    base, steps = (20_000, 3) if report.quick else (1_000_000, 10)
    with machine.scratch("many") as folder:
        with Side("bench.ours.many_views") as side:
            report.versions["ours"] = side.versions
            stray = side.ask("stray", home=str(folder / "stray"), rows=base, steps=steps)
            ratio = median(stray["after_ms"]) / median(stray["before_ms"])
            report.figure("stray_delete", ratio, stray, target=at_most(1.5))
        first_s, certificates = _first(folder / "new", first_views, rows, [])
        load_s, _ = _first(folder / "known", first_views, rows, certificates)
        raw = {"first_s": first_s, "load_s": load_s, "views": first_views, "rows": rows}
        report.figure("views40_first_s", first_s, raw)
        report.figure("first_over_load", first_s / load_s, raw, target=at_most(2))
        with Side("bench.ours.many_views") as side:
            many = side.ask("many", home=str(folder / "many"), views=views, steps=steps)
            report.figure("views200_idle_s", median(many["idle_s"]), many, target=at_most(1))
            report.figure("views200_step_s", median(many["step_s"]), many, target=at_most(2))


def _first(home: Path, views: int, rows: int, certificates: list[Any]) -> tuple[float, list[Any]]:
    """Time the first run of new or of certified views in a new process; return the certificates too."""
    with Side("bench.ours.many_views") as side:
        answer = side.ask("first", home=str(home), views=views, rows=rows, certificates=certificates)
    return answer["took_s"], answer["certificates"]


if __name__ == "__main__":
    main("many", __doc__, measure)
