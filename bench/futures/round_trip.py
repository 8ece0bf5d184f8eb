"""Measure one future at a time: submit it and wait for its result. Ours is synced to disk, Ray's is not."""

from bench.comparison import Comparison, Series
from bench.report import Report, at_most
from bench.side import Side

ROUND_TRIPS, QUICK = 200, 10


def measure(report: Report, ours: Side, ray: Side | None) -> None:
    target = at_most(2)
    if ray is None:
        report.absent("roundtrip_vs_ray", target=target)
        return
    count = QUICK if report.quick else ROUND_TRIPS
    report.say("one round trip, beside Ray")
    both = {side: Series(side.file, "ms per round trip") for side in (ours, ray)}
    slow: dict[str, list[float]] = {side.file: [] for side in both}
    for repetition in range(-1, report.repetitions):  # alternating; the first is the warm-up
        for side, series in both.items():
            answer, cpu_s = side.ask_timed("round_trips", count=count)
            if repetition >= 0:
                series.values.append(answer["median_s"] * 1000)
                series.cpu_s.append(cpu_s)
                slow[side.file].append(round(answer["p90_s"] * 1000, 3))
    comparison = Comparison(both[ours], both[ray])
    raw = {**comparison.as_json(), "round_trips": count, "p90_ms": slow}
    report.figure("roundtrip_vs_ray", comparison.ratio, raw, target=target)
