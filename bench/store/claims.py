"""Claim and complete, through the port and with hand-written SQL, alternating.

Both sides do the same work, which a queue of durable futures needs. Items have ids of 16 bytes (48 bits of
time, 80 random bits), 200 bytes of payload, and an order: priority, then the time they became ready. A claim
takes the first n in that order and writes n claims that expire; a completion removes the n claims if they are
still ours and writes n results of 200 bytes under the items' ids. Two durable commits for n items.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from bench.comparison import Comparison, take_turns
from bench.report import Report, at_least
from bench.side import Side
from tests.servers.postgres import PostgresServer

TURNS = 8
# Rounds of one turn, by the size of a batch; divisible by the numbers of connections.
ROUNDS = {1: 40, 10: 24, 100: 12}
TARGET = at_least(0.7)


def compare(
    report: Report,
    ours: Side,
    peers: Sequence[Side],
    batch: int,
    *,
    tidy: Callable[[Side], None] = lambda _: None,
) -> Comparison:
    """Compare all sides at one batch size; each empties its queue, so repetitions start equal."""
    turns, rounds = (1, 4) if report.quick else (TURNS, ROUNDS[batch])

    def prepare(side: Side) -> None:
        side.ask("fill", count=batch * rounds * turns)
        tidy(side)

    result = take_turns(
        ours,
        *peers,
        prepare=prepare,
        once=lambda side: side.ask_timed("work", batch=batch, rounds=rounds),
        work=batch * rounds,
        unit="claimed and completed",
        repetitions=report.repetitions,
        turns=turns,
    )
    left = [side.ask("count") for side in (ours, *peers)]
    if left[0]["ready"] or left[0]["claim"] or any(each != left[0] for each in left):
        raise AssertionError(f"the sides did not do the same work: {left}")
    return result


def sqlite(report: Report, folder: Path) -> None:
    """Compare one worker on SQLite, every commit synced to disk."""
    with ExitStack() as stack:
        ours = stack.enter_context(Side("bench.ours.store_queue"))
        ours.ask("open", backend="sqlite", where=str(folder / "ours.db"), connections=1)
        peers = _peers(report, stack, "bench.peers.sqlite_queue")
        for peer in peers:
            path = str(folder / f"peer-{peer.settings}.db")
            report.flags[f"sqlite_peer_{peer.settings}"] = peer.ask("open", path=path, settings=peer.settings)
        report.versions |= {"ours": ours.versions, "sqlite_peer": peers[0].versions}
        for batch in ROUNDS:
            report.say(f"SQLite, batches of {batch}")
            comparison = compare(report, ours, peers, batch)
            report.compare(f"ratio_sqlite_{batch}", comparison, target=TARGET if batch == 100 else None)


def postgres(report: Report, server: PostgresServer, *, connections: int) -> None:
    """Compare workers on PostgreSQL with its default durability, over loopback TCP."""
    pids = (server.pid,)
    with ExitStack() as stack:
        ours = stack.enter_context(Side("bench.ours.store_queue", servers=pids))
        peers = _peers(report, stack, "bench.peers.postgres_queue", servers=pids)
        urls = {side: server.new_database() for side in (ours, *peers)}
        ours.ask("open", backend="postgres", where=urls[ours], connections=connections)
        for peer in peers:
            report.flags["postgres"] = peer.ask(
                "open", url=urls[peer], connections=connections, settings=peer.settings
            )
        report.versions["postgres_peer"] = peers[0].versions
        for batch in ROUNDS:
            report.say(f"PostgreSQL, batches of {batch}, connections: {connections}")
            comparison = compare(report, ours, peers, batch, tidy=lambda side: _vacuum(urls[side]))
            suffix = "" if connections == 1 else f"_{connections}_connections"
            target = TARGET if batch == 100 and connections == 1 else None
            report.compare(f"ratio_postgres_{batch}{suffix}", comparison, target=target)


def _peers(report: Report, stack: ExitStack, module: str, **how: Any) -> list[Side]:
    """Start a peer with its defaults and with our settings: the faster one counts."""
    names = ("default",) if report.quick else ("default", "ours")
    return [stack.enter_context(Side(module, settings=name, **how)) for name in names]


def _vacuum(url: str) -> None:
    """Do the work of autovacuum now, while nothing is timed."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")
