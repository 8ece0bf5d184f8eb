"""GROUP BY: its keys, grouping sets and aggregates, and the translation of expressions over groups."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product

from sqlglot import exp

from tidemill.errors import QueryError
from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.functions import SESSION_WINDOW
from tidemill.views.circuit.operators import Aggregate, AggregateCall
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.parser import ParsedQuery
from tidemill.views.sql.sql_text import TextReplacement, called_function
from tidemill.views.sql.stage import SelectStage

WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
GroupingSet = list[int]


def bare_call(query: ParsedQuery, node: exp.Expr) -> exp.Expr:
    """Return the call itself, without FILTER, WITHIN GROUP, IGNORE NULLS or RESPECT NULLS.

    The parser reads `first(x, true)` as IGNORE NULLS around a call that is not in the text.
    """
    while isinstance(node, WRAPPERS):
        name = called_function(query, node)
        if name is not None and name != called_function(query, node.this):
            break
        node = node.this
    return node


def is_aggregate(context: QueryContext, node: exp.Expr) -> bool:
    """Return whether the node is the call of an aggregate, including its FILTER and similar clauses."""
    name = called_function(context.query, bare_call(context.query, node))
    return name is not None and context.functions.is_aggregate(name)


def aggregates(context: QueryContext, node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the aggregates in an expression, except window functions and aggregates in subqueries."""
    if isinstance(node, exp.Query | exp.Subquery):
        return
    if isinstance(node, exp.Window):
        # `sum(sum(a)) OVER (…)`: the outer sum is a window function, the inner one an aggregate.
        window_parts = [child for child in node.iter_expressions() if child is not node.this]
        for part in [*bare_call(context.query, node.this).iter_expressions(), *window_parts]:
            yield from aggregates(context, part)
    elif is_aggregate(context, node):
        yield node
    else:
        for child in node.iter_expressions():
            yield from aggregates(context, child)


def aggregate_call(stage: SelectStage, node: exp.Expr) -> AggregateCall:
    """Translate an aggregate over the rows of a stage."""
    query = stage.context.query
    inner = bare_call(query, node)
    name = called_function(query, inner) or ""
    arguments: list[exp.Expr] = []
    distinct = False
    plain = not isinstance(inner, WRAPPERS) and not isinstance(
        node, exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls
    )
    for child in inner.iter_expressions():
        if isinstance(child, exp.Distinct):
            distinct = True
            arguments += child.expressions
        elif isinstance(child, exp.Order | exp.Ordered | exp.Limit | exp.IgnoreNulls | exp.RespectNulls):
            plain = False
        elif not isinstance(child, exp.Star):
            arguments.append(child)
    parts = list(inner.iter_expressions())
    condition = None
    wrapper = node
    while wrapper is not inner:
        plain = plain and isinstance(wrapper, exp.Filter)
        extra = [child for child in wrapper.iter_expressions() if child is not wrapper.this]
        parts += extra
        if isinstance(wrapper, exp.Filter):
            condition = stage.expr(wrapper.expression.this)
        wrapper = wrapper.this
    start, end = query.span(node)
    value = stage.translate(start, end, parts)
    exprs = []
    for argument in arguments:
        try:
            exprs.append(stage.expr(argument))
        except NotDecomposed:  # a node that the parser added
            plain = False
    return AggregateCall(value, name, tuple(exprs), distinct, condition, plain)


class GroupKeys:
    """The keys of a GROUP BY in the order of their first appearance, and its grouping sets."""

    def __init__(self, key: Callable[[exp.Expr], Expr]) -> None:
        self._key = key
        self.groups: list[Expr] = []
        self.sets: list[GroupingSet] | None = None
        self._grouped = False

    def add(self, group: exp.Group) -> None:
        """Read the keys and grouping sets of a GROUP BY clause."""
        listed = list(group.expressions)
        special = [
            node for name in ("grouping_sets", "rollup", "cube") for node in group.args.get(name) or []
        ]
        if not special:
            self._cross([self._sets(node) for node in listed])
            return
        keys = [self._position(node) for node in listed]
        kind = special[0]
        if len(special) > 1:
            raise NotDecomposed("more than one of GROUPING SETS, ROLLUP and CUBE")
        if isinstance(kind, exp.GroupingSets):
            self.sets = [positions for node in kind.expressions for positions in self._grouping_sets(node)]
        elif kind.expressions:
            self._cross([*([[key]] for key in keys), self._sets(kind)])
        else:
            self.sets = (
                _prefixes([[k] for k in keys])
                if isinstance(kind, exp.Rollup)
                else _subsets([[k] for k in keys])
            )

    def _cross(self, elements: Sequence[list[GroupingSet] | None]) -> None:
        has_sets = any(sets is not None and len(sets) != 1 for sets in elements) or self._grouped
        if has_sets:
            self.sets = [_union(choice) for choice in product(*[sets or [[]] for sets in elements])]

    def _sets(self, node: exp.Expr) -> list[GroupingSet]:
        if isinstance(node, exp.GroupingSets):
            self._grouped = True
            return [positions for child in node.expressions for positions in self._grouping_sets(child)]
        if isinstance(node, exp.Rollup | exp.Cube):
            self._grouped = True
            parts = [self._grouping_set(child) for child in node.expressions]
            return _prefixes(parts) if isinstance(node, exp.Rollup) else _subsets(parts)
        return [[self._position(node)]]

    def _grouping_sets(self, node: exp.Expr) -> list[GroupingSet]:
        if isinstance(node, exp.GroupingSets | exp.Rollup | exp.Cube):
            return self._sets(node)
        return [self._grouping_set(node)]

    def _grouping_set(self, node: exp.Expr) -> GroupingSet:
        if isinstance(node, exp.Tuple):
            return [self._position(child) for child in node.expressions]
        return [self._position(node)]

    def _position(self, node: exp.Expr) -> int:
        expr = self._key(node.this if isinstance(node, exp.Paren) else node)
        if expr not in self.groups:
            self.groups.append(expr)
        return self.groups.index(expr)


