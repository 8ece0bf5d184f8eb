"""Pipelines with many views, and a view after a deletion of a row that does not exist."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidemill as tm
from bench import machine
from bench.answering import answer
from bench.ours.view_steps import Kept
from tidemill.spark.sessions import SparkSettings
from tidemill.store import Space, Tx

COLUMNS = "id BIGINT, a INT, b INT, amount BIGINT"
VIEWS_OF_A_DATASET = 10
VIEWS_OF_A_GROUP = 40
CHANGED_ROWS = 1_000
SETTINGS = SparkSettings(master="local[2]")

_chance = np.random.default_rng(3)


def stray(home: str, rows: int, steps: int) -> dict[str, Any]:
    """Time the steps of one view before and after a deletion of a row that does not exist."""
    sql = "SELECT a, count(*) AS n, sum(amount) AS total FROM orders GROUP BY a"
    kept = Kept(Path(home), SETTINGS, "stray", sql, {"orders": COLUMNS})
    orders = kept.tables["orders"]
    orders.append(_rows(0, rows))
    kept.start()
    first = rows

    def timed(count: int) -> list[float]:
        nonlocal first
        times = []
        for _ in range(count):
            kept.pause()
            orders.append(_rows(first, CHANGED_ROWS))
            first += CHANGED_ROWS
            times.append(kept.step()["ms"])
        return times

    timed(steps)  # warm up
    before = timed(steps)
    kept.pause()
    orders.delete(_rows(-5, 1))
    stray_ms = timed(1)  # with other rows: a step that changes no view is not reported
    after = timed(steps)
    kept.end()
    return {"before_ms": before, "stray_ms": stray_ms, "after_ms": after}


def first(home: str, views: int, rows: int, certificates: list[tuple[str, str]]) -> dict[str, Any]:
    """Time the first run of views.

    - certificates: rows that are stored before the run: the digest of each certificate, and its value as
      hexadecimal digits. If there are any, the views are also planned before the clock starts, so that the
      load alone is timed.
    """
    with tm.Pipeline("first", home=Path(home), spark=SETTINGS) as pipeline:
        orders = pipeline.dataset("orders", COLUMNS, deletes=True)
        for number in range(views):
            pipeline.view(f"view_{number}", _query("orders", number))
        orders.append(_rows(0, rows))
        context = pipeline.context
        space = Space(context.place.cluster, "certificate")

        def store(tx: Tx) -> None:
            for digest, value in certificates:
                tx.set(space[digest], bytes.fromhex(value))

        context.store.run(store)
        with context.spark() as spark:
            spark.range(1).collect()
        if certificates:
            pipeline.plan()
        took_s = _run(pipeline)
        stored = context.store.run(
            lambda tx: [(space.unpack(row.key)[0], row.value.hex()) for row in tx.range(*space.all())]
        )
        if len(stored) != views:
            raise RuntimeError(f"{len(stored)} certificates for {views} views")
    return {"took_s": took_s, "certificates": stored}


def many(home: str, views: int, steps: int) -> dict[str, Any]:
    """Time runs with nothing to do, and runs after a change of a dataset that ten views read."""
    with tm.Pipeline("many", home=Path(home), spark=SETTINGS) as pipeline:
        datasets: list[Any] = []
        for number in range(views):
            if number % VIEWS_OF_A_DATASET == 0:
                name = f"orders_{len(datasets)}"
                datasets.append(pipeline.dataset(name, COLUMNS, deletes=True))
            group = f"group_{number // VIEWS_OF_A_GROUP}"
            pipeline.view(f"view_{number}", _query(name, number), group=group)
        for dataset in datasets:
            dataset.append(_rows(0, CHANGED_ROWS))
        first_s = _run(pipeline)
        idle = [_run(pipeline) for _ in range(steps)]
        step = []
        for number in range(1, steps + 1):
            datasets[0].append(_rows(number * CHANGED_ROWS, CHANGED_ROWS))
            step.append(_run(pipeline))
    return {"first_s": first_s, "idle_s": idle, "step_s": step, "views": views}


def _query(table: str, number: int) -> str:
    """Return a query; all queries of a table share its filter."""
    key = f"(a + {number}) % 97"
    return f"SELECT {key} AS k, count(*) AS n, sum(amount) AS s FROM {table} WHERE b > 5 GROUP BY {key}"


def _run(pipeline: tm.Pipeline) -> float:
    began = time.perf_counter()
    report = pipeline.run()
    took_s = time.perf_counter() - began
    if not report.ok:
        raise RuntimeError(str(report))
    return took_s


def _rows(first_id: int, count: int) -> pa.Table:
    return pa.table(
        {
            "id": np.arange(first_id, first_id + count),
            "a": _chance.integers(0, 1000, count).astype(np.int32),
            "b": _chance.integers(0, 1000, count).astype(np.int32),
            "amount": _chance.integers(0, 10**6, count),
        }
    )


if __name__ == "__main__":
    answer({"stray": stray, "first": first, "many": many}, versions=machine.versions("tidemill", "pyspark"))
