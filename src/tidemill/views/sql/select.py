"""One select block:
FROM, WHERE, GROUP BY, HAVING, windows, QUALIFY, the list, DISTINCT, ORDER BY and LIMIT.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from tidemill.errors import NameUnknown
from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.functions import GENERATORS
from tidemill.views.circuit.operators import Distinct, Filter, Generate, Operator, Project, SortKey, TopK
from tidemill.views.sql.catalog import KeptWhole
from tidemill.views.sql.conditions import Condition, condition, filtered_rows, implied
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.from_clause import FromClause, FromQueries, generated_names, generator
from tidemill.views.sql.group_by import GroupedStage, GroupKeys, aggregate_call, aggregates
from tidemill.views.sql.name_scope import NamedColumn, NameScope, Relation
from tidemill.views.sql.select_list import SelectItem, select_items
from tidemill.views.sql.sql_text import called_function
from tidemill.views.sql.stage import SelectStage
from tidemill.views.sql.subqueries import CorrelatedRows, Subqueries, SubqueryBuilder
from tidemill.views.sql.windows import add_windows, order_key, windows


class BlockQueries(FromQueries, SubqueryBuilder, Protocol):
    """Who builds the queries inside a block: derived tables, common table expressions, subqueries."""


# What a select may have and we read; anything else is kept whole.
READ = frozenset(
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
    """A select on its way. `outer` is the stage around it, if it is a subquery."""

    front: QueryContext
    select: exp.Select
    building: BlockQueries
    outer: SelectStage | None = None

    def relation(self) -> Relation:
        """The whole block."""
        stage, correlated = self._rows()
        assert not correlated
        listed = select_items(self.front, stage.scope, self.select.expressions)
        stage, listed = self._grouped(stage, listed)
        self._generated(stage, listed)
        order = self._order()
        qualify = self.select.args.get("qualify")
        nodes = [item.node for item in listed if item.node is not None]
        condition = [qualify.this] if qualify is not None else []
        add_windows(stage, [*nodes, *condition, *order], self.select.args.get("windows") or [])
        if qualify is not None:
            # Names in QUALIFY are first those of the rows, then those of the select list.
            self._translate(stage, listed)
            self._filter(stage, qualify.this)
        exprs = self._translate(stage, listed)
        names = tuple(name for item in listed for name in (item.names or (None,)))
        return self._finished(stage, exprs, names, order)

    def rows(self) -> CorrelatedRows:
        """FROM and WHERE alone, for a correlated subquery that is a plain select or an aggregate of one."""
        refused = ("group", "having", "qualify", "limit", "offset", "windows")
        if any(self.select.args.get(name) for name in refused):
            raise KeptWhole("a correlated subquery with groups or a limit")
        stage, correlated = self._rows()
        nodes = [item.node for item in select_items(self.front, NameScope(), self._plain())]
        if any(True for node in nodes if node is not None for _ in windows(node)):
            raise KeptWhole("a correlated subquery with window functions")
        return CorrelatedRows(stage, correlated, [node for node in nodes if node is not None])

    def _plain(self) -> list[exp.Expr]:
        stars = [one for one in self.select.expressions if one.is_star]
        return [one for one in self.select.expressions if one not in stars]

    # --- rows ---------------------------------------------------------------------------------------------

    def _rows(self) -> tuple[SelectStage, list[Condition]]:
        strange = [name for name, value in self.select.args.items() if value and name not in READ]
        if strange:
            raise KeptWhole(f"{', '.join(sorted(strange))} in a select is not taken apart")
        made = FromClause(self.front, self.building, self.outer).read(self.select)
        stage = SelectStage(self.front, made.operator, made.scope, self.outer)
        stage.subqueries = Subqueries(self.building)
        where = self.select.args.get("where")
        return stage, self._where(stage, where.this) if where is not None else []

    def _where(self, stage: SelectStage, node: exp.Expr) -> list[Condition]:
        subqueries = Subqueries(self.building)
        plain: list[exp.Expr] = []
        later: list[exp.Expr] = []
        for one in stage.conjuncts(node):
            (later if one.find(exp.Query) is not None else plain).append(one)
        correlated: list[Condition] = []
        conditions: list[tuple[exp.Expr, Expr]] = []
        for one in plain:
            made = condition(stage, one, correlated=self.outer is not None)
            if any(place < 0 for place in made.expr.columns):
                correlated.append(made)
            else:
                conditions += [(one, more.expr) for more in implied(stage, one)]
                conditions.append((one, made.expr))
        stage.operator = filtered_rows(stage, conditions)
        for one in later:
            if not subqueries.predicate(stage, one):
                expr = stage.expr(one)  # scalar subqueries: columns once they are attached
                stage.operator = Filter(stage.operator, (expr,))
        return correlated

    def _filter(self, stage: SelectStage, node: exp.Expr) -> None:
        # Subqueries among the conditions become columns first.
        conditions = tuple(stage.expr(one) for one in stage.conjuncts(node))
        stage.operator = Filter(stage.operator, conditions)

    # --- groups -------------------------------------------------------------------------------------------

    def _grouped(self, rows: SelectStage, listed: list[SelectItem]) -> tuple[SelectStage, list[SelectItem]]:
        group = self.select.args.get("group")
        having = self.select.args.get("having")
        nodes = [item.node for item in listed if item.node is not None]
        qualify = self.select.args.get("qualify")
        every = [*nodes, *self._order(), *([qualify.this] if qualify is not None else [])]
        every += [having.this] if having is not None else []
        found = [one for node in every for one in aggregates(self.front, node)]
        if group is None and having is None and not found:
            return rows, listed
        keys = GroupKeys(lambda node: self._key(rows, listed, node))
        if group is not None and group.args.get("all"):
            self._group_all(rows, listed, keys)
        elif group is not None:
            keys.add(group)
        for key in keys.groups:
            if any(self.front.functions.random(name) for name in key.calls):
                raise KeptWhole("groups by a value that is not the same twice")
        calls = list(dict.fromkeys(aggregate_call(rows, one) for one in found))
        stage = GroupedStage(rows, keys, calls)
        # A star among groups stands for columns that must be keys.
        for item in listed:
            if item.node is None and item.expr is not None:
                if item.expr not in keys.groups:
                    raise KeptWhole("a star over columns that are not grouped")
                item.expr = column(keys.groups.index(item.expr))
        if having is not None:
            self._having(stage, listed, having.this)
        return stage, listed

    def _key(self, rows: SelectStage, listed: list[SelectItem], node: exp.Expr) -> Expr:
        if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
            place = int(node.name)
            if not 1 <= place <= len(listed):
                raise self.front.refused(f"there is no column {place} in the select list", node)
            return self._item(rows, listed[place - 1])
        try:
            return rows.expr(node)
        except NameUnknown:
            if not isinstance(node, exp.Column) or len(node.parts) != 1:
                raise
            named = [
                item for item in listed if item.node is not None and rows.scope.same(item.name, node.name)
            ]
            if len(named) != 1:
                raise
            return self._item(rows, named[0])

    def _item(self, rows: SelectStage, item: SelectItem) -> Expr:
        if item.expr is not None:
            return item.expr
        assert item.node is not None
        return rows.expr(item.node)

    def _group_all(self, rows: SelectStage, listed: list[SelectItem], keys: GroupKeys) -> None:
        for item in listed:
            if item.node is not None and any(True for _ in aggregates(self.front, item.node)):
                continue
            if item.node is not None and item.node.find(exp.Query, exp.Window) is not None:
                raise KeptWhole("GROUP BY ALL over subqueries or windows")
            expr = self._item(rows, item)
            if expr.columns and expr not in keys.groups:
                keys.groups.append(expr)

    def _having(self, stage: SelectStage, listed: list[SelectItem], node: exp.Expr) -> None:
        # Names are first those of the keys, then those of the select list.
        for item in listed:
            if item.node is not None and self._simple(item.node):
                self._remember(stage, item, stage.expr(item.node))
        self._filter(stage, node)
        stage.aliases = {}

    def _simple(self, node: exp.Expr) -> bool:
        """Whether it can be computed before the windows and generators of the block."""
        special = node.find(exp.Query) is not None or any(True for _ in windows(node))
        return not special and called_function(self.front.query, node) not in GENERATORS

    # --- the list -----------------------------------------------------------------------------------------

    def _generated(self, stage: SelectStage, listed: list[SelectItem]) -> None:
        for item in listed:
            node = item.node
            if node is None or called_function(self.front.query, node) not in GENERATORS:
                continue
            expr = generator(stage, node)
            names = [name for name in item.names if name is not None] or generated_names(stage, expr)
            width = stage.operator.width
            stage.operator = Generate(stage.operator, expr, len(names))
            place = listed.index(item)
            made = [SelectItem(None, (name,), column(width + i)) for i, name in enumerate(names)]
            listed[place : place + 1] = made
            return self._generated(stage, listed)
        return None

    def _translate(self, stage: SelectStage, listed: Iterable[SelectItem]) -> list[Expr]:
        """The items' expressions, each known by its name to those after it."""
        stage.aliases = {}
        found = []
        for item in listed:
            if item.expr is None:
                assert item.node is not None
                item.expr = stage.expr(item.node)
            found.append(item.expr)
            self._remember(stage, item, item.expr)
        return found

    def _remember(self, stage: SelectStage, item: SelectItem, expr: Expr) -> None:
        if item.name is None or item.node is None or isinstance(item.node, exp.Column):
            return
        name = item.name if self.front.case_sensitive else item.name.lower()
        known = stage.aliases.setdefault(name, [])
        if expr not in known:
            known.append(expr)

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
            raise KeptWhole("DISTINCT ON")
        keys = [] if distinct is not None else self._order_keys(stage, exprs, names, order)
        hidden = [key.value for key in keys if key.value not in exprs]
        listed = [*exprs, *hidden]
        operator: Operator = Project(stage.operator, tuple(listed))
        if distinct is not None:
            operator = Distinct(operator)
        if self.select.args.get("order") is not None and not order:
            self.front.note("ORDER BY without LIMIT is dropped: a table has no order")
        if distinct is not None:
            return limited(self.front, Relation(operator, names), self.select, order)
        moved = tuple(SortKey(column(listed.index(k.value)), k.descending, k.nulls_first) for k in keys)
        operator = _top(self.front, operator, moved, self.select)
        if hidden:
            operator = Project(operator, tuple(column(i) for i in range(len(exprs))))
        return Relation(operator, names)

    def _order_keys(
        self, stage: SelectStage, exprs: list[Expr], names: tuple[str | None, ...], order: list[exp.Expr]
    ) -> list[SortKey]:
        # Names in ORDER BY are first those of the select list.
        shown = stage.aliases
        stage.aliases = {}
        keys = []
        for one in order:
            assert isinstance(one, exp.Ordered)
            place = _position(self.front, one.this, names, stage.scope)
            if place is not None:
                stage.known[id(one.this)] = exprs[place]
            else:
                self._known_by_name(stage, one.this, exprs, names)
            keys.append(order_key(stage, one))
        stage.aliases = shown
        return keys

    def _known_by_name(
        self, stage: SelectStage, node: exp.Expr, exprs: list[Expr], names: tuple[str | None, ...]
    ) -> None:
        for one in node.find_all(exp.Column):
            place = _position(self.front, one, names, stage.scope)
            if place is not None:
                if one.find_ancestor(exp.AggFunc, exp.Window) is not None:
                    raise KeptWhole("an order by a function of a column of the select list")
                stage.known[id(one)] = exprs[place]


