"""Variance, covariance, correlation and regression from exact sums of values and of their products.

A group stores the number of its rows, and the exact sums of x, y, x*x, y*y and x*y, as far as its aggregates
need them (`sums.binned_products`). The central moments follow from these sums with integers, so they are
correctly rounded in any order of rows. The last step uses doubles and the formulas of Spark. So a
result differs from Spark's only by the rounding errors of Spark's running computation.

A moment is NaN if one of its values is NaN or infinite, as in Spark.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tidemill.views.aggregates.sums import Doubles, Total, ratio
from tidemill.views.trace.order import I64

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Moments(NamedTuple):
    """The moments of groups; those that an aggregate does not need are None.

    Args:
        rows: the number of rows.
        x, y: the averages.
        xx, yy, xy: the sums of the products of the differences from the averages.
    """

    rows: I64
    x: Any
    y: Any
    xx: Any
    yy: Any
    xy: Any


def average(rows: I64, totals: list[Total]) -> Doubles:
    """Return the averages of groups with these exact sums."""
    return np.array(
        [
            ratio(total, power, n) if n else 0.0
            for n, (total, power) in zip(rows.tolist(), totals, strict=True)
        ],
        np.float64,
    )


def central(rows: I64, first: list[Total], second: list[Total], products: list[Total]) -> Doubles:
    """Return the sums of (x - average x) * (y - average y) of groups, correctly rounded.

    Args:
        rows: the number of rows of each group.
        first: the sum of x.
        second: the sum of y.
        products: the sum of x*y.
    """
    result = np.zeros(len(rows))
    for group, n in enumerate(rows.tolist()):
        if not n:
            continue
        (x, x_power), (y, y_power), (xy, xy_power) = first[group], second[group], products[group]
        power = min(x_power + y_power, xy_power)
        numerator = (n * xy << (xy_power - power)) - (x * y << (x_power + y_power - power))
        result[group] = ratio(numerator, power, n)
    return result


# --- the aggregates, by Spark's formulas; each returns the values, and in which groups they are not NULL

Result = tuple[Doubles, Mask]


def _divided(values: Any, divisors: Any) -> Doubles:
    quotient: Doubles = np.divide(values, divisors, out=np.zeros(len(values)), where=divisors != 0)
    return quotient


def _present(moments: Moments) -> Mask:
    return np.asarray(moments.rows > 0)


def population(name: str) -> Callable[[Moments], Result]:
    """Return the variance or covariance of a population; `name` is the moment."""
    return lambda moments: (_divided(getattr(moments, name), moments.rows), _present(moments))


def sample(name: str) -> Callable[[Moments], Result]:
    """Return the variance or covariance of a sample, which needs two rows."""
    return lambda moments: (_divided(getattr(moments, name), moments.rows - 1), moments.rows > 1)


def root(variance: Callable[[Moments], Result]) -> Callable[[Moments], Result]:
    """Return the standard deviation."""

    def deviation(moments: Moments) -> Result:
        values, present = variance(moments)
        return np.sqrt(values), present

    return deviation


def moment(name: str) -> Callable[[Moments], Result]:
    """Return a moment as it is."""
    return lambda moments: (getattr(moments, name), _present(moments))


def correlation(moments: Moments) -> Result:
    """Return the correlation; NULL if x or y is constant, or for one row."""
    spread = np.sqrt(moments.xx * moments.yy)
    varies = (moments.xx != 0) & (moments.yy != 0)
    return _divided(moments.xy, spread), (moments.rows > 1) & varies


def slope(moments: Moments) -> Result:
    """Return the slope of the regression; NULL if x is constant."""
    return _divided(moments.xy, moments.xx), _present(moments) & (moments.xx != 0)


def intercept(moments: Moments) -> Result:
    """Return the intercept of the regression; NULL if x is constant."""
    gradient, present = slope(moments)
    return moments.y - gradient * moments.x, present


def determination(moments: Moments) -> Result:
    """Return the square of the correlation; 1 if y is constant, NULL if x is."""
    values, _ = correlation(moments)
    squares = np.where(moments.yy == 0, 1.0, values * values)
    return squares, _present(moments) & (moments.xx != 0)
