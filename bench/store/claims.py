"""Claim and complete, through the port and by hand, in turns.

The work is the same on both sides, and is what a queue of durable futures asks for. Items have ids of 16
bytes (48 bits of time, 80 of chance), 200 bytes of payload, and an order: priority, then the time they became
ready. A claim takes the first n in that order and writes n claims that expire; a completion removes the n
claims if they are still ours and writes n results of 200 bytes under the items' ids. Two durable commits for
n items.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from bench.comparison import Comparison, rounded, take_turns
from bench.report import Report, at_least
from bench.side import Side
from tests.servers.postgres import PostgresServer

TURNS = 8
# Rounds of one turn, by the size of a batch; divisible by the numbers of connections.
ROUNDS = {1: 40, 10: 24, 100: 12}
TARGET = at_least(0.7)


def compare(
    report: Report, ours: Side, peer: Side, batch: int, *, tidy: Callable[[Side], None] = lambda _: None
) -> Comparison:
    """Both sides at one batch size; each empties its queue, so every repetition begins alike."""
    turns, rounds = (1, 4) if report.quick else (TURNS, ROUNDS[batch])

    def prepare(side: Side) -> None:
        side.ask("fill", count=batch * rounds * turns)
        tidy(side)

    result = take_turns(
        ours,
        peer,
        prepare=prepare,
        once=lambda side: side.ask_timed("work", batch=batch, rounds=rounds),
        work=batch * rounds,
        unit="claimed and completed",
        repetitions=report.repetitions,
        turns=turns,
    )
    left = [side.ask("count") for side in (ours, peer)]
    if left[0] != left[1] or left[0]["ready"] or left[0]["claim"]:
        raise AssertionError(f"the sides did not do the same work: {left}")
    return result


def sqlite(report: Report, folder: Path) -> None:
    """One worker on SQLite, every commit forced to disk."""

    def opened(side: Side, settings: str, name: str) -> Any:
        return side.ask("open", path=str(folder / f"{name}.db"), settings=settings)

    settings = _faster_settings(report, "sqlite", lambda: Side("bench.peers.sqlite_queue"), opened)
    with Side("bench.ours.store_queue") as ours, Side("bench.peers.sqlite_queue") as peer:
        ours.ask("open", backend="sqlite", where=str(folder / "ours.db"), connections=1)
        report.flags["sqlite_peer"] = {"settings": settings, **opened(peer, settings, "peer")}
        report.versions |= {"ours": ours.versions, "sqlite_peer": peer.versions}
        for batch in ROUNDS:
            report.say(f"SQLite, batches of {batch}")
            comparison = compare(report, ours, peer, batch)
            report.compare(f"ratio_sqlite_{batch}", comparison, target=TARGET if batch == 100 else None)


def postgres(report: Report, server: PostgresServer, *, connections: Sequence[int]) -> None:
    """Workers on PostgreSQL with its defaults for durability, over loopback TCP."""

    def side(module: str) -> Side:
        return Side(module, servers=(server.pid,))

    def opened(side: Side, settings: str, name: str) -> Any:  # noqa: ARG001
        return side.ask("open", url=server.new_database(), connections=1, settings=settings)

    settings = _faster_settings(report, "postgres", lambda: side("bench.peers.postgres_queue"), opened)
    for number in connections:
        with side("bench.ours.store_queue") as ours, side("bench.peers.postgres_queue") as peer:
            urls = {ours: server.new_database(), peer: server.new_database()}
            ours.ask("open", backend="postgres", where=urls[ours], connections=number)
            there = peer.ask("open", url=urls[peer], connections=number, settings=settings)
            report.flags["postgres_peer"] = {"settings": settings, **there}
            report.versions["postgres_peer"] = peer.versions
            for batch in ROUNDS:
                report.say(f"PostgreSQL, batches of {batch}, connections: {number}")
                comparison = compare(report, ours, peer, batch, tidy=partial(_vacuum, urls))
                suffix = "" if number == 1 else f"_{number}_connections"
                target = TARGET if batch == 100 and number == 1 else None
                report.compare(f"ratio_postgres_{batch}{suffix}", comparison, target=target)


def _vacuum(urls: Mapping[Side, str], side: Side) -> None:
    """What autovacuum does sooner or later, at a moment when nobody's time is taken."""
    with psycopg.connect(urls[side], autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")


def _faster_settings(
    report: Report, what: str, new_side: Callable[[], Side], opened: Callable[[Side, str, str], object]
) -> str:
    """A peer runs with whichever of its defaults and our settings is faster for it: tried, in turns."""
    if report.quick:
        return "ours"
    report.say(f"{what}: the peer's own defaults, or our settings")
    rounds = ROUNDS[100] * TURNS
    with new_side() as default, new_side() as same:
        sides = {"default": default, "ours": same}
        took: dict[str, list[float]] = {name: [] for name in sides}
        for name, side in sides.items():
            opened(side, name, f"try-{name}")
        for _ in range(1 + report.repetitions):
            for name, side in sides.items():
                side.ask("fill", count=100 * rounds)
                took[name].append(side.ask("work", batch=100, rounds=rounds))
    medians = {name: rounded(statistics.median(seconds[1:])) for name, seconds in took.items()}
    report.flags[f"{what}_peer_seconds_by_settings"] = medians
    return min(medians, key=lambda name: medians[name])
