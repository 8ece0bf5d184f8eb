"""Exact sums of numbers, which do not depend on the order of rows.

Integers and decimals are summed in *limbs*: int64 columns of 32 bits each, lowest first. The highest limb has
the sign and takes the carry of the others. Integers of up to 64 bits have three limbs, and decimals of 128
bits have five, so a sum of fewer than 2^64 rows cannot overflow.

Doubles are summed in *bins*. A double is m x 2^e with at most 53 bits in m. Exponents are divided into bins
of 26 bits, and the bits of m fall into at most three bins. A sum has one integer per bin. Adding a value and
later removing it leaves the sum unchanged, in any order of rows. The exact total is rounded once, at the end.
A bin can add up 2^37 values before it can overflow 64 bits. NaN and infinities are counted, not added.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.errors import TypeRefused, WeightOverflow
from tidemill.views.trace.order import I64

Doubles = np.ndarray[Any, np.dtype[np.float64]]

Total = tuple[int, int]
"""An exact sum: an integer, and the power of two that it is multiplied by."""

DIGITS = 38  # of Spark's widest decimal
_LIMB_MASK = np.uint64(2**32 - 1)
_TOO_LARGE = 10**DIGITS

WIDTH = 26
_MASK = np.int64(2**WIDTH - 1)
_HALF = np.int64(2**27 - 1)
_SAFE = 2.0**900  # for larger totals, the fast sum might overflow on the way


# --- integers and decimals


def limb_count(kind: pa.DataType) -> int:
    """Return how many limbs a sum of values of this type needs."""
    if pat.is_signed_integer(kind):
        return 3
    if pat.is_decimal128(kind):
        return 5
    raise TypeRefused(
        f"the sum of {kind} values cannot be updated exactly",
        hint="no action is needed: Spark recomputes the changed groups, or the whole view",
    )


def limbs_of(array: pa.Array, weights: I64) -> list[I64]:
    """Return each value times its weight, in limbs whose carries are not propagated yet; NULL counts as 0."""
    _check_weights(weights)
    kind = array.type
    filled = pc.fill_null(array, pa.scalar(0, kind)) if array.null_count else array
    if pat.is_decimal128(kind):
        pair = np.frombuffer(filled.buffers()[1], np.uint64, count=2 * len(filled), offset=16 * filled.offset)
        words = [pair[0::2], pair[1::2]]
    else:
        words = [filled.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)]
    limbs = [part for word in words for part in (word & _LIMB_MASK, word >> np.uint64(32))]
    sign = words[-1].view(np.int64) >> 63
    return [*(limb.astype(np.int64) * weights for limb in limbs), sign * weights]


def decimals(limbs: list[I64], scale: int, present: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Convert sums from carried limbs to DECIMAL(38, scale), and return which sums are too large.

    The result is NULL for a row that is not `present` or whose sum is too large.
    """
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


# --- bits


def bits_of(array: pa.Array, weights: I64) -> list[I64]:
    """Return for each bit of an integer type, lowest first, the weights of the values that have it."""
    values = pc.fill_null(array, pa.scalar(0, array.type)).to_numpy(zero_copy_only=False)
    return [((values >> bit) & 1).astype(np.int64) * weights for bit in range(array.type.bit_width)]


def integers_of_bits(bits: list[np.ndarray[Any, np.dtype[np.bool_]]], kind: pa.DataType) -> I64:
    """Return the integers of a type that have these bits, lowest first."""
    words = np.zeros(len(bits[0]), np.uint64)
    for place, present in enumerate(bits):
        words |= present.astype(np.uint64) << np.uint64(place)
    unused = np.int64(64 - kind.bit_width)
    return (words.view(np.int64) << unused) >> unused


# --- doubles


class BinnedValues(NamedTuple):
    """Values divided into bins: the row of each piece, its bin, and the piece times the row's weight."""

    row: I64
    bin: I64
    sum: I64


def doubles_of(array: pa.Array) -> Doubles:
    """Return numbers as doubles, as Spark casts them: correctly rounded; NULL is 0."""
    if pat.is_decimal(array.type):
        return np.array([0.0 if value is None else float(value) for value in array.to_pylist()])
    filled = pc.fill_null(array, pa.scalar(0, array.type)) if array.null_count else array
    values: Doubles = filled.to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def binned(values: Doubles, weights: I64) -> BinnedValues:
    """Divide finite values into bins; NaN and infinities have no pieces."""
    mantissas, exponents = _parts(values)
    return _binned(mantissas, exponents, weights)


