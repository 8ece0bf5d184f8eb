"""The same queue through the store's port: take and claim, fenced completion, one transaction each."""

import itertools
import sqlite3
import threading
from pathlib import Path

import msgspec

import tidemill
from bench.answering import answer, timed
from tidemill.store import Space, Store, Swap, Tx

HOLDER = "worker-1"
TTL_US = 15_000_000
PAYLOAD = bytes(200)
RESULT = bytes(200)
FILL_PAGE = 500

READY, CLAIM, RESULTS = Space("bench", "ready"), Space("bench", "claim"), Space("bench", "result")


class Claimed(msgspec.Struct, frozen=True, array_like=True):
    """The row of a claim; what it holds is also what fences its completion."""

    holder: str
    epoch: int
    expires_at: int


def claim(tx: Tx, limit: int) -> tuple[list[bytes], bytes]:
    """Take ready rows and write a claim for each; the ids (packed), and the claims' common value."""
    rows = tx.take(*READY.all(), limit)
    held = msgspec.msgpack.encode(Claimed(HOLDER, 1, tx.now() + TTL_US))
    ids = [row.key[len(READY.prefix) :] for row in rows]
    for each in ids:
        tx.set(CLAIM.prefix + each, held)
    return ids, held


def complete(tx: Tx, ids: list[bytes], held: bytes) -> int:
    """Remove the claims that are still ours and write a result for each of them; how many were."""
    ours = tx.swap_many([Swap(CLAIM.prefix + each, held, None) for each in ids])
    for each, mine in zip(ids, ours, strict=True):
        if mine:
            tx.set(RESULTS.prefix + each, RESULT)
    return sum(ours)


def write_ready(tx: Tx, keys: list[bytes]) -> None:
    for key in keys:
        tx.set(key, PAYLOAD)


class Queue:
    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def open(self, backend: str, where: str, connections: int) -> None:
        self._store = open_store(backend, where)
        self._connections = connections

    def fill(self, count: int) -> None:
        ids = [next(self._ids) for _ in range(count)]
        for at in range(0, count, FILL_PAGE):
            page = [READY[each] for each in ids[at : at + FILL_PAGE]]
            self._store.run(lambda tx, page=page: write_ready(tx, page))

    def work(self, batch: int, rounds: int) -> float:
        """`rounds` in all, shared evenly by as many threads as the other side has connections."""
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
            ids, held = run(lambda tx: claim(tx, batch), mode="take")
            assert len(ids) == batch
            done = run(lambda tx, ids=ids, held=held: complete(tx, ids, held), mode="take")
            assert done == batch

    def count(self) -> dict[str, int]:
        """What is in the store: the parent checks that both sides did the same work."""
        return {"ready": self._count(READY), "claim": self._count(CLAIM), "result": self._count(RESULTS)}

    def _count(self, space: Space) -> int:
        total, (lo, hi) = 0, space.all()
        while True:
            page = self._store.run(lambda tx, lo=lo: tx.range(lo, hi, limit=1000, snapshot=True))
            total += len(page)
            if len(page) < 1000:
                return total
            lo = page[-1].key + b"\x00"


def open_store(backend: str, where: str) -> Store:
    """Only the backend that is asked for is imported."""
    if backend == "sqlite":
        from tidemill.store.sqlite import SqliteStore

        return SqliteStore(Path(where))
    from tidemill.store.postgres import PostgresStore

    return PostgresStore(where)


if __name__ == "__main__":
    queue = Queue()
    commands = {"open": queue.open, "fill": queue.fill, "work": queue.work, "count": queue.count}
    answer(commands, versions={"tidemill": tidemill.__version__, "sqlite": sqlite3.sqlite_version})
