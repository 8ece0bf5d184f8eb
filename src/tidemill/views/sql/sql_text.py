"""Copy expressions from the text of a query, in a normal form.

The copy keeps the tokens as they are written, so literals and functions do not change. It normalises what
does not affect the meaning: comments, line breaks, spaces, and the case of keywords and function names.
Replacements put a column or another expression in the place of a piece of text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tidemill.views.circuit.expr import Expr, Part, merge_parts
from tidemill.views.circuit.functions import words
from tidemill.views.sql.parser import ParsedQuery


@dataclass(frozen=True)
class TextReplacement:
    """A piece of text, from the first to the last character, and the expression that replaces it.

    The expression gets parentheses where they are needed, unless it is `bare`: a list of arguments.
    """

    start: int
    end: int
    expr: Expr
    bare: bool = False


# Words that can precede a parenthesis and are not functions.
WORDS = words("""
    all and any as asc between by case cross desc distinct else end escape except exists false filter
    following from full group having ilike in inner intersect interval is join lateral left like
    limit natural not null nulls on or order outer over partition preceding qualify range respect right
    rlike rows select sets some then true unbounded union using values when where window with within
    """)
# Words that are operators or clauses in one context and functions in another; and types with parameters.
BOTH = words("any exists filter ilike left like range right rlike some window")
NESTED = words("array char dec decimal map numeric struct varchar")
OPENING = frozenset({"(", "[", "."})
QUOTES = frozenset({"'", '"'})
CLOSING = frozenset({",", ")", "]", "."})


def copy_text(query: ParsedQuery, start: int, end: int, replacements: Sequence[TextReplacement]) -> Expr:
    """Copy the text from one character to another (inclusive), with replacements."""
    ready = sorted(
        {(replacement.start, replacement.end): replacement for replacement in replacements}.values(),
        key=lambda replacement: replacement.start,
    )
    parts: list[Part] = []
    calls: set[str] = set()
    tokens = [token for token in query.tokens if start <= token.start <= end]
    last, last_end, index = "", start, 0
    while index < len(tokens):
        token = tokens[index]
        gap = token.start > last_end
        while ready and ready[0].end < token.start:
            ready.pop(0)
        if ready and ready[0].start <= token.start:
            replacement = ready[0]
            alone = replacement.bare or (replacement.start <= start and replacement.end >= end)
            parts += [
                _space(last, "c", gap),
                *(replacement.expr if alone else replacement.expr.parenthesized()).parts,
            ]
            calls |= replacement.expr.calls
            while index < len(tokens) and tokens[index].start <= replacement.end:
                index += 1
            last, last_end = "c", replacement.end + 1
            continue
        raw = query.sql[token.start : token.end + 1]
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        before = tokens[index - 1] if index else None
        name = call_of(token, before, following)
        if name:
            calls.add(name)
        written = _word(raw, token, before, name)
        parts += [_space(last, raw, gap), written]
        last, last_end = raw, token.end + 1
        # A number with a suffix (1L) is several tokens with the same position.
        while index < len(tokens) and tokens[index].start == token.start:
            index += 1
    return Expr(merge_parts(parts), frozenset(calls))


def call_of(token: Token, before: Token | None, following: Token | None) -> str | None:
    """Return the function that a token calls, in lower case; None if the token is not a call."""
    if not _is_word(token) or following is None or following.token_type != TokenType.L_PAREN:
        return None
    name = token.text.lower()
    if before is not None and before.token_type in {TokenType.DOT, TokenType.ALIAS, TokenType.DCOLON}:
        return None
    if name in NESTED and (before is None or before.text in {"<", ":"}):
        return name if before is None else None
    if name in {"any", "some"} and before is not None and before.text.lower() in {"like", "ilike", "rlike"}:
        return None
    if name in BOTH:
        operator = before is not None and (_is_word(before) or before.token_type == TokenType.R_PAREN)
        # GROUP BY is one token.
        if operator and before is not None and before.text.lower().split()[-1] not in WORDS:
            return None
        return name
    return None if name in WORDS else name


def called_function(query: ParsedQuery, node: exp.Expr) -> str | None:
    """Return the name of the function that a node calls.

    The node must consist of a name and, if it has arguments, one pair of parentheses around them.
    """
    calls = exp.Func | exp.Any | exp.SubqueryPredicate | exp.IgnoreNulls | exp.RespectNulls
    if not isinstance(node, calls) or not query.has_span(node):
        return None
    tokens = query.tokens_of(node)
    if not tokens or not _is_word(tokens[0]):
        return None
    if len(tokens) == 1:
        return tokens[0].text.lower()
    depth = 0
    for index, token in enumerate(tokens):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if index and not depth and index < len(tokens) - 1:
            return None
    return call_of(tokens[0], query.token_before(tokens[0].start), tokens[1])


def functions_of(query: ParsedQuery, start: int, end: int) -> set[str]:
    """Return all functions that a piece of text calls, including those without parentheses."""
    tokens = [token for token in query.tokens if start <= token.start <= end]
    names: set[str] = set()
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        name = call_of(token, before, tokens[index + 1] if index + 1 < len(tokens) else None)
        if name:
            names.add(name)
        elif _is_word(token) and token.text.lower().startswith(("current_", "local", "session_user", "user")):
            names.add(token.text.lower())
        elif token.token_type == TokenType.TABLE_SAMPLE:
            names.add("tablesample")
    return names


def _is_word(token: Token) -> bool:
    return token.token_type != TokenType.IDENTIFIER and (token.text[:1].isalpha() or token.text[:1] == "_")


def _word(raw: str, token: Token, before: Token | None, name: str | None) -> str:
    if name and raw.lower() == name:
        return name
    is_name = before is not None and before.token_type in {TokenType.DOT, TokenType.ALIAS}
    keyword = _is_word(token) and raw.lower() in WORDS and raw == token.text
    return raw.upper() if keyword and not is_name else raw


def _symbol(raw: str) -> bool:
    return not (raw[0].isalnum() or raw[0] in "_'\"`")


def _space(last: str, raw: str, gap: bool) -> str:
    if not last or raw in CLOSING or last in OPENING:
        return ""
    if not gap and raw[0] in QUOTES and last[0] in QUOTES:
        return ""  # 'it''s' is one string in Spark, but two tokens of sqlglot
    if raw in {"(", "["}:
        return " " if gap else ""
    if _symbol(raw) and _symbol(last):
        return " " if gap and last not in {",", ")", "]"} else (" " if last in {",", ")", "]"} else "")
    return " "
