"""Threads that commit single writes on one SQLite store."""

import sqlite3
import threading
from functools import partial
from pathlib import Path

import tidemill
from bench.answering import Command, answer, timed
from tidemill.store import Space, Tx
from tidemill.store.sqlite import SqliteStore

ROWS = Space("bench", "single")
VALUE = bytes(200)


class Writers:
    def open(self, path: str, delay_s: float) -> None:
        """Open a store; `delay_s` is added to every commit, to simulate a slower disk."""
        self._store = SqliteStore(Path(path), commit_delay_s=delay_s)

    def work(self, threads: int, writes: int) -> dict[str, float]:
        """Let each thread commit `writes` rows, one transaction each, as fast as possible."""

        def one_thread(number: int) -> None:
            for each in range(writes):
                self._store.run(partial(write, key=ROWS[number, each]))

        workers = [threading.Thread(target=one_thread, args=(number,)) for number in range(threads)]

        def all_threads() -> None:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

        commits = self._store.stats.commits
        transactions = self._store.stats.transactions
        seconds = timed(all_threads)
        return {
            "seconds": seconds,
            "commits": self._store.stats.commits - commits,
            "transactions": self._store.stats.transactions - transactions,
        }


def write(tx: Tx, key: bytes) -> None:
    tx.set(key, VALUE)


if __name__ == "__main__":
    writers = Writers()
    commands: dict[str, Command] = {"open": writers.open, "work": writers.work}
    answer(commands, versions={"tidemill": tidemill.__version__, "sqlite": sqlite3.sqlite_version})
