"""The first run of a pipeline with many new views and some rows, with or without certificates.

The clock starts when Spark runs and the rows are appended, and stops when `run()` returns: planning,
certification, the load of all views and their commit.
"""

import datetime as dt
import itertools
import random
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import tidemill as tm
from bench import machine
from bench.answering import answer
from tidemill.events import Event
from tidemill.store import Space, Tx
from tidemill.views.certify.certificates import ViewCertified

ORDERS = (
    "id BIGINT, customer BIGINT, product BIGINT, amount DECIMAL(10,2), price DOUBLE, note STRING, at DATE"
)
CUSTOMERS = "customer BIGINT, region STRING, since DATE"
CUSTOMER_COUNT = 500

QUERIES = """
SELECT id, customer, amount * {n} AS scaled FROM orders WHERE amount > {n};
SELECT customer, count(*) AS n, sum(amount) AS total FROM orders WHERE product > {n} GROUP BY customer;
SELECT region, max(amount) + {n} AS most FROM orders JOIN customers USING (customer) GROUP BY region;
SELECT o.id, c.region, o.amount + {n} AS a FROM orders o LEFT JOIN customers c ON o.customer = c.customer;
SELECT DISTINCT customer, product + {n} AS product FROM orders;
SELECT customer, avg(price) AS mean, min(at) AS a FROM orders GROUP BY customer HAVING count(*) > {n};
SELECT id, rank() OVER (PARTITION BY customer ORDER BY amount, id) + {n} AS place FROM orders;
SELECT customer FROM customers WHERE customer > {n} AND customer NOT IN (SELECT customer FROM orders);
SELECT upper(note) AS note, count(DISTINCT product) AS n FROM orders WHERE id > {n} GROUP BY upper(note);
WITH t AS (SELECT customer, sum(amount) AS total FROM orders GROUP BY customer)
  SELECT region, max(total) + {n} AS best FROM t JOIN customers USING (customer) GROUP BY region
"""
"""Ten views, separated by semicolons; `{n}` makes each copy a new query."""


def run(home: str, views: int, rows: int, certificates: list[tuple[str, str]]) -> dict[str, Any]:
    """Run a new pipeline once.

    - certificates: rows that are stored before the run: the digest of each certificate, and its value as
      hexadecimal digits.
    """
    events: list[Event] = []
    with tm.Pipeline("shop", home=Path(home)) as pipeline:
        _declare(pipeline, views)
        _append(pipeline, rows)
        context = pipeline.context
        space = Space(context.place.cluster, "certificate")

        def store(tx: Tx) -> None:
            for digest, value in certificates:
                tx.set(space[digest], bytes.fromhex(value))

        context.store.run(store)
        with context.spark() as spark:
            spark.range(1).collect()
        began = time.perf_counter()
        report = pipeline.run(emit=events.append)
        took_s = time.perf_counter() - began
        if not report.ok:
            raise RuntimeError(str(report))
        stored = context.store.run(
            lambda tx: [(space.unpack(row.key)[0], row.value.hex()) for row in tx.range(*space.all())]
        )
        if len(stored) != views:
            raise RuntimeError(f"{len(stored)} certificates for {views} views")
    certified = [event for event in events if isinstance(event, ViewCertified)]
    return {"took_s": took_s, "certified": len(certified), "certificates": stored}


def _declare(pipeline: tm.Pipeline, views: int) -> None:
    pipeline.dataset("orders", ORDERS)
    pipeline.dataset("customers", CUSTOMERS, key="customer")
    for n, query in zip(range(views), itertools.cycle(QUERIES.split(";")), strict=False):
        pipeline.view(f"view_{n:02}", query.strip().format(n=n))


def _append(pipeline: tm.Pipeline, rows: int) -> None:
    chance = random.Random(7)
    orders: Any = pipeline["orders"]
    customers: Any = pipeline["customers"]
    orders.append(
        [
            (
                number,
                chance.randrange(CUSTOMER_COUNT),
                chance.randrange(100),
                Decimal(chance.randrange(100_000)) / 100,
                chance.random() * 100,
                f"note {chance.randrange(50)}",
                dt.date(2026, 1, 1) + dt.timedelta(days=chance.randrange(365)),
            )
            for number in range(rows)
        ]
    )
    customers.upsert(
        [
            (number, f"region {number % 20}", dt.date(2020, 1, 1 + number % 28))
            for number in range(0, CUSTOMER_COUNT, 2)
        ]
    )


if __name__ == "__main__":
    answer({"run": run}, versions=machine.versions("tidemill", "pyspark"))
