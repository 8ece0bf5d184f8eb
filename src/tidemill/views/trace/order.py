"""The order of numbers, faster than by comparing them: 16 bits at a time, where that pays."""

from typing import Any

import numpy as np

I64 = np.ndarray[Any, np.dtype[np.int64]]

_FEW = 2_048


def ascending(values: Any) -> I64:
    """The order of 64-bit numbers that are spread evenly, as hashes are; equal ones stay in their order.

    What is mostly sorted, as runs are that were put together, is merged. The rest is sorted by its upper
    half in two rounds, after which it is mostly sorted.
    """
    order: I64
    if len(values) < _FEW or int(np.count_nonzero(values[1:] < values[:-1])) * 64 < len(values):
        order = np.argsort(values, kind="stable")
        return order
    order = np.argsort((values >> values.dtype.type(32)).astype(np.uint16), kind="stable")
    upper = (values >> values.dtype.type(48)).astype(np.int16 if values.dtype == np.int64 else np.uint16)
    order = taken(order, np.argsort(taken(upper, order), kind="stable"))
    order = taken(order, np.argsort(taken(values, order), kind="stable"))
    return order


def taken(values: Any, rows: I64) -> Any:
    """The values of these rows, all of which there are: half the time of looking whether each is."""
    return values.take(rows, mode="clip")


def lexical(minor: I64, major: I64) -> I64:
    """The order by `major`, and by `minor` where that is equal; what is equal in both stays in its order."""
    order: I64
    if len(minor) < _FEW:
        order = np.lexsort((minor, major))
        return order
    order = np.arange(len(minor))
    for key in (minor, major):
        lowest, highest = int(key.min()), int(key.max())
        digits = (key - np.int64(lowest)).view(np.uint64)  # wraps around where the span is that large
        for shift in range(0, (highest - lowest).bit_length(), 16):
            digit = (digits >> np.uint64(shift)).astype(np.uint16)
            order = taken(order, np.argsort(taken(digit, order), kind="stable"))
    return order


def distinct(values: I64) -> I64:
    """Each value once, ascending; quick where they are ascending already."""
    if not (values[1:] >= values[:-1]).all():
        values = np.sort(values)
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values if first.all() else values[first]
