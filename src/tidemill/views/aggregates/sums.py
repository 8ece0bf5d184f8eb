"""Exact sums of numbers, which do not depend on the order of rows.

Integers and decimals are summed in *limbs*: int64 columns of 32 bits each, the lowest first. The highest limb
has the sign and takes the carry of the others. Integers of up to 64 bits have three limbs, decimals of 128
bits five: no number of rows that 64 bits can count overflows them.

Doubles are summed in *bins*. A double is m x 2^e with at most 53 bits in m. Powers of two are divided into
bins of 26 bits, and the bits of m fall into at most three of them. A sum is then one integer per bin. Adding
a value and taking it away again leaves nothing, in any order; the exact total is rounded once, at the end. A
bin takes 2^37 values before 64 bits are full. NaN and the infinities are counted, not added.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.errors import TypeRefused, WeightOverflow
from tidemill.views.trace.order import I64

Doubles = np.ndarray[Any, np.dtype[np.float64]]

DIGITS = 38  # of Spark's widest decimal
_LIMB_MASK = np.uint64(2**32 - 1)
_TOO_LARGE = 10**DIGITS

WIDTH = 26
_MASK = np.int64(2**WIDTH - 1)
_SAFE = 2.0**900  # beyond, the quick sum might overflow on its way


# --- integers and decimals


def limb_count(kind: pa.DataType) -> int:
    """How many limbs the sum of values of this type needs."""
    if pat.is_signed_integer(kind):
        return 3
    if pat.is_decimal128(kind):
        return 5
    raise TypeRefused(f"no exact sum over values of type {kind}", hint="the operator can run keyed")


def limbs_of(array: pa.Array, weights: I64) -> list[I64]:
    """Each value times its weight, in limbs that are not carried yet; NULL is 0."""
    if len(weights) and max(int(weights.max()), -int(weights.min())) >= 2**30:
        raise WeightOverflow("a row is there more than 2^30 times at once")
    kind = array.type
    if pat.is_decimal128(kind):
        filled = pc.fill_null(array, pa.scalar(0, kind)) if array.null_count else array
        pair = np.frombuffer(filled.buffers()[1], np.uint64, count=2 * len(filled), offset=16 * filled.offset)
        words = [pair[0::2], pair[1::2]]
    else:
        filled = pc.fill_null(array, pa.scalar(0, kind)) if array.null_count else array
        words = [filled.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)]
    limbs = [part for word in words for part in (word & _LIMB_MASK, word >> np.uint64(32))]
    sign = words[-1].view(np.int64) >> 63
    return [*(limb.astype(np.int64) * weights for limb in limbs), sign * weights]


def decimals(limbs: list[I64], scale: int, present: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Carried limbs as DECIMAL(38, scale), NULL where not present or too large; and where too large."""
    words = [limb.view(np.uint64) for limb in limbs]
    low = words[0] | (words[1] << np.uint64(32))
    if len(limbs) == 3:
        high, beyond = limbs[2], np.zeros(len(low), bool)
    else:
        high = (words[2] | (words[3] << np.uint64(32))).view(np.int64)
        beyond = limbs[4] != (high >> 63)
    near = np.flatnonzero(~beyond & (np.abs(high.astype(np.float64)) * 2.0**64 > 0.99 * _TOO_LARGE))
    for row in near:
        beyond[row] = abs((int(high[row]) << 64) + int(low[row])) >= _TOO_LARGE
    packed = np.stack([low, high.view(np.uint64)], axis=1)
    kind = pa.decimal128(DIGITS, scale)
    array = pa.Array.from_buffers(kind, len(low), [None, pa.py_buffer(packed.tobytes())])
    shown = present & ~beyond
    return array if shown.all() else pc.if_else(
        pa.array(shown), array, pa.scalar(None, kind)
    ), beyond & present


# --- doubles


class BinnedValues(NamedTuple):
    """Values in pieces: the row each comes from, its bin, and the piece times the row's weight."""

    row: I64
    bin: I64
    sum: I64


def doubles_of(array: pa.Array) -> Doubles:
    """FLOAT and DOUBLE as Spark adds them up, as doubles; NULL is 0."""
    filled = pc.fill_null(array, pa.scalar(0.0, array.type)) if array.null_count else array
    values: Doubles = filled.to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def binned(values: Doubles, weights: I64) -> BinnedValues:
    """Finite values in pieces; others have none."""
    if len(weights) and max(int(weights.max()), -int(weights.min())) >= 2**30:
        raise WeightOverflow("a row is there more than 2^30 times at once")
    finite = np.where(np.isfinite(values), values, 0.0)
    fraction, exponent = np.frexp(finite)
    mantissa = np.ldexp(fraction, 53).astype(np.int64)
    exponent = exponent.astype(np.int64) - 53
    lowest = exponent // WIDTH
    shift = exponent - lowest * WIDTH
    size, signed = np.abs(mantissa), np.sign(mantissa) * weights
    low = (size & _MASK) << shift
    high = ((size >> WIDTH) << shift) + (low >> WIDTH)
    parts = [(lowest, low & _MASK), (lowest + 1, high & _MASK), (lowest + 2, high >> WIDTH)]
    rows = [np.flatnonzero(part) for _, part in parts]
    return BinnedValues(
        np.concatenate(rows),
        np.concatenate([place[row] for (place, _), row in zip(parts, rows, strict=True)]),
        np.concatenate([part[row] * signed[row] for (_, part), row in zip(parts, rows, strict=True)]),
    )


