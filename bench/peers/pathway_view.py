"""Pathway: the same view, all changes applied, in memory; two threads.

Rows come from Python by two connectors, with one commit each per step. Its time is from the first row that is
passed in until all changes of the step are reported (`on_time_end`). Nothing is written or stored:
persistence is off, which is faster. The time until the last row was passed in is reported too (`fed_ms`).
"""

import os
import queue
import threading
import time
from typing import Any

from bench.answering import Command, answer

os.environ["PATHWAY_THREADS"] = "2"

import pathway as pw
import pyarrow.parquet as pq

PATIENCE_S = 600.0


class Order(pw.Schema):
    number: int = pw.column_definition(primary_key=True)
    cust: int
    day: int
    amount: int


class Customer(pw.Schema):
    number: int = pw.column_definition(primary_key=True)
    region: int


class Feed(pw.io.python.ConnectorSubject):
    """Passes the rows of a step to Pathway on request."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: queue.Queue[tuple[list[dict[str, int]], list[dict[str, int]]] | None] = queue.Queue()
        self.fed = threading.Event()

    def run(self) -> None:
        while (step := self.steps.get()) is not None:
            out, into = step
            for row in out:
                self.delete(**row)
            for row in into:
                self.next(**row)
            self.commit()
            self.fed.set()


class Sum:
    """A number that all rows of a table add up to, and since when."""

    def __init__(self) -> None:
        self.expected = self.value = 0
        self.since = 0


class View:
    """The view and its progress."""

    def open(self) -> dict[str, Any]:
        self.groups: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.feeds = {"orders": Feed(), "customers": Feed()}
        self.sums = {"orders": Sum(), "customers": Sum()}
        self.closed = -1
        self.more = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()
        return {"PATHWAY_THREADS": "2", "persistence": "none", "autocommit_duration_ms": None}

    def _run(self) -> None:
        feeds = self.feeds
        orders = pw.io.python.read(feeds["orders"], schema=Order, autocommit_duration_ms=None)
        customers = pw.io.python.read(feeds["customers"], schema=Customer, autocommit_duration_ms=None)
        joined = orders.join(customers, pw.left.cust == pw.right.number).select(
            pw.right.region, pw.left.day, pw.left.amount
        )
        view = joined.groupby(joined.region, joined.day).reduce(
            joined.region,
            joined.day,
            n=pw.reducers.count(),
            total=pw.reducers.sum(joined.amount),
            largest=pw.reducers.max(joined.amount),
        )
        pw.io.subscribe(view, on_change=self._changed, on_time_end=self._ended)
        for name, table, weight in (
            ("orders", orders, orders.number),
            ("customers", customers, customers.number * 64 + customers.region),
        ):
            sums = table.select(weight=weight).reduce(total=pw.reducers.sum(pw.this.weight))
            pw.io.subscribe(sums, on_change=self._summed(self.sums[name]))
        pw.run(monitoring_level=pw.MonitoringLevel.NONE)

    def _changed(self, key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        group = (row["region"], row["day"])
        value = (row["n"], row["total"], row["largest"])
        if is_addition:
            self.groups[group] = value
        elif self.groups.get(group) == value:
            del self.groups[group]

    def _summed(self, sums: Sum) -> Any:
        def changed(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:  # noqa: ARG001
            if is_addition:
                with self.more:
                    sums.value, sums.since = row["total"], time
                    self.more.notify_all()

        return changed

    def _ended(self, time: int) -> None:
        with self.more:
            self.closed = time
            self.more.notify_all()

    def _done(self) -> bool:
        sums = self.sums.values()
        return all(total.value == total.expected and self.closed >= total.since for total in sums)

    def step(self, files: dict[str, list[str]]) -> dict[str, float]:
        """Apply the rows of these files."""
        rows = {}
        for name in self.feeds:
            out, into = (self._read(files.get(f"{name}_{way}", [])) for way in ("out", "in"))
            rows[name] = out, into
            self.sums[name].expected += sum(map(_weight, into)) - sum(map(_weight, out))
        began = time.perf_counter()
        for name, feed in self.feeds.items():
            feed.fed.clear()
            feed.steps.put(rows[name])
        for feed in self.feeds.values():
            feed.fed.wait(PATIENCE_S)
        fed = time.perf_counter()
        with self.more:
            if not self.more.wait_for(self._done, PATIENCE_S):
                raise RuntimeError(f"not done within {PATIENCE_S:.0f} s")
        return {"ms": (time.perf_counter() - began) * 1e3, "fed_ms": (fed - began) * 1e3}

    @staticmethod
    def _read(paths: list[str]) -> list[dict[str, int]]:
        rows: list[dict[str, int]] = []
        for path in paths:
            table = pq.read_table(path)
            rows += table.rename_columns(["number", *table.column_names[1:]]).to_pylist()
        return rows

    def table(self) -> list[list[int]]:
        """Return the content of the view."""
        return sorted([*group, *value] for group, value in self.groups.items())


def _weight(row: dict[str, int]) -> int:
    return row["number"] * 64 + row["region"] if "region" in row else row["number"]


if __name__ == "__main__":
    peer = View()
    commands: dict[str, Command] = {"open": peer.open, "step": peer.step, "table": peer.table}
    answer(commands, versions={"pathway": pw.__version__})
