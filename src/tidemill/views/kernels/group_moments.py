"""Compute variances, covariances and regressions from the sums that a GROUP BY stores (`aggregates.moments`).

The sums are named after columns: `a|b` is the column a, only where b is present, and `a|b*b|a` is the product
of two such columns. So two aggregates that need the same sum share it.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.views.aggregates.moments import Mask, Moments, average, central
from tidemill.views.aggregates.registry import Kernel
from tidemill.views.aggregates.sums import Doubles, Total
from tidemill.views.kernels.group_aggregate import Pair
from tidemill.views.trace.consolidation import chunk
from tidemill.views.trace.order import I64


def column_of(rows: pa.Table, name: str) -> pa.Array:
    """Return a column; a|b is the column a, NULL where b is NULL."""
    first, _, second = name.partition("|")
    values = chunk(rows, first)
    if not second or not rows[second].null_count:
        return values
    return pc.if_else(pc.is_valid(chunk(rows, second)), values, pa.scalar(None, values.type))


def moment_of(
    kernel: Kernel, pair: Pair, sums: Mapping[str, I64], totals_of: Callable[[str], Mapping[int, Total]]
) -> pa.Array:
    """Compute an aggregate for all groups.

    Args:
        kernel: the kernel of the aggregate.
        pair: its columns.
        sums: for each group, the number of rows of each column, and of those that are not finite.
        totals_of: returns the exact sum of a column or product for each group that does not sum to nothing.
    """
    rows = sums[f"_{pair.x}.n"]

    def totals(name: str) -> list[Total]:
        known = totals_of(name)
        return [known.get(number, (0, 0)) for number in range(len(rows))]

    columns = {letter: totals(name) for letter, name in zip("xy", pair, strict=True)}
    moments = {
        letter: with_infinities(average(rows, columns[letter]), name, sums)
        for letter, name in zip("xy", pair, strict=True)
    }
    for letters in kernel.products:
        first, second = list(letters)
        values = central(rows, columns[first], columns[second], totals(pair.product(letters)))
        for letter in (first, second):
            values[_not_finite(getattr(pair, letter), sums)] = np.nan
        moments[letters] = values
    needed = Moments(rows, *(moments.get(name) for name in Moments._fields[1:]))
    with np.errstate(all="ignore"):  # infinities, as in Spark
        results, present = kernel.of_moments(needed)
    return pa.array(results, mask=~present)


def _not_finite(name: str, sums: Mapping[str, I64]) -> Mask:
    return (sums[f"_{name}.nan"] > 0) | (sums[f"_{name}.pos"] > 0) | (sums[f"_{name}.neg"] > 0)


def with_infinities(values: Doubles, name: str, sums: Mapping[str, I64]) -> Doubles:
    """Set the sums or averages of groups that have NaN or infinities."""
    up, down = sums[f"_{name}.pos"] > 0, sums[f"_{name}.neg"] > 0
    values[up], values[down] = np.inf, -np.inf
    values[(sums[f"_{name}.nan"] > 0) | (up & down)] = np.nan
    return values
