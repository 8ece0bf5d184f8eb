"""Queries compiled without Spark: names, structure and errors need none."""

from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.functions import UserFunction
from tidemill.views.circuit.operators import Operator, SparkColumn, ViewOutput
from tidemill.views.sql.catalog import QueryTable
from tidemill.views.sql.compiler import compile_query


def table(name: str, columns: str, key: str = "", append_only: bool = False) -> QueryTable:
    made = tuple(SparkColumn(*one.split()) for one in columns.split(", "))
    return QueryTable(name, made, tuple(key.split()), append_only)


TABLES = {
    one.name: one
    for one in (
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
    return [one.kind for one in walk(root)]