def _union(choice: Sequence[GroupingSet]) -> GroupingSet:
    return list(dict.fromkeys(position for positions in choice for position in positions))


def _prefixes(parts: list[GroupingSet]) -> list[GroupingSet]:
    return [_union(parts[:length]) for length in range(len(parts), -1, -1)]


def _subsets(parts: list[GroupingSet]) -> list[GroupingSet]:
    sizes = range(len(parts), -1, -1)
    return [_union(choice) for size in sizes for choice in combinations(parts, size)]


class GroupedStage(SelectStage):
    """The stage after GROUP BY. Expressions can use keys, aggregates and grouping ids only."""

    def __init__(self, rows: SelectStage, keys: GroupKeys, calls: list[AggregateCall]) -> None:
        sets = None if keys.sets is None else tuple(tuple(positions) for positions in keys.sets)
        operator = Aggregate(rows.operator, tuple(keys.groups), tuple(calls), sets)
        super().__init__(rows.context, operator, rows.scope, rows.outer)
        self.rows = rows
        self.groups = list(keys.groups)
        self.calls = {call.value: len(self.groups) + i for i, call in enumerate(calls)}
        self.grouping_id = operator.width - 1 if sets is not None else None
        self.subqueries = rows.subqueries

    def replacement(self, node: exp.Expr) -> TextReplacement | None:
        if id(node) in self.replaced_nodes:
            return super().replacement(node)
        if is_aggregate(self.context, node):
            return self._replace(node, column(self.calls[aggregate_call(self.rows, node).value]))
        if called_function(self.context.query, node) in {"grouping", "grouping_id"}:
            return self._replace(node, self._grouping(node))
        key = self._key(node)
        if key is None:
            return super().replacement(node)
        expr = column(key)
        if isinstance(node, exp.Column):
            expr = self.renamed(node, expr, node.parts[-1].name, complete=True)
        start, end = self.context.query.span(node)
        return TextReplacement(start, end, expr, bare=expr.column is None)

    def _key(self, node: exp.Expr) -> int | None:
        if not self.groups or isinstance(node, exp.Identifier | exp.DataType | exp.Star | exp.Lambda):
            return None
        if node.find(exp.Query, exp.Window) is not None or any(True for _ in aggregates(self.context, node)):
            return None
        try:
            expr = self.rows.expr(node)
        except (NotDecomposed, QueryError):
            return None
        return self.groups.index(expr) if expr in self.groups else None

    def _grouping(self, node: exp.Expr) -> Expr:
        if self.grouping_id is None:
            raise NotDecomposed("grouping() or grouping_id() without grouping sets")
        arguments = [self.rows.expr(argument) for argument in node.iter_expressions()]
        if called_function(self.context.query, node) == "grouping_id":
            if arguments and arguments != self.groups:
                raise NotDecomposed("grouping_id() with only some of the grouping keys")
            return column(self.grouping_id)
        bit = len(self.groups) - 1 - self.groups.index(arguments[0])
        parts = ("CAST((shiftright(", self.grouping_id, f", {bit}) & 1) AS TINYINT)")
        return Expr(parts, frozenset({"cast", "shiftright"}))

    def name(self, node: exp.Column) -> TextReplacement:
        """Translate a name that is not itself a key, but a field of a key or an alias.

        Any other column is neither grouped nor aggregated, which is an error.
        """
        identifiers = [part for part in node.parts if isinstance(part, exp.Identifier)]
        # A field of a struct that is a key.
        for used in range(len(identifiers) - 1, 0, -1):
            matches, matched = self.rows.scope.resolve([identifier.name for identifier in identifiers[:used]])
            if len(matches) == 1 and matched == used and column(matches[0].index) in self.groups:
                span = self.context.query.span
                position = self.groups.index(column(matches[0].index))
                return TextReplacement(
                    span(identifiers[0])[0], span(identifiers[used - 1])[1], column(position)
                )
        session = [place for place, expr in enumerate(self.groups) if expr.is_session_window]
        if session and self.scope.same_name(SESSION_WINDOW, identifiers[0].name):
            start, end = self.context.query.span(identifiers[0])
            return TextReplacement(start, end, column(session[0]))
        alias = self.alias(identifiers[0].name)
        if alias is not None:
            start, end = self.context.query.span(identifiers[0])
            return TextReplacement(start, end, alias)
        replacement = super().name(node)
        if any(position < 0 for position in replacement.expr.columns):
            return replacement
        message = (
            f"{'.'.join(identifier.name for identifier in identifiers)} is neither grouped nor aggregated"
        )
        hint = "add it to GROUP BY, or put it into an aggregate such as any_value()"
        raise self.context.refused(message, node, hint)