def limited(front: QueryContext, relation: Relation, node: exp.Expr, order: Sequence[exp.Expr]) -> Relation:
    """ORDER BY and LIMIT over a relation whose names are the only ones in reach."""
    named = tuple(NamedColumn(None, name, i) for i, name in enumerate(relation.names))
    stage = SelectStage(front, relation.operator, NameScope(named, front.case_sensitive))
    keys = []
    for one in order:
        assert isinstance(one, exp.Ordered)
        place = _position(front, one.this, relation.names, stage.scope)
        if place is not None:
            stage.known[id(one.this)] = column(place)
        keys.append(order_key(stage, one))
    operator = _top(front, relation.operator, tuple(keys), node)
    return Relation(operator, relation.names)


def _position(
    front: QueryContext, node: exp.Expr, names: Sequence[str | None], scope: NameScope
) -> int | None:
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
        place = int(node.name) - 1
        if not 0 <= place < len(names):
            raise front.refused(f"there is no column {node.name} in the select list", node)
        return place
    if isinstance(node, exp.Column) and len(node.parts) == 1:
        found = [i for i, name in enumerate(names) if scope.same(name, node.name)]
        if len(found) > 1:
            raise KeptWhole(f"an order by {node.name}, which names several columns")
        return found[0] if found else None
    return None


def _top(front: QueryContext, operator: Operator, order: tuple[SortKey, ...], node: exp.Expr) -> Operator:
    limit, offset = _number(node.args.get("limit")), _number(node.args.get("offset"))
    if limit is None and not offset:
        return operator
    if not order:
        front.note("LIMIT without ORDER BY: which rows are kept is decided by their hashes")
    return TopK(operator, order, limit, offset or 0)


def _number(node: exp.Expr | None) -> int | None:
    if node is None:
        return None
    value = node.args.get("expression")
    if isinstance(value, exp.Var) and value.name.upper() == "ALL":
        return None
    if isinstance(value, exp.Literal) and not value.is_string and value.name.isdigit():
        return int(value.name)
    raise KeptWhole("a LIMIT that is no number")
