"""The FROM clause: tables, derived tables, joins, lateral views and inline tables, with their names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from tidemill.views.circuit.expr import Expr, call, column
from tidemill.views.circuit.functions import GENERATORS
from tidemill.views.circuit.interpreter import common_tables
from tidemill.views.circuit.operators import Generate, Join, JoinKey, JoinKind, LiteralRows, Operator, Project
from tidemill.views.circuit.render import Renderer
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.conditions import implied, join_keys, parse_condition
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.name_scope import NamedColumn, NameScope, Relation
from tidemill.views.sql.sql_text import called_function
from tidemill.views.sql.stage import SelectStage

KINDS: dict[tuple[str, str], JoinKind] = {
    ("", ""): "inner",
    ("", "INNER"): "inner",
    ("", "CROSS"): "cross",
    ("LEFT", ""): "left",
    ("LEFT", "OUTER"): "left",
    ("RIGHT", ""): "right",
    ("RIGHT", "OUTER"): "right",
    ("FULL", ""): "full",
    ("FULL", "OUTER"): "full",
    ("LEFT", "SEMI"): "semi",
    ("", "SEMI"): "semi",
    ("LEFT", "ANTI"): "anti",
    ("", "ANTI"): "anti",
}


class FromQueries(Protocol):
    """Compiles the queries of a FROM clause."""

    def derived(self, node: exp.Expr) -> Relation:
        """Compile a query in parentheses."""

    def common_table(self, name: str) -> Relation | None:
        """Return the common table expression with this name; None if there is none."""


@dataclass
class FromRows:
    """The rows of a FROM clause, or of the part read so far, and the scope of their names."""

    operator: Operator
    scope: NameScope


@dataclass
class FromClause:
    """Compiles the FROM clause of one select."""

    context: QueryContext
    queries: FromQueries
    outer: SelectStage | None

    def read(self, select: exp.Select) -> FromRows:
        """Return the rows before WHERE."""
        clause = select.args.get("from_")
        if clause is None:
            rows = FromRows(LiteralRows(((),)), NameScope(case_sensitive=self.context.case_sensitive))
        else:
            rows = self._list(clause.this, select.args.get("joins") or [])
        for lateral in select.args.get("laterals") or []:
            rows = self._lateral_view(rows, lateral)
        return rows

    def _list(self, first: exp.Expr, joins: Sequence[exp.Join]) -> FromRows:
        # In Spark a comma and JOIN have the same precedence: `a, b RIGHT JOIN c` is (a, b) RIGHT JOIN c.
        rows = self._relation(first)
        for join in joins:
            rows = self._join(rows, join)
        return rows

    # --- one relation -------------------------------------------------------------------------------------

    def _relation(self, node: exp.Expr) -> FromRows:
        if node.args.get("sample") or node.args.get("pivots"):
            raise NotDecomposed("PIVOT, UNPIVOT or TABLESAMPLE")
        if isinstance(node, exp.Table):
            rows = self._table(node)
        elif isinstance(node, exp.Subquery):
            rows = self._derived(node)
        elif isinstance(node, exp.Values):
            rows = self._aliased(values(self.context, node), node, None)
        else:
            raise NotDecomposed("a table function in FROM")
        for join in node.args.get("joins") or []:
            rows = self._join(rows, join)
        return rows

    def _table(self, node: exp.Table) -> FromRows:
        if not isinstance(node.this, exp.Identifier):
            raise NotDecomposed("a table function in FROM")
        name = node.name
        if node.args.get("db") or any(
            node.args.get(x) for x in ("when", "version", "changes", "hints", "only")
        ):
            raise NotDecomposed("a table of a catalog, or a version of a table")
        relation = self.queries.common_table(name)
        if relation is None:
            table = self.context.table(name)
            if table is None:
                raise self.context.unknown(
                    "table", name, [t.name for t in self.context.tables.values()], node.this
                )
            relation = Relation(self.context.input_table(table), tuple(c.name for c in table.columns))
        return self._aliased(relation, node, name)

    def _derived(self, node: exp.Subquery) -> FromRows:
        inner = node.this
        if isinstance(inner, exp.Table):
            # A join in parentheses. Its tables keep their names unless the join has an alias.
            rows = self._relation(inner)
            if node.args.get("alias") is None:
                return rows
            columns = rows.scope.star()
            names = tuple(named_column.name for named_column in columns)
            operator = Project(rows.operator, tuple(column(named_column.index) for named_column in columns))
            return self._aliased(Relation(operator, names), node, None)
        return self._aliased(self.queries.derived(node), node, None)

    def _aliased(self, relation: Relation, node: exp.Expr, name: str | None) -> FromRows:
        alias = node.args.get("alias")
        qualifier = alias.name if alias is not None and alias.name else name
        names = (
            [alias_column.name for alias_column in alias.args.get("columns") or []]
            if alias is not None
            else []
        )
        if names:
            if len(names) != len(relation.names):
                message = f"{len(names)} names for {len(relation.names)} columns"
                raise self.context.refused(message, alias or node)
            relation = Relation(relation.operator, tuple(names))
        return FromRows(relation.operator, NameScope.of(relation, qualifier, self.context.case_sensitive))

    # --- joins --------------------------------------------------------------------------------------------

    def _join(self, left: FromRows, join: exp.Join) -> FromRows:
        if isinstance(join.this, exp.Lateral):
            if join.side or join.args.get("on") or join.kind not in {"", "CROSS", "INNER"}:
                raise NotDecomposed("a lateral join with a condition")
            return self._lateral_join(left, join.this)
        kind = KINDS.get((join.side.upper(), join.kind.upper()))
        if kind is None:
            raise NotDecomposed(f"a {join.side} {join.kind} join")
        right = self._relation(join.this)
        using = [using_column.name for using_column in join.args.get("using") or []]
        if (join.args.get("method") or "").upper() == "NATURAL":
            left_scope, right_scope = left.scope, right.scope
            using = [
                c.name
                for c in left_scope.star()
                if c.name and any(left_scope.same_name(o.name, c.name) for o in right_scope.star())
            ]
            if not using:
                return self._combined("cross" if kind == "inner" else kind, left, right, (), ())
        elif join.args.get("method"):
            raise NotDecomposed(f"a {join.args['method']} join")
        if using:
            return self._using(kind, left, right, using, join)
        on = join.args.get("on")
        if on is None or not self.context.query.has_span(on):
            return self._combined("cross" if kind == "inner" else kind, left, right, (), ())
        keys, residual = self._on(left, right, on)
        return self._combined("inner" if kind == "cross" else kind, left, right, keys, residual)

    def _on(
        self, left: FromRows, right: FromRows, on: exp.Expr
    ) -> tuple[tuple[JoinKey, ...], tuple[Expr, ...]]:
        width = left.operator.width
        scope = left.scope.combined_with(right.scope, width)
        stage = SelectStage(self.context, left.operator, scope, self.outer)
        parts = list(stage.conjuncts(on))
        conditions = [parse_condition(stage, part) for part in parts]
        conditions += [further for part in parts for further in implied(stage, part)]
        keys, residual = join_keys(conditions, lambda position: position < width, self.context.functions)
        moved = [JoinKey(k.left, k.right.renumbered(lambda i: i - width), k.null_safe) for k in keys]
        return tuple(moved), tuple(residual)

    def _combined(
        self,
        kind: JoinKind,
        left: FromRows,
        right: FromRows,
        keys: tuple[JoinKey, ...],
        residual: tuple[Expr, ...],
    ) -> FromRows:
        operator = Join(kind, left.operator, right.operator, keys, residual)
        scope = (
            left.scope if operator.left_only else left.scope.combined_with(right.scope, left.operator.width)
        )
        return FromRows(operator, scope)

    def _using(
        self, kind: JoinKind, left: FromRows, right: FromRows, names: Sequence[str], join: exp.Join
    ) -> FromRows:
        width = left.operator.width
        pairs = [
            (self._using_column(left, name, join), self._using_column(right, name, join)) for name in names
        ]
        keys = tuple(JoinKey(column(a.index), column(b.index)) for a, b in pairs)
        kind = "inner" if kind == "cross" else kind
        joined = self._combined(kind, left, right, keys, ())
        if kind in {"semi", "anti"}:
            return joined
        joined_positions = {a.index for a, _ in pairs} | {b.index + width for _, b in pairs}
        key_columns: list[NamedColumn] = []
        operator = joined.operator
        for a, b in pairs:
            if kind == "full":
                # One column for both sides. The original columns can still be named with their tables.
                value = call("coalesce", column(a.index), column(b.index + width))
                columns = tuple(column(i) for i in range(operator.width))
                key_columns.append(NamedColumn(None, a.name, operator.width))
                operator = Project(operator, (*columns, value))
            elif kind == "right":
                key_columns.append(NamedColumn(b.qualifier, a.name, b.index + width))
            else:
                key_columns.append(NamedColumn(a.qualifier, a.name, a.index))
        key_positions = {named_column.index for named_column in key_columns}
        other_columns = []
        for named_column in joined.scope.columns:
            if named_column.index not in joined_positions:
                other_columns.append(named_column)
            elif named_column.index not in key_positions or named_column.qualifier not in {
                f.qualifier for f in key_columns if f.index == named_column.index
            }:
                other_columns.append(
                    NamedColumn(named_column.qualifier, named_column.name, named_column.index, shown=False)
                )
        return FromRows(operator, NameScope((*key_columns, *other_columns), joined.scope.case_sensitive))

    def _using_column(self, part: FromRows, name: str, join: exp.Join) -> NamedColumn:
        matches, _ = part.scope.resolve([name])
        if len(matches) == 1:
            return matches[0]
        node: exp.Expr = join
        for identifier in join.args.get("using") or []:
            node = identifier if identifier.name == name else node
        if matches:
            raise self.context.ambiguous(name, [f"{match.qualifier}.{match.name}" for match in matches], node)
        raise self.context.unknown("column", name, part.scope.names(), node)

    # --- generators ---------------------------------------------------------------------------------------

    def _lateral_view(self, rows: FromRows, node: exp.Lateral) -> FromRows:
        alias = node.args.get("alias")
        names = (
            [alias_column.name for alias_column in (alias.args.get("columns") or [])]
            if alias is not None
            else []
        )
        qualifier = alias.name if alias is not None else None
        return self.generated(rows, node.this, names, qualifier, outer=bool(node.args.get("outer")))

    def _lateral_join(self, rows: FromRows, node: exp.Lateral) -> FromRows:
        if node.args.get("view") or called_function(self.context.query, node.this) not in GENERATORS:
            raise NotDecomposed("a lateral subquery")
        return self._lateral_view(rows, node)

    def generated(
        self, rows: FromRows, node: exp.Expr, names: Sequence[str], qualifier: str | None, outer: bool = False
    ) -> FromRows:
        """Apply a generator to each row."""
        stage = SelectStage(self.context, rows.operator, rows.scope, self.outer)
        expr = generator(stage, node)
        column_names = list(names) or generated_names(stage, expr)
        width = rows.operator.width
        operator = Generate(rows.operator, expr, len(column_names), outer)
        scope = NameScope(
            tuple(NamedColumn(qualifier, name, i) for i, name in enumerate(column_names)),
            rows.scope.case_sensitive,
        )
        return FromRows(operator, rows.scope.combined_with(scope, width))


def generator(stage: SelectStage, node: exp.Expr) -> Expr:
    """Translate the call of a generator over the columns of a stage."""
    if called_function(stage.context.query, node) not in GENERATORS:
        raise NotDecomposed("a lateral view without a generator function")
    start, end = stage.context.query.span(node)
    return stage.translate(start, end, list(node.iter_expressions()))


def generated_names(stage: SelectStage, call: Expr) -> list[str]:
    """Ask Spark for the column names of a generator; how many columns there are depends on types."""
    names, tables = common_tables(stage.operator, Renderer())
    relation = names[stage.operator]
    columns = stage.context.columns_of(f"WITH {', '.join(tables)} SELECT {call.sql()} FROM {relation}")  # noqa: S608
    if columns is None:
        raise NotDecomposed("a generator whose columns have no names")
    return [named_column.name for named_column in columns]


def values(context: QueryContext, node: exp.Values) -> Relation:
    """Compile VALUES, with the column names that Spark uses."""
    stage = SelectStage(context, LiteralRows(((),)), NameScope())
    rows = []
    for row in node.expressions:
        inner = row.expressions if isinstance(row, exp.Tuple) else [row]
        if any(isinstance(value, exp.Alias) for value in inner):
            # The parser takes the alias of the table for an alias in the row.
            raise NotDecomposed("VALUES without parentheses")
        rows.append(tuple(stage.expr(value) for value in inner))
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        raise context.refused("the rows of VALUES have different numbers of columns", node)
    return Relation(LiteralRows(tuple(rows)), tuple(f"col{i + 1}" for i in range(widths.pop())))
