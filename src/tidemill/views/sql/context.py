"""The context of one compilation: the query, the tables it may read, and notes for the user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tidemill.errors import NameAmbiguous, NameUnknown, QueryRefused
from tidemill.views.circuit.functions import ViewFunctions
from tidemill.views.circuit.operators import InputTable, SparkColumn
from tidemill.views.sql.catalog import Analyse, QueryTable
from tidemill.views.sql.parser import ParsedQuery
from tidemill.views.sql.query_position import error_at, unknown_name


@dataclass
class QueryContext:
    """The query that is compiled, with its tables and functions. `explain` shows the `notes` to the user."""

    query: ParsedQuery
    tables: Mapping[str, QueryTable]
    functions: ViewFunctions
    analyse: Analyse | None = None
    case_sensitive: bool = False
    notes: list[str] = field(default_factory=list)

    def table(self, name: str) -> QueryTable | None:
        if name in self.tables:
            return self.tables[name]
        matches = [table for key, table in self.tables.items() if key.lower() == name.lower()]
        return matches[0] if matches and not self.case_sensitive else None

    def input_table(self, table: QueryTable) -> InputTable:
        positions = {column.name.lower(): i for i, column in enumerate(table.columns)}
        key = tuple(positions[name.lower()] for name in table.key)
        return InputTable(table.name, tuple(table.columns), key, table.append_only)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def columns_of(self, sql: str) -> Sequence[SparkColumn] | None:
        """Return the columns of a query, as Spark analyses it; None if the compiler runs without Spark."""
        return self.analyse(sql, self.tables) if self.analyse else None

    # --- errors with a position ---------------------------------------------------------------------------

    def unknown(self, kind: str, name: str, available: Sequence[str], node: exp.Expr) -> NameUnknown:
        return unknown_name(kind, name, list(available), self.query.sql, self.query.position(node))

    def ambiguous(self, name: str, among: Sequence[str], node: exp.Expr) -> NameAmbiguous:
        message = f"{name} is ambiguous: it may be {' or '.join(among)}"
        error = error_at(NameAmbiguous, message, self.query.sql, self.query.position(node))
        error.name = name
        return error

    def refused(self, message: str, node: exp.Expr, hint: str | None = None) -> QueryRefused:
        return error_at(QueryRefused, message, self.query.sql, self.query.position(node), hint)
