"""The parser: sqlglot's parser for Spark SQL, extended to record the span of each expression in the text.

sqlglot parses the structure of Spark SQL well, but the SQL that it generates is not always equal to the SQL
that it read: it changes many functions. So the compiler generates no SQL from the tree. It copies expressions
from the text of the query and uses the tree only to find where they start and end. sqlglot records the
position of names only, so this module wraps the methods that parse expressions and queries.
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
from tidemill.schemas.sql_tokens import sql_tokens
from tidemill.views.sql.catalog import NotDecomposed
from tidemill.views.sql.query_position import QueryPosition, error_at, position_of

SPAN = "tidemill_span"
TOO_DEEP = "the query is nested too deeply to be split into operators"

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
            # The call before OVER or FILTER ends here. No wrapped method returns it.
            call = args[0]
            start = call.meta.get("start", _call_start(self._tokens[:start_index]))
            if start is not None:
                call.meta.setdefault(SPAN, (start, self._tokens[start_index - 1].end))
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


def _call_start(tokens: Sequence[Token]) -> int | None:
    """Return where the function call begins that is the end of these tokens; None if they end otherwise."""
    depth = 0
    for index in range(len(tokens) - 1, 0, -1):
        depth += {TokenType.R_PAREN: 1, TokenType.L_PAREN: -1}.get(tokens[index].token_type, 0)
        if not depth:
            is_call = tokens[index].token_type == TokenType.L_PAREN
            return tokens[index - 1].start if is_call else None
    return None


class _Parser(SparkParser):
    """sqlglot's parser for Spark SQL, which also records spans."""


for _name in METHODS:
    if hasattr(SparkParser, f"_parse_{_name}"):
        setattr(_Parser, f"_parse_{_name}", _with_span(f"_parse_{_name}"))


class ParsedQuery:
    """A query: its text, its tokens, and its syntax tree with the span of each node."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.tokens: list[Token] = _tokens(sql)
        self.tree: exp.Expr = _parsed(sql, self.tokens)
        self._starts = {token.start: i for i, token in reversed(list(enumerate(self.tokens)))}

    def span(self, node: exp.Expr) -> tuple[int, int]:
        """Return the first and the last character of a node."""
        noted = node.meta.get(SPAN)
        if noted is not None:
            return (int(noted[0]), int(noted[1]))
        if "start" in node.meta and "end" in node.meta:
            return (int(node.meta["start"]), int(node.meta["end"]))
        child_spans = [self.span(child) for child in node.iter_expressions() if self.has_span(child)]
        if not child_spans:
            raise NotDecomposed(f"unsupported syntax ({type(node).__name__})")
        return (min(start for start, _ in child_spans), max(end for _, end in child_spans))

    def has_span(self, node: exp.Expr) -> bool:
        """Return whether the node is in the text; the parser adds some nodes itself."""
        if SPAN in node.meta or ("start" in node.meta and "end" in node.meta):
            return True
        return any(self.has_span(child) for child in node.iter_expressions())

    def position(self, node: exp.Expr) -> QueryPosition:
        """Return the position of a node for an error; the start of the query if the node has no span."""
        start, end = self.span(node) if self.has_span(node) else (0, 0)
        return position_of(self.sql, start, end)

    def text(self, node: exp.Expr) -> str:
        """Return the original text of a node."""
        start, end = self.span(node)
        return self.sql[start : end + 1]

    def tokens_of(self, node: exp.Expr) -> list[Token]:
        """Return the tokens of a node."""
        start, end = self.span(node)
        index = self._starts[start]
        tokens = []
        while index < len(self.tokens) and self.tokens[index].start <= end:
            tokens.append(self.tokens[index])
            index += 1
        return tokens

    def token_after(self, offset: int) -> Token | None:
        """Return the first token that begins after a character."""
        later = [token for token in self.tokens if token.start > offset]
        return later[0] if later else None

    def token_before(self, offset: int) -> Token | None:
        """Return the token before the one that begins at a character."""
        index = self._starts.get(offset)
        return self.tokens[index - 1] if index else None


def _tokens(sql: str) -> list[Token]:
    try:
        return sql_tokens(sql)
    except SqlglotError as error:
        raise error_at(
            QuerySyntax, f"this is not Spark SQL: {_message(error)}", sql, _position(error, sql)
        ) from None


def _parsed(sql: str, tokens: Sequence[Token]) -> exp.Expr:
    # A semicolon at the end is allowed; a second query is not.
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens = tokens[:-1]
    if not tokens:
        raise error_at(QuerySyntax, "the query is empty", sql, QueryPosition(1, 1))
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            position = position_of(sql, token.start, token.end)
            raise error_at(
                QuerySyntax, "a view must be a single query; remove everything from here on", sql, position
            )
    parser = _Parser(error_level=ErrorLevel.IMMEDIATE, dialect=Spark())
    try:
        trees = parser.parse(list(tokens), sql)
    except RecursionError:
        raise error_at(QuerySyntax, TOO_DEEP, sql, QueryPosition(1, 1)) from None
    except SqlglotError as error:
        raise error_at(
            QuerySyntax, f"this is not Spark SQL: {_message(error)}", sql, _position(error, sql)
        ) from None
    tree = trees[0] if trees else None
    if not isinstance(tree, exp.Query | exp.Values):
        first = tokens[0]
        position = position_of(sql, first.start, first.end)
        raise error_at(QuerySyntax, f"a view must be a SELECT query, not {first.text}", sql, position)
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
