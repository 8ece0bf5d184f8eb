"""Window functions: one operator for all that share a partitioning and an order."""

from collections.abc import Iterator, Sequence

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.operators import SortKey, Window, WindowCall
from tidemill.views.sql.catalog import KeptWhole
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.group_by import bare_call
from tidemill.views.sql.sql_text import called_function, cut_text
from tidemill.views.sql.stage import SelectStage


def windows(node: exp.Expr) -> Iterator[exp.Window]:
    """The window functions in an expression, but for those of subqueries."""
    if isinstance(node, exp.Query | exp.Subquery):
        return
    if isinstance(node, exp.Window):
        yield node
        return
    for child in node.iter_expressions():
        yield from windows(child)


def add_windows(stage: SelectStage, nodes: Sequence[exp.Expr], named: Sequence[exp.Window]) -> None:
    """Compute every window function of these expressions as a column of the stage."""
    found = {id(window): window for node in nodes for window in windows(node)}
    specs: dict[tuple[tuple[Expr, ...], tuple[SortKey, ...]], list[tuple[exp.Window, WindowCall]]] = {}
    for window in found.values():
        spec = _spec(stage.front, window, named)
        partition = tuple(stage.expr(one) for one in spec.args.get("partition_by") or [])
        order = tuple(order_key(stage, one) for one in _ordered(spec))
        call = _call(stage, window, _frame(stage.front, spec))
        specs.setdefault((partition, order), []).append((window, call))
    for (partition, order), calls in specs.items():
        distinct = list(dict.fromkeys(call for _, call in calls))
        width = stage.operator.width
        stage.operator = Window(stage.operator, partition, order, tuple(distinct))
        for window, call in calls:
            stage.known[id(window)] = column(width + distinct.index(call))


def order_key(stage: SelectStage, node: exp.Expr) -> SortKey:
    """One key of an ORDER BY."""
    assert isinstance(node, exp.Ordered)
    words = [token.text.lower() for token in stage.front.query.tokens_of(node)[-2:]]
    descending = bool(node.args.get("desc"))
    nulls_first = words[-1] == "first" if words[:1] == ["nulls"] and len(words) == 2 else not descending
    return SortKey(stage.expr(node.this), descending, nulls_first)


def _spec(front: QueryContext, window: exp.Window, named: Sequence[exp.Window]) -> exp.Window:
    alias = window.args.get("alias")
    if alias is None:
        return window
    if window.args.get("partition_by") or window.args.get("order") or window.args.get("spec"):
        raise KeptWhole("a window that extends another one")
    for one in named:
        if one.this.name.lower() == alias.name.lower():
            return one
    raise front.unknown("window", alias.name, [one.this.name for one in named], alias)


def _ordered(spec: exp.Window) -> list[exp.Expr]:
    order = spec.args.get("order")
    return list(order.expressions) if order is not None else []


def _frame(front: QueryContext, spec: exp.Window) -> str:
    if spec.args.get("spec") is None:
        return ""
    tokens = front.query.tokens_of(spec)
    depth, begins = 0, None
    for token in tokens:
        depth += _depth(token)
        if depth == 1 and token.text.upper() in {"ROWS", "RANGE"}:
            begins = token
    if begins is None:
        raise KeptWhole("a window frame that is not read")
    last = tokens[-2]  # before the parenthesis that ends the window
    return cut_text(front.query, begins.start, last.end, []).sql()


def _depth(token: Token) -> int:
    return {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)


def _call(stage: SelectStage, window: exp.Window, frame: str) -> WindowCall:
    query = stage.front.query
    inner = bare_call(window.this)
    name = called_function(query, inner)
    if name is None:
        raise KeptWhole("a window over something that is no function")
    tokens = query.tokens_of(window)
    depth, over = 0, None
    for place, token in enumerate(tokens):
        depth += _depth(token)
        if depth == 0 and token.text.upper() == "OVER":
            over = place
            break
    if not over:
        raise KeptWhole("a window without OVER")
    parts = list(inner.iter_expressions())
    around = window.this
    while around is not inner:
        parts += [child for child in around.iter_expressions() if child is not around.this]
        around = around.this
    value = stage.cut(tokens[0].start, tokens[over - 1].end, parts)
    arguments = []
    for part in inner.iter_expressions():
        if isinstance(part, exp.Star | exp.Distinct | exp.Order):
            continue
        try:
            arguments.append(stage.expr(part))
        except KeptWhole:  # something the parser put there itself
            continue
    return WindowCall(value, name, tuple(arguments), frame)
