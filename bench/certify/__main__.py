"""Certification: how much time a pipeline of 40 new views spends on comparing them with plain Spark.

Keys, targets and how to read them: bench/README.md.
"""

import itertools
import time
from pathlib import Path

import tidemill as tm
from bench import machine
from bench.report import Report, at_most, main
from tidemill.pipeline.plan.certification import Certify

VIEWS = 40
LIMIT_S = 0.3
ORDERS = (
    "id BIGINT, customer BIGINT, product BIGINT, amount DECIMAL(10,2), price DOUBLE, note STRING, at DATE"
)
CUSTOMERS = "customer BIGINT, region STRING, since DATE"

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


def measure(report: Report) -> None:
    report.versions["ours"] = machine.versions("tidemill", "pyspark")
    count = 10 if report.quick else VIEWS
    with machine.scratch("certify") as folder:
        seconds = _certify(folder, count)
    raw = {name: round(value, 3) for name, value in seconds.items()}
    report.figure("per_view_s", sum(seconds.values()) / count, raw, target=at_most(LIMIT_S))


def _certify(folder: Path, count: int) -> dict[str, float]:
    """Return how many seconds the certification of each view adds to the first run."""
    with tm.Pipeline("shop", home=folder / "home") as pipeline:
        pipeline.dataset("orders", ORDERS)
        pipeline.dataset("customers", CUSTOMERS, key="customer")
        for n, query in zip(range(count), itertools.cycle(QUERIES.split(";")), strict=False):
            pipeline.view(f"view_{n:02}", query.strip().format(n=n))
        seconds = {}
        for stage in pipeline.plan().stages:
            began_at = time.monotonic()
            stage.apply(pipeline.context, pipeline.context.node.id)
            if isinstance(stage, Certify):
                seconds[stage.view] = time.monotonic() - began_at
    return seconds


if __name__ == "__main__":
    main("certify", __doc__, measure)
