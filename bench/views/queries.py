"""The measured views, as users would write them."""

from typing import NamedTuple

from bench.views.shop import INTEGERS, TYPES


class Query(NamedTuple):
    """A view, and the kind of its shop."""

    name: str
    kind: str
    sql: str
    tables: tuple[str, ...] = ("orders", "customers")


REVENUE = Query(
    "revenue",
    INTEGERS,
    "SELECT c.region, o.day, count(*) AS n, sum(o.amount) AS total, max(o.amount) AS largest "
    "FROM orders o JOIN customers c ON o.cust = c.id GROUP BY c.region, o.day",
)
"""A join with count, sum and max over numbers alone."""

TYPED = Query(
    "typed",
    TYPES,
    "SELECT c.region, o.day, count(*) AS n, sum(o.amount) AS total, avg(o.amount) AS mean, "
    "max(o.amount) AS largest FROM orders o JOIN customers c ON o.cust = c.id GROUP BY c.region, o.day",
)
"""The same over STRING, DATE and DECIMAL, with an average."""

LEVELS = 8


def _chain() -> str:
    """Return sums by customers, by pairs of customers, by pairs of pairs: each level groups other rows."""
    sql = "SELECT cust AS k, count(*) AS n, sum(amount) AS total FROM orders GROUP BY cust"
    for _ in range(LEVELS - 1):
        sql = f"SELECT k DIV 2 AS k, sum(n) AS n, sum(total) AS total FROM ({sql}) GROUP BY k DIV 2"
    return sql


CHAIN = Query("chain", INTEGERS, _chain(), ("orders",))
"""Eight aggregates, one over the other, each by another key: a chain of eight exchanges."""

WINDOW = Query(
    "window",
    INTEGERS,
    "SELECT cust, id, amount, place FROM (SELECT cust, id, amount, row_number() OVER "
    "(PARTITION BY cust ORDER BY amount DESC, id) AS place FROM orders) WHERE place <= 3",
    ("orders",),
)
"""The three largest orders of each customer, by a window."""
