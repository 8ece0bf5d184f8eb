"""A stage of a select: an operator under construction, and the translation of expressions over its columns.

A select has up to two stages: the rows of its FROM clause, then its groups. Values of subqueries and window
functions are appended to the operator of a stage as further columns, so earlier positions stay valid. A stage
translates an expression by copying its text, with every column replaced by its position.

A column of the outer query (correlation) gets a negative position, -1 for column 0. The caller decides
whether that is allowed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from tidemill.errors import NameUnknown
from tidemill.views.circuit.expr import ClockValue, Expr, column, merge_parts
from tidemill.views.circuit.functions import (
    CLOCK,
    GENERATORS,
    GROUPING,
    NAME_SENSITIVE,
    TIME_WINDOWS,
    WINDOW_ONLY,
)
from tidemill.views.circuit.operators import Operator
from tidemill.views.circuit.render import quoted
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.name_scope import NamedColumn, NameScope
from tidemill.views.sql.sql_text import TextReplacement, called_function, copy_text

TIMES = {
    "now": ClockValue.TIMESTAMP,
    "current_timestamp": ClockValue.TIMESTAMP,
    "current_date": ClockValue.DATE,
    "curdate": ClockValue.DATE,
    "localtimestamp": ClockValue.LOCAL,
}
SPECIAL_TIMES = frozenset({"now", "today", "tomorrow", "yesterday", "epoch"})
# First letters of the names that the renderer gives to columns and relations. A lambda variable with such a
# name would hide them.
RESERVED_LETTERS = frozenset("clrgo")


class SelectStage:
    """An operator and the scope of its names. `outer` is the stage of the outer query."""

    def __init__(
        self, context: QueryContext, operator: Operator, scope: NameScope, outer: "SelectStage | None" = None
    ) -> None:
        self.context = context
        self.operator = operator
        self.scope = scope
        self.outer = outer
        self.aliases: dict[str, list[Expr]] = {}
        self.replaced_nodes: dict[int, Expr] = {}
        self.subqueries: SubqueryRule | None = None
        self.root: exp.Expr | None = None

    # --- translation --------------------------------------------------------------------------------------

    def expr(self, node: exp.Expr, correlated: bool = False) -> Expr:
        """Translate an expression over the columns of this stage."""
        start, end = self.context.query.span(node)
        outer_root, self.root = self.root, node
        try:
            return self.translate(start, end, [node], correlated)
        finally:
            self.root = outer_root

    def translate(self, start: int, end: int, nodes: list[exp.Expr], correlated: bool = False) -> Expr:
        """Translate a piece of text that consists of these nodes and the words between them."""
        replacements: list[TextReplacement] = []
        for node in nodes:
            self._collect(node, replacements)
        expr = copy_text(self.context.query, start, end, replacements)
        for name in sorted(expr.calls):
            if not self.context.functions.is_known(name):
                raise NotDecomposed(
                    f"the function {name}, which is neither built in nor declared with the view"
                )
        if not correlated and any(position < 0 for position in expr.columns):
            raise NotDecomposed("a subquery that uses a column of the outer query in an unsupported place")
        return self._occurrence(expr, start)

    def _occurrence(self, expr: Expr, start: int) -> Expr:
        """Number the calls of nondeterministic functions: two calls of rand() are two different values.

        Without the number their operators would be equal and therefore shared. The first call gets no number.
        """
        random = self.context.functions.is_random
        if not any(random(name) for name in expr.calls):
            return expr
        before = sum(
            1 for token in self.context.query.tokens if token.start < start and random(token.text.lower())
        )
        return Expr(merge_parts((*expr.parts, f" /* {before + 1} */")), expr.calls) if before else expr

    def _collect(self, node: exp.Expr, replacements: list[TextReplacement]) -> None:
        replacement = self.replacement(node)
        if replacement is not None:
            replacements.append(replacement)
            return
        for child in node.iter_expressions():
            self._collect(child, replacements)

    def replacement(self, node: exp.Expr) -> TextReplacement | None:
        """Return the replacement of a node; None if its text stays and its children are visited."""
        if id(node) in self.replaced_nodes:
            return self._replace(node, self.replaced_nodes[id(node)])
        if isinstance(node, exp.Subquery | exp.Exists | exp.In | exp.Select | exp.SetOperation | exp.All):
            return self._subquery(node)
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            return self._star(node)
        if isinstance(node, exp.Column):
            return self.name(node)
        if isinstance(node, exp.Window):
            raise NotDecomposed("a window function in an unsupported place")
        if isinstance(node, exp.Lambda):
            self._lambda(node)
        if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
            raise NotDecomposed("a parameter or a path into a variant")
        if isinstance(node, exp.Literal) and node.is_string and node.name.lower() in SPECIAL_TIMES:
            self._special_time(node)
        return self._function(node)

    def _replace(self, node: exp.Expr, expr: Expr) -> TextReplacement:
        start, end = self.context.query.span(node)
        return TextReplacement(start, end, expr)

    def _function(self, node: exp.Expr) -> TextReplacement | None:
        if isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
            self._function(node.this)
        name = called_function(self.context.query, node)
        if name is None or name in self.context.functions.declared:
            if name and self.context.functions.is_aggregate(name):
                raise NotDecomposed(f"the aggregate {name} in an unsupported place")
            return None
        if name in TIMES:
            return self._replace(node, Expr((TIMES[name],), frozenset({name})))
        if name == "unix_timestamp" and len(self.context.query.tokens_of(node)) == 3:  # without an argument
            parts = merge_parts(("unix_timestamp(", ClockValue.TIMESTAMP, ")"))
            return self._replace(node, Expr(parts, frozenset({name, "now"})))
        if name in CLOCK or name in NAME_SENSITIVE or name in TIME_WINDOWS:
            raise NotDecomposed(TIME_WINDOWS.get(name, f"the function {name}"))
        if (
            name in GENERATORS
            or name in WINDOW_ONLY
            or name in GROUPING
            or self.context.functions.is_aggregate(name)
        ):
            raise NotDecomposed(f"{name} in an unsupported place")
        return None

    def _special_time(self, node: exp.Literal) -> None:
        before = self.context.query.token_before(self.context.query.span(node)[0])
        if before is not None and before.text.lower() in {
            "date",
            "timestamp",
            "timestamp_ntz",
            "timestamp_ltz",
        }:
            raise NotDecomposed(f"the special value {before.text} '{node.name}'")

    def _lambda(self, node: exp.Lambda) -> None:
        for variable in node.expressions:
            name = variable.name.lower()
            if name[:1] in RESERVED_LETTERS and (name[1:].isdigit() or not name[1:]):
                raise NotDecomposed(f"the name {variable.name} of a lambda variable is reserved")

    def _subquery(self, node: exp.Expr) -> TextReplacement | None:
        if isinstance(node, exp.In) and node.args.get("query") is None:
            return None
        if isinstance(node, exp.Exists) and not isinstance(node.this, exp.Query):
            return None  # the function over arrays
        if isinstance(node, exp.Subquery) and self.subqueries is not None:
            return self._replace(node, column(self.subqueries.scalar(self, node)))
        if isinstance(node, exp.Exists | exp.In) and self.subqueries is not None:
            return self._replace(node, column(self.subqueries.column(self, node)))
        raise NotDecomposed("a subquery in an unsupported place")

    # --- names --------------------------------------------------------------------------------------------

    def name(self, node: exp.Column) -> TextReplacement:
        """Return the replacement of a column. Names of fields after the column stay in the text."""
        identifiers = [part for part in node.parts if isinstance(part, exp.Identifier)]
        parts = [part.name for part in identifiers]
        matches, used = self.scope.resolve(parts)
        span = self.context.query.span
        start = span(identifiers[0])[0]
        if len(matches) > 1:
            raise self.context.ambiguous(".".join(parts[:used]), self._qualified(matches), node)
        if matches:
            expr = self.renamed(node, column(matches[0].index), parts[used - 1], used == len(parts))
            return TextReplacement(start, span(identifiers[used - 1])[1], expr, bare=expr.column is None)
        if len(parts) >= 1 and (alias := self.alias(parts[0])) is not None:
            renamed_alias = self.renamed(node, alias, parts[0], len(parts) == 1)
            return TextReplacement(
                start, span(identifiers[0])[1], renamed_alias, bare=renamed_alias is not alias
            )
        if self.outer is not None:
            try:
                replacement = self.outer.name(node)
            except NameUnknown:
                raise self.unknown_column(node, parts) from None
            if any(position < 0 for position in replacement.expr.columns) or replacement.expr.column is None:
                raise NotDecomposed(
                    "a subquery that refers to a query two levels up, or to an alias in the outer select list"
                )
            return replace(replacement, expr=replacement.expr.renumbered(lambda i: -i - 1))
        raise self.unknown_column(node, parts)

    def alias(self, name: str) -> Expr | None:
        """Return the expression of an earlier item of the select list (a lateral column alias)."""
        exprs = self.aliases.get(name if self.context.case_sensitive else name.lower(), [])
        if len(exprs) > 1:
            raise NotDecomposed(f"{name} is the name of several columns of the select list")
        if not exprs:
            return None
        if any(self.context.functions.is_random(function) for function in exprs[0].calls):
            raise NotDecomposed(f"the alias {name} is a non-deterministic expression")
        return exprs[0]

    def unknown_column(self, node: exp.Column, parts: list[str]) -> Exception:
        qualifiers = self.scope.qualifiers()
        if len(parts) > 1 and not any(self.scope.same_name(qualifier, parts[0]) for qualifier in qualifiers):
            available = [*qualifiers, *self.scope.names()]
            return self.context.unknown("table or column", parts[0], available, node.parts[0])
        if len(parts) > 1:
            columns = [c.name for c in self.scope.star(parts[0]) if c.name is not None]
            return self.context.unknown(f"column in {parts[0]} called", parts[1], columns, node.parts[1])
        return self.context.unknown("column", parts[0], self.scope.names(), node)

    def _qualified(self, columns: list[NamedColumn]) -> list[str]:
        return [f"{c.qualifier}.{c.name}" if c.qualifier else str(c.name) for c in columns]

    def renamed(self, node: exp.Column, expr: Expr, name: str, complete: bool) -> Expr:
        """Add the name of the column to an argument of struct(…), where names become part of the value."""
        parent = node.parent
        while isinstance(parent, exp.PropertyEQ):
            parent = parent.parent
        after = self.context.query.token_after(self.context.query.span(node)[1])
        argument = after is not None and after.token_type in {TokenType.COMMA, TokenType.R_PAREN}
        if node is self.root or not complete or not argument or parent is None:
            return expr
        if called_function(self.context.query, parent) == "struct":
            return Expr(merge_parts((*expr.parenthesized().parts, f" AS {quoted(name)}")), expr.calls)
        return expr

    def _star(self, node: exp.Expr) -> TextReplacement | None:
        parent = node.parent
        name = called_function(self.context.query, parent) if parent is not None else None
        if name is None:
            raise NotDecomposed("a star in an unsupported place")
        if name == "count" and isinstance(node, exp.Star):
            return None
        qualifier = node.args["table"].name if isinstance(node, exp.Column) else None
        if node.find(exp.Star).args.get("except_"):  # type: ignore[union-attr]
            raise NotDecomposed("a star with EXCEPT as an argument of a function")
        parts: list[str | int | ClockValue] = []
        for index, named_column in enumerate(self.scope.star(qualifier)):
            parts += [", "] if index else []
            parts.append(named_column.index)
            if name == "struct":
                parts.append(f" AS {quoted(named_column.name or f'col{index + 1}')}")
        start, end = self.context.query.span(node)
        return TextReplacement(start, end, Expr(merge_parts(parts)), bare=True)

    def conjuncts(self, node: exp.Expr) -> Iterator[exp.Expr]:
        """Yield the conditions that AND connects."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.And):
            yield from self.conjuncts(node.this)
            yield from self.conjuncts(node.expression)
        else:
            yield node


class SubqueryRule(Protocol):
    """Turns subqueries into columns of a stage: `tidemill.views.sql.subqueries.Subqueries`."""

    def scalar(self, stage: SelectStage, node: exp.Subquery) -> int:
        """Append the value of a subquery to the stage's operator, and return the position of the value."""

    def column(self, stage: SelectStage, node: exp.Exists | exp.In) -> int:
        """Append the value of an EXISTS or IN to the stage's operator, and return the value's position."""