def binned_products(first: Doubles, second: Doubles, weights: I64) -> BinnedValues:
    """Divide the exact products of finite values into bins; a product with NaN or infinity has no pieces."""
    finite = np.isfinite(first) & np.isfinite(second)
    a, a_exponents = _parts(np.where(finite, first, 0.0))
    b, b_exponents = _parts(np.where(finite, second, 0.0))
    exponents = a_exponents + b_exponents
    a_high, a_low, b_high, b_low = a >> 27, a & _HALF, b >> 27, b & _HALF
    pieces = [
        _binned(a_high * b_high, exponents + 54, weights),
        _binned(a_high * b_low, exponents + 27, weights),
        _binned(a_low * b_high, exponents + 27, weights),
        _binned(a_low * b_low, exponents, weights),
    ]
    return BinnedValues(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def _parts(values: Doubles) -> tuple[I64, I64]:
    """Return integers of at most 53 bits and powers of two, whose product is each finite value."""
    fractions, exponents = np.frexp(np.where(np.isfinite(values), values, 0.0))
    return np.ldexp(fractions, 53).astype(np.int64), exponents.astype(np.int64) - 53


def _binned(integers: I64, exponents: I64, weights: I64) -> BinnedValues:
    """Divide integers of at most 54 bits, times powers of two, into bins."""
    _check_weights(weights)
    lowest = exponents // WIDTH
    shift = exponents - lowest * WIDTH
    size, signed = np.abs(integers), np.sign(integers) * weights
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
    """Return the sum of each group's bins, correctly rounded; 0.0 for a group without bins.

    Args:
        group: the group of each bin, 0 to count - 1.
        bins: the number of the bin.
        sums: the sum in the bin; a (group, bin) pair may occur several times.
        count: the number of groups.
    """
    result, _, exact = _fast_totals(group, bins, sums, count)
    for each, total in _exact_totals(group, bins, sums, np.flatnonzero(~exact)):
        result[each] = ratio(*total, 1)
    return result


def averages(group: I64, bins: I64, sums: I64, rows: I64) -> Doubles:
    """Return each group's sum divided by its row count, correctly rounded; 0.0 for a group without rows."""
    count = len(rows)
    divisor = np.where(rows > 0, rows, 1).astype(np.float64)
    total, rest, exact = _fast_totals(group, bins, sums, count)
    size = np.abs(total)
    exact &= ((size > 1e-200) & (size < 1e200) & (divisor < 2**53)) | (size == 0)
    safe = np.where(exact, total, 0.0)
    result: Doubles = safe / divisor
    # compute the remainder nearly exactly, then test whether its error could change the rounding
    product, error = _two_product(result, divisor)
    remainder, rest = safe - product, np.where(exact, rest, 0.0)
    correction = ((remainder - error) + rest) / divisor
    uncertainty = (np.abs(remainder) + np.abs(error) + np.abs(rest)) / divisor * 2.0**-48
    result, highest = result + (correction - uncertainty), result + (correction + uncertainty)
    exact &= result == highest
    for each, exact_total in _exact_totals(group, bins, sums, np.flatnonzero(~exact)):
        result[each] = ratio(*exact_total, int(rows[each]) if rows[each] > 0 else 1)
    return result


def _check_weights(weights: I64) -> None:
    if len(weights) and max(int(weights.max()), -int(weights.min())) >= 2**30:
        raise WeightOverflow("one change inserts or deletes the same row 2^30 times or more")


def _fast_totals(group: I64, bins: I64, sums: I64, count: int) -> tuple[Doubles, Doubles, Any]:
    """Return each total as the nearest double plus its error, and for which groups this is exact."""
    total, rest = np.zeros(count), np.zeros(count)
    exact = np.ones(count, bool)
    if len(group) == 0:
        return total, rest, exact
    order = np.lexsort((-bins, group))
    group, bins, sums = group[order], bins[order], sums[order]
    nth = np.arange(len(group)) - np.searchsorted(group, group)
    scale = (bins * WIDTH).astype(np.int32)
    with np.errstate(all="ignore"):  # totals that overflow are not exact, and are computed again
        for place in range(int(nth.max()) + 1):
            at = np.flatnonzero(nth == place)
            to = group[at]
            for part, shift in ((sums[at] >> 32, 32), (sums[at] & np.int64(2**32 - 1), 0)):
                term = np.ldexp(part.astype(np.float64), scale[at] + shift)
                added, error = _two_sum(total[to], term)
                new_rest, lost = _two_sum(rest[to], error)
                total[to], rest[to] = added, new_rest
                exact[to] &= (lost == 0) & (np.abs(added) < _SAFE)
        total, rest = _two_sum(total, rest)
    return total, rest, exact


def exact_totals(group: I64, bins: I64, sums: I64) -> dict[int, Total]:
    """Return the exact sum of each group that has bins."""
    if len(group) == 0:
        return {}
    lowest = int(bins.min())
    added: dict[int, int] = {}
    for number, place, value in zip(group.tolist(), (bins - lowest).tolist(), sums.tolist(), strict=True):
        added[number] = added.get(number, 0) + (value << (WIDTH * place))
    return {number: (total, WIDTH * lowest) for number, total in added.items()}


def _exact_totals(group: I64, bins: I64, sums: I64, numbers: I64) -> Iterable[tuple[int, Total]]:
    chosen = np.isin(group, numbers)
    return exact_totals(group[chosen], bins[chosen], sums[chosen]).items()


def ratio(total: int, power: int, divisor: int) -> float:
    """Return total x 2^power / divisor; Python's division of integers rounds correctly, once."""
    if power >= 0:
        total <<= power
    else:
        divisor <<= -power
    try:
        return total / divisor
    except OverflowError:
        return float("-inf") if total < 0 else float("inf")


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a + b rounded, and its exact error (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a * b rounded, and its exact error (Dekker)."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(value: Any) -> tuple[Any, Any]:
    """Split a double into two doubles of at most 26 bits each (Veltkamp)."""
    spread = value * 134217729.0  # 2^27 + 1
    high = spread - (spread - value)
    return high, value - high
