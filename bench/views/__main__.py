"""Measure a step of an incremental view, compared with a recompute and with other incremental systems.

Two views, a join with count, sum and max over numbers, and the same over STRING, DATE and DECIMAL with an
average; a chain of eight aggregates; a window. Keys, targets and how to read them: bench/README.md.
"""

import signal
import sys
from collections.abc import Callable
from dataclasses import replace

from bench import machine
from bench.report import Report, options, tell
from bench.views import alone, beside, in_memory
from bench.views.queries import REVENUE, TYPED
from bench.views.stage import FULL, QUICK, Stage

PARTS: dict[str, Callable[[Stage], None]] = {
    "growth": alone.growth,  # first: both bases have had the same steps
    "revenue": lambda stage: beside.measure(stage, REVENUE, ""),
    "worst": alone.worst,  # after steps that leave runs as large as the base, which these steps must merge
    "pathway": in_memory.measure,
    "typed": lambda stage: beside.measure(stage, TYPED, "_types"),
    "chain8": alone.chain8,
    "keyed": alone.keyed,
}


def measure(stage: Stage, names: list[str]) -> None:
    """Run each part separately: if one fails, the others still run."""
    for name in names:
        stage.report.say(f"--- {name}")
        try:
            PARTS[name](stage)
        except Exception as error:  # noqa: BLE001 - told, and the bench fails at its end
            stage.report.failed[name] = f"{type(error).__name__}: {error}"
            stage.report.say(f"{name} failed: {stage.report.failed[name]}")
            stage.reset()


def main() -> int:
    """Run the bench from the command line."""
    parser = options("views", __doc__)
    parser.add_argument(
        "--only", action="append", choices=list(PARTS), help="measure this alone; may be repeated"
    )
    parser.add_argument("--rows", type=int, help="orders in the base, for a trial")
    given = parser.parse_args()
    report = Report("views", quick=given.quick)
    scale = QUICK if given.quick else FULL
    if given.rows:
        sizes = {size: count for size, count in scale.steps.items() if size <= given.rows}
        scale = replace(scale, rows=given.rows, small=max(1_000, given.rows // 10), steps=sizes)
    report.flags["scale"] = {
        name: getattr(scale, name) for name in ("rows", "small", "turns", "warm_ups", "worst")
    }
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the finished figures are reported anyway
    with machine.scratch("views") as folder:
        report.machine["disk"] = machine.sync_ms(folder)
        try:
            with Stage(report, folder, scale) as stage:
                measure(stage, given.only or list(PARTS))
        except KeyboardInterrupt:
            report.failed["all"] = "interrupted"
    tell(report, as_json=given.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
