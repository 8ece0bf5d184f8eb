"""Total expressions: expressions that can be evaluated on additional rows, because they never raise an error.

A condition may move below a join only if it is *total*: it is deterministic, and it raises no error on any
row. The check reads the text and is conservative. Comparisons, logic, NULL tests and a few functions are
total. Arithmetic on columns, casts and element access are not total, because they raise errors in ANSI mode.
All other functions count as not total. A condition that is not total stays in its operator, after the filters
that precede it.
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
    """Return whether an expression has no rand(), no clock, and only deterministic user functions."""
    return not expr.reads_clock and not any(functions.is_random(name) for name in expr.calls)


def is_total(expr: Expr, functions: ViewFunctions) -> bool:
    """Return whether an expression is deterministic and raises no error on any row."""
    if not is_deterministic(expr, functions) or not all(functions.is_total(name) for name in expr.calls):
        return False
    tokens = TOKEN.findall(expr.sql(lambda _: COLUMN))
    for index, token in enumerate(tokens):
        if token in ARITHMETIC and not _constant(tokens, index):
            return False
        if token in {"[", "::", "{"} or not _allowed(token, expr):
            return False
    # A dot after a column selects a field, which is safe. Lambdas are not analysed.
    return ("-", ">") not in pairwise(tokens)


def _allowed(token: str, expr: Expr) -> bool:
    keyword = token.lower()
    if token == COLUMN or token[0] in "'\"`" or token in LIMITS or token in ARITHMETIC or token[0].isdigit():
        return True
    return (
        keyword in WORDS
        or keyword in TYPED
        or keyword in UNITS
        or keyword in expr.calls
        or token.startswith(".")
    )


def _constant(tokens: list[str], index: int) -> bool:
    """Return whether both operands of an arithmetic operator are constants."""

    def clear(direction: int) -> bool:
        other = index + direction
        while 0 <= other < len(tokens):
            token = tokens[other]
            if token == COLUMN or token == (")" if direction < 0 else "("):
                return False
            if token in LIMITS or token.lower() in {"and", "or", "not", "between"}:
                return True
            other += direction
        return True

    return clear(-1) and clear(1)


def equal_columns(expr: Expr) -> tuple[int, int, bool] | None:
    """Return the columns of `a = b`, and whether the operator is `<=>`; None for any other expression."""
    if len(expr.parts) == 3:
        left, operator, right = expr.parts
        if isinstance(left, int) and isinstance(right, int) and operator in {" = ", " == ", " <=> "}:
            return left, right, operator == " <=> "
    return None
