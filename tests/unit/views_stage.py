"""Queries compiled without Spark: names, structure and errors need none."""

from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.functions import UserFunction
from tidemill.views.circuit.operators import Column, Operator, Output
from tidemill.views.sql.catalog import Table
from tidemill.views.sql.compile import compile_query


def table(name: str, columns: str, key: str = "", append_only: bool = False) -> Table:
    made = tuple(Column(*one.split()) for one in columns.split(", "))
    return Table(name, made, tuple(key.split()), append_only)


TABLES = {
    one.name: one
    for one in (
        table("orders", "id bigint, cust bigint, amount decimal(10,2), day date", append_only=True),
        table("customers", "id bigint, region string, since timestamp", key="id"),
        table("events", "id bigint, kind string, tags array<string>, at timestamp"),
    )
}


def output(sql: str, *functions: UserFunction) -> Output:
    return compile_query(sql, TABLES, functions=functions).output


def circuit(**views: str) -> Circuit:
    return Circuit({name: output(sql) for name, sql in views.items()})


def kinds(root: Operator) -> list[str]:
    return [one.kind for one in walk(root)]
