"""ORDER BY, LIMIT and window functions.

Window functions with the same PARTITION BY and ORDER BY become one operator.
"""

from collections.abc import Iterator, Sequence

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tidemill.views.circuit.expr import Expr, column, merge_parts, text
from tidemill.views.circuit.expr import call as call_of
from tidemill.views.circuit.operators import Operator, SortKey, TopK, Window, WindowCall
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.group_by import bare_call
from tidemill.views.sql.name_scope import NamedColumn, NameScope, Relation
from tidemill.views.sql.sql_text import called_function, copy_text
from tidemill.views.sql.stage import SelectStage

FILTERED = frozenset({"count", "sum", "avg", "mean", "min", "max"})
"""Window functions that ignore NULLs, so a FILTER is a CASE in their argument."""


def window_functions(node: exp.Expr) -> Iterator[exp.Window]:
    """Yield the window functions in an expression, except those in subqueries."""
    if isinstance(node, exp.Query | exp.Subquery):
        return
    if isinstance(node, exp.Window):
        yield node
        return
    for child in node.iter_expressions():
        yield from window_functions(child)


def add_windows(stage: SelectStage, nodes: Sequence[exp.Expr], named_windows: Sequence[exp.Window]) -> None:
    """Compute every window function of these expressions as a column of the stage."""
    window_nodes = {id(window): window for node in nodes for window in window_functions(node)}
    specs: dict[tuple[tuple[Expr, ...], tuple[SortKey, ...]], list[tuple[exp.Window, WindowCall]]] = {}
    for window in window_nodes.values():
        spec = _spec(stage.context, window, named_windows)
        partition = tuple(stage.expr(node) for node in spec.args.get("partition_by") or [])
        order = tuple(order_key(stage, node) for node in _ordered(spec))
        call = _call(stage, window, _frame(stage.context, spec))
        specs.setdefault((partition, order), []).append((window, call))
    for (partition, order), calls in specs.items():
        distinct = list(dict.fromkeys(call for _, call in calls))
        width = stage.operator.width
        stage.operator = Window(stage.operator, partition, order, tuple(distinct))
        for window, call in calls:
            stage.replaced_nodes[id(window)] = column(width + distinct.index(call))


def order_key(stage: SelectStage, node: exp.Expr) -> SortKey:
    """Compile one key of an ORDER BY."""
    assert isinstance(node, exp.Ordered)
    last_words = [token.text.lower() for token in stage.context.query.tokens_of(node)[-2:]]
    descending = bool(node.args.get("desc"))
    nulls_first = (
        last_words[-1] == "first" if last_words[:1] == ["nulls"] and len(last_words) == 2 else not descending
    )
    return SortKey(stage.expr(node.this), descending, nulls_first)


def _spec(context: QueryContext, window: exp.Window, named_windows: Sequence[exp.Window]) -> exp.Window:
    alias = window.args.get("alias")
    if alias is None:
        return window
    if window.args.get("partition_by") or window.args.get("order") or window.args.get("spec"):
        raise NotDecomposed("a window that extends a named window")
    for definition in named_windows:
        if definition.this.name.lower() == alias.name.lower():
            return definition
    raise context.unknown("window", alias.name, [definition.this.name for definition in named_windows], alias)


def _ordered(spec: exp.Window) -> list[exp.Expr]:
    order = spec.args.get("order")
    return list(order.expressions) if order is not None else []


def _frame(context: QueryContext, spec: exp.Window) -> str:
    if spec.args.get("spec") is None:
        return ""
    tokens = context.query.tokens_of(spec)
    depth, frame_start = 0, None
    for token in tokens:
        depth += _depth(token)
        if depth == 1 and token.text.upper() in {"ROWS", "RANGE"}:
            frame_start = token
    if frame_start is None:
        raise NotDecomposed("an unsupported window frame")
    last = tokens[-2]  # the last token is the closing parenthesis of the window
    return copy_text(context.query, frame_start.start, last.end, []).sql()


def _depth(token: Token) -> int:
    return {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)


