"""A hand-written durable queue on PostgreSQL: its own tables, one prepared statement per transaction.

READ COMMITTED, FOR UPDATE SKIP LOCKED, autocommit: a claim is one statement with a data-modifying WITH, a
completion is one with unnest. One round trip each, including the COMMIT: the minimum. Rows are
deleted by ctid (by key: 15 % slower); parameters are binary (%b; as text: 60 % slower at batches of 100).

`settings` are "default" or "ours" (plans are forced to use the indexes, like the store's; sometimes faster,
sometimes much slower, if the planner chooses a bad join order): both run, and the faster one counts.
"""

import random
import threading
import time
from typing import Any, LiteralString
from uuid import UUID

import psycopg

from bench.answering import Command, answer, timed

HOLDER = "worker-1"
APART_US = 100  # items became ready so far apart
PAYLOAD = bytes(200)
RESULT = bytes(200)

SETTINGS = {
    "default": {},
    "ours": {
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "max_parallel_workers_per_gather": "0",
        "jit": "off",
    },
}

SCHEMA = """
CREATE TABLE ready (
  priority int NOT NULL, ready_at bigint NOT NULL, id uuid NOT NULL, payload bytea NOT NULL,
  PRIMARY KEY (priority, ready_at, id)
);
CREATE TABLE claim (
  id uuid PRIMARY KEY, holder text NOT NULL, epoch bigint NOT NULL, expires_at timestamptz NOT NULL
);
CREATE TABLE result (id uuid PRIMARY KEY, value bytea NOT NULL)
"""

CLAIM = """
WITH taken AS (
  DELETE FROM ready
  WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM ready ORDER BY priority, ready_at, id LIMIT %b FOR UPDATE SKIP LOCKED
  ))
  RETURNING id, payload
), held AS (
  INSERT INTO claim SELECT id, %b, %b, clock_timestamp() + interval '15 s' FROM taken
)
SELECT id, payload FROM taken
"""

COMPLETE = """
WITH done AS (
  SELECT * FROM unnest(%b::uuid[], %b::bigint[], %b::bytea[]) AS done (id, epoch, value)
), gone AS (
  DELETE FROM claim USING done
  WHERE claim.id = done.id AND claim.epoch = done.epoch AND claim.holder = %b
  RETURNING done.id, done.value
)
INSERT INTO result SELECT id, value FROM gone RETURNING id
"""


class Queue:
    def __init__(self) -> None:
        self._chance = random.Random(1)
        self._clock_us = time.time_ns() // 1000  # when the next item becomes ready

    def open(self, url: str, connections: int, settings: str) -> dict[str, str]:
        self._connections = [psycopg.connect(url, autocommit=True) for _ in range(connections)]
        for connection in self._connections:
            for name, value in SETTINGS[settings].items():
                connection.execute(f"SET {name} = {value}")
        for statement in SCHEMA.split(";"):
            self._connections[0].execute(statement)
        names = ("server_version", "fsync", "synchronous_commit", "wal_sync_method", "shared_buffers")
        return {name: self._one(f"SHOW {name}") for name in names}

    def fill(self, count: int) -> None:
        with self._connections[0].cursor().copy("COPY ready FROM STDIN") as copy:
            for _ in range(count):
                copy.write_row((0, self._clock_us, self._new_id(self._clock_us), PAYLOAD))
                self._clock_us += APART_US

    def _new_id(self, at_us: int) -> UUID:
        return UUID(
            bytes=(at_us // 1000).to_bytes(6, "big") + self._chance.getrandbits(80).to_bytes(10, "big")
        )

    def work(self, batch: int, rounds: int) -> float:
        """Run `rounds` in total, shared evenly by the connections, one thread each."""
        each = rounds // len(self._connections)
        if len(self._connections) == 1:
            return timed(lambda: self._work(self._connections[0], batch, each))
        threads = [
            threading.Thread(target=self._work, args=(connection, batch, each))
            for connection in self._connections
        ]

        def all_threads() -> None:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return timed(all_threads)

    def _work(self, connection: psycopg.Connection, batch: int, rounds: int) -> None:
        cursor = connection.cursor(binary=True)
        for _ in range(rounds):
            rows = cursor.execute(CLAIM, (batch, HOLDER, 1), prepare=True).fetchall()
            assert len(rows) == batch
            ids = [row[0] for row in rows]
            values = (ids, [1] * batch, [RESULT] * batch, HOLDER)
            done = cursor.execute(COMPLETE, values, prepare=True).fetchall()
            assert len(done) == batch, "a claim was lost: the rows that came back say which were not"

    def count(self) -> dict[str, int]:
        """Return the content of the tables: the parent checks that both sides did the same work."""
        return {name: self._one(f"SELECT count(*) FROM {name}") for name in ("ready", "claim", "result")}

    def _one(self, query: LiteralString) -> Any:
        row = self._connections[0].execute(query).fetchone()
        assert row is not None
        return row[0]


if __name__ == "__main__":
    queue = Queue()
    commands: dict[str, Command] = {
        "open": queue.open,
        "fill": queue.fill,
        "work": queue.work,
        "count": queue.count,
    }
    answer(commands, versions={"psycopg": psycopg.__version__, "libpq": str(psycopg.pq.version())})
