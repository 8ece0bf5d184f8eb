"""Measure group commit on SQLite: how many writes share a commit, and the gain on a slow disk."""

import statistics
from pathlib import Path
from typing import Any

from bench.comparison import Series, rounded
from bench.report import Report, at_least
from bench.side import Side

THREADS = 32
WRITES = 60  # by each of many threads
WRITES_ALONE = 60  # by one thread
DELAY_S = 0.005


def measure(report: Report, folder: Path) -> None:
    repetitions = report.repetitions
    writes, alone = (3, 5) if report.quick else (WRITES, WRITES_ALONE)
    with Side("bench.ours.group_commit") as side:
        side.ask("open", path=str(folder / "many.db"), delay_s=0.0)
        report.say(f"SQLite, {THREADS} threads that commit single writes")
        many = [_timed(side, THREADS, writes) for _ in range(1 + repetitions)][1:]
    per_commit = [run["transactions"] / run["commits"] for run in many]
    report.figure(
        "writes_per_commit",
        statistics.median(per_commit),
        {
            "threads": THREADS,
            "all": [rounded(value) for value in per_commit],
            "commits": [run["commits"] for run in many],
            "transactions": [run["transactions"] for run in many],
            "writes_per_second": _series("writes per second", many).as_json(),
        },
        target=at_least(8),
    )
    with Side("bench.ours.group_commit") as side:
        side.ask("open", path=str(folder / "slow.db"), delay_s=DELAY_S)
        report.say(f"the same with {DELAY_S * 1000:g} ms more per commit, beside one thread")
        turns: dict[int, list[dict[str, Any]]] = {1: [], THREADS: []}
        for _ in range(1 + repetitions):  # alternating; the first is the warm-up
            turns[1].append(_timed(side, 1, alone))
            turns[THREADS].append(_timed(side, THREADS, writes))
    single, all_together = (
        _series(f"writes per second, threads: {threads}", done[1:]) for threads, done in turns.items()
    )
    report.figure(
        "group_commit_gain",
        all_together.median / single.median,
        {
            "threads": THREADS,
            "added_to_each_commit_s": DELAY_S,
            "many_threads": all_together.as_json(),
            "one_thread": single.as_json(),
        },
        target=at_least(10),
    )


def _timed(side: Side, threads: int, writes: int) -> dict[str, Any]:
    answer, cpu_s = side.ask_timed("work", threads=threads, writes=writes)
    return {**answer, "cpu_s": cpu_s}


def _series(unit: str, done: list[dict[str, Any]]) -> Series:
    values = [run["transactions"] / run["seconds"] for run in done]
    return Series("bench/ours/group_commit.py", unit, values, [run["cpu_s"] for run in done])
