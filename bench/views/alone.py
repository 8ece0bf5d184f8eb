"""Measure our steps alone: growth with the base, the slowest step, chains and windows."""

import statistics
from typing import Any

from bench.comparison import rounded
from bench.report import at_least, at_most
from bench.views.queries import CHAIN, REVENUE, WINDOW
from bench.views.stage import Followed, Stage, Timing

OURS = "bench/ours/view_steps.py"
GROWTH, SMALL_STEP = 10_000, 1_000


def growth(stage: Stage) -> None:
    """Compare steps of 10k changes over the base with those over a tenth of it, alternating."""
    large, small = (stage.followed(REVENUE, rows) for rows in (stage.scale.rows, stage.scale.small))
    turns, each = stage.scale.turns, max(1, stage.scale.steps[GROWTH] // stage.scale.turns)
    measured: dict[Followed, list[Timing]] = {large: [], small: []}
    for _ in range(turns):
        for followed, timings in measured.items():
            timings.append(followed.steps(GROWTH, each))
    both = {}
    for followed, timings in measured.items():
        both[followed] = Timing()
        for timing in timings:
            both[followed].add(timing)
    pairs = [more.median / less.median for more, less in zip(measured[large], measured[small], strict=True)]
    raw: dict[str, Any] = {str(view.shop.rows): timing.as_json(OURS) for view, timing in both.items()}
    raw["ratio_of_each_turn"] = [rounded(ratio) for ratio in pairs]
    stage.report.figure("base_growth", statistics.median(pairs), raw, target=at_most(1.3))
    kernels = [both[view].of("kernel_s") for view in (large, small)]
    if kernels[0] is None or not kernels[1]:
        stage.report.absent("kernel_growth", target=at_most(2), why="the engine tells no time of kernels")
    else:
        raw_kernels = {"kernel_s": dict(zip(("large", "small"), kernels, strict=True))}
        stage.report.figure("kernel_growth", kernels[0] / kernels[1], raw_kernels, target=at_most(2))
    for followed in measured:
        followed.check()


def worst(stage: Stage) -> None:
    """Find the slowest of many small steps; these merge runs, including that of the base."""
    followed = stage.followed(REVENUE, stage.scale.rows)
    timing = followed.steps(SMALL_STEP, stage.scale.worst)
    slowest = sorted(range(len(timing.ms)), key=lambda number: timing.ms[number], reverse=True)[:5]
    raw = timing.as_json(OURS) | {
        "slowest": [
            {"step": at + 1, "ms": rounded(timing.ms[at]), **_plain(timing.answers[at])} for at in slowest
        ],
    }
    figure = max(timing.ms) / timing.median
    stage.report.figure("worst_over_median", figure, raw, target=at_most(5))
    followed.check()


def _plain(figures: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in figures.items() if key != "ms"}


def chain8(stage: Stage) -> None:
    """Measure eight stacked aggregates, each by another key."""
    followed = stage.followed(CHAIN, stage.scale.small)
    timing = followed.steps(SMALL_STEP, stage.scale.steps[SMALL_STEP])
    stage.report.figure("chain8_ms", timing.median, timing.as_json(OURS), target=at_most(1_000))
    followed.check()
    stage.forget(followed)


def keyed(stage: Stage) -> None:
    """Compare a window over each customer's orders with its recompute."""
    followed = stage.followed(WINDOW, stage.scale.rows)
    recompute = stage.recomputed(WINDOW, followed.shop)
    recompute()
    ours, peer, pairs = Timing(), Timing(), []
    each = max(1, stage.scale.steps[SMALL_STEP] // stage.scale.turns)
    for _ in range(stage.scale.turns):
        mine = followed.steps(SMALL_STEP, each)
        ms, cpu_s = recompute()
        peer.ms.append(ms)
        peer.cpu_s.append(cpu_s)
        pairs.append(ms / mine.median)
        ours.add(mine)
    raw = {
        "ours": ours.as_json(OURS) | {"load": followed.load},
        "peer": peer.as_json("bench/peers/spark_recompute.py"),
        "ratio_of_each_turn": [rounded(ratio) for ratio in pairs],
    }
    stage.report.figure("keyed_1k", statistics.median(pairs), raw, target=at_least(8))
    followed.check()
    stage.forget(followed)
