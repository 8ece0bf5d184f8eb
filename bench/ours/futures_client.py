"""A client of durable futures on a separate home, with one supervisor and its child processes.

Every submitted call is synced to disk before `map` or `submit` returns, and every result before it is visible
(`synchronous` is FULL in every process).
"""

import sqlite3
import statistics
import time
from importlib.metadata import version
from typing import Any

import tidemill
from bench.answering import Command, answer, timed


def noop(value: int) -> int:
    return value


def make(count: int) -> Any:
    import numpy  # imported here, because the memory of a client is measured too

    array = numpy.arange(count, dtype=numpy.float64)
    array[0] = time.monotonic()
    return array


def read(array: Any) -> tuple[float, float]:
    began = float(array[0])
    total = float(array[1:].sum())
    return time.monotonic() - began, total


class Futures:
    def open(self, home: str, workers: int) -> dict[str, Any]:
        self._client = tidemill.connect(home=home)
        self._waiting: list[Any] = []
        if workers:
            self.start(workers)
            self.work(10)  # its children have started
        return {"workers": workers, "store": "sqlite", "synchronous": "FULL"}

    def start(self, workers: int) -> None:
        """Start a supervisor with this many children."""
        self._client.start_worker(workers)

    def work(self, count: int) -> float:
        def all_of_them() -> None:
            results = self._client.gather(self._client.map(noop, range(count)))
            assert results == list(range(count))

        return timed(all_of_them)

    def round_trips(self, count: int) -> dict[str, float]:
        took = [timed(lambda: self._client.submit(noop, 1).result()) for _ in range(count)]
        return {"median_s": statistics.median(took), "p90_s": sorted(took)[count * 9 // 10]}

    def hand_over(self, count: int) -> float:
        seconds, total = self._client.submit(read, self._client.submit(make, count)).result()
        assert total == count * (count - 1) / 2
        return float(seconds)

    # --- a long queue

    def queue(self, count: int) -> float:
        """Submit this many futures, and keep their handles."""

        def submit() -> None:
            self._waiting = self._client.map(noop, range(count))

        return timed(submit)

    def finish(self, count: int) -> float:
        """Wait for all futures."""

        def wait() -> None:
            results = self._client.gather(self._waiting)
            assert results == list(range(count))
            self._waiting = []

        return timed(wait)

    def close(self) -> None:
        self._client.close()


if __name__ == "__main__":
    futures = Futures()
    commands: dict[str, Command] = {
        "open": futures.open,
        "start": futures.start,
        "work": futures.work,
        "round_trips": futures.round_trips,
        "hand_over": futures.hand_over,
        "queue": futures.queue,
        "finish": futures.finish,
        "close": futures.close,
    }
    versions = {
        "tidemill": tidemill.__version__,
        "sqlite": sqlite3.sqlite_version,
        "numpy": version("numpy"),
    }
    answer(commands, versions=versions)
