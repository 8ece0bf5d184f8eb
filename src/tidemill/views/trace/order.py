"""Compute sort orders of numbers, by radix sort where that is faster than a comparison sort."""

from collections.abc import Sequence
from typing import Any

import numpy as np

I64 = np.ndarray[Any, np.dtype[np.int64]]

_FEW_ROWS = 2_048


def ascending(values: Any) -> I64:
    """Return the stable sort order of evenly spread 64-bit numbers, such as hashes.

    Mostly sorted numbers, such as concatenated runs, are merged. Other numbers are first sorted by their
    upper half, in two rounds. After that, they are mostly sorted.
    """
    order: I64
    if len(values) < _FEW_ROWS or int(np.count_nonzero(values[1:] < values[:-1])) * 64 < len(values):
        order = np.argsort(values, kind="stable")
        return order
    order = np.argsort((values >> values.dtype.type(32)).astype(np.uint16), kind="stable")
    upper = (values >> values.dtype.type(48)).astype(np.int16 if values.dtype == np.int64 else np.uint16)
    order = take(order, np.argsort(take(upper, order), kind="stable"))
    order = take(order, np.argsort(take(values, order), kind="stable"))
    return order


def take(values: Any, rows: I64) -> Any:
    """Return the values of these rows, which must exist: without bounds checks, this takes half the time."""
    return values.take(rows, mode="clip")


def lexical(minor: I64, major: I64) -> tuple[I64, I64]:
    """Return the stable sort order by `major`, then `minor`, and where each distinct pair starts."""
    order: I64
    if len(minor) < _FEW_ROWS:
        order = np.lexsort((minor, major))
        return order, _firsts([minor, major], order)
    widths = [(int(key.max()) - int(key.min())).bit_length() for key in (minor, major)]
    keys = [(key - key.min()).view(np.uint64) for key in (minor, major)]  # may wrap around, which is correct
    if sum(widths) < 64:  # both fit into one number, which may have fewer digits
        keys, widths = [keys[0] | (keys[1] << np.uint64(widths[0]))], [sum(widths)]
    digits = [
        (key >> np.uint64(shift)).astype(np.uint16)
        for key, width in zip(keys, widths, strict=True)
        for shift in range(0, width, 16)
    ]
    if not digits:  # all pairs are equal
        return np.arange(len(minor)), np.zeros(1, np.int64)
    order = np.argsort(digits[0], kind="stable")
    for digit in digits[1:]:
        order = take(order, np.argsort(take(digit, order), kind="stable"))
    return order, _firsts(keys, order)


def _firsts(keys: Sequence[Any], order: I64) -> I64:
    """Return where in the order the keys of a row differ from those of the row before."""
    fresh = np.zeros(len(order), bool)
    fresh[:1] = True
    for key in keys:
        sorted_key = take(key, order)
        fresh[1:] |= sorted_key[1:] != sorted_key[:-1]
    return np.flatnonzero(fresh)


def distinct(values: I64) -> I64:
    """Return the distinct values, ascending; fast if the values are already sorted."""
    if not (values[1:] >= values[:-1]).all():
        values = np.sort(values)
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values if first.all() else values[first]
