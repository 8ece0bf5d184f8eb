"""Split Spark SQL into tokens for sqlglot's parser."""

from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import Token, TokenType


def sql_tokens(sql: str) -> list[Token]:
    """Return the tokens of a text; raise `SqlglotError` if it is not SQL.

    Spark has a function `window(…)` and a clause `WINDOW name AS (…)`. sqlglot has one token for both, and
    its parser ends GROUP BY at that token. Before a parenthesis it is always the function.
    """
    tokens = list(Spark().tokenize(sql))
    return [
        _as_name(token)
        if token.token_type == TokenType.WINDOW and following.token_type == TokenType.L_PAREN
        else token
        for token, following in zip(tokens, [*tokens[1:], *tokens[-1:]], strict=True)
    ]


def _as_name(token: Token) -> Token:
    return Token(
        TokenType.VAR, token.text, token.line, token.col, token.start, token.end, list(token.comments)
    )
