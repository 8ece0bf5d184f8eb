"""Convert the raw columns of an aggregate's kernel to the values that Spark's aggregate returns.

Sums of integers and decimals arrive as exact DECIMAL(38, s) values, with a flag for sums that overflow even
that type. They are cast to the result type that Spark's analysis determined. A value that does not fit raises
an error, as in Spark's ANSI mode. An average of decimals is rounded as in Spark: half up, first to 38 digits
after the point, then to the digits of the result. For decimals with few digits, Spark computes the average
with two divisions of doubles, and so does this module.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.errors import ViewFailed

_WORD = 2**64
_DOUBLE_DIGITS = 11
"""Spark averages decimals of up to this precision as doubles. The averages have four more
digits, and a double still has enough digits for these."""


def any_types(_argument: pa.DataType | None, _result: pa.DataType) -> bool:
    """Accept every argument and result type."""
    return True


def takes_sum(argument: pa.DataType | None, result: pa.DataType) -> bool:
    """Return whether a sum of this argument type can have this result type."""
    if argument is not None and pat.is_decimal128(argument) and pat.is_decimal128(result):
        return bool(result.scale == argument.scale)
    return bool(pat.is_floating(argument) or (pat.is_signed_integer(argument) and result == pa.int64()))


def takes_average(argument: pa.DataType | None, result: pa.DataType) -> bool:
    """Return whether an average of this argument type can have this result type."""
    if argument is not None and pat.is_decimal128(argument) and pat.is_decimal128(result):
        return bool(result.scale >= argument.scale)
    return bool(pat.is_floating(argument) or (pat.is_signed_integer(argument) and result == pa.float64()))


def takes_moments(argument: pa.DataType | None, result: pa.DataType) -> bool:
    """Return whether moments of this argument type can have this result type."""
    number = pat.is_floating(argument) or pat.is_signed_integer(argument) or pat.is_decimal128(argument)
    return bool(argument is not None and number and result == pa.float64())


def takes_bits(argument: pa.DataType | None, result: pa.DataType) -> bool:
    """Return whether bits of this argument type can have this result type."""
    return bool(pat.is_signed_integer(argument) and result == argument)


def takes_ordered(argument: pa.DataType | None, result: pa.DataType) -> bool:
    """Return whether the value of a row of this struct can have this result type."""
    return bool(argument is not None and pat.is_struct(argument) and argument.field(1).type == result)


def value_of_row(raw: Sequence[pa.Array], _argument: pa.DataType | None, _result: pa.DataType) -> pa.Array:
    """Return the value of the chosen row: the second field of the struct."""
    return pc.struct_field(raw[0], [1])


def unchanged(raw: Sequence[pa.Array], _argument: pa.DataType | None, _result: pa.DataType) -> pa.Array:
    """Return the one raw column, which already contains the values."""
    return raw[0]


def sums(raw: Sequence[pa.Array], _argument: pa.DataType | None, result: pa.DataType) -> pa.Array:
    """Return the values of a sum: floats unchanged, other types cast to the result type."""
    if len(raw) == 1:
        return raw[0]
    total, overflows = raw
    if pc.any(overflows).as_py():
        raise _overflow("sum", result)
    try:
        return total.cast(result)
    except pa.ArrowInvalid:
        raise _overflow("sum", result) from None


def averages(raw: Sequence[pa.Array], argument: pa.DataType, result: pa.DataType) -> pa.Array:
    """Return the values of an average, from sums and counts."""
    if len(raw) == 1:
        return raw[0]
    total, overflows, values = raw
    if pc.any(overflows).as_py():
        raise _overflow("avg", result)
    counts = values.to_numpy(zero_copy_only=False)
    if pat.is_floating(result):
        return _quotients(total, counts, result)
    return _averages(total, counts, argument, result)


def _overflow(kind: str, result: pa.DataType) -> ViewFailed:
    type_name = {pa.int64(): "bigint"}.get(result) or str(result).replace("128", "").replace(" ", "")
    return ViewFailed(f"the {kind} overflows {type_name}")


def _quotients(total: pa.Array, counts: Any, result: pa.DataType) -> pa.Array:
    """Average integers: divide the sum as a double by the count as a double, each correctly rounded."""
    present = counts > 0
    try:
        sums = total.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    except pa.ArrowInvalid:
        sums = np.array([float(value) for value in _integers(total)])
    values = np.divide(sums, counts.astype(np.float64), out=np.zeros(len(sums)), where=present)
    return pa.array(values, result, mask=~present)


def _averages(total: pa.Array, counts: Any, argument: pa.DataType, result: pa.DataType) -> pa.Array:
    """Average decimals: all at once if one rounding gives the same result as two, otherwise one by one."""
    scale, result_scale = argument.scale, result.scale
    try:
        total = total.cast(pa.decimal128(min(38, argument.precision + 10), scale))
    except pa.ArrowInvalid:
        raise _overflow("avg", result) from None
    present = counts > 0
    sums = _small(total)
    factor, most = 2 * 10 ** (result_scale - scale), int(counts.max(initial=0))
    fits = sums is not None and int(np.abs(sums).max(initial=0)) * factor + most < 2**63
    # with so few values, the first rounding cannot move a quotient across a tie
    if fits and 2 * most < 10 ** (38 - result_scale):
        count = np.where(present, counts, 1)
        sizes = (np.abs(sums) * factor + count) // (2 * count)
        if argument.precision <= _DOUBLE_DIGITS:
            for row in _near_ties(np.abs(sums) * (factor // 2), count):
                sizes[row] = _average_as_doubles(abs(int(sums[row])), int(count[row]), scale, result_scale)
        if int(sizes.max(initial=0)) >= 10**result.precision:
            raise _overflow("avg", result)
        return _decimals(np.where(sums < 0, -sizes, sizes), present, result)
    results: list[int | None] = []
    for value, count in zip(_integers(total), counts.tolist(), strict=True):
        average: int | None = None
        if count > 0 and argument.precision <= _DOUBLE_DIGITS:
            average = _average_as_doubles(value, count, scale, result_scale)
        elif count > 0:
            quotient = _rounded_quotient(value * 10 ** (38 - scale), count)
            average = _rounded_quotient(quotient, 10 ** (38 - result_scale))
        if average is not None and abs(average) >= 10**result.precision:
            raise _overflow("avg", result)
        results.append(average)
    body = b"".join((average or 0).to_bytes(16, "little", signed=True) for average in results)
    return _masked(pa.Array.from_buffers(result, len(results), [None, pa.py_buffer(body)]), present)


def _near_ties(sizes: Any, counts: Any) -> Any:
    """Return the rows whose quotient is so close to a tie that doubles may round it the other way."""
    quotient, remainder = np.divmod(sizes, counts)
    return np.flatnonzero(np.abs(remainder / counts - 0.5) <= (quotient + 1.0) * 2.0**-50)


def _average_as_doubles(total: int, count: int, scale: int, result_scale: int) -> int:
    """Average decimals with so few digits that their sum fits a double, as Spark's optimizer does.

    Spark divides doubles twice, and rounds the shortest decimal form of the result half up.
    """
    quotient = Decimal(repr(float(total) / float(count) / 10.0**scale))
    return int((quotient * 10**result_scale).quantize(Decimal(1), ROUND_HALF_UP))


def _rounded_quotient(value: int, divisor: int) -> int:
    """Divide and round half up, away from zero."""
    size = (2 * abs(value) + divisor) // (2 * divisor)
    return -size if value < 0 else size


# --- decimals as integers


def _words(array: pa.Array) -> Any:
    """Return the two 64-bit words of each decimal, low word first."""
    body = np.frombuffer(array.buffers()[1], np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
    return body.reshape(-1, 2)


def _small(array: pa.Array) -> Any:
    """Return unscaled values as 64-bit integers, with 0 for NULL; None if a value needs more than 64 bits."""
    pair = _words(array)
    low, high = pair[:, 0].view(np.int64), pair[:, 1].view(np.int64)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    low = np.where(valid, low, 0)
    return low if (~valid | (high == low >> 63)).all() else None


def _integers(array: pa.Array) -> list[int]:
    valid = array.is_valid().to_pylist()
    return [
        (int(high) - _WORD if int(high) >= _WORD // 2 else int(high)) * _WORD + int(low) if present else 0
        for (low, high), present in zip(_words(array).tolist(), valid, strict=True)
    ]


def _decimals(values: Any, present: Any, kind: pa.DataType) -> pa.Array:
    pair = np.stack([values, values >> 63], axis=1).astype(np.int64)
    return _masked(pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(pair.tobytes())]), present)


def _masked(array: pa.Array, present: Any) -> pa.Array:
    if bool(present.all()):
        return array
    return pc.if_else(pa.array(present), array, pa.scalar(None, array.type))
