"""A hand-written durable queue on SQLite: its own tables with typed columns, without a layer in between.

One transaction per claim and one per completion. The fastest of the idioms we tried:

- claim: INSERT … SELECT of the claims, DELETE … RETURNING of the rows, both in the order of the index;
- complete: executemany of the fenced DELETE, executemany of the INSERT.

At least 15 % slower at batches of 100: claims written by executemany, a queue without rowid, rows read and
then deleted one by one. `settings` are "default" (a checkpoint after 1,000 pages, 2 MB of cache) or "ours"
(those of the store): both run, and the faster one counts.
"""

import random
import sqlite3
import time

from bench.answering import Command, answer, timed

HOLDER = "worker-1"
TTL_US = 15_000_000
APART_US = 100  # items became ready so far apart
PAYLOAD = bytes(200)
RESULT = bytes(200)

SCHEMA = """
CREATE TABLE ready (
  seq INTEGER PRIMARY KEY, priority INTEGER NOT NULL, ready_at INTEGER NOT NULL,
  id BLOB NOT NULL, payload BLOB NOT NULL
);
CREATE INDEX ready_order ON ready (priority, ready_at);
CREATE TABLE claim (
  id BLOB PRIMARY KEY, holder TEXT NOT NULL, epoch INTEGER NOT NULL, expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE result (id BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""

CLAIM = "INSERT INTO claim SELECT id, ?, ?, ? FROM ready ORDER BY priority, ready_at LIMIT ?"
TAKE = """
DELETE FROM ready WHERE seq IN (SELECT seq FROM ready ORDER BY priority, ready_at LIMIT ?)
RETURNING id, payload
"""
RELEASE = "DELETE FROM claim WHERE id = ? AND holder = ? AND epoch = ?"


class Queue:
    def __init__(self) -> None:
        self._chance = random.Random(1)
        self._clock_us = time.time_ns() // 1000  # when the next item becomes ready

    def open(self, path: str, settings: str) -> dict[str, str]:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        if settings == "ours":
            self._db.execute("PRAGMA wal_autocheckpoint = 4000")
            self._db.execute("PRAGMA cache_size = -16384")
            self._db.execute("PRAGMA secure_delete = OFF")
        self._db.executescript(SCHEMA)
        names = (
            "journal_mode",
            "synchronous",
            "wal_autocheckpoint",
            "cache_size",
            "page_size",
            "secure_delete",
        )
        return {name: str(self._db.execute(f"PRAGMA {name}").fetchone()[0]) for name in names}

    def fill(self, count: int) -> None:
        times = (self._clock_us + n * APART_US for n in range(count))
        rows = [(0, at_us, self._new_id(at_us), PAYLOAD) for at_us in times]
        self._clock_us += count * APART_US
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO ready (priority, ready_at, id, payload) VALUES (?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")

    def _new_id(self, at_us: int) -> bytes:
        return (at_us // 1000).to_bytes(6, "big") + self._chance.getrandbits(80).to_bytes(10, "big")

    def work(self, batch: int, rounds: int) -> float:
        def all_rounds() -> None:
            for _ in range(rounds):
                self._complete(self._claim(batch))

        return timed(all_rounds)

    def _claim(self, count: int) -> list[bytes]:
        db = self._db
        db.execute("BEGIN IMMEDIATE")  # no other process writes: both statements see the same first rows
        db.execute(CLAIM, (HOLDER, 1, time.time_ns() // 1000 + TTL_US, count))
        rows = db.execute(TAKE, (count,)).fetchall()
        db.execute("COMMIT")
        assert len(rows) == count
        return [row[0] for row in rows]

    def _complete(self, ids: list[bytes]) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        gone = db.executemany(RELEASE, [(each, HOLDER, 1) for each in ids]).rowcount
        assert gone == len(ids), "a claim was lost: by hand, one would now find out which"
        db.executemany("INSERT INTO result VALUES (?, ?)", [(each, RESULT) for each in ids])
        db.execute("COMMIT")

    def count(self) -> dict[str, int]:
        """Return the content of the tables: the parent checks that both sides did the same work."""
        tables = ("ready", "claim", "result")
        return {name: self._db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}


if __name__ == "__main__":
    queue = Queue()
    commands: dict[str, Command] = {
        "open": queue.open,
        "fill": queue.fill,
        "work": queue.work,
        "count": queue.count,
    }
    answer(commands, versions={"sqlite": sqlite3.sqlite_version})
