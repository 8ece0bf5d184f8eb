"""Compile a SELECT with WHERE, GROUP BY, HAVING, windows, QUALIFY, DISTINCT, ORDER BY and LIMIT."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from tidemill.errors import NameUnknown
from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.functions import GENERATORS
from tidemill.views.circuit.operators import Distinct, Filter, Generate, Operator, Project, SortKey
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.conditions import Condition, factored, filtered_rows, implied, parse_condition
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.from_clause import FromClause, FromQueries, generated_names, generator
from tidemill.views.sql.group_by import GroupedStage, GroupKeys, aggregate_call, aggregates
from tidemill.views.sql.name_scope import NamedColumn, NameScope, Relation
from tidemill.views.sql.order_by import (
    add_windows,
    limited,
    listed_position,
    order_key,
    top_rows,
    window_functions,
)
from tidemill.views.sql.sql_text import called_function
from tidemill.views.sql.stage import SelectStage
from tidemill.views.sql.subqueries import CorrelatedRows, Subqueries, SubqueryBuilder
from tidemill.views.sql.time_windows import add_session_window, add_time_window


class BlockQueries(FromQueries, SubqueryBuilder, Protocol):
    """Compiles the queries inside a select: derived tables, common table expressions, subqueries."""


@dataclass
class SelectItem:
    """One item of the select list. `node` is its expression in the query; None if it comes from a star.

    `names` has several elements for a generator with several columns. `expr` is None until the item is
    translated.
    """

    node: exp.Expr | None
    names: tuple[str | None, ...]
    expr: Expr | None = None

    @property
    def name(self) -> str | None:
        return self.names[0] if self.names else None


# The clauses of a select that the compiler supports.
CLAUSES = frozenset(
    {
        "expressions",
        "distinct",
        "from_",
        "joins",
        "laterals",
        "where",
        "group",
        "having",
        "windows",
        "qualify",
    }
    | {"order", "limit", "offset", "with_", "hint", "kind"}
)


@dataclass
class SelectBlock:
    """Compiles one select. `outer` is the stage of the outer query, if the select is a subquery."""

    context: QueryContext
    select: exp.Select
    queries: BlockQueries
    outer: SelectStage | None = None

    def relation(self) -> Relation:
        """Compile the select."""
        stage, correlated = self._filtered_rows()
        assert not correlated
        items = select_items(self.context, stage.scope, self.select.expressions)
        group = self.select.args.get("group")
        nodes = [*(item.node for item in items if item.node is not None), *([group] if group else [])]
        add_time_window(stage, nodes)
        if group is not None:
            add_session_window(stage, nodes, group)
        stage, items = self._grouped(stage, items)
        self._generated(stage, items)
        order = self._order()
        qualify = self.select.args.get("qualify")
        nodes = [item.node for item in items if item.node is not None]
        condition = [qualify.this] if qualify is not None else []
        add_windows(stage, [*nodes, *condition, *order], self.select.args.get("windows") or [])
        if qualify is not None:
            # A name in QUALIFY is a column of the rows, or otherwise an item of the select list.
            self._translate(stage, items)
            self._filter(stage, qualify.this)
        exprs = self._translate(stage, items)
        names = tuple(name for item in items for name in (item.names or (None,)))
        return self._finished(stage, exprs, names, order)

    def correlated_rows(self) -> CorrelatedRows:
        """Compile FROM and WHERE of a correlated subquery: a simple select, possibly with aggregates."""
        refused = ("group", "having", "qualify", "limit", "offset", "windows")
        if any(self.select.args.get(name) for name in refused):
            raise NotDecomposed("a correlated subquery with GROUP BY, LIMIT or similar clauses")
        stage, correlated = self._filtered_rows()
        nodes = [item.node for item in select_items(self.context, NameScope(), self._items_without_stars())]
        if any(True for node in nodes if node is not None for _ in window_functions(node)):
            raise NotDecomposed("a correlated subquery with window functions")
        return CorrelatedRows(stage, correlated, [node for node in nodes if node is not None])

    def _items_without_stars(self) -> list[exp.Expr]:
        return [item for item in self.select.expressions if not item.is_star]

    # --- rows ---------------------------------------------------------------------------------------------

    def _filtered_rows(self) -> tuple[SelectStage, list[Condition]]:
        unsupported = [name for name, value in self.select.args.items() if value and name not in CLAUSES]
        if unsupported:
            raise NotDecomposed(f"unsupported clauses of a SELECT: {', '.join(sorted(unsupported))}")
        rows = FromClause(self.context, self.queries, self.outer).read(self.select)
        stage = SelectStage(self.context, rows.operator, rows.scope, self.outer)
        stage.subqueries = Subqueries(self.queries)
        where = self.select.args.get("where")
        return stage, self._where(stage, where.this) if where is not None else []

    def _where(self, stage: SelectStage, node: exp.Expr) -> list[Condition]:
        subqueries = Subqueries(self.queries)
        simple: list[exp.Expr] = []
        with_subqueries: list[exp.Expr] = []
        for conjunct in stage.conjuncts(node):
            (with_subqueries if conjunct.find(exp.Query) is not None else simple).append(conjunct)
        correlated: list[Condition] = []
        conditions: list[tuple[exp.Expr, Expr]] = []
        for conjunct in simple:
            parsed = parse_condition(stage, conjunct, correlated=self.outer is not None)
            if any(position < 0 for position in parsed.expr.columns):
                for factor in factored(stage, conjunct):
                    if any(position < 0 for position in factor.expr.columns):
                        correlated.append(factor)
                    else:
                        conditions.append((conjunct, factor.expr))
            else:
                conditions += [(conjunct, further.expr) for further in implied(stage, conjunct)]
                conditions.append((conjunct, parsed.expr))
        stage.operator = filtered_rows(stage, conditions)
        for conjunct in with_subqueries:
            if not subqueries.predicate(stage, conjunct):
                expr = stage.expr(conjunct)  # appends scalar subqueries to the stage's operator
                stage.operator = Filter(stage.operator, (expr,))
        return correlated

    def _filter(self, stage: SelectStage, node: exp.Expr) -> None:
        # This appends scalar subqueries to the stage's operator, so it must precede the filter.
        conditions = tuple(stage.expr(conjunct) for conjunct in stage.conjuncts(node))
        stage.operator = Filter(stage.operator, conditions)

    # --- groups -------------------------------------------------------------------------------------------

    def _grouped(self, rows: SelectStage, items: list[SelectItem]) -> tuple[SelectStage, list[SelectItem]]:
        group = self.select.args.get("group")
        having = self.select.args.get("having")
        nodes = [item.node for item in items if item.node is not None]
        qualify = self.select.args.get("qualify")
        all_nodes = [*nodes, *self._order(), *([qualify.this] if qualify is not None else [])]
        all_nodes += [having.this] if having is not None else []
        aggregate_nodes = [call for node in all_nodes for call in aggregates(self.context, node)]
        if group is None and having is None and not aggregate_nodes:
            return rows, items
        keys = GroupKeys(lambda node: self._key(rows, items, node))
        if group is not None and group.args.get("all"):
            self._group_all(rows, items, keys)
        elif group is not None:
            keys.add(group)
        for key in keys.groups:
            if any(self.context.functions.is_random(name) for name in key.calls):
                raise NotDecomposed("GROUP BY a value that is not deterministic")
        calls = list(dict.fromkeys(aggregate_call(rows, node) for node in aggregate_nodes))
        stage = GroupedStage(rows, keys, calls)
        # The columns of a star must be keys.
        for item in items:
            if item.node is None and item.expr is not None:
                if item.expr not in keys.groups:
                    raise NotDecomposed("a star with columns that are not grouped")
                item.expr = column(keys.groups.index(item.expr))
        if having is not None:
            self._having(stage, items, having.this)
        return stage, items

    def _key(self, rows: SelectStage, items: list[SelectItem], node: exp.Expr) -> Expr:
        if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
            number = int(node.name)
            if not 1 <= number <= len(items):
                raise self.context.refused(f"the select list has no column {number}", node)
            return self._item(rows, items[number - 1])
        try:
            return rows.expr(node)
        except NameUnknown:
            if not isinstance(node, exp.Column) or len(node.parts) != 1:
                raise
            matches = [
                item for item in items if item.node is not None and rows.scope.same_name(item.name, node.name)
            ]
            if len(matches) != 1:
                raise
            return self._item(rows, matches[0])

    def _item(self, rows: SelectStage, item: SelectItem) -> Expr:
        if item.expr is not None:
            return item.expr
        assert item.node is not None
        return rows.expr(item.node)

    def _group_all(self, rows: SelectStage, items: list[SelectItem], keys: GroupKeys) -> None:
        for item in items:
            if item.node is not None and any(True for _ in aggregates(self.context, item.node)):
                continue
            if item.node is not None and item.node.find(exp.Query, exp.Window) is not None:
                raise NotDecomposed("GROUP BY ALL with subqueries or window functions")
            expr = self._item(rows, item)
            if expr.columns and expr not in keys.groups:
                keys.groups.append(expr)

    def _having(self, stage: SelectStage, items: list[SelectItem], node: exp.Expr) -> None:
        # A name in HAVING is a key, or otherwise an item of the select list.
        for item in items:
            if item.node is not None and self._is_simple(item.node):
                self._add_alias(stage, item, stage.expr(item.node))
        self._filter(stage, node)
        stage.aliases = {}

    def _is_simple(self, node: exp.Expr) -> bool:
        """Return whether an item can be computed before the select's window functions and generators."""
        special = node.find(exp.Query) is not None or any(True for _ in window_functions(node))
        return not special and called_function(self.context.query, node) not in GENERATORS

    # --- the select list ----------------------------------------------------------------------------------

    def _generated(self, stage: SelectStage, items: list[SelectItem]) -> None:
        for item in items:
            node = item.node
            if node is None or called_function(self.context.query, node) not in GENERATORS:
                continue
            expr = generator(stage, node)
            names = [name for name in item.names if name is not None] or generated_names(stage, expr)
            width = stage.operator.width
            stage.operator = Generate(stage.operator, expr, len(names))
            index = items.index(item)
            generated = [SelectItem(None, (name,), column(width + i)) for i, name in enumerate(names)]
            items[index : index + 1] = generated
            return self._generated(stage, items)
        return None

    def _translate(self, stage: SelectStage, items: Iterable[SelectItem]) -> list[Expr]:
        """Translate the items; later items can use the names of earlier ones."""
        stage.aliases = {}
        exprs = []
        for item in items:
            if item.expr is None:
                assert item.node is not None
                item.expr = stage.expr(item.node)
            exprs.append(item.expr)
            self._add_alias(stage, item, item.expr)
        return exprs

    def _add_alias(self, stage: SelectStage, item: SelectItem, expr: Expr) -> None:
        if item.name is None or item.node is None or isinstance(item.node, exp.Column):
            return
        name = item.name if self.context.case_sensitive else item.name.lower()
        exprs = stage.aliases.setdefault(name, [])
        if expr not in exprs:
            exprs.append(expr)

    # --- order --------------------------------------------------------------------------------------------

    def _order(self) -> list[exp.Expr]:
        order = self.select.args.get("order")
        limited = self.select.args.get("limit") or self.select.args.get("offset")
        return list(order.expressions) if order is not None and limited else []

    def _finished(
        self, stage: SelectStage, exprs: list[Expr], names: tuple[str | None, ...], order: list[exp.Expr]
    ) -> Relation:
        distinct = self.select.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise NotDecomposed("DISTINCT ON")
        keys = [] if distinct is not None else self._order_keys(stage, exprs, names, order)
        hidden = [key.value for key in keys if key.value not in exprs]
        columns = [*exprs, *hidden]
        operator: Operator = Project(stage.operator, tuple(columns))
        if distinct is not None:
            operator = Distinct(operator)
        if self.select.args.get("order") is not None and not order:
            self.context.note("ORDER BY without LIMIT is ignored: a table has no order")
        if distinct is not None:
            return limited(self.context, Relation(operator, names), self.select, order)
        moved = tuple(SortKey(column(columns.index(k.value)), k.descending, k.nulls_first) for k in keys)
        operator = top_rows(self.context, operator, moved, self.select)
        if hidden:
            operator = Project(operator, tuple(column(i) for i in range(len(exprs))))
        return Relation(operator, names)

    def _order_keys(
        self, stage: SelectStage, exprs: list[Expr], names: tuple[str | None, ...], order: list[exp.Expr]
    ) -> list[SortKey]:
        # A name in ORDER BY is an item of the select list, or otherwise a column of the rows.
        aliases = stage.aliases
        stage.aliases = {}
        keys = []
        for ordered in order:
            assert isinstance(ordered, exp.Ordered)
            position = listed_position(self.context, ordered.this, names, stage.scope)
            if position is not None:
                stage.replaced_nodes[id(ordered.this)] = exprs[position]
            else:
                self._replace_names(stage, ordered.this, exprs, names)
            keys.append(order_key(stage, ordered))
        stage.aliases = aliases
        return keys

    def _replace_names(
        self, stage: SelectStage, node: exp.Expr, exprs: list[Expr], names: tuple[str | None, ...]
    ) -> None:
        for name_node in node.find_all(exp.Column):
            position = listed_position(self.context, name_node, names, stage.scope)
            if position is not None:
                if name_node.find_ancestor(exp.AggFunc, exp.Window) is not None:
                    raise NotDecomposed(
                        "ORDER BY with an aggregate or window function over a column of the select list"
                    )
                stage.replaced_nodes[id(name_node)] = exprs[position]


