"""Evaluate scalar expressions over Arrow columns, with exactly the results of Spark in ANSI mode.

An expression is a tree of columns, literals and calls. `views.spark.arrow_compiler` makes it from the text of
a Spark expression, and only from operations in which Arrow and Spark agree on every value. Some of them agree
on nearly all values: Arrow converts `ß` to upper case in another way, and both raise errors for an overflow,
with different messages. In such a case, evaluation raises `NotComputed`, and Spark evaluates the expression.
So each value, and each error, is the one of Spark.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.views.kernels.row_identity import row_identity
from tidemill.views.trace.layout import WEIGHT

_WHOLE: Final = pa.decimal128(20, 0)
"""A decimal that has every integer."""

_LEAST_DAY, _MOST_DAY = -719_162, 2_932_896  # the years 1 to 9999, in which a date has ten characters


class NotComputed(Exception):
    """Spark must evaluate an expression for these rows."""


@dataclass(frozen=True)
class ColumnValue:
    """A column of the rows."""

    place: int
    type: pa.DataType


@dataclass(frozen=True)
class Literal:
    """A constant; None is NULL."""

    value: Any
    type: pa.DataType


@dataclass(frozen=True)
class Call:
    """An operation of `KERNELS` or `WITH_PARAMETERS` over values."""

    operation: str
    arguments: "tuple[Scalar, ...]"
    type: pa.DataType
    option: str = ""


Scalar = ColumnValue | Literal | Call


@dataclass(frozen=True)
class ArrowFilter:
    """Keep the rows for which all conditions are true."""

    conditions: tuple[Scalar, ...]


@dataclass(frozen=True)
class ArrowSelect:
    """Replace the columns."""

    values: tuple[Scalar, ...]


@dataclass(frozen=True)
class ArrowRows:
    """Row expressions that Arrow evaluates: filters and selections, in order."""

    steps: tuple[ArrowFilter | ArrowSelect, ...]

    def apply(self, rows: pa.Table) -> pa.Table:
        """Return the rows of c0, c1, … and `_w` after all steps.

        Raises `NotComputed` if Spark must evaluate them: also after an error in a row that an earlier part of
        a condition excludes, because Spark may not evaluate the rest of the condition there.
        """
        try:
            for step in self.steps:
                rows = _filtered(rows, step) if isinstance(step, ArrowFilter) else _selected(rows, step)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise NotComputed(str(error)) from error
        return rows


def _filtered(rows: pa.Table, step: ArrowFilter) -> pa.Table:
    masks = [evaluate(condition, rows) for condition in step.conditions]
    return rows.filter(_column(reduce(pc.and_kleene, masks), rows.num_rows, pa.bool_()))


def _selected(rows: pa.Table, step: ArrowSelect) -> pa.Table:
    columns = [_column(evaluate(value, rows), rows.num_rows, value.type) for value in step.values]
    return pa.table([*columns, rows[WEIGHT]], names=[*(f"c{i}" for i in range(len(columns))), WEIGHT])


def _column(value: Any, count: int, kind: pa.DataType) -> Any:
    """Return a value as a column; a constant is repeated."""
    column = pa.repeat(value, count) if isinstance(value, pa.Scalar) else value
    return column if column.type == kind else column.cast(kind)


def evaluate(scalar: Scalar, rows: pa.Table) -> Any:
    """Return the value of an expression: a column, or a constant."""
    match scalar:
        case ColumnValue(place):
            return rows[f"c{place}"]
        case Literal(value, kind):
            return pa.scalar(value, kind)
        case Call(operation, arguments):
            values = [evaluate(argument, rows) for argument in arguments]
            if operation in KERNELS:
                return KERNELS[operation](*values)
            return WITH_PARAMETERS[operation](scalar, *values)


# --- comparisons


def _equal(left: Any, right: Any) -> Any:
    equal = pc.equal(left, right)
    if pat.is_floating(left.type):  # in Spark, NaN equals NaN
        return pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return equal


def _less(left: Any, right: Any) -> Any:
    less = pc.less(left, right)
    if pat.is_floating(left.type):  # in Spark, NaN is greater than all numbers
        return pc.or_(less, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))
    return less


def _less_or_equal(left: Any, right: Any) -> Any:
    return pc.or_(_less(left, right), _equal(left, right))


def _same(left: Any, right: Any) -> Any:
    """Compare values so that NULL equals NULL."""
    equal = pc.fill_null(_equal(left, right), pa.scalar(value=False))
    return pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))


# --- numbers


def _divide(left: Any, right: Any) -> Any:
    if pc.any(pc.and_(pc.equal(right, 0.0), pc.is_valid(left))).as_py():
        raise NotComputed("a division by zero")
    return pc.divide(left, right)


def _cast(call: Call, value: Any) -> Any:
    """Cast a value; Arrow raises an error if it does not fit."""
    if pat.is_integer(value.type) and pat.is_decimal(call.type):
        value = value.cast(_WHOLE)  # Arrow refuses a decimal that has no room for every integer
    return value.cast(call.type)


# --- choices


def _case(*values: Any) -> Any:
    """Return the value of the first condition that is true; the last value is for the other rows."""
    *branches, result = values
    for condition, value in reversed(list(zip(branches[::2], branches[1::2], strict=True))):
        result = pc.if_else(pc.fill_null(condition, pa.scalar(value=False)), value, result)
    return result


# --- texts


def _upper(text: Any) -> Any:
    return pc.ascii_upper(_ascii(text))


def _lower(text: Any) -> Any:
    return pc.ascii_lower(_ascii(text))


def _ascii(text: Any) -> Any:
    """Return texts whose case Java and Arrow change in the same way."""
    if pc.any(pc.invert(pc.string_is_ascii(text))).as_py():
        raise NotComputed("a text is not ASCII")
    return text


_TRIMS: Final[Mapping[str, Callable[..., Any]]] = {
    "both": pc.utf8_trim,
    "leading": pc.utf8_ltrim,
    "trailing": pc.utf8_rtrim,
}


def _trim(call: Call, text: Any) -> Any:
    return _TRIMS[call.option](text, " ")


def _substring(call: Call, text: Any) -> Any:
    start, stop = call.option.split(":")
    return pc.utf8_slice_codeunits(text, int(start), int(stop) if stop else None)


def _concat(*texts: Any) -> Any:
    return pc.binary_join_element_wise(*texts, "", null_handling="emit_null")


# --- dates and times, in UTC


def _to_date(time: Any) -> Any:
    return pc.floor_temporal(time, unit="day").cast(pa.timestamp("us")).cast(pa.date32())


def _of_date(call: Call, day: Any) -> Any:
    return day.cast(pa.timestamp("us")).cast(call.type)


def _date_text(day: Any) -> Any:
    days = day.cast(pa.int32())
    if pc.any(pc.or_(pc.less(days, _LEAST_DAY), pc.greater(days, _MOST_DAY))).as_py():
        raise NotComputed("a year does not have four digits")
    return day.cast(pa.string())


def _part(call: Call, time: Any) -> Any:
    return getattr(pc, call.option)(time).cast(call.type)


def _struct(call: Call, *values: Any) -> Any:
    if any(isinstance(value, pa.Scalar) for value in values):
        raise NotComputed("a field is a constant")
    columns = [value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value for value in values]
    return pa.StructArray.from_arrays(columns, fields=list(call.type))


def _hash(call: Call, *columns: Any) -> Any:
    return row_identity(columns)[int(call.option)]


KERNELS: Final[Mapping[str, Callable[..., Any]]] = {
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "is_null": pc.is_null,
    "equal": _equal,
    "less": _less,
    "less_or_equal": _less_or_equal,
    "same": _same,
    "add": pc.add_checked,
    "subtract": pc.subtract_checked,
    "multiply": pc.multiply_checked,
    "negate": pc.negate_checked,
    "abs": pc.abs_checked,
    "divide": _divide,
    "case": _case,
    "coalesce": pc.coalesce,
    "upper": _upper,
    "lower": _lower,
    "length": pc.utf8_length,
    "concat": _concat,
    "to_date": _to_date,
    "date_text": _date_text,
}
"""The operations that need only the values of their arguments."""

WITH_PARAMETERS: Final[Mapping[str, Callable[..., Any]]] = {
    "cast": _cast,
    "trim": _trim,
    "substring": _substring,
    "starts_with": lambda call, text: pc.starts_with(text, call.option),
    "ends_with": lambda call, text: pc.ends_with(text, call.option),
    "contains": lambda call, text: pc.match_substring(text, call.option),
    "of_date": _of_date,
    "part": _part,
    "floor": lambda call, time: pc.floor_temporal(time, unit=call.option),
    "move": lambda call, time: pc.add_checked(time, pa.scalar(int(call.option), pa.duration("us"))),
    "struct": _struct,
    "hash": _hash,
    "field": lambda call, struct: pc.struct_field(struct, [int(call.option)]),
}
"""The operations that also need the type of the result, or an option."""
