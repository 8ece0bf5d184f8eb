"""Total expressions: expressions that can be evaluated on additional rows, because they never raise an error.

A condition may move below a join without need only if it is *total*: it is deterministic, and it raises no
error on any row. The check reads the text and is conservative. Comparisons, logic, NULL tests and a few
functions are total. A comparison of a text with a number is not: Spark casts the text, which may raise an
error. Arithmetic on columns, casts and element access are not total, because they raise errors in ANSI mode.
All other functions count as not total.
"""

import re
from collections.abc import Callable
from itertools import pairwise

from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.functions import NULL_FOR_NULL, ViewFunctions, words

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
NEGATED = words("in like ilike rlike regexp")
NULL_OPERATORS = (LIMITS - {"<=>"}) | ARITHMETIC | NEGATED | words("and between div escape not")
TYPED = words("date timestamp timestamp_ntz timestamp_ltz interval")
TEXTS = ("string", "char", "varchar")
TypeOf = Callable[[int], str]
UNITS = words("""
    year month week day hour minute second years months weeks days hours minutes seconds to
    """)


def is_deterministic(expr: Expr, functions: ViewFunctions) -> bool:
    """Return whether an expression has no rand(), no clock, and only deterministic user functions."""
    return not expr.reads_clock and not any(functions.is_random(name) for name in expr.calls)


def is_total(expr: Expr, functions: ViewFunctions, type_of: TypeOf = lambda _: "int") -> bool:
    """Return whether an expression is deterministic and raises no error on any row.

    type_of: returns the type of a column by its position; "" if it is unknown. By default, no column is text.
    """
    if not is_deterministic(expr, functions) or not all(functions.is_total(name) for name in expr.calls):
        return False
    tokens = TOKEN.findall(expr.sql(lambda _: COLUMN))
    if _casts_texts(expr, tokens, type_of):
        return False
    for index, token in enumerate(tokens):
        if token in ARITHMETIC and not _constant(tokens, index):
            return False
        if token in {"[", "::", "{"} or not _allowed(token, expr):
            return False
    # A dot after a column selects a field, which is safe. Lambdas are not analysed.
    return ("-", ">") not in pairwise(tokens)


def _casts_texts(expr: Expr, tokens: list[str], type_of: TypeOf) -> bool:
    """Return whether an expression may combine texts with values of another type."""
    if expr.calls <= {"length"} and expr.calls:
        return False
    kinds = [type_of(position) for position in expr.columns]
    if not any(not kind or kind.startswith(TEXTS) for kind in kinds):
        return False
    literals = any(token[0].isdigit() or token.lower() in TYPED | {"true", "false"} for token in tokens)
    return literals or any(kind and not kind.startswith(TEXTS) for kind in kinds)


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


def rejects_null(expr: Expr, functions: ViewFunctions) -> bool:
    """Return whether a condition is certainly not true if all its columns are NULL.

    The condition may consist of columns, literals, and operators and functions that return NULL for NULL. The
    last operator may be IS NOT NULL. Other conditions are not recognized.
    """
    if not expr.columns or not expr.calls <= NULL_FOR_NULL - functions.declared.keys():
        return False
    tokens = [token.lower() for token in TOKEN.findall(expr.sql(lambda _: COLUMN))]
    if tokens[-3:] == ["is", "not", "null"]:
        tokens = tokens[:-3]
    for index, word in enumerate(tokens):
        if word == "in" and (COLUMN not in tokens[:index] or COLUMN in tokens[index:]):
            return False  # 1 IN (NULL, 1) is true
        if word == "not" and tokens[index + 1] not in NEGATED:
            return False
        known = word == COLUMN or word[0] in "'\"" or word[0].isdigit() or word in expr.calls
        if not known and word not in NULL_OPERATORS:
            return False
    return True


def equal_columns(expr: Expr) -> tuple[int, int, bool] | None:
    """Return the columns of `a = b`, and whether the operator is `<=>`; None for any other expression."""
    if len(expr.parts) == 3:
        left, operator, right = expr.parts
        if isinstance(left, int) and isinstance(right, int) and operator in {" = ", " == ", " <=> "}:
            return left, right, operator == " <=> "
    return None