def _call(stage: SelectStage, window: exp.Window, frame: str) -> WindowCall:
    query = stage.context.query
    inner = bare_call(query, window.this)
    name = called_function(query, inner)
    if name is None:
        raise NotDecomposed("OVER after something that is not a function")
    tokens = query.tokens_of(window)
    depth, over = 0, None
    for index, token in enumerate(tokens):
        depth += _depth(token)
        if depth == 0 and token.text.upper() == "OVER":
            over = index
            break
    if not over:
        raise NotDecomposed("a window without OVER")
    parts = list(inner.iter_expressions())
    wrapper = window.this
    while wrapper is not inner:
        parts += [child for child in wrapper.iter_expressions() if child is not wrapper.this]
        wrapper = wrapper.this
    value = stage.translate(tokens[0].start, tokens[over - 1].end, parts)
    arguments = []
    for part in inner.iter_expressions():
        if isinstance(part, exp.Star | exp.Distinct | exp.Order):
            continue
        try:
            arguments.append(stage.expr(part))
        except NotDecomposed:  # a node that the parser added
            continue
    if isinstance(window.this, exp.Filter) and name in FILTERED and len(arguments) <= 1:
        condition, counted = stage.expr(window.this.expression.this), arguments[0] if arguments else text("1")
        parts_of_case = ("CASE WHEN ", *condition.parts, " THEN ", *counted.parts, " END")
        arguments = [Expr(merge_parts(parts_of_case), condition.calls | counted.calls)]
        value = call_of(name, *arguments)
    return WindowCall(value, name, tuple(arguments), frame)


# --- ORDER BY and LIMIT -------------------------------------------------------------------------------------


def limited(context: QueryContext, relation: Relation, node: exp.Expr, order: Sequence[exp.Expr]) -> Relation:
    """Apply ORDER BY and LIMIT to a relation. The keys can name only columns of the relation."""
    columns = tuple(NamedColumn(None, name, i) for i, name in enumerate(relation.names))
    stage = SelectStage(context, relation.operator, NameScope(columns, context.case_sensitive))
    keys = []
    for ordered in order:
        assert isinstance(ordered, exp.Ordered)
        position = listed_position(context, ordered.this, relation.names, stage.scope)
        if position is not None:
            stage.replaced_nodes[id(ordered.this)] = column(position)
        keys.append(order_key(stage, ordered))
    operator = top_rows(context, relation.operator, tuple(keys), node)
    return Relation(operator, relation.names)


def listed_position(
    context: QueryContext, node: exp.Expr, names: Sequence[str | None], scope: NameScope
) -> int | None:
    """Return the position of the select item that an ORDER BY key refers to; None if there is none."""
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
        position = int(node.name) - 1
        if not 0 <= position < len(names):
            raise context.refused(f"the select list has no column {node.name}", node)
        return position
    if isinstance(node, exp.Column) and len(node.parts) == 1:
        matches = [i for i, name in enumerate(names) if scope.same_name(name, node.name)]
        if len(matches) > 1:
            raise NotDecomposed(f"ORDER BY {node.name}, which is the name of several columns")
        return matches[0] if matches else None
    return None


def top_rows(
    context: QueryContext, operator: Operator, order: tuple[SortKey, ...], node: exp.Expr
) -> Operator:
    """Apply the LIMIT and OFFSET of a query."""
    limit, offset = _number(node.args.get("limit")), _number(node.args.get("offset"))
    if limit is None and not offset:
        return operator
    if not order:
        context.note("LIMIT without ORDER BY: the hashes of the rows decide which rows are kept")
    return TopK(operator, order, limit, offset or 0)


def _number(node: exp.Expr | None) -> int | None:
    if node is None:
        return None
    value = node.args.get("expression")
    if isinstance(value, exp.Var) and value.name.upper() == "ALL":
        return None
    if isinstance(value, exp.Literal) and not value.is_string and value.name.isdigit():
        return int(value.name)
    raise NotDecomposed("a LIMIT that is not a number")