def select_items(
    context: QueryContext, scope: NameScope, projections: Sequence[exp.Expr]
) -> list[SelectItem]:
    """List the items of the select list, with stars expanded."""
    return [item for node in projections for item in _expanded(context, scope, node)]


def _expanded(context: QueryContext, scope: NameScope, node: exp.Expr) -> Iterator[SelectItem]:
    if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
        yield from (SelectItem(None, (c.name,), column(c.index)) for c in _star(context, scope, node))
    elif isinstance(node, exp.Aliases):
        yield SelectItem(node.this, tuple(alias.name for alias in node.expressions))
    elif isinstance(node, exp.Alias):
        alias = node.args["alias"]
        if not isinstance(alias, exp.Identifier):
            raise NotDecomposed("an unsupported alias in the select list")
        yield SelectItem(node.this, (alias.name,))
    elif isinstance(node, exp.Column):
        yield SelectItem(node, (node.parts[-1].name,))
    elif isinstance(node, exp.Dot):
        yield SelectItem(node, (node.expression.name,))
    else:
        yield SelectItem(node, ())


def _star(context: QueryContext, scope: NameScope, node: exp.Expr) -> list[NamedColumn]:
    qualifier = None
    if isinstance(node, exp.Column):
        table = node.args.get("table")
        assert table is not None
        qualifier = table.name
        if not any(scope.same_name(name, qualifier) for name in scope.qualifiers()):
            if any(scope.same_name(name, qualifier) for name in scope.names()):
                raise NotDecomposed("a star over the fields of a struct")
            raise context.unknown("table", qualifier, scope.qualifiers(), table)
    star = node.this if isinstance(node, exp.Column) else node
    if star.args.get("replace") or star.args.get("rename") or star.args.get("ilike"):
        raise NotDecomposed("a star with REPLACE, RENAME or ILIKE")
    columns = scope.star(qualifier)
    for excluded in star.args.get("except_") or []:
        if isinstance(excluded, exp.Column) and len(excluded.parts) > 1:
            raise NotDecomposed("a star with a dotted name in EXCEPT")
        remaining = [c for c in columns if not scope.same_name(c.name, excluded.name)]
        if len(remaining) == len(columns):
            raise context.unknown("column", excluded.name, [c.name for c in columns if c.name], excluded)
        columns = remaining
    return columns
