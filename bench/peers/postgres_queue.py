"""A durable queue by hand on PostgreSQL: three tables of its own, one prepared statement per transaction.

READ COMMITTED, FOR UPDATE SKIP LOCKED, autocommit: a claim is one statement with a data-modifying WITH, and so
is a completion, by unnest. One round trip each, the COMMIT included: nothing that goes through several
statements can do with less.
"""

import itertools
import threading

import psycopg

from bench.answering import answer, timed

HOLDER = "worker-1"
PAYLOAD = bytes(200)
RESULT = bytes(200)

SCHEMA = """
CREATE TABLE ready (id bigint PRIMARY KEY, payload bytea NOT NULL);
CREATE TABLE claim (id bigint PRIMARY KEY, holder text NOT NULL, epoch bigint NOT NULL, expires_at timestamptz NOT NULL);
CREATE TABLE result (id bigint PRIMARY KEY, value bytea NOT NULL);
"""

CLAIM = """
WITH taken AS (
  DELETE FROM ready
  WHERE id = ANY(ARRAY(SELECT id FROM ready ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED))
  RETURNING id, payload
), held AS (
  INSERT INTO claim SELECT id, %s, %s, clock_timestamp() + interval '15 s' FROM taken
)
SELECT id, payload FROM taken
"""

COMPLETE = """
WITH done AS (
  SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[]) AS done (id, epoch, value)
), gone AS (
  DELETE FROM claim USING done
  WHERE claim.id = done.id AND claim.epoch = done.epoch AND claim.holder = %s
  RETURNING done.id, done.value
)
INSERT INTO result SELECT id, value FROM gone RETURNING id
"""


class Queue:
    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def open(self, url: str, connections: int) -> dict[str, str]:
        self._connections = [psycopg.connect(url, autocommit=True) for _ in range(connections)]
        for statement in SCHEMA.strip().split("\n"):
            self._connections[0].execute(statement)
        names = ("server_version", "fsync", "synchronous_commit", "wal_sync_method", "shared_buffers")
        return {name: self._connections[0].execute(f"SHOW {name}").fetchone()[0] for name in names}

    def fill(self, count: int) -> None:
        with self._connections[0].cursor().copy("COPY ready FROM STDIN") as copy:
            for _ in range(count):
                copy.write_row((next(self._ids), PAYLOAD))

    def work(self, batch: int, rounds: int) -> float:
        """`rounds` in all, shared evenly by the connections, a thread each."""
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
        """What is in the tables: the parent checks that both sides did the same work."""
        return {
            name: self._connections[0].execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("ready", "claim", "result")
        }


if __name__ == "__main__":
    queue = Queue()
    commands = {"open": queue.open, "fill": queue.fill, "work": queue.work, "count": queue.count}
    answer(commands, versions={"psycopg": psycopg.__version__, "libpq": str(psycopg.pq.version())})
