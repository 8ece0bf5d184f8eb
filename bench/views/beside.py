"""Compare steps of a view with the alternatives: a recompute, and other incremental systems."""

import shutil
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from bench import environment
from bench.comparison import rounded
from bench.report import Target, at_least, at_most
from bench.views.queries import REVENUE, Query
from bench.views.shop import Step
from bench.views.stage import Followed, Stage, Timing, ask_ms, files_of

STREAMING, PIPELINES = "bench.peers.spark_streaming", "bench.peers.spark_pipelines"
DUCKDB = "bench.peers.duckdb_recompute"
NAMES = {1_000: "1k", 10_000: "10k", 100_000: "100k", 1_000_000: "1m"}
HERE = 10_000
"""The changes of the steps that slow peers stand beside."""

Once = Callable[[Step], tuple[float, float]]


class Turns:
    """Our steps of one size and the peers', alternating."""

    def __init__(self) -> None:
        self.ours: list[Timing] = []
        self.peers: dict[str, list[Timing]] = {}

    @property
    def all_ours(self) -> Timing:
        return _together(self.ours)

    def ratio(self, peer: str) -> float:
        """Return how many times faster we are: the median over the turns of the medians within each."""
        return statistics.median(self._ratios(peer))

    def _ratios(self, peer: str) -> list[float]:
        beside = zip(self.ours, self.peers[peer], strict=True)
        return [theirs.median / ours.median for ours, theirs in beside if theirs.ms]

    def as_json(self, peer: str) -> dict[str, Any]:
        return {
            "ours": self.all_ours.as_json("bench/ours/view_steps.py"),
            "peer": _together(self.peers[peer]).as_json(peer.replace(".", "/") + ".py"),
            "ratio_of_each_turn": [rounded(ratio) for ratio in self._ratios(peer)],
        }


def _together(timings: list[Timing]) -> Timing:
    total = Timing()
    for timing in timings:
        total.add(timing)
    return total


def measure(stage: Stage, query: Query, suffix: str) -> None:
    """Measure the figures of one view; their keys end in `suffix`."""
    followed = stage.followed(query, stage.scale.rows)
    with ExitStack() as stack:
        peers = _peers(stage, followed, stack)
        turns = {
            changes: _turns(stage, followed, changes, count, peers)
            for changes, count in stage.scale.steps.items()
        }
    _tell(stage, followed, turns, suffix)
    followed.check()


