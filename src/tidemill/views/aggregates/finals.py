"""From the raw columns of an aggregate's kernel to the values that Spark's own aggregate gives.

Sums of integers and decimals come exact, as DECIMAL(38, s), with a flag for those that overflow even that.
They get the type that Spark's analysis of the query gives; a value that does not fit it raises an error, as
in Spark under ANSI. An average of decimals is rounded as Spark rounds it: half up, to 38 digits after the
point, then to those of the result. Averages of decimals of few digits come out as two divisions of doubles.
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
_BY_DOUBLES = 11
"""Digits of decimals whose averages Spark computes by doubles: with four more they fit into one."""


def any_types(_argument: pa.DataType | None, _result: pa.DataType) -> bool:
    """Whether an aggregate that takes every type has this result."""
    return True


def takes_sum(argument: pa.DataType | None, result: pa.DataType) -> bool:
    """Whether the sum over values of this type has this result."""
    if argument is not None and pat.is_decimal128(argument) and pat.is_decimal128(result):
        return bool(result.scale == argument.scale)
    return bool(pat.is_floating(argument) or (pat.is_signed_integer(argument) and result == pa.int64()))


def takes_average(argument: pa.DataType | None, result: pa.DataType) -> bool:
    """Whether the average over values of this type has this result."""
    if argument is not None and pat.is_decimal128(argument) and pat.is_decimal128(result):
        return bool(result.scale >= argument.scale)
    return bool(pat.is_floating(argument) or (pat.is_signed_integer(argument) and result == pa.float64()))


def unchanged(raw: Sequence[pa.Array], _argument: pa.DataType | None, _result: pa.DataType) -> pa.Array:
    """The values of an aggregate whose one raw column has them already."""
    return raw[0]


def sums(raw: Sequence[pa.Array], _argument: pa.DataType | None, result: pa.DataType) -> pa.Array:
    """The values of a sum: of floats as they are, of others exact, in the type of the result."""
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
    """The values of an average, from sums and numbers of values."""
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
    shown = {pa.int64(): "bigint"}.get(result) or str(result).replace("128", "").replace(" ", "")
    return ViewFailed(f"the {kind} overflows {shown}")


def _quotients(total: pa.Array, counts: Any, result: pa.DataType) -> pa.Array:
    """Of integers: the sum as a double by the count as a double, each correctly rounded."""
    there = counts > 0
    try:
        sums = total.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    except pa.ArrowInvalid:
        sums = np.array([float(one) for one in _integers(total)])
    values = np.divide(sums, counts.astype(np.float64), out=np.zeros(len(sums)), where=there)
    return pa.array(values, result, mask=~there)


def _averages(total: pa.Array, counts: Any, argument: pa.DataType, result: pa.DataType) -> pa.Array:
    """Of decimals; at once where rounding in one go gives the same, else one by one."""
    scale, shown = argument.scale, result.scale
    try:
        total = total.cast(pa.decimal128(min(38, argument.precision + 10), scale))
    except pa.ArrowInvalid:
        raise _overflow("avg", result) from None
    there = counts > 0
    sums = _small(total)
    factor, many = 2 * 10 ** (shown - scale), int(counts.max(initial=0))
    fits = sums is not None and int(np.abs(sums).max(initial=0)) * factor + many < 2**63
    if fits and 2 * many < 10 ** (38 - shown):  # no tie is as near as the first rounding moves a quotient
        count = np.where(there, counts, 1)
        sizes = (np.abs(sums) * factor + count) // (2 * count)
        if argument.precision <= _BY_DOUBLES:
            for row in _near_ties(np.abs(sums) * (factor // 2), count):
                sizes[row] = _by_doubles(abs(int(sums[row])), int(count[row]), scale, shown)
        if int(sizes.max(initial=0)) >= 10**result.precision:
            raise _overflow("avg", result)
        return _decimals(np.where(sums < 0, -sizes, sizes), there, result)
    found: list[int | None] = []
    for one, count in zip(_integers(total), counts.tolist(), strict=True):
        value: int | None = None
        if count > 0 and argument.precision <= _BY_DOUBLES:
            value = _by_doubles(one, count, scale, shown)
        elif count > 0:
            value = _rounded(_rounded(one * 10 ** (38 - scale), count), 10 ** (38 - shown))
        if value is not None and abs(value) >= 10**result.precision:
            raise _overflow("avg", result)
        found.append(value)
    body = b"".join((one or 0).to_bytes(16, "little", signed=True) for one in found)
    return _masked(pa.Array.from_buffers(result, len(found), [None, pa.py_buffer(body)]), there)


def _near_ties(sizes: Any, counts: Any) -> Any:
    """The rows whose quotient is so near to the middle of two results that doubles may miss it."""
    whole, rest = np.divmod(sizes, counts)
    return np.flatnonzero(np.abs(rest / counts - 0.5) <= (whole + 1.0) * 2.0**-50)


def _by_doubles(total: int, count: int, scale: int, shown: int) -> int:
    """The average as Spark's optimizer has it computed for decimals of few digits, whose sum a double holds:
    two divisions of doubles, and the shortest decimal that says what came out, rounded half up.
    """
    quotient = Decimal(repr(float(total) / float(count) / 10.0**scale))
    return int((quotient * 10**shown).quantize(Decimal(1), ROUND_HALF_UP))


def _rounded(value: int, by: int) -> int:
    """A quotient, rounded half up: away from zero."""
    size = (2 * abs(value) + by) // (2 * by)
    return -size if value < 0 else size


# --- decimals as integers


def _words(array: pa.Array) -> Any:
    body = np.frombuffer(array.buffers()[1], np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
    return body.reshape(-1, 2)


def _small(array: pa.Array) -> Any:
    """Unscaled values in 64 bits, 0 for NULL; None when one of them needs more."""
    pair = _words(array)
    low, high = pair[:, 0].view(np.int64), pair[:, 1].view(np.int64)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    low = np.where(valid, low, 0)
    return low if (~valid | (high == low >> 63)).all() else None


def _integers(array: pa.Array) -> list[int]:
    valid = array.is_valid().to_pylist()
    return [
        (int(high) - _WORD if int(high) >= _WORD // 2 else int(high)) * _WORD + int(low) if there else 0
        for (low, high), there in zip(_words(array).tolist(), valid, strict=True)
    ]


def _decimals(values: Any, there: Any, kind: pa.DataType) -> pa.Array:
    pair = np.stack([values, values >> 63], axis=1).astype(np.int64)
    return _masked(pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(pair.tobytes())]), there)


def _masked(array: pa.Array, there: Any) -> pa.Array:
    if bool(there.all()):
        return array
    return pc.if_else(pa.array(there), array, pa.scalar(None, array.type))
