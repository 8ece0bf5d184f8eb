"""Column lineage: which columns of its tables each column of a view comes from."""

import pytest

from tests.unit.views_stage import output
from tidemill.views.circuit.column_lineage import SourceColumn, column_lineage

QUERIES: dict[str, tuple[str, dict[str, str], str]] = {
    "a join with groups": (
        """SELECT region, sum(amount) AS total, count(*) AS n FROM orders o JOIN customers c ON o.cust = c.id
           WHERE o.amount > 0 GROUP BY region""",
        {"region": "customers.region IDENTITY", "total": "orders.amount AGGREGATION", "n": ""},
        "customers.id JOIN, customers.region GROUP_BY, orders.amount FILTER, orders.cust JOIN",
    ),
    "an expression of two columns": (
        "SELECT id + cust AS x, 1 AS one FROM orders",
        {"x": "orders.cust TRANSFORMATION, orders.id TRANSFORMATION", "one": ""},
        "",
    ),
    "a union": (
        "SELECT id FROM orders UNION ALL SELECT id + 1 FROM customers",
        {"id": "customers.id TRANSFORMATION, orders.id IDENTITY"},
        "",
    ),
    "a window": (
        "SELECT id, sum(amount) OVER (PARTITION BY cust) AS s FROM orders",
        {"id": "orders.id IDENTITY", "s": "orders.amount AGGREGATION"},
        "orders.cust WINDOW",
    ),
    "a limit": (
        "SELECT id FROM orders ORDER BY amount LIMIT 3",
        {"id": "orders.id IDENTITY"},
        "orders.amount SORT",
    ),
    "a semi join": (
        "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM customers WHERE customers.id = orders.cust)",
        {"id": "orders.id IDENTITY"},
        "customers.id JOIN, orders.cust JOIN",
    ),
    "a scalar subquery": (
        "SELECT id, (SELECT max(id) FROM customers) AS m FROM orders",
        {"id": "orders.id IDENTITY", "m": "customers.id AGGREGATION"},
        "",
    ),
    "an aggregate of an aggregate": (
        "SELECT max(n) AS n FROM (SELECT cust, count(id) AS n FROM orders GROUP BY cust)",
        {"n": "orders.id AGGREGATION"},
        "orders.cust GROUP_BY",
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_each_column_has_its_sources(name: str) -> None:
    query, columns, indirect = QUERIES[name]
    lineage = column_lineage(output(query))
    shown = {
        column: ", ".join(sorted(f"{text(source)} {how.name}" for source, how in sources.items()))
        for column, sources in lineage.columns.items()
    }
    assert shown == columns
    assert ", ".join(sorted(f"{text(s)} {how.name}" for s, how in lineage.indirect.items())) == indirect


def text(source: SourceColumn) -> str:
    return f"{source.table}.{source.column}"
