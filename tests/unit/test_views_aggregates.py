"""Aggregates: sums that are exact, extremes that are refilled, groups that come and go."""

import math
import random
import struct
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from tests.unit.spark_hash import hashed
from tests.unit.test_views_types import MemoryTraces
from tidemill.errors import UsageError, WeightNegative, WeightOverflow
from tidemill.views.aggregates.sums import averages, binned, decimals, limbs_of, totals
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import GroupChange, GroupKernel
from tidemill.views.kernels.zsets import SPAN, digest
from tidemill.views.trace.consolidation import carry
from tidemill.views.trace.key_hash import GLOBAL_HASH

finite = st.floats(allow_nan=False, allow_infinity=False)
FLOATS = pa.schema([("v", pa.float64())])
KEYS = pa.schema([("k", pa.int64())])


def exact(values: list[float], weights: list[int]) -> Fraction:
    return sum((Fraction(value) * weight for value, weight in zip(values, weights, strict=True)), Fraction(0))


def rounded(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def in_bins(values: list[float], weights: list[int]) -> tuple[Any, Any, Any]:
    pieces = binned(np.array(values, np.float64), np.array(weights, np.int64))
    return np.zeros(len(pieces.row), np.int64), pieces.bin, pieces.sum


class StoredAggregate:
    """An aggregate with its traces and its present result."""

    def __init__(self, aggregate: GroupKernel) -> None:
        self.aggregate = aggregate
        self.stores = {name: MemoryTraces() for name in aggregate.layouts}
        self.now: Counter[Any] = Counter()
        self.first = True

    def step(self, rows: list[dict[str, Any]]) -> GroupChange:
        schema = pa.schema([*self.aggregate.keys, *self.aggregate.values, ("_w", pa.int64())])
        table = pa.Table.from_pylist([{"_w": 1, **row} for row in rows], schema)
        if len(self.aggregate.keys):
            table = hashed(table, self.aggregate.keys.names)
        else:
            table = table.add_column(0, "_h", pa.array([GLOBAL_HASH] * len(rows), pa.int64()))
        traces = {
            name: store.trace(name, self.aggregate.layouts[name]) for name, store in self.stores.items()
        }
        change = self.aggregate.step([self.aggregate.accumulate(table)], traces, first=self.first)
        self.first = False
        self.apply(change)
        return change

    def apply(self, change: GroupChange) -> None:
        for name, store in self.stores.items():
            store.append(name, self.aggregate.layouts[name], change.traces[name])
        for row in change.out.to_pylist():
            values = (row[name] for name in change.out.column_names[1:-1])
            self.now[tuple(math.nan if value != value else value for value in values)] += row["_w"]
        assert all(weight >= 0 for weight in self.now.values()) or change.pending is not None
        self.now += Counter()

    @property
    def rows(self) -> list[Any]:
        return sorted(self.now.elements(), key=repr)


# --- doubles


@settings(max_examples=300)
@given(st.lists(st.tuples(finite, st.integers(-3, 3)), max_size=12))
def test_a_sum_of_doubles_is_the_exact_sum_rounded_once(rows: list[tuple[float, int]]) -> None:
    values, weights = [row[0] for row in rows], [row[1] for row in rows]
    sums = totals(*in_bins(values, weights), 1)
    assert struct.pack("<d", sums[0]) == struct.pack("<d", rounded(exact(values, weights)) + 0.0)


@settings(max_examples=300)
@given(st.lists(finite, min_size=1, max_size=12), st.integers(1, 2**40))
@example([3.0, 9 * 2.0**-53], 3)  # in the middle of two doubles: only integers decide which one is even
def test_an_average_of_doubles_is_the_exact_one_rounded_once(values: list[float], rows: int) -> None:
    means = averages(*in_bins(values, [1] * len(values)), np.array([rows]))
    assert means[0] == rounded(exact(values, [1] * len(values)) / rows)


def test_sums_and_averages_of_many_groups_are_exact() -> None:
    chance = random.Random(7)
    values = [
        chance.choice([chance.random(), chance.uniform(-1e18, 1e18), chance.expovariate(1e-9)])
        for _ in range(3000)
    ]
    group = np.array([chance.randrange(200) for _ in values])
    pieces = binned(np.array(values), np.ones(len(values), np.int64))
    counts = np.bincount(group, minlength=200)
    sums = totals(group[pieces.row], pieces.bin, pieces.sum, 200)
    means = averages(group[pieces.row], pieces.bin, pieces.sum, counts)
    for each in range(200):
        members = [value for value, where in zip(values, group, strict=True) if where == each]
        assert sums[each] == math.fsum(members)
        assert means[each] == rounded(exact(members, [1] * len(members)) / len(members))


def test_a_sum_can_exceed_the_largest_double_and_return() -> None:
    large = 1.7976931348623157e308
    assert totals(*in_bins([large, large, -large], [1, 1, 1]), 1)[0] == large
    assert totals(*in_bins([large, large], [1, 1]), 1)[0] == math.inf
    assert totals(*in_bins([large], [-3]), 1)[0] == -math.inf


def test_deleted_doubles_leave_no_residue() -> None:
    aggregate = GroupKernel(KEYS, FLOATS, (GroupAggregate("sum", "v", "s"), GroupAggregate("avg", "v", "a")))
    stored = StoredAggregate(aggregate)
    stored.step([{"k": 1, "v": 0.1}, {"k": 1, "v": 0.2}])
    before = stored.rows
    noise = [1e16, -3e-7, 1e300, 5e-324, math.inf, -math.inf, math.nan, 0.3]
    stored.step([{"k": 1, "v": value} for value in noise])
    assert math.isnan(stored.rows[0][1])
    stored.step([{"k": 1, "v": value, "_w": -1} for value in reversed(noise)])
    assert stored.rows == before == [(1, 0.1 + 0.2, 0.15000000000000002)]
    stored.step([{"k": 1, "v": 0.2, "_w": -1}, {"k": 1, "v": 0.1, "_w": -1}])
    assert stored.rows == []
    assert all(
        not list(store.trace(name, aggregate.layouts[name]).scan()) for name, store in stored.stores.items()
    )


def test_infinities_and_nan_are_counted_and_not_added() -> None:
    stored = StoredAggregate(
        GroupKernel(KEYS, FLOATS, (GroupAggregate("sum", "v", "s"), GroupAggregate("count", "v", "n")))
    )
    stored.step([{"k": 1, "v": math.inf}, {"k": 1, "v": 1.0}, {"k": 2, "v": None}])
    assert stored.rows == [(1, math.inf, 2), (2, None, 0)]
    stored.step([{"k": 1, "v": -math.inf}])
    assert math.isnan(stored.rows[0][1])
    stored.step([{"k": 1, "v": math.inf, "_w": -1}])
    assert stored.rows[0] == (1, -math.inf, 2)


def test_floats_are_added_as_doubles() -> None:
    stored = StoredAggregate(
        GroupKernel(KEYS, pa.schema([("v", pa.float32())]), (GroupAggregate("sum", "v", "s"),))
    )
    stored.step([{"k": 1, "v": 0.1}, {"k": 1, "v": 16777216.0}])
    assert stored.rows == [(1, float(np.float32(0.1)) + 16777216.0)]


# --- integers and decimals


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(-(2**29), 2**29)), max_size=8))
def test_limbs_add_up_exactly(rows: list[tuple[int, int]]) -> None:
    array = pa.array([Decimal(value) for value, _ in rows], pa.decimal128(38, 0))
    parts = limbs_of(array, np.array([weight for _, weight in rows], np.int64))
    sums = {str(n): np.array([limb.sum()]) for n, limb in enumerate(parts)}
    carry(sums, tuple(sums))
    total = sum(value * weight for value, weight in rows)
    total_array, over = decimals(list(sums.values()), 0, np.array([True]))
    assert over[0] == (abs(total) >= 10**38)
    assert total_array.to_pylist() == [None if over[0] else Decimal(total)]


