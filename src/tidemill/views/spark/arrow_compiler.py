"""Compile row expressions to Arrow kernels, where the kernels give exactly the results of Spark (ANSI mode).

The compiler knows the types of columns, and coerces the arguments of an operation as Spark does. It compiles
only what it knows completely: any other function, type, literal or option leaves the row expressions to Spark
(`None`). The types after the last step must be the types that Spark has resolved.

The file is long because the compiler has a short method for each kind of expression.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.types as pat
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidemill.views.chain.row_expressions import FilterStep, RowExpressions, SelectStep
from tidemill.views.circuit.expr import Expr
from tidemill.views.kernels.row_identity import identifiable
from tidemill.views.kernels.scalars import (
    ArrowFilter,
    ArrowRows,
    ArrowSelect,
    Call,
    ColumnValue,
    Literal,
    Scalar,
)
from tidemill.views.trace.row_equality import SALTS

BOOL: Final = pa.bool_()
INT: Final = pa.int32()
DOUBLE: Final = pa.float64()
TEXT: Final = pa.string()
DATE: Final = pa.date32()
TIMESTAMP: Final = pa.timestamp("us", "UTC")
LOCAL: Final = pa.timestamp("us")
NULL: Final = pa.null()

_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
"""How many digits Spark gives to the decimal of an integer type."""

_CASTS: Final = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": DOUBLE,
    "STRING": TEXT,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
    "BOOLEAN": BOOL,
}
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+), (\d+)\)")
_PLAIN_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PLAIN_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")
_LENGTHS: Final = {"SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3_600 * 10**6, "DAY": 86_400 * 10**6}
_UNITS: Final = {"YEAR": "year", "MONTH": "month", "DAY": "day", "HOUR": "hour", "MINUTE": "minute"}
MOST_DIGITS: Final = 38


class NotCompiled(Exception):
    """Spark evaluates an expression, because the kernels may give another result."""


def compile_rows(
    expressions: RowExpressions, types: Sequence[pa.DataType], result: Sequence[pa.DataType]
) -> ArrowRows | None:
    """Compile row expressions; return None if Spark must evaluate them.

    Args:
        expressions: the row expressions.
        types: the types of the columns before them.
        result: the types of the columns after them, as Spark has resolved them.
    """
    columns = list(types)
    steps: list[ArrowFilter | ArrowSelect] = []
    try:
        for step in expressions.steps:
            if isinstance(step, FilterStep):
                compiled = tuple(compile_scalar(condition, columns) for condition in step.conditions)
                _require(*(condition.type == BOOL for condition in compiled))
                steps.append(ArrowFilter(compiled))
            elif isinstance(step, SelectStep):
                values = tuple(compile_scalar(expression, columns) for expression in step.expressions)
                steps.append(ArrowSelect(values))
                columns = [value.type for value in values]
            else:
                return None
    except (NotCompiled, SqlglotError, RecursionError):
        return None
    return ArrowRows(tuple(steps)) if columns == list(result) else None


def compile_scalar(expr: Expr, types: Sequence[pa.DataType]) -> Scalar:
    """Compile an expression over columns of these types; raise `NotCompiled` if Spark must evaluate it."""
    if expr.column is not None:
        return ColumnValue(expr.column, types[expr.column])
    _require(not expr.reads_clock)
    text = expr.sql("tidemill_c{}".format)
    _require("\\" not in text)  # an escape in a literal
    parsed = sqlglot.parse_one(text, read="spark")
    return _Compiler(types).compile(parsed)


def _require(*facts: object) -> None:
    if not all(facts):
        raise NotCompiled


def _is_integer(kind: pa.DataType) -> bool:
    return kind in _DIGITS


def _is_number(kind: pa.DataType) -> bool:
    return _is_integer(kind) or pat.is_decimal128(kind) or kind == DOUBLE


class _Compiler:
    """Compiles the parsed text of an expression."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = types

    def compile(self, node: exp.Expr) -> Scalar:
        rule = _RULES.get(type(node))
        if rule is None or not set(_given(node)) <= set(rule[1].split()):
            raise NotCompiled
        return rule[0](self, node)

    def _all(self, *nodes: Any) -> list[Scalar]:
        return [self.compile(node) for node in nodes]

    # --- columns and literals

    def column(self, node: exp.Expr) -> Scalar:
        struct = node.args.get("table")
        name = node.this if struct is None else struct
        _require(isinstance(name, exp.Identifier))
        place = re.fullmatch(r"tidemill_c(\d+)", name.name)
        _require(place)
        number = int(cast("re.Match[str]", place)[1])
        value = ColumnValue(number, self._types[number])
        return value if struct is None else _field(value, node.this)

    def struct(self, node: exp.Expr) -> Scalar:
        _require(all(isinstance(part, exp.PropertyEQ) for part in node.expressions))
        values = self._all(*(part.expression for part in node.expressions))
        fields = [(part.this.name, value.type) for part, value in zip(node.expressions, values, strict=True)]
        _require(len({name.lower() for name, _ in fields}) == len(fields))
        return Call("struct", tuple(values), pa.struct(fields))

    def hash(self, node: exp.Expr) -> Scalar:
        """Compile half of the hash of a row (`ties.hash_of`), with a flag for NULL before each column."""
        _require(str(node.this).lower() == "xxhash64", len(node.expressions) % 2 == 1)
        salt, *rest = node.expressions
        _require(isinstance(salt, exp.Literal), salt.name in map(str, SALTS))
        columns = self._all(*rest[1::2])
        for flag, value, column in zip(rest[::2], rest[1::2], columns, strict=True):
            _require(
                isinstance(flag, exp.Anonymous), flag.name.lower() == "isnull", flag.expressions == [value]
            )
            _require(isinstance(column, ColumnValue), identifiable(column.type))
        return Call("hash", tuple(columns), pa.int64(), str(SALTS.index(int(salt.name))))

    def field(self, node: exp.Expr) -> Scalar:
        return _field(self.compile(node.this), node.expression)

    def literal(self, node: exp.Expr) -> Scalar:
        text = node.name
        if node.is_string:
            return Literal(text, TEXT)
        if text.isdecimal():
            value = int(text)
            _require(value < 1 << 63)
            return Literal(value, INT if value < 1 << 31 else pa.int64())
        _require(re.fullmatch(r"[0-9]+\.[0-9]+", text))
        whole, _, fraction = text.partition(".")
        digits = len(whole.lstrip("0")) + len(fraction)
        _require(digits <= MOST_DIGITS)
        return Literal(Decimal(text), pa.decimal128(max(digits, len(fraction), 1), len(fraction)))

    def boolean(self, node: exp.Expr) -> Scalar:
        return Literal(bool(node.this), BOOL)

    def null(self, node: exp.Expr) -> Scalar:
        return Literal(None, NULL)

    def inside(self, node: exp.Expr) -> Scalar:
        return self.compile(node.this)

    # --- logic

    def logic(self, node: exp.Expr) -> Scalar:
        values = [_as(value, BOOL) for value in self._all(node.this, node.expression)]
        return Call("and" if isinstance(node, exp.And) else "or", tuple(values), BOOL)

    def negation(self, node: exp.Expr) -> Scalar:
        return Call("not", (_as(self.compile(node.this), BOOL),), BOOL)

    def is_null(self, node: exp.Expr) -> Scalar:
        _require(type(node.expression) is exp.Null)
        return Call("is_null", (self.compile(node.this),), BOOL)

    def comparison(self, node: exp.Expr) -> Scalar:
        left, right = self._all(node.this, node.expression)
        return _compared(type(node), left, right)

    def between(self, node: exp.Expr) -> Scalar:
        value, low, high = self._all(node.this, node.args["low"], node.args["high"])
        bounds = (_compared(exp.GTE, value, low), _compared(exp.LTE, value, high))
        return Call("and", bounds, BOOL)

    def is_in(self, node: exp.Expr) -> Scalar:
        value, *choices = self._all(node.this, *node.expressions)
        for choice in choices:  # Spark compares all of them in one common type
            both_integers = _is_integer(value.type) and _is_integer(choice.type)
            _require(isinstance(choice, Literal), choice.type in (value.type, NULL) or both_integers)
        tests = [_compared(exp.EQ, value, choice) for choice in choices]
        return reduce(lambda left, right: Call("or", (left, right), BOOL), tests)

    def like(self, node: exp.Expr) -> Scalar:
        text, pattern = self._all(node.this, node.expression)
        _require(text.type == TEXT, isinstance(pattern, Literal), pattern.type == TEXT)
        wildcard = cast(Literal, pattern).value
        inner = wildcard.strip("%")
        _require("%" not in inner, "_" not in inner, inner)
        starts, ends = not wildcard.startswith("%"), not wildcard.endswith("%")
        if starts and ends:
            matches: Scalar = _compared(exp.EQ, text, pattern)
        else:
            operation = "starts_with" if starts else "ends_with" if ends else "contains"
            matches = Call(operation, (text,), BOOL, inner)
        return Call("not", (matches,), BOOL) if node.args.get("negate") else matches

    # --- numbers

    def arithmetic(self, node: exp.Expr) -> Scalar:
        if isinstance(node.expression, exp.Interval):
            return self.moved(node, node.expression)
        left, right = self._all(node.this, node.expression)
        _require(_is_number(left.type), _is_number(right.type))
        operation = _ARITHMETIC[type(node)]
        if pat.is_decimal128(left.type) or pat.is_decimal128(right.type):
            left, right = _as_decimal(left, literal=True), _as_decimal(right, literal=True)
            kind = _decimal_result(operation, left.type, right.type)
            return Call(operation, (left, right), kind)
        kind = _wider(left.type, right.type)
        return Call(operation, (_as(left, kind), _as(right, kind)), kind)

    def division(self, node: exp.Expr) -> Scalar:
        left, right = self._all(node.this, node.expression)
        kinds = (left.type, right.type)
        _require(all(_is_integer(kind) or kind == DOUBLE for kind in kinds))
        return Call("divide", (_as(left, DOUBLE), _as(right, DOUBLE)), DOUBLE)

    def minus(self, node: exp.Expr) -> Scalar:
        value = self.compile(node.this)
        if isinstance(value, Literal) and _is_number(value.type):
            return Literal(-value.value, value.type)
        _require(_is_number(value.type))
        return Call("negate", (value,), value.type)

    def absolute(self, node: exp.Expr) -> Scalar:
        value = self.compile(node.this)
        _require(_is_integer(value.type) or value.type == DOUBLE)
        return Call("abs", (value,), value.type)

    # --- choices

    def case(self, node: exp.Expr) -> Scalar:
        subject = None if node.this is None else self.compile(node.this)
        conditions, values = [], []
        for branch in node.args["ifs"]:
            condition = self.compile(branch.this)
            if subject is not None:
                condition = _compared(exp.EQ, subject, condition)
            conditions.append(_as(condition, BOOL))
            values.append(self.compile(branch.args["true"]))
        default = node.args.get("default")
        values.append(Literal(None, NULL) if default is None else self.compile(default))
        return _case(conditions, values)

    def choice(self, node: exp.Expr) -> Scalar:
        other = node.args.get("false")
        condition, value = self._all(node.this, node.args["true"])
        rest = Literal(None, NULL) if other is None else self.compile(other)
        return _case([_as(condition, BOOL)], [value, rest])

    def coalesce(self, node: exp.Expr) -> Scalar:
        values = _common(self._all(node.this, *node.expressions))
        return Call("coalesce", tuple(values), values[0].type)

    def null_if(self, node: exp.Expr) -> Scalar:
        value, other = self._all(node.this, node.expression)
        return _case([_compared(exp.EQ, value, other)], [Literal(None, NULL), value])

    # --- texts

    def changed_case(self, node: exp.Expr) -> Scalar:
        return Call("upper" if isinstance(node, exp.Upper) else "lower", (self._text(node.this),), TEXT)

    def trim(self, node: exp.Expr) -> Scalar:
        position = str(node.args.get("position") or "BOTH").lower()
        _require(position in ("both", "leading", "trailing"))
        return Call("trim", (self._text(node.this),), TEXT, position)

    def length(self, node: exp.Expr) -> Scalar:
        return Call("length", (self._text(node.this),), INT)

    def substring(self, node: exp.Expr) -> Scalar:
        start, length = node.args.get("start"), node.args.get("length")
        numbers = [self.compile(part) for part in (start, length) if part is not None]
        _require(start is not None, all(isinstance(number, Literal) for number in numbers))
        _require(all(number.type == INT for number in numbers))
        first, *count = (cast(Literal, number).value for number in numbers)
        _require(first >= 0, all(number >= 0 for number in count))
        begin = max(first - 1, 0)
        if first == 0 and count:
            raise NotCompiled
        stop = f"{begin + count[0]}" if count else ""
        return Call("substring", (self._text(node.this),), TEXT, f"{begin}:{stop}")

    def concat(self, node: exp.Expr) -> Scalar:
        nodes = [node.this, node.expression] if isinstance(node, exp.DPipe) else node.expressions
        return Call("concat", tuple(self._text(part) for part in nodes), TEXT)

    def _text(self, node: exp.Expr) -> Scalar:
        value = self.compile(node)
        _require(value.type == TEXT)
        return value

    # --- dates and times

    def part(self, node: exp.Expr) -> Scalar:
        inner = node.this
        while type(inner) is exp.TsOrDsToDate and set(_given(inner)) == {"this"}:
            inner = inner.this
        value, name = self.compile(inner), _PARTS[type(node)]
        timely = name in ("hour", "minute", "second")
        _require(value.type in ((TIMESTAMP,) if timely else (DATE, TIMESTAMP)))
        return Call("part", (value,), INT, name)

    def moved(self, node: exp.Expr, interval: exp.Interval) -> Scalar:
        """Add a constant interval to a timestamp. Spark adds the days of an interval in the local time."""
        amount, unit = interval.this, str(interval.args.get("unit") or "").upper().removesuffix("S")
        _require(isinstance(node, exp.Add | exp.Sub), isinstance(amount, exp.Literal), unit in _LENGTHS)
        _require(
            re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?" if unit == "SECOND" else "[0-9]{1,9}", amount.name)
        )
        length_us = int(Decimal(amount.name) * _LENGTHS[unit])
        value = self.compile(node.this)
        _require(value.type in (TIMESTAMP, LOCAL), length_us < _LENGTHS["DAY"])
        return Call("move", (value,), value.type, str(length_us if isinstance(node, exp.Add) else -length_us))

    def date(self, node: exp.Expr) -> Scalar:
        value = self.compile(node.this)
        _require(value.type in (DATE, TIMESTAMP))
        return _converted(value, DATE)

    def truncated(self, node: exp.Expr) -> Scalar:
        unit = _UNITS.get(str(node.args["unit"].name).upper())
        value = self.compile(node.this)
        _require(unit, value.type == TIMESTAMP)
        return Call("floor", (value,), TIMESTAMP, cast(str, unit))

    # --- casts

    def cast(self, node: exp.Expr) -> Scalar:
        text = node.args["to"].sql("spark")
        decimal = _DECIMAL.fullmatch(text)
        kind = _CASTS.get(text) if decimal is None else pa.decimal128(int(decimal[1]), int(decimal[2]))
        _require(kind is not None)
        return _converted(self.compile(node.this), kind)


