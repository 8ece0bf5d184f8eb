"""The FROM clause:
tables, derived tables, joins, lateral views and inline tables, and the names they bring.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from tidemill.views.circuit.expr import Expr, call, column
from tidemill.views.circuit.functions import GENERATORS
from tidemill.views.circuit.interpreter import common_tables
from tidemill.views.circuit.operators import Generate, Join, JoinKey, JoinKind, LiteralRows, Operator, Project
from tidemill.views.circuit.render import Renderer
from tidemill.views.sql.catalog import KeptWhole
from tidemill.views.sql.conditions import condition, implied, keyed
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
    """Who builds the queries of a FROM clause."""

    def derived(self, node: exp.Expr) -> Relation:
        """A query in parentheses."""

    def shared(self, name: str) -> Relation | None:
        """A common table expression in reach."""


@dataclass
class FromRows:
    """What a FROM clause has brought so far."""

    operator: Operator
    scope: NameScope


@dataclass
class FromClause:
    """Reads the FROM clause of one select."""

    front: QueryContext
    queries: FromQueries
    outer: SelectStage | None

    def read(self, select: exp.Select) -> FromRows:
        """The rows before WHERE."""
        clause = select.args.get("from_")
        if clause is None:
            made = FromRows(LiteralRows(((),)), NameScope(exact=self.front.case_sensitive))
        else:
            made = self._list(clause.this, select.args.get("joins") or [])
        for lateral in select.args.get("laterals") or []:
            made = self._lateral_view(made, lateral)
        return made

    def _list(self, first: exp.Expr, joins: Sequence[exp.Join]) -> FromRows:
        # In Spark a comma binds no looser than JOIN: `a, b RIGHT JOIN c` is (a, b) RIGHT JOIN c.
        made = self._relation(first)
        for join in joins:
            made = self._join(made, join)
        return made

    # --- one relation -------------------------------------------------------------------------------------

    def _relation(self, node: exp.Expr) -> FromRows:
        if node.args.get("sample") or node.args.get("pivots"):
            raise KeptWhole("TABLESAMPLE, PIVOT and UNPIVOT are not taken apart")
        if isinstance(node, exp.Table):
            made = self._table(node)
        elif isinstance(node, exp.Subquery):
            made = self._derived(node)
        elif isinstance(node, exp.Values):
            made = self._aliased(self._values(node), node, None)
        else:
            raise KeptWhole("a table function in FROM")
        for join in node.args.get("joins") or []:
            made = self._join(made, join)
        return made

    def _table(self, node: exp.Table) -> FromRows:
        if not isinstance(node.this, exp.Identifier):
            raise KeptWhole("a table function in FROM")
        name = node.name
        if node.args.get("db") or any(
            node.args.get(x) for x in ("when", "version", "changes", "hints", "only")
        ):
            raise KeptWhole("a table of a catalog, or a version of one")
        relation = self.queries.shared(name)
        if relation is None:
            table = self.front.table(name)
            if table is None:
                raise self.front.unknown(
                    "table", name, [t.name for t in self.front.tables.values()], node.this
                )
            relation = Relation(self.front.source(table), tuple(c.name for c in table.columns))
        return self._aliased(relation, node, name)

    def _derived(self, node: exp.Subquery) -> FromRows:
        inner = node.this
        if isinstance(inner, exp.Table):
            # A join in parentheses: its tables keep their own names, unless it has one itself.
            made = self._relation(inner)
            if node.args.get("alias") is None:
                return made
            shown = made.scope.star()
            names = tuple(one.name for one in shown)
            operator = Project(made.operator, tuple(column(one.index) for one in shown))
            return self._aliased(Relation(operator, names), node, None)
        return self._aliased(self.queries.derived(node), node, None)

    def _values(self, node: exp.Values) -> Relation:
        return values(self.front, node)

    def _aliased(self, relation: Relation, node: exp.Expr, name: str | None) -> FromRows:
        alias = node.args.get("alias")
        qualifier = alias.name if alias is not None and alias.name else name
        given = [one.name for one in alias.args.get("columns") or []] if alias is not None else []
        if given:
            if len(given) != len(relation.names):
                said = f"{len(given)} names for {len(relation.names)} columns"
                raise self.front.refused(said, alias or node)
            relation = Relation(relation.operator, tuple(given))
        return FromRows(relation.operator, NameScope.of(relation, qualifier, self.front.case_sensitive))

    # --- joins --------------------------------------------------------------------------------------------

    def _join(self, left: FromRows, join: exp.Join) -> FromRows:
        if isinstance(join.this, exp.Lateral):
            if join.side or join.args.get("on") or join.kind not in {"", "CROSS", "INNER"}:
                raise KeptWhole("a lateral join with a condition")
            return self._lateral_join(left, join.this)
        kind = KINDS.get((join.side.upper(), join.kind.upper()))
        if kind is None:
            raise KeptWhole(f"a {join.side} {join.kind} join")
        right = self._relation(join.this)
        using = [one.name for one in join.args.get("using") or []]
        if (join.args.get("method") or "").upper() == "NATURAL":
            here, there = left.scope, right.scope
            using = [
                c.name for c in here.star() if c.name and any(here.same(o.name, c.name) for o in there.star())
            ]
            if not using:
                return self._combined("cross" if kind == "inner" else kind, left, right, (), ())
        elif join.args.get("method"):
            raise KeptWhole(f"a {join.args['method']} join")
        if using:
            return self._using(kind, left, right, using, join)
        on = join.args.get("on")
        if on is None or not self.front.query.placed(on):
            return self._combined("cross" if kind == "inner" else kind, left, right, (), ())
        keys, residual = self._on(left, right, on)
        return self._combined("inner" if kind == "cross" else kind, left, right, keys, residual)

    def _on(
        self, left: FromRows, right: FromRows, on: exp.Expr
    ) -> tuple[tuple[JoinKey, ...], tuple[Expr, ...]]:
        width = left.operator.width
        both = left.scope.beside(right.scope, width)
        stage = SelectStage(self.front, left.operator, both, self.outer)
        parts = list(stage.conjuncts(on))
        conditions = [condition(stage, one) for one in parts]
        conditions += [more for one in parts for more in implied(stage, one)]
        keys, residual = keyed(conditions, lambda place: place < width, self.front.functions)
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
        scope = left.scope if operator.left_only else left.scope.beside(right.scope, left.operator.width)
        return FromRows(operator, scope)

    def _using(
        self, kind: JoinKind, left: FromRows, right: FromRows, names: Sequence[str], join: exp.Join
    ) -> FromRows:
        width = left.operator.width
        pairs = [(self._one(left, name, join), self._one(right, name, join)) for name in names]
        keys = tuple(JoinKey(column(a.index), column(b.index)) for a, b in pairs)
        kind = "inner" if kind == "cross" else kind
        made = self._combined(kind, left, right, keys, ())
        if kind in {"semi", "anti"}:
            return made
        taken = {a.index for a, _ in pairs} | {b.index + width for _, b in pairs}
        first: list[NamedColumn] = []
        operator = made.operator
        for a, b in pairs:
            if kind == "full":
                # One value for both sides; each side's own can still be named with its table.
                both = call("coalesce", column(a.index), column(b.index + width))
                shown = tuple(column(i) for i in range(operator.width))
                first.append(NamedColumn(None, a.name, operator.width))
                operator = Project(operator, (*shown, both))
            elif kind == "right":
                first.append(NamedColumn(b.qualifier, a.name, b.index + width))
            else:
                first.append(NamedColumn(a.qualifier, a.name, a.index))
        known = {one.index for one in first}
        rest = []
        for one in made.scope.columns:
            if one.index not in taken:
                rest.append(one)
            elif one.index not in known or one.qualifier not in {
                f.qualifier for f in first if f.index == one.index
            }:
                rest.append(NamedColumn(one.qualifier, one.name, one.index, shown=False))
        return FromRows(operator, NameScope((*first, *rest), made.scope.exact))

    def _one(self, part: FromRows, name: str, join: exp.Join) -> NamedColumn:
        found, _ = part.scope.resolve([name])
        if len(found) == 1:
            return found[0]
        node: exp.Expr = join
        for one in join.args.get("using") or []:
            node = one if one.name == name else node
        if found:
            raise self.front.ambiguous(name, [f"{one.qualifier}.{one.name}" for one in found], node)
        raise self.front.unknown("column", name, part.scope.names(), node)

    # --- rows out of a row --------------------------------------------------------------------------------

    def _lateral_view(self, made: FromRows, node: exp.Lateral) -> FromRows:
        alias = node.args.get("alias")
        names = [one.name for one in (alias.args.get("columns") or [])] if alias is not None else []
        qualifier = alias.name if alias is not None else None
        return self.generated(made, node.this, names, qualifier, outer=bool(node.args.get("outer")))

    def _lateral_join(self, made: FromRows, node: exp.Lateral) -> FromRows:
        if node.args.get("view") or called_function(self.front.query, node.this) not in GENERATORS:
            raise KeptWhole("a lateral subquery")
        return self._lateral_view(made, node)

    def generated(
        self, made: FromRows, node: exp.Expr, names: Sequence[str], qualifier: str | None, outer: bool = False
    ) -> FromRows:
        """The rows that a generator makes of each row."""
        stage = SelectStage(self.front, made.operator, made.scope, self.outer)
        expr = generator(stage, node)
        given = list(names) or generated_names(stage, expr)
        width = made.operator.width
        operator = Generate(made.operator, expr, len(given), outer)
        more = NameScope(
            tuple(NamedColumn(qualifier, name, i) for i, name in enumerate(given)), made.scope.exact
        )
        return FromRows(operator, made.scope.beside(more, width))


def generator(stage: SelectStage, node: exp.Expr) -> Expr:
    """The call of a generator over a stage's columns."""
    if called_function(stage.front.query, node) not in GENERATORS:
        raise KeptWhole("a lateral view of something that is no generator")
    start, end = stage.front.query.span(node)
    return stage.cut(start, end, list(node.iter_expressions()))


def generated_names(stage: SelectStage, call: Expr) -> list[str]:
    """The names Spark gives to what a generator makes; it is asked, for their number depends on types."""
    names, tables = common_tables(stage.operator, Renderer())
    relation = names[stage.operator]
    columns = stage.front.columns_of(f"WITH {', '.join(tables)} SELECT {call.sql()} FROM {relation}")  # noqa: S608
    if columns is None:
        raise KeptWhole("a generator without names for its columns")
    return [one.name for one in columns]


def values(front: QueryContext, node: exp.Values) -> Relation:
    """Rows written in the query, under the names Spark gives them."""
    stage = SelectStage(front, LiteralRows(((),)), NameScope())
    rows = []
    for row in node.expressions:
        inner = row.expressions if isinstance(row, exp.Tuple) else [row]
        if any(isinstance(one, exp.Alias) for one in inner):
            raise KeptWhole("rows of VALUES without parentheses")  # the table's name is read as the row's
        rows.append(tuple(stage.expr(one) for one in inner))
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        raise front.refused("rows of different lengths", node)
    return Relation(LiteralRows(tuple(rows)), tuple(f"col{i + 1}" for i in range(widths.pop())))