@pytest.mark.parametrize("total", [10**38 - 1, 10**38, -(10**38) + 1, -(10**38), 2**127, -(2**127), 2**140])
def test_a_decimal_of_more_than_38_digits_is_flagged(total: int) -> None:
    limbs = [np.array([(total >> (32 * n)) & (2**32 - 1)], np.int64) for n in range(4)]
    total_array, over = decimals([*limbs, np.array([total >> 128], np.int64)], 2, np.array([True]))
    assert over[0] == (abs(total) >= 10**38)
    assert total_array[0].is_valid != over[0]


def test_a_sum_of_integers_can_exceed_64_bits_and_return() -> None:
    schema = pa.schema([("v", pa.int64())])
    stored = StoredAggregate(
        GroupKernel(KEYS, schema, (GroupAggregate("sum", "v", "s"), GroupAggregate("avg", "v", "a")))
    )
    most = 2**63 - 1
    stored.step([{"k": 1, "v": most}, {"k": 1, "v": most}])
    assert stored.rows == [(1, Decimal(2 * most), False, Decimal(2 * most), False, 2)]
    stored.step([{"k": 1, "v": most, "_w": -1}, {"k": 1, "v": -(2**63)}])
    assert stored.rows == [(1, Decimal(-1), False, Decimal(-1), False, 2)]


