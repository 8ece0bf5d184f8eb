"""Compile queries: selects, set operations, common table expressions, and queries that stay SQL text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from tidemill.errors import QueryError, QueryRefused
from tidemill.views.circuit.operators import Distinct, NamedInput, Opaque, Operator, SetOp, UnionAll
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.from_clause import values
from tidemill.views.sql.name_scope import Relation
from tidemill.views.sql.order_by import limited
from tidemill.views.sql.select import SelectBlock
from tidemill.views.sql.sql_text import functions_of
from tidemill.views.sql.stage import SelectStage
from tidemill.views.sql.subqueries import CorrelatedRows


@dataclass
class CommonTable:
    """A common table expression. It is compiled when it is first read, and all readers share the operator."""

    node: exp.CTE
    within: "QueryBuilder"
    relation: Relation | None = None


@dataclass
class QueryBuilder:
    """Compiles queries, with the common table expressions they can read and the outer stage of a subquery."""

    context: QueryContext
    common_tables: dict[str, CommonTable] = field(default_factory=dict)
    outer: SelectStage | None = None

    # --- queries inside a select --------------------------------------------------------------------------

    def derived(self, node: exp.Expr) -> Relation:
        """Compile a query in parentheses in FROM. It cannot read columns of the outer query."""
        return QueryBuilder(self.context, self.common_tables).query(node)

    def common_table(self, name: str) -> Relation | None:
        table = self.common_tables.get(name if self.context.case_sensitive else name.lower())
        if table is None:
            return None
        if table.relation is None:
            relation = QueryBuilder(self.context, table.within.common_tables).query(table.node.this)
            names = [alias_column.name for alias_column in table.node.args["alias"].args.get("columns") or []]
            if names and len(names) != len(relation.names):
                message = f"{len(names)} names for {len(relation.names)} columns"
                raise self.context.refused(message, table.node)
            table.relation = Relation(relation.operator, tuple(names) or relation.names)
        return table.relation

    def uncorrelated(self, node: exp.Expr) -> Relation | None:
        notes = list(self.context.notes)
        try:
            return QueryBuilder(self.context, self.common_tables).query(node)
        except QueryError:
            # An unknown name may be a column of the outer query. If not, the caller finds the error.
            self.context.notes[:] = notes
            return None

    def correlated_rows(self, node: exp.Expr, outer: SelectStage) -> CorrelatedRows:
        select = node.this if isinstance(node, exp.Subquery) else node
        if not isinstance(select, exp.Select):
            raise NotDecomposed("a correlated subquery that is not a simple SELECT")
        inner = self._with(select)
        return SelectBlock(
            self.context, select, QueryBuilder(self.context, inner.common_tables, outer), outer
        ).correlated_rows()

    # --- queries ------------------------------------------------------------------------------------------

    def query(self, node: exp.Expr) -> Relation:
        """Compile a query: to operators if possible, otherwise to one opaque operator."""
        try:
            if any(token.token_type == TokenType.PIPE_GT for token in self.context.query.tokens):
                raise NotDecomposed("pipe syntax (|>)")
            return self._decompose(node)
        except NotDecomposed as reason:
            return self._recomputed(node, reason)

    def _decompose(self, node: exp.Expr) -> Relation:
        inner = self._with(node)
        if isinstance(node, exp.Select):
            return SelectBlock(self.context, node, inner, self.outer).relation()
        if isinstance(node, exp.Subquery):
            if node.args.get("pivots") or node.args.get("sample"):
                raise NotDecomposed("PIVOT, UNPIVOT or TABLESAMPLE")
            if not isinstance(node.this, exp.Query | exp.Values):
                raise NotDecomposed("a table in parentheses instead of a query")
            return inner._ordered(inner.query(node.this), node)
        if isinstance(node, exp.SetOperation):
            return inner._ordered(inner._set(node), node)
        if isinstance(node, exp.Values):
            return inner._ordered(values(self.context, node), node)
        raise NotDecomposed("an unsupported type of query")

    def _with(self, node: exp.Expr) -> "QueryBuilder":
        clause = node.args.get("with_")
        if clause is None:
            return self
        if clause.args.get("recursive"):
            raise NotDecomposed("a recursive query")
        builder = self
        for cte in clause.expressions:
            name = cte.args["alias"].name
            key = name if self.context.case_sensitive else name.lower()
            builder = QueryBuilder(
                self.context, {**builder.common_tables, key: CommonTable(cte, builder)}, self.outer
            )
        return builder

    def _set(self, node: exp.SetOperation) -> Relation:
        if any(node.args.get(name) for name in ("by_name", "side", "kind", "on")):
            raise NotDecomposed("a set operation BY NAME")
        left, right = self.query(node.this), self.query(node.expression)
        if left.operator.width != right.operator.width:
            widths = f"{left.operator.width} and {right.operator.width}"
            message = f"the queries of a set operation have {widths} columns"
            raise self.context.refused(message, node.expression)
        distinct = bool(node.args.get("distinct"))
        operator: Operator
        if isinstance(node, exp.Union):
            operator = UnionAll((left.operator, right.operator))
            operator = Distinct(operator) if distinct else operator
        elif isinstance(node, exp.Intersect):
            operator = SetOp("intersect", left.operator, right.operator, not distinct)
        else:
            operator = SetOp("except", left.operator, right.operator, not distinct)
        return Relation(operator, left.names)

    def _ordered(self, relation: Relation, node: exp.Expr) -> Relation:
        if any(node.args.get(name) for name in ("sort", "cluster", "distribute")):
            raise NotDecomposed("SORT BY, CLUSTER BY or DISTRIBUTE BY")
        order = node.args.get("order")
        bounded = node.args.get("limit") or node.args.get("offset")
        if order is not None and not bounded:
            self.context.note("ORDER BY without LIMIT is ignored: a table has no order")
        return limited(self.context, relation, node, list(order.expressions) if order and bounded else [])

    # --- opaque queries -----------------------------------------------------------------------------------

    def _recomputed(self, node: exp.Expr, reason: NotDecomposed) -> Relation:
        """Compile a query to an opaque operator.

        If Spark cannot run the query alone, because it reads the outer query, raise the reason again. Then
        the outer query becomes opaque.
        """
        text = self.context.query.text(node)
        sql = self._with_common_tables(text, node)
        try:
            columns = self.context.columns_of(sql)
        except QueryRefused:
            raise reason from None
        if columns is None:
            raise reason
        operator = opaque(self.context, sql, node, len(columns), reason.reason)
        return Relation(operator, tuple(column.name for column in columns))

    def _with_common_tables(self, text: str, node: exp.Expr) -> str:
        """Add the common table expressions that the text may read, directly or through others."""
        needed: dict[str, CommonTable] = {}

        def add(tables: dict[str, CommonTable], names: set[str]) -> None:
            for key, table in tables.items():
                if key.lower() in names and key not in needed:
                    add(table.within.common_tables, _names_in(self.context, table.node))
                    needed[key] = table

        add(self.common_tables, _names_in(self.context, node))
        if not needed:
            return text
        prelude = ", ".join(self.context.query.text(table.node) for table in needed.values())
        return f"WITH {prelude} SELECT * FROM ({text})"  # noqa: S608 - the user's own query


def opaque(context: QueryContext, sql: str, node: exp.Expr | None, width: int, reason: str) -> Opaque:
    """Return an opaque operator for a query. Its inputs are all tables whose names are in the text."""
    words = _names_in_text(sql) if node is None else _names_in(context, None)
    tables = [table for name, table in sorted(context.tables.items()) if name.lower() in words]
    inputs = tuple(context.input_table(table) for table in tables)
    names = tuple(NamedInput(table.name, tuple(c.name for c in table.columns)) for table in tables)
    calls = functions_of(context.query, 0, len(context.query.sql))
    return Opaque(inputs, names, sql, width, reason, tuple(sorted(calls)))


def _names_in(context: QueryContext, node: exp.Expr | None) -> set[str]:
    tokens: Sequence[object] = context.query.tokens if node is None else context.query.tokens_of(node)
    return {str(getattr(token, "text", "")).lower() for token in tokens}


def _names_in_text(sql: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in sql.lower()).split())
