"""Compare series of repetitions that alternate, so that noise affects all sides."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.side import Side, Timed


@dataclass
class Series:
    """The repetitions of one side: a figure for each, and its CPU seconds."""

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
    """Our repetitions and a peer's. Each of ours and the next one of the peer form a pair.

    The ratio is the median of the pairs' ratios. Something that slows the machine down for a while slows both
    halves of a pair, so it cancels out. A ratio of two medians could compare a quiet minute with a busy one.
    """

    ours: Series
    peer: Series
    slower: list[Series] = field(default_factory=list)  # the same peer with other settings

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
    """Run ours, the peer, ours, the peer, …, so that other load on the machine affects both.

    If `peers` has one peer with several settings, the fastest counts, and all are reported. A repetition is
    `turns` turns of each side. Its figure is all their work divided by all their seconds. If noise comes in
    bursts (other programs write to the disk), many short turns spread a burst over both sides. `once` lets a
    side do `work` units and returns its seconds. Warm-ups are whole repetitions, the same number for each
    side, and are not counted.
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
                series[side].values.append(work * turns / sum(turn.answer for turn in timed))
                series[side].cpu_s.append(sum(turn.cpu_s for turn in timed))
    fastest, *slower = sorted(
        (series[peer] for peer in peers), key=lambda candidate: candidate.median, reverse=True
    )
    return Comparison(series[ours], fastest, slower)


def rounded(value: float) -> float:
    """Round to four significant digits: more would be noise."""
    return float(f"{value:.4g}")
