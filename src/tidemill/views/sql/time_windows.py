"""Time windows: `window(ts, '10 minutes', '5 minutes')` in a select list, in GROUP BY or in an aggregate.

Spark returns a row for every window that contains the time of a row, and drops the row if its time is NULL.
So the call becomes an operator below the select (`Generate`), and all its occurrences in the select are one
column. Spark also lets the select name this column `window`. In WHERE and other clauses a time window stays
SQL text, and so does `window_time`.

`session_window(ts, '5 minutes')` is different: Spark merges the windows of neighbouring rows in a group. It
stays a key of its GROUP BY (`circuit.sessions`). If the gap has no fixed length, the other keys decide which
rows are grouped again, and without other keys the window stays text.
"""

from collections.abc import Iterator, Sequence

from sqlglot import exp

from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.functions import SESSION_WINDOW, TIME_WINDOW, TIME_WINDOWS
from tidemill.views.circuit.interpreter import common_tables
from tidemill.views.circuit.operators import Generate
from tidemill.views.circuit.render import Renderer
from tidemill.views.circuit.sessions import session_form
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.group_by import aggregates
from tidemill.views.sql.name_scope import NamedColumn, NameScope
from tidemill.views.sql.sql_text import called_function
from tidemill.views.sql.stage import SelectStage


def add_time_window(stage: SelectStage, nodes: Sequence[exp.Expr]) -> None:
    """Compute the time window of these expressions as a column of the stage."""
    calls = [call for node in nodes for call in _time_windows(stage.context, node)]
    if not calls:
        return
    if any(_has_star(stage.context, node) for node in nodes):
        raise NotDecomposed("a star as an argument of a function, in a select with a time window")
    exprs = dict.fromkeys(_translated(stage, call) for call in calls)
    if len(exprs) > 1:
        raise NotDecomposed("several time windows in one select")
    (expr,) = exprs
    _check_time(stage, calls[0])
    width = stage.operator.width
    stage.operator = Generate(stage.operator, expr, 1)
    for call in calls:
        stage.replaced_nodes[id(call)] = column(width)
    if not any(stage.scope.same_name(column.name, TIME_WINDOW) for column in stage.scope.columns):
        window = NamedColumn(None, TIME_WINDOW, width)
        stage.scope = NameScope((*stage.scope.columns, window), stage.scope.case_sensitive)


def add_session_window(stage: SelectStage, nodes: Sequence[exp.Expr], group: exp.Group) -> None:
    """Let these expressions use the session window that is a key of the select."""
    if not any(True for _ in _time_windows(stage.context, group, SESSION_WINDOW)):
        return
    special = any(group.args.get(name) for name in ("grouping_sets", "rollup", "cube", "all"))
    if special or group.find(exp.GroupingSets, exp.Rollup, exp.Cube):
        raise NotDecomposed(TIME_WINDOWS[SESSION_WINDOW])
    calls = [call for node in nodes for call in _time_windows(stage.context, node, SESSION_WINDOW)]
    keys = [key.this if isinstance(key, exp.Paren) else key for key in group.expressions]
    inside = [
        call
        for node in nodes
        for aggregate in aggregates(stage.context, node)
        for call in _time_windows(stage.context, aggregate, SESSION_WINDOW)
    ]
    if inside or sum(any(key is call for call in calls) for key in keys) != 1:
        raise NotDecomposed("a session window inside an aggregate or inside a key of GROUP BY")
    exprs = dict.fromkeys(_translated(stage, call) for call in calls)
    if len(exprs) > 1:
        raise NotDecomposed("several time windows in one select")
    (expr,) = exprs
    if len(keys) < 2 and session_form(stage.operator, expr) is None:
        raise NotDecomposed(TIME_WINDOWS[SESSION_WINDOW])
    stage.replaced_nodes.update((id(call), expr) for call in calls)


def _time_windows(context: QueryContext, node: exp.Expr, name: str = TIME_WINDOW) -> Iterator[exp.Expr]:
    """Yield the calls of a function in an expression, except those in subqueries."""
    if isinstance(node, exp.Query | exp.Subquery) or name in context.functions.declared:
        return
    if called_function(context.query, node) == name:
        yield node
        return
    for child in node.iter_expressions():
        yield from _time_windows(context, child, name)


def _has_star(context: QueryContext, node: exp.Expr) -> bool:
    return any(
        star.parent is not None and called_function(context.query, star.parent) not in {None, "count"}
        for star in node.find_all(exp.Star)
    )


def _translated(stage: SelectStage, call: exp.Expr) -> Expr:
    start, end = stage.context.query.span(call)
    return stage.translate(start, end, list(call.iter_expressions()))


def _check_time(stage: SelectStage, call: exp.Expr) -> None:
    """Refuse a window over a window: Spark needs its mark on the column, which kernels do not keep."""
    time = stage.expr(next(iter(call.iter_expressions())))
    names, tables = common_tables(stage.operator, Renderer())
    sql = f"WITH {', '.join(tables)} SELECT {time.sql()} FROM {names[stage.operator]}"  # noqa: S608
    columns = stage.context.columns_of(sql)
    if columns is not None and columns[0].type.startswith("struct"):
        raise NotDecomposed("a time window over another time window")
