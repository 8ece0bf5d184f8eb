"""Variances, covariances and regressions: exact sums of products, and Spark's results in special cases."""

import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.single_operator import SingleOperator
from tidemill.errors import TypeRefused
from tidemill.views.aggregates.sums import binned_products, exact_totals
from tidemill.views.chain.native_operators import StatefulAggregate
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import GroupKernel

REAL = pa.float64()
NAN, INF = float("nan"), float("inf")
ONE = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
TWO = (
    *("covar_pop", "covar_samp", "corr", "regr_slope", "regr_intercept", "regr_r2"),
    *("regr_sxx", "regr_syy", "regr_sxy", "regr_avgx", "regr_avgy"),
)
NAMES = (*ONE, *TWO)
finite = st.floats(allow_nan=False, allow_infinity=False)


def operator() -> SingleOperator:
    """Return all aggregates of x = v0 and y = v1 in one group; y is the first argument of those with two."""
    single = [GroupAggregate(name, "v0", name) for name in ONE]
    two = [GroupAggregate(name, "v1", name, "v0") for name in TWO]
    values = pa.schema([("v0", REAL), ("v1", REAL)])
    kernel = GroupKernel(pa.schema([]), values, (*single, *two), always=True)
    return SingleOperator(StatefulAggregate(kernel, (REAL,) * len(NAMES)), [(REAL, REAL)])


def results(single: SingleOperator) -> dict[str, Any]:
    ((row, weight),) = ((row, weight) for row, weight in single.output.items() if weight)
    assert weight == 1
    values = eval(row, {"nan": NAN, "inf": INF})  # the repr of a tuple of floats
    return dict(zip(NAMES, values, strict=True))


def of(*rows: tuple[float | None, float | None]) -> dict[str, Any]:
    single = operator()
    single.step({0: [(row, 1) for row in rows]}, first=True)
    return results(single)


@given(st.lists(st.tuples(finite, finite, st.integers(-3, 3)), max_size=6))
def test_the_sum_of_products_is_exact(rows: list[tuple[float, float, int]]) -> None:
    x, y, weights = (np.array(column) for column in zip(*rows, strict=True)) if rows else (np.array([]),) * 3
    pieces = binned_products(x.astype(float), y.astype(float), weights.astype(np.int64))
    group = np.zeros(len(pieces.row), np.int64)
    total, power = exact_totals(group, pieces.bin, pieces.sum).get(0, (0, 0))
    expected = sum((Fraction(a) * Fraction(b) * weight for a, b, weight in rows), Fraction(0))
    assert Fraction(total) * Fraction(2) ** power == expected


def test_results_over_nearly_equal_values_lose_no_digits() -> None:
    result = of((1e9 + 1, 1.0), (1e9 + 2, 2.0), (1e9 + 3, 4.0))
    assert result["var_pop"] == 2 / 3
    assert result["var_samp"] == 1.0
    assert result["covar_pop"] == 1.0
    assert result["regr_slope"] == 1.5
    assert result["corr"] == pytest.approx(3 / math.sqrt(2 * 14 / 3))


def test_one_row_has_no_sample_variance_and_no_correlation() -> None:
    result = of((2.0, 3.0))
    none = {"var_samp", "stddev_samp", "covar_samp", "corr", "regr_slope", "regr_intercept", "regr_r2"}
    assert {name for name, value in result.items() if value is None} == none
    assert (result["var_pop"], result["regr_avgx"], result["regr_avgy"]) == (0.0, 2.0, 3.0)


def test_constant_values_have_no_correlation() -> None:
    constant_x, constant_y = of((2.0, 1.0), (2.0, 3.0)), of((1.0, 3.0), (2.0, 3.0))
    assert [constant_x[name] for name in ("corr", "regr_slope", "regr_intercept", "regr_r2")] == [None] * 4
    assert [constant_y[name] for name in ("corr", "regr_slope", "regr_intercept", "regr_r2")] == [
        None,
        0.0,
        3.0,
        1.0,
    ]


def test_a_constant_has_no_correlation_with_nan_either() -> None:
    assert of((NAN, 3.0), (1.0, 3.0))["corr"] is None


def test_rows_count_for_two_arguments_only_where_both_are_present() -> None:
    result = of((1.0, 1.0), (3.0, 5.0), (100.0, None), (None, 100.0))
    assert (result["regr_avgx"], result["regr_avgy"], result["regr_sxx"]) == (2.0, 3.0, 2.0)
    assert result["var_pop"] == pytest.approx(float(np.var([1.0, 3.0, 100.0])))
    assert set(of((None, 1.0)).values()) == {None}


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_values_that_are_not_finite_give_nan(value: float) -> None:
    result = of((value, 1.0), (1.0, 5.0))
    for name in ("var_pop", "var_samp", "stddev_pop", "covar_pop", "corr", "regr_slope", "regr_sxx"):
        assert math.isnan(result[name]), name
    assert result["regr_syy"] == 8.0
    assert result["regr_avgx"] == value or math.isnan(value)


def test_squares_that_overflow_are_infinite() -> None:
    result = of((1e300, 1.0), (-1e300, 2.0))
    assert (result["var_pop"], result["corr"], result["regr_slope"]) == (INF, 0.0, 0.0)
    assert result["covar_pop"] == -5e299


def test_changes_and_their_inverse_leave_the_same_bits() -> None:
    rng = random.Random(1)
    rows = [((rng.gauss(0, 10.0 ** rng.randint(-8, 8)), rng.random()), 1) for _ in range(20)]
    single = operator()
    single.step({0: rows[:5]}, first=True)
    before = results(single)
    single.step({0: rows[5:]})
    assert results(single) != before
    single.step({0: [(row, -1) for row, _ in reversed(rows[5:])]})
    assert results(single) == before


def test_a_text_has_no_moments() -> None:
    kernel = GroupKernel(
        pa.schema([]), pa.schema([("v0", pa.string())]), (GroupAggregate("var_pop", "v0", "a"),), always=True
    )
    with pytest.raises(TypeRefused):
        StatefulAggregate(kernel, (REAL,))
