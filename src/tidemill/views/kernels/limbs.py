"""Exact sums of integers and decimals: limbs of 32 bits in int64 columns, the lowest first.

The highest limb has the sign and takes what the others carry. Integers of up to 64 bits have three limbs,
decimals of 128 bits five: no number of rows that 64 bits can count overflows them.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.errors import TypeRefused, WeightOverflow
from tidemill.views.trace.order import I64

DIGITS = 38  # of Spark's widest decimal
_MASK = np.uint64(2**32 - 1)
_TOO_LARGE = 10**DIGITS


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
    limbs = [part for word in words for part in (word & _MASK, word >> np.uint64(32))]
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
