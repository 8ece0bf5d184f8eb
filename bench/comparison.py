"""Figures: a series of repetitions, and several of them taken in turns so that noise hits all."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.side import Side, Timed


@dataclass
class Series:
    """One side's repetitions: a figure for each, and its CPU seconds."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    settings: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **({"settings": self.settings} if self.settings else {}),
            "unit": self.unit,
            "median": rounded(self.median),
            "all": [rounded(value) for value in self.values],
            "cpu_s": rounded(sum(self.cpu_s)),
            "cpu_s_all": [rounded(value) for value in self.cpu_s],
        }


@dataclass
class Comparison:
    """Ours beside a peer's. A repetition of ours and the peer's beside it make a pair, taken in turns.

    The ratio is the median of the pairs' ratios: what slows the machine down for a while slows down both
    halves of a pair, and falls out, where a ratio of two medians may compare a quiet minute with a busy one.
    """

    ours: Series
    peer: Series
    slower: list[Series] = field(default_factory=list)  # the same peer with other settings, beside them

    @property
    def ratio(self) -> float:
        return statistics.median(self.pairs)

    @property
    def pairs(self) -> list[float]:
        return [ours / peer for ours, peer in zip(self.ours.values, self.peer.values, strict=True)]

    def as_json(self) -> dict[str, Any]:
        return {
            "ours": self.ours.as_json(),
            "peer": self.peer.as_json(),
            **({"slower_peers": [series.as_json() for series in self.slower]} if self.slower else {}),
            "ratio_of_each_pair": [rounded(ratio) for ratio in self.pairs],
        }


def take_turns(
    ours: Side,
    *peers: Side,
    prepare: Callable[[Side], None],
    once: Callable[[Side], Timed],
    work: float,
    unit: str,
    repetitions: int,
    turns: int = 1,
    warm_ups: int = 1,
) -> Comparison:
    """Ours, the peer, ours, the peer, …, so that whatever else the machine does hits both.

    Of several peers, the same one with different settings, the fastest counts, and all are told.
    A repetition is `turns` turns of each side, and its figure is all their work by all their seconds: where
    noise comes in bursts (a disk that others write to), many short turns spread a burst over both sides.
    `once` has a side do `work` units and answers its seconds. The warm-ups are whole repetitions, the same
    number for both, and are not kept.
    """
    series = {
        side: Series(side.file, f"{unit} per second", settings=side.settings) for side in (ours, *peers)
    }
    for repetition in range(-warm_ups, repetitions):
        for side in series:
            prepare(side)
        done: dict[Side, list[Timed]] = {side: [] for side in series}
        for _ in range(turns):
            for side in series:
                done[side].append(once(side))
        if repetition >= 0:
            for side, timed in done.items():
                series[side].values.append(work * turns / sum(one.answer for one in timed))
                series[side].cpu_s.append(sum(one.cpu_s for one in timed))
    fastest, *slower = sorted((series[peer] for peer in peers), key=lambda one: one.median, reverse=True)
    return Comparison(series[ours], fastest, slower)


def rounded(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")