def totals(group: I64, bins: I64, sums: I64, count: int) -> Doubles:
    """The sum of each group's bins, correctly rounded; 0.0 for a group without bins.

    Args:
        group: 0 to count - 1 for each bin.
        bins: the number of the bin.
        sums: what is in it; each (group, bin) may come several times.
        count: how many groups.
    """
    result, _, sure = _quick(group, bins, sums, count)
    for each, found in _slow(group, bins, sums, np.flatnonzero(~sure)):
        result[each] = _ratio(*found, 1)
    return result


def averages(group: I64, bins: I64, sums: I64, rows: I64) -> Doubles:
    """The sum of each group's bins divided by its rows, correctly rounded; groups without rows give 0.0."""
    count = len(rows)
    divisor = np.where(rows > 0, rows, 1).astype(np.float64)
    total, rest, sure = _quick(group, bins, sums, count)
    size = np.abs(total)
    sure &= ((size > 1e-200) & (size < 1e200) & (divisor < 2**53)) | (size == 0)
    safe = np.where(sure, total, 0.0)
    result: Doubles = safe / divisor
    # what the division left, nearly exactly; then see whether digits that are not sure change the rounding
    product, error = _two_product(result, divisor)
    left, rest = safe - product, np.where(sure, rest, 0.0)
    correction = ((left - error) + rest) / divisor
    doubt = (np.abs(left) + np.abs(error) + np.abs(rest)) / divisor * 2.0**-48
    result, other = result + (correction - doubt), result + (correction + doubt)
    sure &= result == other
    for each, found in _slow(group, bins, sums, np.flatnonzero(~sure)):
        result[each] = _ratio(*found, int(rows[each]) if rows[each] > 0 else 1)
    return result


def _quick(group: I64, bins: I64, sums: I64, count: int) -> tuple[Doubles, Doubles, Any]:
    """Totals as the nearest double and what that lacks, and for which groups the two are exact."""
    total, rest = np.zeros(count), np.zeros(count)
    sure = np.ones(count, bool)
    if len(group) == 0:
        return total, rest, sure
    order = np.lexsort((-bins, group))
    group, bins, sums = group[order], bins[order], sums[order]
    nth = np.arange(len(group)) - np.searchsorted(group, group)
    scale = (bins * WIDTH).astype(np.int32)
    with np.errstate(all="ignore"):  # what overflows on the way is not sure, and computed again
        for place in range(int(nth.max()) + 1):
            at = np.flatnonzero(nth == place)
            to = group[at]
            for part, shift in ((sums[at] >> 32, 32), (sums[at] & np.int64(2**32 - 1), 0)):
                term = np.ldexp(part.astype(np.float64), scale[at] + shift)
                added, error = _two_sum(total[to], term)
                kept, lost = _two_sum(rest[to], error)
                total[to], rest[to] = added, kept
                sure[to] &= (lost == 0) & (np.abs(added) < _SAFE)
        total, rest = _two_sum(total, rest)
    return total, rest, sure


def _slow(group: I64, bins: I64, sums: I64, wanted: I64) -> list[tuple[int, tuple[int, int]]]:
    """The totals of some groups as (integer, power of two)."""
    answer: list[tuple[int, tuple[int, int]]] = []
    for each in wanted:
        mine = group == each
        lowest = int(bins[mine].min())
        total = sum(
            int(value) << (WIDTH * (int(place) - lowest))
            for place, value in zip(bins[mine], sums[mine], strict=True)
        )
        answer.append((int(each), (total, WIDTH * lowest)))
    return answer


def _ratio(total: int, power: int, divisor: int) -> float:
    """Total x 2^power / divisor: Python divides integers with one correct rounding."""
    if power >= 0:
        total <<= power
    else:
        divisor <<= -power
    try:
        return total / divisor
    except OverflowError:
        return float("-inf") if total < 0 else float("inf")


def _two_sum(one: Any, other: Any) -> tuple[Any, Any]:
    total = one + other
    back = total - one
    return total, (one - (total - back)) + (other - back)


def _two_product(one: Any, other: Any) -> tuple[Any, Any]:
    product = one * other
    one_high, one_low = _halves(one)
    other_high, other_low = _halves(other)
    error = (
        (one_high * other_high - product) + one_high * other_low + one_low * other_high
    ) + one_low * other_low
    return product, error


def _halves(value: Any) -> tuple[Any, Any]:
    spread = value * 134217729.0  # 2^27 + 1
    high = spread - (spread - value)
    return high, value - high
