"""Measure a long queue: its memory, and whether claiming from it is as fast as from a short one."""

import threading
from pathlib import Path
from typing import Any

import psutil

from bench.comparison import rounded, take_turns
from bench.futures import sides
from bench.report import Report, at_least, at_most
from bench.side import Side

QUEUED, QUICK_QUEUED = 100_000, 300
SHORT, TIMES, QUICK_SHORT = 10_000, 10, 200
CLAIMED, BATCH, TURNS = 200, 100, 20  # of one turn; and turns of one repetition
LOOK_EVERY_S = 0.05


class Watch(threading.Thread):
    """Samples the resident memory of a process and all its descendants; records the largest sum."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self.peak: dict[int, float] = {}  # MB by process, at the moment of the largest sum
        self.highest: dict[int, float] = {}  # of each process, whenever it was

    def run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            now = {}
            for process in (self._root, *self._root.children(recursive=True)):
                try:
                    now[process.pid] = process.memory_info().rss / 1e6
                except psutil.NoSuchProcess:
                    continue
            self.highest = {
                pid: max(self.highest.get(pid, 0.0), now.get(pid, 0.0)) for pid in self.highest | now
            }
            if sum(now.values()) > sum(self.peak.values()):
                self.peak = now

    def end(self) -> None:
        self._ended.set()
        self.join()


def memory(report: Report, folder: Path) -> None:
    """Submit 100,000 futures and keep their handles; then start the worker and let it complete all of them.

    The figure is the resident memory of the client's process (its interpreter, this bench's code and all
    handles), the supervisor and both children, added up as if they shared nothing: the peak of the sum from
    the first submit to the last result.
    """
    count = QUICK_QUEUED if report.quick else QUEUED
    report.say(f"memory with {count:,} queued futures")
    with sides.ours(report, folder / "queue", workers=0) as side:
        watch = Watch(side.pid)
        watch.start()
        submit_s = side.ask("queue", count=count)
        queued = dict(watch.peak)
        side.ask("start", workers=sides.WORKERS)
        finish_s = side.ask("finish", count=count)
        watch.end()
    raw = {
        "queued": count,
        "unit": "MB (10^6 bytes) of resident memory",
        "at_the_peak": _named(watch.peak),
        "client_when_all_were_queued": rounded(sum(queued.values())),
        "highest_of_each": _named(watch.highest),
        "sum_of_the_highest": rounded(sum(watch.highest.values())),
        "submitted_per_second": rounded(count / submit_s),
        "worked_off_per_second": rounded(count / finish_s),
    }
    report.figure("queued_100k_mb", sum(watch.peak.values()), raw, target=at_most(400))


def _named(amounts: dict[int, float]) -> dict[str, float]:
    """Return the memory by role. A process comes before those it started; one "child" starts the others."""
    roles = ["client", "supervisor", *(f"child {number}" for number in range(1, len(amounts) - 1))]
    return {role: rounded(amount) for role, amount in zip(roles, amounts.values(), strict=True)}


def claim_rate(report: Report, folder: Path) -> None:
    """Measure claims per second from a queue of 100,000, compared with one of 10,000."""
    short = QUICK_SHORT if report.quick else SHORT
    claimed, batch, turns = (short // 2, short // 10, 1) if report.quick else (CLAIMED, BATCH, TURNS)
    report.say(f"claims from a queue of {short * TIMES:,} beside one of {short:,}")

    def refill(side: Side) -> None:
        side.ask("fill", count=claimed * turns)

    with Side("bench.ours.futures_claims") as long, Side("bench.ours.futures_claims") as brief:
        for side, length in ((long, short * TIMES), (brief, short)):
            side.ask("open", path=str(folder / f"claims-{length}.db"))
            side.ask("fill", count=length - claimed * turns)
        comparison = take_turns(
            long,
            brief,
            prepare=refill,
            once=lambda side: side.ask_timed("work", count=claimed, batch=batch),
            work=claimed,
            unit="claims",
            repetitions=report.repetitions,
            turns=turns,
        )
    raw: dict[str, Any] = {**comparison.as_json(), "batch": batch}
    raw["ten_times"], raw["one_time"] = raw.pop("ours"), raw.pop("peer")
    raw["ten_times"]["queued"], raw["one_time"]["queued"] = short * TIMES, short
    report.figure("rate_at_10x_queue", comparison.ratio, raw, target=at_least(0.8))