def _field(value: Scalar, name: exp.Expr) -> Scalar:
    """Return a field of a struct."""
    _require(isinstance(name, exp.Identifier), pat.is_struct(value.type))
    places = [n for n, each in enumerate(value.type) if each.name.lower() == name.name.lower()]
    _require(len(places) == 1)
    if isinstance(value, Call) and value.operation == "struct":
        return value.arguments[places[0]]
    return Call("field", (value,), value.type[places[0]].type, str(places[0]))


def _given(node: exp.Expr) -> list[str]:
    """Return the names of the arguments that are set."""
    return [name for name, value in node.args.items() if value not in (None, [], False)]


# --- coercion


def _as(value: Scalar, kind: pa.DataType) -> Scalar:
    """Coerce a value to a type that has all its values."""
    if value.type == kind:
        return value
    if isinstance(value, Literal) and value.type == NULL:
        return Literal(None, kind)
    if isinstance(value, Literal) and _is_integer(value.type) and _is_integer(kind):
        return Literal(value.value, kind)
    widens = _is_integer(value.type) and (_is_integer(kind) or kind == DOUBLE or pat.is_decimal128(kind))
    _require(widens or (pat.is_decimal128(value.type) and pat.is_decimal128(kind)))
    return Call("cast", (value,), kind)


