"""The parser: sqlglot's, which also notes from where to where in the text each expression reaches.

sqlglot understands Spark SQL well enough to tell its structure, but what it writes back is not always what it
read: it has its own idea of many functions. So nothing is ever written from its tree. Expressions are cut
out of the query's own text, and the tree says only where to cut. For that each node must know its place,
and sqlglot notes those of names alone; the methods that parse scalar expressions and queries are therefore
wrapped.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from tidemill.errors import QuerySyntax
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.query_position import QueryPosition, error_at, position_of

SPAN = "tidemill_span"

# The methods of sqlglot's parser whose results are scalar expressions, relations or queries.
METHODS = (
    *("assignment", "at_time_zone", "atom", "bitwise", "bracket", "case", "cast", "column", "column_ops"),
    *("column_reference", "comparison", "conjunction", "cte", "disjunction", "equality", "exponent"),
    *("expression", "factor", "field", "function", "function_call", "interval", "join", "lambda", "lateral"),
    *("ordered", "paren", "primary", "range", "select", "select_or_expression", "set_operations", "star_ops"),
    *("table", "term", "type", "types", "unary", "value", "window"),
)


def _with_span(name: str) -> Callable[..., Any]:
    parse = getattr(SparkParser, name)

    @functools.wraps(parse)
    def parse_and_note(self: Any, *args: Any, **kwargs: Any) -> Any:
        start_index = self._index
        if name == "_parse_window" and args and isinstance(args[0], exp.Expr) and start_index:
            # What stands before OVER or FILTER has ended here, and is returned by no method of its own.
            call = args[0]
            if "start" in call.meta:
                call.meta.setdefault(SPAN, (call.meta["start"], self._tokens[start_index - 1].end))
        node = parse(self, *args, **kwargs)
        if isinstance(node, exp.Expr) and self._index > start_index:
            first, last = self._tokens[start_index], self._tokens[self._index - 1]
            earlier = node.meta.get(SPAN)
            span = (first.start, last.end)
            node.meta[SPAN] = (
                span if earlier is None else (min(earlier[0], span[0]), max(earlier[1], span[1]))
            )
        return node

    return parse_and_note


class _Parser(SparkParser):
    """Spark's parser with spans."""


for _name in METHODS:
    if hasattr(SparkParser, f"_parse_{_name}"):
        setattr(_Parser, f"_parse_{_name}", _with_span(f"_parse_{_name}"))


class ParsedQuery:
    """A query: its text, its tokens, and its tree with spans in the text."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.tokens: list[Token] = _tokens(sql)
        self.tree: exp.Expr = _parsed(sql, self.tokens)
        self._starts = {token.start: i for i, token in reversed(list(enumerate(self.tokens)))}

    def span(self, node: exp.Expr) -> tuple[int, int]:
        """From which character to which (inclusive) the node reaches."""
        noted = node.meta.get(SPAN)
        if noted is not None:
            return (int(noted[0]), int(noted[1]))
        if "start" in node.meta and "end" in node.meta:
            return (int(node.meta["start"]), int(node.meta["end"]))
        child_spans = [self.span(child) for child in node.iter_expressions() if self.has_span(child)]
        if not child_spans:
            raise NotDecomposed(f"{type(node).__name__} is not taken apart")
        return (min(start for start, _ in child_spans), max(end for _, end in child_spans))

    def has_span(self, node: exp.Expr) -> bool:
        """Whether it stands in the text, and was not put into the tree by the parser."""
        if SPAN in node.meta or ("start" in node.meta and "end" in node.meta):
            return True
        return any(self.has_span(child) for child in node.iter_expressions())

    def position(self, node: exp.Expr) -> QueryPosition:
        """Where an error about the node points; the whole query if nobody noted it."""
        start, end = self.span(node) if self.has_span(node) else (0, 0)
        return position_of(self.sql, start, end)

    def text(self, node: exp.Expr) -> str:
        """The node's own text, as it was written."""
        start, end = self.span(node)
        return self.sql[start : end + 1]

    def tokens_of(self, node: exp.Expr) -> list[Token]:
        """The tokens of the node."""
        start, end = self.span(node)
        index = self._starts[start]
        tokens = []
        while index < len(self.tokens) and self.tokens[index].start <= end:
            tokens.append(self.tokens[index])
            index += 1
        return tokens

    def token_after(self, offset: int) -> Token | None:
        """The token that begins after a character."""
        later = [token for token in self.tokens if token.start > offset]
        return later[0] if later else None

    def token_before(self, offset: int) -> Token | None:
        """The token that ends before a character."""
        index = self._starts.get(offset)
        return self.tokens[index - 1] if index else None


def _tokens(sql: str) -> list[Token]:
    try:
        return list(Spark().tokenize(sql))
    except SqlglotError as error:
        raise error_at(
            QuerySyntax, f"this is not Spark SQL: {_message(error)}", sql, _position(error, sql)
        ) from None


def _parsed(sql: str, tokens: Sequence[Token]) -> exp.Expr:
    # A semicolon at the end is what people type; two queries are not one view.
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens = tokens[:-1]
    if not tokens:
        raise error_at(QuerySyntax, "there is no query", sql, QueryPosition(1, 1))
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            position = position_of(sql, token.start, token.end)
            raise error_at(QuerySyntax, "a view is one query, and here a second one begins", sql, position)
    parser = _Parser(error_level=ErrorLevel.IMMEDIATE, dialect=Spark())
    try:
        trees = parser.parse(list(tokens), sql)
    except SqlglotError as error:
        raise error_at(
            QuerySyntax, f"this is not Spark SQL: {_message(error)}", sql, _position(error, sql)
        ) from None
    tree = trees[0] if trees else None
    if not isinstance(tree, exp.Query | exp.Values):
        first = tokens[0]
        position = position_of(sql, first.start, first.end)
        raise error_at(QuerySyntax, f"a view is a query, and this is none: {first.text}", sql, position)
    assert isinstance(tree, exp.Expr)
    return tree


def _message(error: SqlglotError) -> str:
    if isinstance(error, ParseError) and error.errors:
        return str(error.errors[0].get("description") or "").rstrip(".")
    return str(error).splitlines()[0].rstrip(".")


def _position(error: SqlglotError, sql: str) -> QueryPosition:
    if isinstance(error, ParseError) and error.errors:
        first = error.errors[0]
        line, end = int(first.get("line") or 1), int(first.get("col") or 1)
        length = max(1, len(str(first.get("highlight") or " ").split("\n")[0]))
        return QueryPosition(line, max(1, end - length + 1), length)
    return QueryPosition(sql.count("\n") + 1, max(1, len(sql) - sql.rfind("\n") - 1))
