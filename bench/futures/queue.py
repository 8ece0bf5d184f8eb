"""A long queue: what it costs in memory, and whether claiming from it is as fast as from a short one."""

import threading
from pathlib import Path
from typing import Any

import psutil

from bench.comparison import Comparison, Series, rounded
from bench.futures import sides
from bench.report import Report, at_least, at_most
from bench.side import Side

QUEUED, QUICK_QUEUED = 100_000, 300
SHORT, TIMES, QUICK_SHORT = 10_000, 10, 200
CLAIMED, BATCH = 2_000, 100
LOOK_EVERY_S = 0.05


class Watch(threading.Thread):
    """Adds up the resident memory of some processes again and again, and keeps the largest sum."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self._processes = {pid: psutil.Process(pid) for pid in pids}
        self._ended = threading.Event()
        self.peak: dict[int, float] = {}
        self.peak_each: dict[int, float] = {}

    def run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            now = {}
            for pid, process in self._processes.items():
                try:
                    now[pid] = process.memory_info().rss / 1e6
                except psutil.NoSuchProcess:
                    continue
            self.peak_each = {
                pid: max(self.peak_each.get(pid, 0.0), now.get(pid, 0.0)) for pid in self._processes
            }
            if sum(now.values()) > sum(self.peak.values()):
                self.peak = now

    def end(self) -> None:
        self._ended.set()
        self.join()


def memory(report: Report, folder: Path) -> None:
    """Submit 100,000 with their handles kept, and work them all off.

    Counted is the resident memory of the client's process (its interpreter, this bench's code and all
    handles), of the supervisor and of both its children, added up as if they shared nothing; the peak of
    that sum over the whole time, from the first submit to the last result.
    """
    count = QUICK_QUEUED if report.quick else QUEUED
    report.say(f"memory with {count:,} queued futures")
    with sides.ours(report, folder / "queue") as side:
        pids = side.ask("processes")
        watch = Watch(pids)
        watch.start()
        submit_s = side.ask("queue", count=count)
        queued = dict(watch.peak)
        finish_s = side.ask("finish", count=count)
        watch.end()
        names = ["client", "supervisor", *(f"child {number}" for number in range(1, len(pids) - 1))]
    raw = {
        "queued": count,
        "unit": "MB (10^6 bytes) of resident memory",
        "at_the_peak": _named(names, pids, watch.peak),
        "at_the_peak_while_submitting": _named(names, pids, queued),
        "peak_of_each": _named(names, pids, watch.peak_each),
        "sum_of_the_peaks": rounded(sum(watch.peak_each.values())),
        "submitted_per_second": rounded(count / submit_s),
        "end_to_end_per_second": rounded(count / (submit_s + finish_s)),
    }
    report.figure("queued_100k_mb", sum(watch.peak.values()), raw, target=at_most(400))


def _named(names: list[str], pids: list[int], amounts: dict[int, float]) -> dict[str, float]:
    return {name: rounded(amounts.get(pid, 0.0)) for name, pid in zip(names, pids, strict=True)}


def claim_rate(report: Report, folder: Path) -> None:
    """Claims per second from a queue of 100,000 beside one of 10,000."""
    short = QUICK_SHORT if report.quick else SHORT
    claimed, batch = (short // 2, short // 10) if report.quick else (CLAIMED, BATCH)
    report.say(f"claims from a queue of {short * TIMES:,} beside one of {short:,}")
    with Side("bench.ours.futures_claims") as long, Side("bench.ours.futures_claims") as brief:
        lengths = {long: short * TIMES, brief: short}
        both = {
            side: Series(f"{long.file}, {length:,} queued", "claims per second")
            for side, length in lengths.items()
        }
        for side, length in lengths.items():
            side.ask("open", path=str(folder / f"claims-{length}.db"))
            side.ask("fill", count=length)
        for repetition in range(-1, report.repetitions):  # in turns, and the first is the warm-up
            for side, series in both.items():
                seconds, cpu_s = side.ask_timed("work", count=claimed, batch=batch)
                side.ask("fill", count=claimed)
                if repetition >= 0:
                    series.values.append(claimed / seconds)
                    series.cpu_s.append(cpu_s)
        comparison = Comparison(both[long], both[brief])
    raw: dict[str, Any] = {**comparison.as_json(), "batch": batch, "claimed": claimed}
    raw["ten_times"], raw["one_time"] = raw.pop("ours"), raw.pop("peer")
    report.figure("rate_at_10x_queue", comparison.ratio, raw, target=at_least(0.8))