def _converted(value: Scalar, kind: pa.DataType) -> Scalar:
    """Cast a value. If a value does not fit, the kernel raises an error, and Spark evaluates the cast."""
    if value.type == kind:
        return value
    if isinstance(value, Literal) and value.type == NULL:
        return Literal(None, kind)
    if isinstance(value, Literal) and value.type == TEXT:
        return _time_literal(value, kind)
    if isinstance(value, Literal) and _is_number(value.type) and kind == DOUBLE:
        return Literal(float(value.value), DOUBLE)
    source = value.type
    exact = _is_integer(source) or pat.is_decimal128(source)
    if exact and (_is_integer(kind) or pat.is_decimal128(kind)):
        return Call("cast", (value,), kind)
    if _is_integer(source) and kind in (DOUBLE, TEXT):
        return Call("cast", (value,), kind)
    if source == BOOL and kind == TEXT:
        return Call("cast", (value,), kind)
    operations = {
        (TIMESTAMP, DATE): "to_date",
        (DATE, TIMESTAMP): "of_date",
        (DATE, TEXT): "date_text",
    }
    _require((source, kind) in operations)
    return Call(operations[source, kind], (value,), kind)


def _time_literal(value: Literal, kind: pa.DataType) -> Literal:
    """Return the date or the timestamp of a literal in the usual notation."""
    try:
        if kind == DATE and _PLAIN_DATE.fullmatch(value.value):
            return Literal(date.fromisoformat(value.value), kind)
        if kind == TIMESTAMP and _PLAIN_TIME.fullmatch(value.value):
            return Literal(datetime.fromisoformat(value.value).replace(tzinfo=UTC), kind)
    except ValueError:
        pass
    raise NotCompiled


