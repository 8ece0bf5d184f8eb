"""A stage: an operator under construction, and how expressions are said over its columns.

A select block goes through stages: the rows of its FROM clause, then its groups. Each stage has an operator
that grows on the right (a subquery's value, a window function: one more column, so that earlier positions
stay true) and translates expressions by cutting them out of the query with a hole for every column.

A column of the query around this one (correlation) is written as a negative position, -1 for its column 0;
who translates says whether that is allowed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from tidemill.errors import NameUnknown
from tidemill.views.circuit.expr import ClockValue, Expr, column, joined
from tidemill.views.circuit.functions import CLOCK, GENERATORS, GROUPING, NAME_SENSITIVE, WINDOW_ONLY
from tidemill.views.circuit.operators import Operator
from tidemill.views.sql.catalog import KeptWhole
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.name_scope import NamedColumn, NameScope
from tidemill.views.sql.sql_text import TextHole, called_function, cut_text

TIMES = {
    "now": ClockValue.TIMESTAMP,
    "current_timestamp": ClockValue.TIMESTAMP,
    "current_date": ClockValue.DATE,
    "curdate": ClockValue.DATE,
    "localtimestamp": ClockValue.LOCAL,
}
SPECIAL_TIMES = frozenset({"now", "today", "tomorrow", "yesterday", "epoch"})
# What the renderer calls columns and relations; a lambda's variable of that name would catch them.
TAKEN = frozenset("clrgo")


class SelectStage:
    """Rows and the names in reach. `outer` is the stage of the query around this one."""

    def __init__(
        self, front: QueryContext, operator: Operator, scope: NameScope, outer: "SelectStage | None" = None
    ) -> None:
        self.front = front
        self.operator = operator
        self.scope = scope
        self.outer = outer
        self.aliases: dict[str, list[Expr]] = {}
        self.known: dict[int, Expr] = {}
        self.subqueries: SubqueryRule | None = None
        self.root: exp.Expr | None = None

    # --- translation --------------------------------------------------------------------------------------

    def expr(self, node: exp.Expr, correlated: bool = False) -> Expr:
        """The expression over this stage's columns."""
        start, end = self.front.query.span(node)
        around, self.root = self.root, node
        try:
            return self.cut(start, end, [node], correlated)
        finally:
            self.root = around

    def cut(self, start: int, end: int, nodes: list[exp.Expr], correlated: bool = False) -> Expr:
        """A piece of text that is made of these nodes and words between them."""
        holes: list[TextHole] = []
        for node in nodes:
            self._find(node, holes)
        made = cut_text(self.front.query, start, end, holes)
        for name in sorted(made.calls):
            if not self.front.functions.known(name):
                raise KeptWhole(f"nothing is known of the function {name}; declare it with the view")
        if not correlated and any(place < 0 for place in made.columns):
            raise KeptWhole("a column of the query around a subquery stands where it cannot be taken apart")
        return self._occurrence(made, start)

    def _occurrence(self, made: Expr, start: int) -> Expr:
        """Two calls of rand() are two values, though they look alike: each but the first is given a number.

        Otherwise the subtrees around them would be taken for one, and shared.
        """
        random = self.front.functions.random
        if not any(random(name) for name in made.calls):
            return made
        before = sum(1 for one in self.front.query.tokens if one.start < start and random(one.text.lower()))
        return Expr(joined((*made.parts, f" /* {before + 1} */")), made.calls) if before else made

    def _find(self, node: exp.Expr, holes: list[TextHole]) -> None:
        hole = self.hole(node)
        if hole is not None:
            holes.append(hole)
            return
        for child in node.iter_expressions():
            self._find(child, holes)

    def hole(self, node: exp.Expr) -> TextHole | None:
        """What stands in the place of a node; None if its text stays and its parts are looked at."""
        if id(node) in self.known:
            return self._whole(node, self.known[id(node)])
        if isinstance(node, exp.Subquery | exp.Exists | exp.In | exp.Select | exp.SetOperation | exp.All):
            return self._subquery(node)
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            return self._star(node)
        if isinstance(node, exp.Column):
            return self.name(node)
        if isinstance(node, exp.Window):
            raise KeptWhole("a window function where none can stand")
        if isinstance(node, exp.Lambda):
            self._lambda(node)
        if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
            raise KeptWhole("parameters and paths into variants are not taken apart")
        if isinstance(node, exp.Literal) and node.is_string and node.name.lower() in SPECIAL_TIMES:
            self._special_time(node)
        return self._function(node)

    def _whole(self, node: exp.Expr, expr: Expr) -> TextHole:
        start, end = self.front.query.span(node)
        return TextHole(start, end, expr)

    def _function(self, node: exp.Expr) -> TextHole | None:
        if isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
            self._function(node.this)
        name = called_function(self.front.query, node)
        if name is None or name in self.front.functions.declared:
            if name and self.front.functions.aggregate(name):
                raise KeptWhole(f"the aggregate {name} where none can stand")
            return None
        if name in TIMES:
            return self._whole(node, Expr((TIMES[name],), frozenset({name})))
        if name == "unix_timestamp" and len(self.front.query.tokens_of(node)) == 3:  # without an argument
            parts = joined(("unix_timestamp(", ClockValue.TIMESTAMP, ")"))
            return self._whole(node, Expr(parts, frozenset({name, "now"})))
        if name in CLOCK or name in NAME_SENSITIVE:
            raise KeptWhole(f"{name} is not taken apart")
        if (
            name in GENERATORS
            or name in WINDOW_ONLY
            or name in GROUPING
            or self.front.functions.aggregate(name)
        ):
            raise KeptWhole(f"{name} where none can stand")
        return None

    def _special_time(self, node: exp.Literal) -> None:
        before = self.front.query.token_before(self.front.query.span(node)[0])
        if before is not None and before.text.lower() in {
            "date",
            "timestamp",
            "timestamp_ntz",
            "timestamp_ltz",
        }:
            raise KeptWhole(f"the moment {before.text} '{node.name}' is not taken apart")

    def _lambda(self, node: exp.Lambda) -> None:
        for variable in node.expressions:
            name = variable.name.lower()
            if name[:1] in TAKEN and (name[1:].isdigit() or not name[1:]):
                raise KeptWhole(f"the lambda variable {variable.name} has a name that columns have here")

    def _subquery(self, node: exp.Expr) -> TextHole | None:
        if isinstance(node, exp.In) and node.args.get("query") is None:
            return None
        if isinstance(node, exp.Exists) and not isinstance(node.this, exp.Query):
            return None  # the function over arrays
        if isinstance(node, exp.Subquery) and self.subqueries is not None:
            return self._whole(node, column(self.subqueries.scalar(self, node)))
        raise KeptWhole("a subquery where it cannot be taken apart")

    # --- names --------------------------------------------------------------------------------------------

    def name(self, node: exp.Column) -> TextHole:
        """A column, perhaps with fields behind it, whose text stays."""
        identifiers = [part for part in node.parts if isinstance(part, exp.Identifier)]
        parts = [part.name for part in identifiers]
        found, used = self.scope.resolve(parts)
        span = self.front.query.span
        start = span(identifiers[0])[0]
        if len(found) > 1:
            raise self.front.ambiguous(".".join(parts[:used]), self._spelled(found), node)
        if found:
            expr = self.renamed(node, column(found[0].index), parts[used - 1], used == len(parts))
            return TextHole(start, span(identifiers[used - 1])[1], expr, bare=expr.column is None)
        if len(parts) >= 1 and (alias := self.alias(parts[0])) is not None:
            named = self.renamed(node, alias, parts[0], len(parts) == 1)
            return TextHole(start, span(identifiers[0])[1], named, bare=named is not alias)
        if self.outer is not None:
            try:
                hole = self.outer.name(node)
            except NameUnknown:
                raise self.missing(node, parts) from None
            if any(place < 0 for place in hole.expr.columns) or hole.expr.column is None:
                raise KeptWhole("a subquery reads a query two levels around it, or what that query computes")
            return replace(hole, expr=hole.expr.renumbered(lambda i: -i - 1))
        raise self.missing(node, parts)

    def alias(self, name: str) -> Expr | None:
        """What an earlier item of the select list is called: a lateral column alias."""
        found = self.aliases.get(name if self.front.case_sensitive else name.lower(), [])
        if len(found) > 1:
            raise KeptWhole(f"{name} names several columns of the select list")
        if not found:
            return None
        if any(self.front.functions.random(one) for one in found[0].calls):
            raise KeptWhole(f"{name} names a value that is not the same twice")
        return found[0]

    def missing(self, node: exp.Column, parts: list[str]) -> Exception:
        qualifiers = self.scope.qualifiers()
        if len(parts) > 1 and not any(self.scope.same(one, parts[0]) for one in qualifiers):
            known = [*qualifiers, *self.scope.names()]
            return self.front.unknown("table or column", parts[0], known, node.parts[0])
        if len(parts) > 1:
            mine = [c.name for c in self.scope.star(parts[0]) if c.name is not None]
            return self.front.unknown(f"column in {parts[0]} called", parts[1], mine, node.parts[1])
        return self.front.unknown("column", parts[0], self.scope.names(), node)

    def _spelled(self, found: list[NamedColumn]) -> list[str]:
        return [f"{one.qualifier}.{one.name}" if one.qualifier else str(one.name) for one in found]

    def renamed(self, node: exp.Column, expr: Expr, name: str, whole: bool) -> Expr:
        """With the column's own name behind it where the name becomes part of the value: in struct(…)."""
        parent = node.parent
        while isinstance(parent, exp.PropertyEQ):
            parent = parent.parent
        after = self.front.query.token_after(self.front.query.span(node)[1])
        argument = after is not None and after.token_type in {TokenType.COMMA, TokenType.R_PAREN}
        if node is self.root or not whole or not argument or parent is None:
            return expr
        if called_function(self.front.query, parent) == "struct":
            return Expr(joined((*expr.enclosed().parts, f" AS {_quoted(name)}")), expr.calls)
        return expr

    def _star(self, node: exp.Expr) -> TextHole | None:
        parent = node.parent
        name = called_function(self.front.query, parent) if parent is not None else None
        if name is None:
            raise KeptWhole("a star where none can stand")
        if name == "count" and isinstance(node, exp.Star):
            return None
        qualifier = node.args["table"].name if isinstance(node, exp.Column) else None
        if node.find(exp.Star).args.get("except_"):  # type: ignore[union-attr]
            raise KeptWhole("a star with EXCEPT among the arguments of a function")
        parts: list[str | int | ClockValue] = []
        for place, one in enumerate(self.scope.star(qualifier)):
            parts += [", "] if place else []
            parts.append(one.index)
            if name == "struct":
                parts.append(f" AS {_quoted(one.name or f'col{place + 1}')}")
        start, end = self.front.query.span(node)
        return TextHole(start, end, Expr(joined(parts)), bare=True)

    def conjuncts(self, node: exp.Expr) -> Iterator[exp.Expr]:
        """The conditions that must all hold."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.And):
            yield from self.conjuncts(node.this)
            yield from self.conjuncts(node.expression)
        else:
            yield node


class SubqueryRule(Protocol):
    """How a scalar subquery becomes a column of a stage; see `tidemill.views.sql.subqueries`."""

    def scalar(self, stage: SelectStage, node: exp.Subquery) -> int:
        """The position of its value, once the stage's operator has it."""


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
