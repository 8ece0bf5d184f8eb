"""Subqueries: EXISTS, IN and their negations become joins, scalar subqueries become columns.

The compiler rewrites a subquery only if the result is exactly the same. Otherwise it raises `NotDecomposed`,
and the query is recomputed. The rules:

- A subquery that does not read the outer query is compiled alone. EXISTS becomes a semi join without keys, IN
  becomes a semi join by equality, NOT IN a null-aware anti join, and a scalar subquery the operator `Scalar`.
- A correlated EXISTS or IN must be a simple select (no groups, no LIMIT, no windows). The conditions of its
  WHERE clause that read the outer query become keys (`inner = outer`, `inner <=> outer`) or the residual of
  the join.
- An EXISTS or IN inside another expression, as in `a > 0 OR EXISTS (…)`, becomes a column that is true in the
  rows of the semi join and false in those of the anti join. IN can also be NULL; the column is false then. So
  this is done only where a condition of WHERE consists of AND, OR and the IN.
- In NOT IN a pair of rows matches if the equality is true *or NULL*.
- A correlated scalar subquery must be one expression of aggregates without GROUP BY, correlated by equality
  only. It becomes an aggregate grouped by the inner keys, and a left join with that aggregate. For a row
  without a group, each aggregate must have the value that it has over no rows: 0 for counts, otherwise NULL.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from sqlglot import exp

from tidemill.views.aggregates.registry import Empty, aggregate
from tidemill.views.circuit.expr import Expr, call, column, text
from tidemill.views.circuit.operators import Join, JoinKey, JoinKind, Project, Scalar, UnionAll
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.conditions import Condition, join_keys
from tidemill.views.sql.group_by import GroupedStage, GroupKeys, aggregate_call, aggregates
from tidemill.views.sql.name_scope import Relation
from tidemill.views.sql.stage import SelectStage


@dataclass
class CorrelatedRows:
    """The rows of a correlated select after FROM and WHERE, and the conditions that read both queries.

    In `conditions` a negative position is a column of the outer query.
    """

    stage: SelectStage
    conditions: list[Condition]
    items: list[exp.Expr]


class SubqueryBuilder(Protocol):
    """Compiles queries: `tidemill.views.sql.queries.QueryBuilder`."""

    def uncorrelated(self, node: exp.Expr) -> Relation | None:
        """Compile a query alone; None if it reads the outer query."""

    def correlated_rows(self, node: exp.Expr, outer: SelectStage) -> CorrelatedRows:
        """Compile FROM and WHERE of a correlated select."""


@dataclass
class Subqueries:
    """Compiles the subqueries of one select."""

    builder: SubqueryBuilder

    def predicate(self, stage: SelectStage, node: exp.Expr) -> bool:
        """Turn a condition that is an EXISTS or an IN into a join; return False if it is neither."""
        negated = False
        while isinstance(node, exp.Not | exp.Paren):
            negated ^= isinstance(node, exp.Not)
            node = node.this
        if isinstance(node, exp.Exists) and isinstance(node.this, exp.Query):
            self._exists(stage, node.this, negated)
            return True
        if isinstance(node, exp.In) and node.args.get("query") is not None:
            query = node.args["query"]
            self._in(stage, node.this, query.this if isinstance(query, exp.Subquery) else query, negated)
            return True
        return False

    def column(self, stage: SelectStage, node: exp.Exists | exp.In) -> int:
        """Append the value of an EXISTS or IN to the stage's operator, and return the value's position."""
        if isinstance(node, exp.In) and not _is_branch(node):
            raise NotDecomposed("an IN with a subquery whose value can be NULL, in an unsupported place")
        outer = stage.operator
        self.predicate(stage, node)
        semi = stage.operator
        assert isinstance(semi, Join)
        columns = tuple(column(i) for i in range(outer.width))
        branches = ((semi, "true"), (replace(semi, join="anti"), "false"))
        stage.operator = UnionAll(tuple(Project(rows, (*columns, text(value))) for rows, value in branches))
        stage.replaced_nodes[id(node)] = column(outer.width)
        return outer.width

    def _exists(self, stage: SelectStage, query: exp.Expr, negated: bool) -> None:
        kind: JoinKind = "anti" if negated else "semi"
        alone = self.builder.uncorrelated(query)
        if alone is not None:
            stage.operator = Join(kind, stage.operator, alone.operator)
            return
        rows = self._simple_rows(query, stage)
        keys, residual = split_conditions(rows, stage.operator.width)
        stage.operator = Join(kind, stage.operator, rows.stage.operator, keys, residual)

    def _simple_rows(self, query: exp.Expr, stage: SelectStage) -> CorrelatedRows:
        if type(stage) is not SelectStage:
            raise NotDecomposed("a correlated subquery after GROUP BY")
        rows = self.builder.correlated_rows(query, stage)
        if any(True for item in rows.items for _ in aggregates(stage.context, item)):
            # An aggregate without groups always returns a row.
            raise NotDecomposed("EXISTS or IN over a correlated aggregate")
        return rows

    def _in(self, stage: SelectStage, value: exp.Expr, query: exp.Expr, negated: bool) -> None:
        while isinstance(value, exp.Paren):
            value = value.this
        nodes = value.expressions if isinstance(value, exp.Tuple) else [value]
        outer_values = [stage.expr(node) for node in nodes]
        alone = self.builder.uncorrelated(query)
        keys: tuple[JoinKey, ...] = ()
        residual: tuple[Expr, ...] = ()
        if alone is not None:
            inner = alone.operator
            inner_values = [column(i) for i in range(inner.width)]
        else:
            rows = self._simple_rows(query, stage)
            inner_values = [rows.stage.expr(item) for item in rows.items]
            inner = rows.stage.operator
            keys, residual = split_conditions(rows, stage.operator.width)
        if len(inner_values) != len(outer_values):
            raise NotDecomposed("IN with lists of different lengths")
        pairs = tuple(JoinKey(left, right) for left, right in zip(outer_values, inner_values, strict=True))
        if negated:
            stage.operator = Join("null-aware anti", stage.operator, inner, keys, residual, pairs)
        else:
            stage.operator = Join("semi", stage.operator, inner, (*pairs, *keys), residual)

    def scalar(self, stage: SelectStage, node: exp.Subquery) -> int:
        """Append the value of a scalar subquery to the stage's operator, and return the value's position."""
        alone = self.builder.uncorrelated(node)
        if alone is not None:
            if alone.operator.width != 1:
                raise NotDecomposed("a scalar subquery with several columns")
            stage.operator = Scalar(stage.operator, alone.operator)
        else:
            self._correlated(stage, node)
        position = stage.operator.width - 1
        stage.replaced_nodes[id(node)] = column(position)
        return position

    def _correlated(self, stage: SelectStage, node: exp.Subquery) -> None:
        if type(stage) is not SelectStage:
            raise NotDecomposed("a correlated subquery after GROUP BY")
        select = node.this
        rows = self.builder.correlated_rows(select, stage)
        if len(rows.items) != 1 or not any(True for _ in aggregates(stage.context, rows.items[0])):
            raise NotDecomposed("a correlated scalar subquery that is not an aggregate")
        width = stage.operator.width
        keys, residual = split_conditions(rows, width)
        if residual or not keys:
            raise NotDecomposed("a correlated aggregate whose condition is not an equality")
        calls = []
        for aggregate_node in aggregates(stage.context, rows.items[0]):
            inner_call = aggregate_call(rows.stage, aggregate_node)
            if inner_call not in calls:
                calls.append(inner_call)
        for inner_call in calls:
            declared = stage.context.functions.declared.get(inner_call.name)
            if aggregate(inner_call.name).empty is Empty.UNKNOWN or declared:
                raise NotDecomposed(
                    f"a correlated subquery with {inner_call.name}: its result for zero rows is unknown"
                )
        grouping = GroupKeys(rows.stage.expr)
        grouping.groups = list(dict.fromkeys(key.right for key in keys))
        groups = len(grouping.groups)
        grouped = GroupedStage(rows.stage, grouping, calls)
        value = grouped.expr(rows.items[0])
        if any(position < groups for position in value.columns):
            raise NotDecomposed("a correlated aggregate that also returns its key")
        on = tuple(JoinKey(key.left, column(grouping.groups.index(key.right)), key.null_safe) for key in keys)
        joined = Join("left", stage.operator, grouped.operator, on)

        def guarded(position: int) -> Expr:
            result = column(width + position)
            if aggregate(calls[position - groups].name).empty is Empty.ZERO:
                return call("coalesce", result, text("0L"))
            return result

        columns = tuple(column(i) for i in range(width))
        stage.operator = Project(joined, (*columns, value.with_columns(guarded)))


def _is_branch(node: exp.Expr) -> bool:
    """Return whether only AND and OR connect a node with a condition of WHERE, so NULL there means false."""
    above = node.parent
    while isinstance(above, exp.And | exp.Or | exp.Paren):
        above = above.parent
    return isinstance(above, exp.Where)


def split_conditions(rows: CorrelatedRows, width: int) -> tuple[tuple[JoinKey, ...], tuple[Expr, ...]]:
    """Split conditions on both queries into keys and residual; `width` is the width of the outer query."""
    keys, residual = join_keys(rows.conditions, lambda position: position < 0, rows.stage.context.functions)
    outer_keys = [replace(key, left=key.left.renumbered(lambda i: -i - 1)) for key in keys]
    return tuple(outer_keys), tuple(
        expr.renumbered(lambda i: -i - 1 if i < 0 else i + width) for expr in residual
    )