def test_a_row_with_too_large_a_weight_is_refused() -> None:
    aggregate = GroupKernel(KEYS, FLOATS, (GroupAggregate("sum", "v", "s"),))
    with pytest.raises(WeightOverflow):
        StoredAggregate(aggregate).step([{"k": 1, "v": 1.0, "_w": 2**40}])


# --- groups


def test_a_group_exists_while_it_has_rows() -> None:
    stored = StoredAggregate(GroupKernel(KEYS, FLOATS, (GroupAggregate("count", None, "n"),)))
    stored.step([{"k": 1, "v": None}, {"k": None, "v": 1.0}])
    assert stored.rows == [(1, 1), (None, 1)]
    stored.step([{"k": 1, "v": None, "_w": -1}])
    assert stored.rows == [(None, 1)]
    with pytest.raises(WeightNegative):
        stored.step([{"k": 1, "v": None, "_w": -1}])


def test_the_names_of_an_aggregate_are_unique() -> None:
    for name in ("k", "main", "bins", "_w"):
        with pytest.raises(UsageError, match="not unique"):
            GroupKernel(KEYS, FLOATS, (GroupAggregate("max", "v", name),))
    both = (GroupAggregate("max", "v", "x"), GroupAggregate("min", "v", "x"))
    with pytest.raises(UsageError, match="not unique"):
        GroupKernel(KEYS, FLOATS, both)


def test_an_update_that_changes_no_result_returns_nothing() -> None:
    stored = StoredAggregate(GroupKernel(KEYS, FLOATS, (GroupAggregate("count", None, "n"),)))
    stored.step([{"k": 1, "v": 1.0}])
    change = stored.step([{"k": 1, "v": 1.0, "_w": -1}, {"k": 1, "v": 2.0}])
    assert change.out.num_rows == 0


def test_zeros_and_nans_are_one_group() -> None:
    stored = StoredAggregate(
        GroupKernel(pa.schema([("k", pa.float64())]), FLOATS, (GroupAggregate("count", None, "n"),))
    )
    stored.step(
        [{"k": 0.0, "v": 1.0}, {"k": -0.0, "v": 1.0}, {"k": math.nan, "v": 1.0}, {"k": math.nan, "v": 1.0}]
    )
    assert [str(row) for row in stored.rows] == ["(0.0, 2)", "(nan, 2)"]


def test_a_global_aggregate_has_a_row_when_it_is_empty() -> None:
    aggregate = GroupKernel(
        pa.schema([]),
        FLOATS,
        (GroupAggregate("count", None, "n"), GroupAggregate("sum", "v", "s")),
        always=True,
    )
    stored = StoredAggregate(aggregate)
    stored.step([])
    assert stored.rows == [(0, None)]
    stored.step([{"v": 2.5}])
    assert stored.rows == [(1, 2.5)]
    stored.step([{"v": 2.5, "_w": -1}])
    assert stored.rows == [(0, None)]
    with pytest.raises(UsageError):
        GroupKernel(KEYS, FLOATS, (), always=True)


# --- extremes


