"""GROUP BY: which keys there are, which grouping sets, which aggregates, and what may be said over them."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product

from sqlglot import exp

from tidemill.errors import QueryError
from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.operators import Aggregate, AggregateCall
from tidemill.views.sql.catalog import KeptWhole
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.sql_text import TextHole, called_function
from tidemill.views.sql.stage import SelectStage

WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
Set = list[int]


def bare_call(node: exp.Expr) -> exp.Expr:
    """The call itself, without FILTER, WITHIN GROUP and the treatment of NULLs around it."""
    while isinstance(node, WRAPPERS):
        node = node.this
    return node


def is_aggregate(front: QueryContext, node: exp.Expr) -> bool:
    """Whether the node is a call of an aggregate, with all that belongs to the call."""
    name = called_function(front.query, bare_call(node))
    return name is not None and front.functions.aggregate(name)


def aggregates(front: QueryContext, node: exp.Expr) -> Iterator[exp.Expr]:
    """The aggregates in an expression, but for those that are window functions, and those of subqueries."""
    if isinstance(node, exp.Query | exp.Subquery):
        return
    if isinstance(node, exp.Window):
        # `sum(sum(a)) OVER (…)`: the outer one is the window's, the inner one ours.
        ours = [child for child in node.iter_expressions() if child is not node.this]
        for part in [*bare_call(node.this).iter_expressions(), *ours]:
            yield from aggregates(front, part)
    elif is_aggregate(front, node):
        yield node
    else:
        for child in node.iter_expressions():
            yield from aggregates(front, child)


def aggregate_call(stage: SelectStage, node: exp.Expr) -> AggregateCall:
    """An aggregate over the rows of a stage."""
    query = stage.front.query
    inner = bare_call(node)
    name = called_function(query, inner) or ""
    arguments: list[exp.Expr] = []
    distinct = False
    plain = not isinstance(node, exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls)
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
    around = node
    while around is not inner:
        plain = plain and isinstance(around, exp.Filter)
        extra = [child for child in around.iter_expressions() if child is not around.this]
        parts += extra
        if isinstance(around, exp.Filter):
            condition = stage.expr(around.expression.this)
        around = around.this
    start, end = query.span(node)
    value = stage.cut(start, end, parts)
    said = []
    for argument in arguments:
        try:
            said.append(stage.expr(argument))
        except KeptWhole:  # something the parser put there itself, and nobody wrote
            plain = False
    return AggregateCall(value, name, tuple(said), distinct, condition, plain)


class GroupKeys:
    """The keys of a GROUP BY in the order of their first appearance, and its grouping sets."""

    def __init__(self, key: Callable[[exp.Expr], Expr]) -> None:
        self._key = key
        self.groups: list[Expr] = []
        self.sets: list[Set] | None = None
        self._grouped = False

    def add(self, group: exp.Group) -> None:
        """Read the clause."""
        listed = list(group.expressions)
        hive = [one for name in ("grouping_sets", "rollup", "cube") for one in group.args.get(name) or []]
        if not hive:
            self._cross([self._sets(one) for one in listed])
            return
        keys = [self._place(one) for one in listed]
        kind = hive[0]
        if len(hive) > 1:
            raise KeptWhole("several kinds of grouping at once")
        if isinstance(kind, exp.GroupingSets):
            self.sets = [made for one in kind.expressions for made in self._one(one)]
        elif kind.expressions:
            self._cross([*([[key]] for key in keys), self._sets(kind)])
        else:
            self.sets = (
                _prefixes([[k] for k in keys])
                if isinstance(kind, exp.Rollup)
                else _subsets([[k] for k in keys])
            )

    def _cross(self, elements: Sequence[list[Set] | None]) -> None:
        special = any(one is not None and len(one) != 1 for one in elements) or self._grouped
        if special:
            self.sets = [_merged(choice) for choice in product(*[one or [[]] for one in elements])]

    def _sets(self, node: exp.Expr) -> list[Set]:
        if isinstance(node, exp.GroupingSets):
            self._grouped = True
            return [made for one in node.expressions for made in self._one(one)]
        if isinstance(node, exp.Rollup | exp.Cube):
            self._grouped = True
            parts = [self._together(one) for one in node.expressions]
            return _prefixes(parts) if isinstance(node, exp.Rollup) else _subsets(parts)
        return [[self._place(node)]]

    def _one(self, node: exp.Expr) -> list[Set]:
        if isinstance(node, exp.GroupingSets | exp.Rollup | exp.Cube):
            return self._sets(node)
        return [self._together(node)]

    def _together(self, node: exp.Expr) -> Set:
        if isinstance(node, exp.Tuple):
            return [self._place(one) for one in node.expressions]
        return [self._place(node)]

    def _place(self, node: exp.Expr) -> int:
        expr = self._key(node.this if isinstance(node, exp.Paren) else node)
        if expr not in self.groups:
            self.groups.append(expr)
        return self.groups.index(expr)


def _merged(choice: Sequence[Set]) -> Set:
    return list(dict.fromkeys(place for one in choice for place in one))


def _prefixes(parts: list[Set]) -> list[Set]:
    return [_merged(parts[:length]) for length in range(len(parts), -1, -1)]


def _subsets(parts: list[Set]) -> list[Set]:
    sizes = range(len(parts), -1, -1)
    return [_merged(choice) for size in sizes for choice in combinations(parts, size)]


class GroupedStage(SelectStage):
    """The stage after GROUP BY: what may be said is said of keys, aggregates and grouping ids."""

    def __init__(self, rows: SelectStage, keys: GroupKeys, calls: list[AggregateCall]) -> None:
        sets = None if keys.sets is None else tuple(tuple(one) for one in keys.sets)
        operator = Aggregate(rows.operator, tuple(keys.groups), tuple(calls), sets)
        super().__init__(rows.front, operator, rows.scope, rows.outer)
        self.rows = rows
        self.groups = list(keys.groups)
        self.calls = {call.value: len(self.groups) + i for i, call in enumerate(calls)}
        self.grouping_id = operator.width - 1 if sets is not None else None
        self.subqueries = rows.subqueries

    def hole(self, node: exp.Expr) -> TextHole | None:
        if id(node) in self.known:
            return super().hole(node)
        if is_aggregate(self.front, node):
            return self._whole(node, column(self.calls[aggregate_call(self.rows, node).value]))
        if called_function(self.front.query, node) in {"grouping", "grouping_id"}:
            return self._whole(node, self._grouping(node))
        key = self._key(node)
        if key is None:
            return super().hole(node)
        expr = column(key)
        if isinstance(node, exp.Column):
            expr = self.renamed(node, expr, node.parts[-1].name, whole=True)
        start, end = self.front.query.span(node)
        return TextHole(start, end, expr, bare=expr.column is None)

    def _key(self, node: exp.Expr) -> int | None:
        if not self.groups or isinstance(node, exp.Identifier | exp.DataType | exp.Star | exp.Lambda):
            return None
        if node.find(exp.Query, exp.Window) is not None or any(True for _ in aggregates(self.front, node)):
            return None
        try:
            expr = self.rows.expr(node)
        except (KeptWhole, QueryError):
            return None
        return self.groups.index(expr) if expr in self.groups else None

    def _grouping(self, node: exp.Expr) -> Expr:
        if self.grouping_id is None:
            raise KeptWhole("a grouping id without grouping sets")
        arguments = [self.rows.expr(one) for one in node.iter_expressions()]
        if called_function(self.front.query, node) == "grouping_id":
            if arguments and arguments != self.groups:
                raise KeptWhole("a grouping id of some of the keys")
            return column(self.grouping_id)
        bit = len(self.groups) - 1 - self.groups.index(arguments[0])
        parts = ("CAST((shiftright(", self.grouping_id, f", {bit}) & 1) AS TINYINT)")
        return Expr(parts, frozenset({"cast", "shiftright"}))

    def name(self, node: exp.Column) -> TextHole:
        """A bare column is one of the select list, or not grouped."""
        identifiers = [part for part in node.parts if isinstance(part, exp.Identifier)]
        # A struct that is a key may have its field named behind it.
        for used in range(len(identifiers) - 1, 0, -1):
            found, taken = self.rows.scope.resolve([one.name for one in identifiers[:used]])
            if len(found) == 1 and taken == used and column(found[0].index) in self.groups:
                span = self.front.query.span
                place = self.groups.index(column(found[0].index))
                return TextHole(span(identifiers[0])[0], span(identifiers[used - 1])[1], column(place))
        alias = self.alias(identifiers[0].name)
        if alias is not None:
            start, end = self.front.query.span(identifiers[0])
            return TextHole(start, end, alias)
        hole = super().name(node)
        if any(place < 0 for place in hole.expr.columns):
            return hole
        said = f"{'.'.join(one.name for one in identifiers)} is neither grouped nor aggregated"
        hint = "add it to GROUP BY, or put it into an aggregate such as any_value()"
        raise self.front.refused(said, node, hint)
