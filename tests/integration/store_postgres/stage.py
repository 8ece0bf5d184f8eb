"""Functions that the tests of this folder share."""

import threading
from collections.abc import Callable

import psycopg

from tidemill.store import Store, Tx
from tidemill.store.port import read_counter
from tidemill.store.postgres import PostgresStore
from tidemill.testing.threads import STUCK_S, Racer

QUEUE = b"q/", b"q0"


def execute(url: str, text: str, *values: object) -> list[tuple[object, ...]]:
    base, _, schema = url.partition("?schema=")
    options = f"-c search_path={schema}" if schema else None
    with psycopg.connect(base, autocommit=True, options=options) as connection:
        cursor = connection.execute(text, values)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


def contents(store: Store) -> dict[bytes, bytes]:
    return dict(store.run(lambda tx: tx.range(b"\x00", b"\xfe")))


def claim(tx: Tx, me: bytes) -> int:
    """Take some rows and write a claim for each; a row that is claimed twice shows it."""
    rows = tx.take(*QUEUE, 3)
    for row in rows:
        tx.add(b"claims/" + row.key[2:], 1)
        tx.set(b"owner/" + row.key[2:], me)
    return len(rows)


def work_through(stores: list[PostgresStore], rows: int, disturb: Callable[[], None]) -> None:
    """Threads claim a queue and count, while somebody disturbs; nothing may be lost or done twice."""
    for at in range(0, rows, 500):
        page = range(at, min(rows, at + 500))
        stores[0].run(lambda tx, page=page: [tx.set(b"q/%04d" % n, b"") for n in page])  # type: ignore[misc]
    counted = 12
    begun = threading.Event()

    def taker(store: PostgresStore, me: int) -> int:
        total = 0
        while (count := store.run(lambda tx: claim(tx, b"%d" % me), mode="take")) > 0:
            total += count
            begun.set()
        return total

    def counter(store: PostgresStore) -> int:
        for _ in range(counted):
            store.run(lambda tx: tx.set(b"n", b"%d" % (int(tx.get(b"n") or b"0") + 1)))
            store.run(lambda tx: tx.set_versioned(b"log", b""))
        return 0

    takers = [Racer(lambda s=s, n=n: taker(s, n)) for n, s in enumerate(stores * 2)]  # type: ignore[misc]
    counters = [Racer(lambda s=s: counter(s)) for s in stores]  # type: ignore[misc]
    for racer in (*takers, *counters):
        racer.start()
    assert begun.wait(STUCK_S)
    disturb()  # by the main thread, which is the one that may start servers
    counts = [racer.outcome() for racer in takers]
    for racer in counters:
        racer.outcome()
    stored = contents(stores[0])
    claims = {key: read_counter(value) for key, value in stored.items() if key.startswith(b"claims/")}
    assert claims == {b"claims/%04d" % n: 1 for n in range(rows)}, "a row was lost, or claimed twice"
    assert sum(counts) == rows, "what was returned is what was committed"
    assert stored[b"n"] == b"%d" % (counted * len(stores))
    assert len([key for key in stored if key.startswith(b"log")]) == counted * len(stores)


def base_of(url: str) -> str:
    return url.partition("?")[0]