def test_the_next_value_replaces_a_deleted_extreme() -> None:
    stored = StoredAggregate(
        GroupKernel(KEYS, FLOATS, (GroupAggregate("min", "v", "low"), GroupAggregate("max", "v", "high")))
    )
    stored.step([{"k": 1, "v": value} for value in (3.0, 1.0, 2.0, math.nan, None)])
    assert str(stored.rows) == "[(1, 1.0, nan)]"
    stored.step([{"k": 1, "v": math.nan, "_w": -1}, {"k": 1, "v": 1.0, "_w": -1}])
    assert stored.rows == [(1, 2.0, 3.0)]
    stored.step([{"k": 1, "v": 2.0, "_w": -1}, {"k": 1, "v": 3.0, "_w": -1}])
    assert stored.rows == [(1, None, None)]


def test_zeros_of_different_sign_are_different_results() -> None:
    stored = StoredAggregate(GroupKernel(KEYS, FLOATS, (GroupAggregate("max", "v", "high"),)))
    stored.step([{"k": 1, "v": -0.0}])
    change = stored.step([{"k": 1, "v": 0.0}])
    assert [(str(row["high"]), row["_w"]) for row in change.out.to_pylist()] == [("-0.0", -1), ("0.0", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("best", [1, 2, 16])
def test_exhausted_groups_are_flagged_once_and_refilled_together(best: int) -> None:
    chance = random.Random(best)
    aggregate = GroupKernel(
        KEYS, FLOATS, (GroupAggregate("count", None, "n"), GroupAggregate("max", "v", "high")), best=best
    )
    stored = StoredAggregate(aggregate)
    rows_now: Counter[tuple[int, float]] = Counter()
    refills = 0
    for _ in range(60):
        change: Counter[tuple[int, float]] = Counter()
        for _ in range(8):
            if rows_now and chance.random() < 0.55:  # mostly delete the best values
                row = max(rows_now) if chance.random() < 0.7 else chance.choice(sorted(rows_now))
                if rows_now[row] + change[row] > 0:
                    change[row] -= 1
            else:
                change[chance.randrange(3), float(chance.randrange(40))] += 1
        rows_now.update(change)
        rows_now += Counter()
        result = stored.step(
            [{"k": key, "v": value, "_w": weight} for (key, value), weight in change.items()]
        )
        if result.pending is not None:
            refills += 1
            exhausted = set(result.pending["k"].to_pylist())
            rows = [
                {"k": key, "_v": value, "_w": weight}
                for (key, value), weight in rows_now.items()
                if key in exhausted
            ]
            schema = pa.schema([("k", pa.int64()), ("_v", pa.float64()), ("_w", pa.int64())])
            again = aggregate.refill(
                result.pending, {"high": hashed(pa.Table.from_pylist(rows, schema), ["k"])}
            )
            assert again.pending is None
            stored.apply(again)
        expected = {}
        for (key, value), weight in rows_now.items():
            count, high = expected.get(key, (0, -math.inf))
            expected[key] = (count + weight, max(high, value))
        assert stored.rows == [(key, *expected[key]) for key in sorted(expected)]
    assert (refills > 0) == (best < 16)


def test_an_extreme_stores_only_the_best_values() -> None:
    aggregate = GroupKernel(KEYS, FLOATS, (GroupAggregate("min", "v", "low"),), best=16)
    stored = StoredAggregate(aggregate)
    for start in range(5):
        stored.step([{"k": 1, "v": float(n)} for n in range(start, 500, 5)])
    rows = [
        row
        for table in stored.stores["low"].trace("low", aggregate.layouts["low"]).scan()
        for row in table.to_pylist()
    ]
    assert sorted((row["_v"] for row in rows), key=lambda value: -1.0 if value is None else value) == [
        None,
        *map(float, range(16)),
    ]


# --- digests


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(-(2**62), 2**62)
        )
    )
)
@pytest.mark.rule("DBSP-42")
def test_a_digest_is_the_sum_of_weight_times_hash_and_adds_up(rows: list[tuple[int, int, int]]) -> None:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    table = pa.table(
        {name: pa.array(column, pa.int64()) for name, column in zip("abw", columns, strict=True)}
    )
    expected = sum(weight * (((high % 2**64) << 64) + low % 2**64) for high, low, weight in rows) % SPAN
    assert digest(table, "a", "b", "w") == expected
    half = len(rows) // 2
    parts = [table.slice(half), table.slice(0, half)]
    assert sum(digest(part, "a", "b", "w") for part in parts) % SPAN == expected
