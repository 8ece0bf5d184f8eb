"""The same queue through the store's port: take and claim, fenced completion, one transaction each.

Writes are quiet: they wake no watchers, like the hand-written queue.
"""

import random
import sqlite3
import threading
import time
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec

import tidemill
from bench.answering import Command, answer, timed
from tidemill.store import Row, Space, Store, Swap, Tx

HOLDER = "worker-1"
TTL_US = 15_000_000
APART_US = 100  # the time between two items becoming ready
PAYLOAD = bytes(200)
RESULT = bytes(200)
PAGE = 500
PACKED_ID = 17  # a packed UUID

READY, CLAIM, RESULTS = Space("bench", "ready"), Space("bench", "claim"), Space("bench", "result")


class Claimed(msgspec.Struct, frozen=True, array_like=True):
    """The row of a claim; its content fences the completion."""

    holder: str
    epoch: int
    expires_at: int


def write(tx: Tx, rows: list[tuple[bytes, bytes]]) -> None:
    tx.set_many(rows)


def read(tx: Tx, lo: bytes, hi: bytes) -> list[Row]:
    return tx.range(lo, hi, limit=PAGE, snapshot=True)


def claim(tx: Tx, limit: int) -> tuple[list[bytes], bytes]:
    """Take ready rows and write a claim for each; return the ids and the value of the claims."""
    rows = tx.take(*READY.all(), limit, quiet=True)
    held = msgspec.msgpack.encode(Claimed(HOLDER, 1, tx.now() + TTL_US))
    ids = [row.key[-PACKED_ID:] for row in rows]
    tx.set_many([(CLAIM.prefix + each, held) for each in ids], quiet=True)
    return ids, held


def complete(tx: Tx, ids: list[bytes], held: bytes) -> int:
    """Remove the claims that are still ours and write a result for each; return how many."""
    ours = tx.swap_many([Swap(CLAIM.prefix + each, held, None) for each in ids], quiet=True)
    done = [(RESULTS.prefix + each, RESULT) for each, mine in zip(ids, ours, strict=True) if mine]
    tx.set_many(done, quiet=True)
    return len(done)


class Queue:
    def __init__(self) -> None:
        self._chance = random.Random(1)
        self._clock_us = time.time_ns() // 1000  # when the next item becomes ready

    def open(self, backend: str, where: str, connections: int) -> None:
        self._store = open_store(backend, where)
        self._connections = connections

    def fill(self, count: int) -> None:
        times = (self._clock_us + n * APART_US for n in range(count))
        rows = [(READY[0, at_us, self._new_id(at_us)], PAYLOAD) for at_us in times]
        self._clock_us += count * APART_US
        for at in range(0, count, PAGE):
            self._store.run(partial(write, rows=rows[at : at + PAGE]))

    def _new_id(self, at_us: int) -> UUID:
        return UUID(
            bytes=(at_us // 1000).to_bytes(6, "big") + self._chance.getrandbits(80).to_bytes(10, "big")
        )

    def work(self, batch: int, rounds: int) -> float:
        """Run `rounds` in total, shared evenly by as many threads as the other side has connections."""
        each = rounds // self._connections
        if self._connections == 1:
            return timed(lambda: self._work(batch, each))
        threads = [threading.Thread(target=self._work, args=(batch, each)) for _ in range(self._connections)]

        def all_threads() -> None:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return timed(all_threads)

    def _work(self, batch: int, rounds: int) -> None:
        run = self._store.run
        for _ in range(rounds):
            ids, held = run(partial(claim, limit=batch), mode="take")
            assert len(ids) == batch
            done = run(partial(complete, ids=ids, held=held), mode="take")
            assert done == batch

    def count(self) -> dict[str, int]:
        """Return the content of the store: the parent checks that both sides did the same work."""
        return {"ready": self._count(READY), "claim": self._count(CLAIM), "result": self._count(RESULTS)}

    def _count(self, space: Space) -> int:
        total, (lo, hi) = 0, space.all()
        while True:
            page = self._store.run(partial(read, lo=lo, hi=hi))
            total += len(page)
            if len(page) < PAGE:
                return total
            lo = page[-1].key + b"\x00"


def open_store(backend: str, where: str) -> Store:
    """Import only the requested backend."""
    if backend == "sqlite":
        from tidemill.store.sqlite import SqliteStore

        return SqliteStore(Path(where))
    from tidemill.store.postgres import PostgresStore

    return PostgresStore(where)


if __name__ == "__main__":
    queue = Queue()
    commands: dict[str, Command] = {
        "open": queue.open,
        "fill": queue.fill,
        "work": queue.work,
        "count": queue.count,
    }
    answer(commands, versions={"tidemill": tidemill.__version__, "sqlite": sqlite3.sqlite_version})
