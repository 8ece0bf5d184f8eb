"""Helpers that compile queries without Spark."""

from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.functions import UserFunction
from tidemill.views.circuit.operators import Operator, SparkColumn, ViewOutput
from tidemill.views.sql.catalog import QueryTable
from tidemill.views.sql.compiler import compile_query


def table(name: str, columns: str, key: str = "", append_only: bool = False) -> QueryTable:
    spark_columns = tuple(SparkColumn(*column.split()) for column in columns.split(", "))
    return QueryTable(name, spark_columns, tuple(key.split()), append_only)


TABLES = {
    query_table.name: query_table
    for query_table in (
        table("orders", "id bigint, cust bigint, amount decimal(10,2), day date", append_only=True),
        table("customers", "id bigint, region string, since timestamp", key="id"),
        table("events", "id bigint, kind string, tags array<string>, at timestamp"),
    )
}


def output(sql: str, *functions: UserFunction) -> ViewOutput:
    return compile_query(sql, TABLES, functions=functions).output


def circuit(**views: str) -> Circuit:
    return Circuit({name: output(sql) for name, sql in views.items()})


def kinds(root: Operator) -> list[str]:
    return [op.kind for op in walk(root)]