def _turns(stage: Stage, followed: Followed, changes: int, count: int, peers: dict[str, Once]) -> Turns:
    turns = Turns()
    number = min(stage.scale.turns, count)
    for _ in range(number):
        mine = Timing()
        theirs = {module: Timing() for module in peers}
        for at in range(count // number):
            step = followed.shop.step(changes)
            followed.step(step, mine)
            for module, once in peers.items():
                # A peer whose cost does not depend on the change runs once per turn.
                if module == STREAMING or (at == 0 and (module != PIPELINES or changes == HERE)):
                    ms, cpu_s = once(step)
                    theirs[module].ms.append(ms)
                    theirs[module].cpu_s.append(cpu_s)
            shutil.rmtree(step.folder)
        turns.ours.append(mine)
        for module, timing in theirs.items():
            turns.peers.setdefault(module, []).append(timing)
    medians = {module: _together(all_) for module, all_ in turns.peers.items()}
    shown = ", ".join(
        f"{module.rpartition('.')[2]} {timing.median:,.0f}" for module, timing in medians.items() if timing.ms
    )
    stage.report.say(f"{followed.name}, {changes:,} changes: {turns.all_ours.median:,.0f} ms; {shown}")
    return turns


def _peers(stage: Stage, followed: Followed, stack: ExitStack) -> dict[str, Once]:
    """Return the peers, loaded and warm, by their modules."""
    shop, query, report = followed.shop, followed.query, stage.report
    tables = {table: str(shop.base / table) for table in followed.ddl}
    arguments = {"tables": tables, "ddl": followed.ddl, "sql": query.sql}
    recompute = stage.recomputed(query, shop)
    peers: dict[str, Once] = {"bench.peers.spark_recompute": lambda _: recompute()}
    _warm("the recompute", report.say, recompute, 3 if stage.scale.slow_peers else 1)

    if stage.scale.slow_peers or query is REVENUE:
        peers[STREAMING] = _streaming(stage, followed, stack)

    if stage.scale.slow_peers or environment.made():
        folder = stack.enter_context(stage.beside("duckdb"))
        duck = stack.enter_context(
            stage.opened(
                DUCKDB, python=environment.python(report.say), memory=stage.scale.memory, folder=str(folder)
            )
        )
        duck.ask("load", tables=tables)
        _warm("DuckDB", report.say, lambda: ask_ms(duck, "run", sql=query.sql), 2)
        peers[DUCKDB] = lambda _: ask_ms(duck, "run", sql=query.sql)

    if stage.scale.slow_peers:
        folder = stack.enter_context(stage.beside("pipelines"))
        pipelines = stack.enter_context(
            stage.opened(PIPELINES, memory=stage.scale.memory, folder=str(folder))
        )
        _warm("a refresh", report.say, lambda: ask_ms(pipelines, "refresh", **arguments), 3)
        peers[PIPELINES] = lambda _: ask_ms(pipelines, "refresh", **arguments)
    return peers


def _streaming(stage: Stage, followed: Followed, stack: ExitStack) -> Once:
    """Start Structured Streaming, let it read the base, and warm it up."""
    shop, query = followed.shop, followed.query
    folder = stack.enter_context(stage.beside("streaming"))
    streaming = stack.enter_context(stage.opened(STREAMING, memory=stage.scale.memory, folder=str(folder)))
    base = files_of(shop.base / "orders")
    took = streaming.ask(
        "start",
        base=base,
        table="orders",
        others={"customers": str(shop.base / "customers")},
        ddl=followed.ddl,
        sql=query.sql,
    )
    stage.report.say(f"streaming has read the base in {took:.1f} s")

    def stream(step: Step) -> tuple[float, float]:
        timed = streaming.ask_timed("step", path=step.files["orders_in"])
        return timed.answer["ms"], timed.cpu_s

    for _ in range(stage.scale.warm_ups):
        step = shop.step(1_000)
        stream(step)
        followed.step(step, Timing())  # the shop has changed, so our view must too
        shutil.rmtree(step.folder)
    return stream


def _warm(what: str, say: Callable[[str], None], once: Callable[[], tuple[float, float]], times: int) -> None:
    took = [once()[0] for _ in range(times)]
    say(f"{what}, warming up: {', '.join(f'{ms:,.0f}' for ms in took)} ms")


def _tell(stage: Stage, followed: Followed, turns: dict[int, Turns], suffix: str) -> None:
    report = stage.report
    recompute = "bench.peers.spark_recompute"
    targets: dict[tuple[str, int], Target] = {
        (recompute, 10_000): at_least(10),
        (recompute, 1_000_000): at_least(3),
        (STREAMING, 10_000): at_least(1),
    }
    words = {recompute: "recompute", STREAMING: "streaming", DUCKDB: "duckdb", PIPELINES: "pipelines"}
    for peer, word in words.items():
        for changes, name in NAMES.items():
            key, target = f"vs_{word}_{name}{suffix}", targets.get((peer, changes))
            done = turns.get(changes)
            if done is not None and any(timing.ms for timing in done.peers.get(peer, ())):
                report.figure(key, done.ratio(peer), done.as_json(peer), target=target)
            elif target is not None:
                report.absent(key, target=target, why="not run with --quick")
    loaded = [done for changes, done in turns.items() if changes <= HERE]  # little has changed
    recomputes = _together([timing for done in loaded for timing in done.peers[recompute]])
    load = {"ours": followed.load, "recompute_ms": rounded(recomputes.median)}
    key = f"load_vs_recompute{suffix}"
    report.figure(key, followed.load["ms"] / recomputes.median, load, target=at_most(3))
    after = stage.ours.ask("sizes", name=followed.name)
    sizes = {"after_load": followed.sizes, "after_steps": after}
    ratio = max(size["other_bytes"] / size["input_bytes"] for size in sizes.values())
    report.figure(f"state_over_input{suffix}", ratio, sizes, target=at_most(3))
    planned = turns[1_000].all_ours.of("plan_s")
    if planned is None:
        report.absent(f"plan_ms{suffix}", why="the engine tells no time of planning")
    else:
        report.figure(f"plan_ms{suffix}", planned * 1e3)