def _as_decimal(value: Scalar, *, literal: bool = False) -> Scalar:
    """Return a number as a decimal.

    - literal: an integer literal has as many digits as it is long.
    """
    if pat.is_decimal128(value.type):
        return value
    _require(_is_integer(value.type))
    if literal and isinstance(value, Literal):
        digits = max(1, len(str(abs(value.value))))
        return Literal(Decimal(value.value), pa.decimal128(digits, 0))
    return _as(value, pa.decimal128(_DIGITS[value.type], 0))


def _decimal_result(operation: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type of a decimal operation; beyond 38 digits, Spark gives up digits of the fraction."""
    if operation == "multiply":
        precision, scale = left.precision + right.precision + 1, left.scale + right.scale
    else:
        scale = max(left.scale, right.scale)
        precision = max(left.precision - left.scale, right.precision - right.scale) + scale + 1
    _require(precision <= MOST_DIGITS)
    return pa.decimal128(precision, scale)


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type in which Spark combines two values."""
    if left == right or right == NULL:
        return left
    if left == NULL:
        return right
    if _is_integer(left) and _is_integer(right):
        return max(left, right, key=lambda kind: _DIGITS[kind])
    if DOUBLE in (left, right):
        _require(_is_integer(left) or _is_integer(right))
        return DOUBLE
    _require(_is_number(left), _is_number(right))
    left, right = (pa.decimal128(_DIGITS[kind], 0) if _is_integer(kind) else kind for kind in (left, right))
    scale = max(left.scale, right.scale)
    precision = max(left.precision - left.scale, right.precision - right.scale) + scale
    _require(precision <= MOST_DIGITS)
    return pa.decimal128(precision, scale)


def _common(values: Sequence[Scalar]) -> list[Scalar]:
    """Coerce values to their common type."""
    kind = reduce(_wider, (value.type for value in values))
    _require(kind != NULL)
    return [_as(value, kind) for value in values]


def _case(conditions: Sequence[Scalar], values: Sequence[Scalar]) -> Scalar:
    """Choose values by conditions; the last value is for the other rows."""
    *chosen, otherwise = _common(values)
    pairs = [part for pair in zip(conditions, chosen, strict=True) for part in pair]
    return Call("case", (*pairs, otherwise), otherwise.type)


def _compared(operator: type[exp.Expr], left: Scalar, right: Scalar) -> Scalar:
    """Compare two values in their common type."""
    left, right = _comparable(left, right), _comparable(right, left)
    left, right = _common([left, right])
    _require(left.type in (BOOL, TEXT, DATE, TIMESTAMP) or _is_number(left.type))
    match operator:
        case exp.EQ:
            return Call("equal", (left, right), BOOL)
        case exp.NEQ:
            return Call("not", (Call("equal", (left, right), BOOL),), BOOL)
        case exp.NullSafeEQ:
            return Call("same", (left, right), BOOL)
        case exp.LT:
            return Call("less", (left, right), BOOL)
        case exp.LTE:
            return Call("less_or_equal", (left, right), BOOL)
        case exp.GT:
            return Call("less", (right, left), BOOL)
        case exp.GTE:
            return Call("less_or_equal", (right, left), BOOL)
    raise NotCompiled


def _comparable(value: Scalar, other: Scalar) -> Scalar:
    """Return a date, or a literal, in the type of the date or timestamp that it is compared with."""
    is_text = isinstance(value, Literal) and value.type == TEXT
    if (is_text and other.type in (DATE, TIMESTAMP)) or (value.type == DATE and other.type == TIMESTAMP):
        return _converted(value, other.type)
    return value


_ARITHMETIC: Final[Mapping[type[exp.Expr], str]] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
}
_PARTS: Final[Mapping[type[exp.Expr], str]] = {
    exp.Year: "year",
    exp.Month: "month",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.Quarter: "quarter",
    exp.Hour: "hour",
    exp.Minute: "minute",
    exp.Second: "second",
}
_Compile = Callable[[_Compiler, exp.Expr], Scalar]
_COMPARISONS: Final = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_BINARY: Final = "this expression"
_RULES: Final[Mapping[type[exp.Expr], tuple[_Compile, str]]] = {
    exp.Column: (_Compiler.column, "this table"),
    exp.Struct: (_Compiler.struct, "expressions"),
    exp.Dot: (_Compiler.field, _BINARY),
    exp.Anonymous: (_Compiler.hash, "this expressions"),
    exp.Literal: (_Compiler.literal, "this is_string"),
    exp.Boolean: (_Compiler.boolean, "this"),
    exp.Null: (_Compiler.null, ""),
    exp.Paren: (_Compiler.inside, "this"),
    exp.And: (_Compiler.logic, _BINARY),
    exp.Or: (_Compiler.logic, _BINARY),
    exp.Not: (_Compiler.negation, "this"),
    exp.Is: (_Compiler.is_null, _BINARY),
    **dict.fromkeys(_COMPARISONS, (_Compiler.comparison, _BINARY)),
    exp.Between: (_Compiler.between, "this low high"),
    exp.In: (_Compiler.is_in, "this expressions"),
    exp.Like: (_Compiler.like, "this expression negate"),
    **dict.fromkeys(_ARITHMETIC, (_Compiler.arithmetic, _BINARY)),
    exp.Div: (_Compiler.division, "this expression safe"),
    exp.Neg: (_Compiler.minus, "this"),
    exp.Abs: (_Compiler.absolute, "this"),
    exp.Case: (_Compiler.case, "this ifs default"),
    exp.If: (_Compiler.choice, "this true false"),
    exp.Coalesce: (_Compiler.coalesce, "this expressions"),
    exp.Nullif: (_Compiler.null_if, _BINARY),
    exp.Upper: (_Compiler.changed_case, "this"),
    exp.Lower: (_Compiler.changed_case, "this"),
    exp.Trim: (_Compiler.trim, "this position"),
    exp.Length: (_Compiler.length, "this"),
    exp.Substring: (_Compiler.substring, "this start length"),
    exp.Concat: (_Compiler.concat, "expressions safe"),
    exp.DPipe: (_Compiler.concat, "this expression safe"),
    **dict.fromkeys(_PARTS, (_Compiler.part, "this")),
    exp.TsOrDsToDate: (_Compiler.date, "this safe"),
    exp.TimestampTrunc: (_Compiler.truncated, "this unit"),
    exp.Cast: (_Compiler.cast, "this to"),
    exp.TryCast: (_Compiler.cast, "this to"),  # CAST as the parser of Spark's dialect has it
}
"""How each kind of expression is compiled, and the arguments that its compiler knows.

The class must be exactly this one: a subclass has another meaning, and so has an argument that is not listed.
TRY_CAST has the argument `safe`.
"""
