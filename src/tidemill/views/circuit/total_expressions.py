"""Which expressions may be evaluated on more rows than they were written for: those that cannot raise.

A condition may move below a join only if it is *tame*: the same twice, and sure not to raise whatever row it
meets. That is judged by the text, and carefully: comparisons, logic, NULL tests and a few functions are tame;
arithmetic on columns, casts and element access are not (ANSI makes them raise), nor is any other function.
What is not tame stays at its own operator, after the filters that stood before it.
"""

import re
from itertools import pairwise

from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.functions import ViewFunctions, words

COLUMN = "\0"
TOKEN = re.compile(
    rf"""{COLUMN} | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*" | `[^`]*` | [\w.]+
        | <=>|<=|>=|<>|!=|==|::|\|\| | \S""",
    re.VERBOSE,
)
WORDS = words("""
    and or not is null in between like ilike true false case when then else end any some all escape distinct
    """)
LIMITS = frozenset({"=", "==", "<", ">", "<=", ">=", "<>", "!=", "<=>", "(", ")", ","})
ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "|", "&", "^", "~", "||"})
TYPED = words("date timestamp timestamp_ntz timestamp_ltz interval")
UNITS = words("""
    year month week day hour minute second years months weeks days hours minutes seconds to
    """)


def is_deterministic(expr: Expr, functions: ViewFunctions) -> bool:
    """Whether it is the same twice: no rand(), no clock, no user function that was not declared so."""
    return not expr.reads_clock and not any(functions.random(name) for name in expr.calls)


def is_total(expr: Expr, functions: ViewFunctions) -> bool:
    """Whether it is steady and cannot raise, on any row."""
    if not is_deterministic(expr, functions) or not all(functions.tame(name) for name in expr.calls):
        return False
    tokens = TOKEN.findall(expr.sql(lambda _: COLUMN))
    for place, token in enumerate(tokens):
        if token in ARITHMETIC and not _constant(tokens, place):
            return False
        if token in {"[", "::", "{"} or not _allowed(token, expr):
            return False
    # A column followed by a dot is a field of it, and that is safe; a lambda is not looked into.
    return not any(one == "-" and other == ">" for one, other in pairwise(tokens))


def _allowed(token: str, expr: Expr) -> bool:
    word = token.lower()
    if token == COLUMN or token[0] in "'\"`" or token in LIMITS or token in ARITHMETIC or token[0].isdigit():
        return True
    return word in WORDS or word in TYPED or word in UNITS or word in expr.calls or token.startswith(".")


def _constant(tokens: list[str], place: int) -> bool:
    """Whether an arithmetic operator stands between constants: what it gives is the same for every row."""

    def clear(direction: int) -> bool:
        at = place + direction
        while 0 <= at < len(tokens):
            token = tokens[at]
            if token == COLUMN or token == (")" if direction < 0 else "("):
                return False
            if token in LIMITS or token.lower() in {"and", "or", "not", "between"}:
                return True
            at += direction
        return True

    return clear(-1) and clear(1)


def equal_columns(expr: Expr) -> tuple[int, int, bool] | None:
    """`column = column` as its two columns, and whether it is `<=>`; None if it is anything else."""
    if len(expr.parts) == 3:
        left, operator, right = expr.parts
        if isinstance(left, int) and isinstance(right, int) and operator in {" = ", " == ", " <=> "}:
            return left, right, operator == " <=> "
    return None
