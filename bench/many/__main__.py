"""Many views: idle runs, small steps and the first run of pipelines with 200 and 40 views; stray deletes.

Keys, targets and how to read them: bench/README.md.
"""

from statistics import median

from bench import machine
from bench.report import Report, at_most, main
from bench.side import Side


def measure(report: Report) -> None:
    views, first_views, rows = (20, 4, 2_000) if report.quick else (200, 40, 100_000)
    base, steps = (20_000, 3) if report.quick else (1_000_000, 10)
    with machine.scratch("many") as folder, Side("bench.ours.many_views") as side:
        report.versions["ours"] = side.versions
        stray = side.ask("stray", home=str(folder / "stray"), rows=base, steps=steps)
        ratio = median(stray["after_ms"]) / median(stray["before_ms"])
        report.figure("stray_delete", ratio, stray, target=at_most(1.5))
        first = side.ask("first", folder=str(folder), views=first_views, rows=rows)
        report.figure("views40_first_s", first["first_s"], first)
        report.figure("first_over_load", first["first_s"] / first["load_s"], first, target=at_most(2))
        many = side.ask("many", home=str(folder / "many"), views=views, steps=steps)
        report.figure("views200_idle_s", median(many["idle_s"]), many, target=at_most(1))
        report.figure("views200_step_s", median(many["step_s"]), many, target=at_most(2))


if __name__ == "__main__":
    main("many", __doc__, measure)
