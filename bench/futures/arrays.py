"""Measure how long a numpy array of 100 MB takes from one task to another on this host.

The time is from the last statement of the first task (which writes the time into the array) until the other
task has read every byte. It includes storing and committing the result, waking and claiming the dependent,
and mapping the array. Both tasks are submitted before the first one runs.
"""

from typing import Any

from bench.comparison import Series
from bench.report import Report, at_least
from bench.side import Side

NUMBERS, QUICK = 12_500_000, 125_000  # of 8 bytes
HAND_OVERS = 3  # of one repetition; its figure is their median


def measure(report: Report, ours: Side, ray: Side | None) -> None:
    """Measure ours, alternating with Ray's for comparison; no target depends on Ray's."""
    count = QUICK if report.quick else NUMBERS
    gigabytes = count * 8 / 1e9
    report.say(f"{gigabytes * 1000:g} MB from one task to another")
    both = {"ours": ours} if ray is None else {"ours": ours, "peer": ray}
    series = {name: Series(side.file, "GB per second") for name, side in both.items()}
    for repetition in range(-1, report.repetitions):  # alternating; the first is the warm-up
        for name, side in both.items():
            done = [side.ask_timed("hand_over", count=count) for _ in range(HAND_OVERS)]
            if repetition >= 0:
                series[name].values.append(
                    gigabytes / sorted(timed.answer for timed in done)[HAND_OVERS // 2]
                )
                series[name].cpu_s.append(sum(timed.cpu_s for timed in done))
    raw: dict[str, Any] = {name: measured.as_json() for name, measured in series.items()}
    raw["megabytes"] = gigabytes * 1000
    report.figure("shm_gb_per_s", series["ours"].median, raw, target=at_least(1))
