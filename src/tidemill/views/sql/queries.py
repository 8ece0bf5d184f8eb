"""Queries: selects, set operations, common table expressions, and those that are kept whole."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from tidemill.errors import QueryError, QueryRefused
from tidemill.views.circuit.operators import Distinct, NamedInput, Opaque, Operator, SetOp, UnionAll
from tidemill.views.sql.catalog import KeptWhole
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.from_clause import values
from tidemill.views.sql.name_scope import Relation
from tidemill.views.sql.select import SelectBlock, limited
from tidemill.views.sql.sql_text import functions_of
from tidemill.views.sql.stage import SelectStage
from tidemill.views.sql.subqueries import CorrelatedRows


@dataclass
class CommonTable:
    """A common table expression:
    built when it is first read, and then the same operator for all who read it.
    """

    node: exp.CTE
    within: "QueryBuilder"
    relation: Relation | None = None


@dataclass
class QueryBuilder:
    """Builds queries with the common table expressions that are in reach, and the stage around them, if
    any.
    """

    front: QueryContext
    shares: dict[str, CommonTable] = field(default_factory=dict)
    outer: SelectStage | None = None

    # --- what blocks ask for ------------------------------------------------------------------------------

    def derived(self, node: exp.Expr) -> Relation:
        """A query in parentheses in FROM: it can't read the query around it."""
        return QueryBuilder(self.front, self.shares).query(node)

    def shared(self, name: str) -> Relation | None:
        found = self.shares.get(name if self.front.case_sensitive else name.lower())
        if found is None:
            return None
        if found.relation is None:
            made = QueryBuilder(self.front, found.within.shares).query(found.node.this)
            given = [one.name for one in found.node.args["alias"].args.get("columns") or []]
            if given and len(given) != len(made.names):
                said = f"{len(given)} names for {len(made.names)} columns"
                raise self.front.refused(said, found.node)
            found.relation = Relation(made.operator, tuple(given) or made.names)
        return found.relation

    def alone(self, node: exp.Expr) -> Relation | None:
        notes = list(self.front.notes)
        try:
            return QueryBuilder(self.front, self.shares).query(node)
        except QueryError:
            # A name it does not know may be one of the query around it; if not, that is found there.
            self.front.notes[:] = notes
            return None

    def rows(self, node: exp.Expr, outer: SelectStage) -> CorrelatedRows:
        select = node.this if isinstance(node, exp.Subquery) else node
        if not isinstance(select, exp.Select):
            raise KeptWhole("a correlated subquery that is no plain select")
        inner = self._with(select)
        return SelectBlock(self.front, select, QueryBuilder(self.front, inner.shares, outer), outer).rows()

    # --- queries ------------------------------------------------------------------------------------------

    def query(self, node: exp.Expr) -> Relation:
        """The query, in operators if it can be taken apart, whole if it can't."""
        try:
            if any(token.token_type == TokenType.PIPE_GT for token in self.front.query.tokens):
                raise KeptWhole("a query in pipes")
            return self._taken_apart(node)
        except KeptWhole as reason:
            return self._whole(node, reason)

    def _taken_apart(self, node: exp.Expr) -> Relation:
        inner = self._with(node)
        if isinstance(node, exp.Select):
            return SelectBlock(self.front, node, inner, self.outer).relation()
        if isinstance(node, exp.Subquery):
            if node.args.get("pivots") or node.args.get("sample"):
                raise KeptWhole("PIVOT, UNPIVOT and TABLESAMPLE are not taken apart")
            if not isinstance(node.this, exp.Query | exp.Values):
                raise KeptWhole("a table in parentheses as a query")
            return inner._ordered(inner.query(node.this), node)
        if isinstance(node, exp.SetOperation):
            return inner._ordered(inner._set(node), node)
        if isinstance(node, exp.Values):
            return inner._ordered(values(self.front, node), node)
        raise KeptWhole("a query of another kind")

    def _with(self, node: exp.Expr) -> "QueryBuilder":
        clause = node.args.get("with_")
        if clause is None:
            return self
        if clause.args.get("recursive"):
            raise KeptWhole("recursion is recomputed")
        made = self
        for one in clause.expressions:
            name = one.args["alias"].name
            key = name if self.front.case_sensitive else name.lower()
            made = QueryBuilder(self.front, {**made.shares, key: CommonTable(one, made)}, self.outer)
        return made

    def _set(self, node: exp.SetOperation) -> Relation:
        if any(node.args.get(name) for name in ("by_name", "side", "kind", "on")):
            raise KeptWhole("a set operation by name")
        left, right = self.query(node.this), self.query(node.expression)
        if left.operator.width != right.operator.width:
            said = f"{left.operator.width} columns on the left and {right.operator.width} on the right"
            raise self.front.refused(said, node.expression)
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
            raise KeptWhole("SORT BY is not taken apart")
        order = node.args.get("order")
        bounded = node.args.get("limit") or node.args.get("offset")
        if order is not None and not bounded:
            self.front.note("ORDER BY without LIMIT is dropped: a table has no order")
        return limited(self.front, relation, node, list(order.expressions) if order and bounded else [])

    # --- kept whole ---------------------------------------------------------------------------------------

    def _whole(self, node: exp.Expr, reason: KeptWhole) -> Relation:
        """The query as text.
        Where it is no query of its own (it reads the one around it) that one is tried.
        """
        text = self.front.query.text(node)
        sql = self._with_shared(text, node)
        try:
            columns = self.front.columns_of(sql)
        except QueryRefused:
            raise reason from None
        if columns is None:
            raise reason
        operator = opaque(self.front, sql, node, len(columns), reason.reason)
        return Relation(operator, tuple(column.name for column in columns))

    def _with_shared(self, text: str, node: exp.Expr) -> str:
        """With the common table expressions that the text may read, those they read included."""
        words = _words(self.front, node)
        needed: dict[str, CommonTable] = {}

        def need(shares: dict[str, CommonTable], names: set[str]) -> None:
            for key, one in shares.items():
                if key.lower() in names and key not in needed:
                    need(one.within.shares, _words(self.front, one.node))
                    needed[key] = one

        need(self.shares, words)
        if not needed:
            return text
        prelude = ", ".join(self.front.query.text(one.node) for one in needed.values())
        return f"WITH {prelude} SELECT * FROM ({text})"  # noqa: S608 - the user's own query


def opaque(front: QueryContext, sql: str, node: exp.Expr | None, width: int, reason: str) -> Opaque:
    """A query as text, over every table whose name stands in it."""
    words = _words_of(sql) if node is None else _words(front, None)
    tables = [table for name, table in sorted(front.tables.items()) if name.lower() in words]
    inputs = tuple(front.source(table) for table in tables)
    names = tuple(NamedInput(table.name, tuple(c.name for c in table.columns)) for table in tables)
    calls = functions_of(front.query, 0, len(front.query.sql))
    return Opaque(inputs, names, sql, width, reason, tuple(sorted(calls)))


def _words(front: QueryContext, node: exp.Expr | None) -> set[str]:
    tokens: Sequence[object] = front.query.tokens if node is None else front.query.tokens_of(node)
    return {str(getattr(token, "text", "")).lower() for token in tokens}


def _words_of(sql: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in sql.lower()).split())
