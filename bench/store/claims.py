"""Claim and complete, through the port and by hand, in turns.

The work is the same on both sides: a claim removes n ready rows (200 bytes of payload each) and writes n
claims that expire, durably; a completion removes the n claims if they are still ours and writes n results of
200 bytes, durably. Two commits for n items.
"""

import statistics
from pathlib import Path

from bench.comparison import Comparison, rounded, take_turns
from bench.report import Report, at_least
from bench.side import Side, Timed
from tests.servers.postgres import PostgresServer

ROUNDS = {1: 200, 10: 150, 100: 80}  # a few tenths of a second each, on a disk that syncs in 0.2 ms
TARGET = at_least(0.7)


def compare(report: Report, ours: Side, peer: Side, batch: int) -> Comparison:
    """Both sides at one batch size; each empties its queue, so every repetition begins alike."""
    rounds = 4 if report.quick else ROUNDS[batch]

    def once(side: Side) -> Timed:
        side.ask("fill", count=batch * rounds)
        return side.ask_timed("work", batch=batch, rounds=rounds)

    result = take_turns(
        ours,
        peer,
        once,
        work=batch * rounds,
        unit="claimed and completed",
        repetitions=report.repetitions,
    )
    left = [side.ask("count") for side in (ours, peer)]
    if left[0] != left[1] or left[0]["ready"] or left[0]["claim"]:
        raise AssertionError(f"the sides did not do the same work: {left}")
    return result


def sqlite(report: Report, folder: Path) -> None:
    """One worker on SQLite, every commit forced to disk."""
    settings = _faster_settings(report, folder)
    with Side("bench.ours.store_queue") as ours, Side("bench.peers.sqlite_queue") as peer:
        ours.ask("open", backend="sqlite", where=str(folder / "ours.db"), connections=1)
        pragmas = peer.ask("open", path=str(folder / "peer.db"), settings=settings)
        report.flags["sqlite_peer"] = {"settings": settings, **pragmas}
        report.versions |= {"ours": ours.versions, "sqlite_peer": peer.versions}
        for batch in ROUNDS:
            report.say(f"SQLite, batches of {batch}")
            comparison = compare(report, ours, peer, batch)
            report.compare(f"ratio_sqlite_{batch}", comparison, target=TARGET if batch == 100 else None)


def postgres(report: Report, server: PostgresServer, *, connections: int) -> None:
    """Workers on PostgreSQL with its defaults for durability, over loopback TCP."""
    suffix = "" if connections == 1 else f"_{connections}_connections"
    pids = (server.pid,)
    with (
        Side("bench.ours.store_queue", servers=pids) as ours,
        Side("bench.peers.postgres_queue", servers=pids) as peer,
    ):
        ours.ask("open", backend="postgres", where=server.new_database(), connections=connections)
        settings = peer.ask("open", url=server.new_database(), connections=connections)
        report.flags["postgres"] = settings
        report.versions["postgres_peer"] = peer.versions
        for batch in ROUNDS:
            report.say(f"PostgreSQL, batches of {batch}, connections: {connections}")
            comparison = compare(report, ours, peer, batch)
            target = TARGET if batch == 100 and connections == 1 else None
            report.compare(f"ratio_postgres_{batch}{suffix}", comparison, target=target)


def _faster_settings(report: Report, folder: Path) -> str:
    """A peer runs with whichever of its defaults and our settings is faster for it: tried, at 100."""
    report.say("the peer's settings on SQLite: its defaults or ours")
    rounds = 4 if report.quick else ROUNDS[100]
    with Side("bench.peers.sqlite_queue") as default, Side("bench.peers.sqlite_queue") as same:
        sides = {"default": default, "ours": same}
        took: dict[str, list[float]] = {name: [] for name in sides}
        for name, side in sides.items():
            side.ask("open", path=str(folder / f"try-{name}.db"), settings=name)
        for _ in range(1 + report.repetitions):
            for name, side in sides.items():
                side.ask("fill", count=100 * rounds)
                took[name].append(side.ask("work", batch=100, rounds=rounds))
    medians = {name: statistics.median(seconds[1:]) for name, seconds in took.items()}
    report.flags["sqlite_peer_seconds_by_settings"] = {
        name: rounded(value) for name, value in medians.items()
    }
    return min(medians, key=lambda name: medians[name])
