"""The first rows in an order, compared with a sort in Python, and the codes by which rows are sorted."""

import random
from collections import Counter
from datetime import date
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.memory_chain import built, join, source
from tests.unit.single_operator import Row, SingleOperator
from tidemill.errors import WeightNegative
from tidemill.views.chain.top_operators import StatefulTop
from tidemill.views.circuit.expr import column
from tidemill.views.circuit.operators import SortKey, TopK
from tidemill.views.circuit.ties import hash_of
from tidemill.views.kernels import top_rows
from tidemill.views.kernels.row_identity import row_identity
from tidemill.views.kernels.sort_codes import SortColumn, sort_codes, sortable

BIG, TEXT, REAL = pa.int64(), pa.string(), pa.float64()
NAN = float("nan")


def first_rows(rows: list[Row], types: tuple[pa.DataType, ...], operator: StatefulTop) -> Counter[str]:
    """Return the rows that the operator must output, by a sort in Python."""
    if not rows:
        return Counter()
    arrays = [pa.chunked_array([pa.array([row[n] for row in rows], kind)]) for n, kind in enumerate(types)]
    high, low = (half.to_pylist() for half in row_identity(arrays))
    numbers = list(range(len(rows)))
    numbers.sort(key=lambda n: (high[n], low[n]))
    for key in reversed(operator.order):

        def compared(first: int, second: int, key: SortColumn = key) -> int:
            left, right = rows[first][key.place], rows[second][key.place]
            if left is None or right is None:
                return ((right is None) - (left is None)) * (1 if key.nulls_first else -1)
            left, right = ((value != value, value) for value in (left, right))
            # NaN is the largest number.
            order = left[0] - right[0] or (left[1] > right[1]) - (left[1] < right[1])
            return -order if key.descending else order

        numbers.sort(key=cmp_to_key(compared))
    return Counter(repr(rows[n]) for n in numbers[operator.offset : operator.offset + operator.limit])


ORDERS = {
    "descending": (SortColumn(0, descending=True, nulls_first=False),),
    "nulls last": (SortColumn(1, nulls_first=False), SortColumn(2, descending=True)),
    "doubles": (SortColumn(2, descending=True), SortColumn(0)),
    "only the hash": (),
}
POOLS: list[list[Any]] = [[None, *range(40)], [None, "", "a", "b", "ü"], [None, -1.5, 0.0, NAN, 1e300]]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.rule("DBSP-13", "DBSP-14", "DBSP-20")
def test_the_first_rows_equal_a_sort_after_every_step(
    order: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_rows, "SPARE", 1)  # so that few deletions use them up
    types = (BIG, TEXT, REAL)
    operator = StatefulTop(types, ORDERS[order], 3, limit=3, offset=1, buckets=1)
    for seed in range(4):
        rng = random.Random(seed)
        single = SingleOperator(operator, (types,), count)
        rows: list[Row] = []
        for step in range(7):
            change = []
            for _ in range(0 if step == 3 else rng.randint(1, 40)):
                if rows and rng.random() < 0.5:
                    change.append((rows.pop(rng.randrange(len(rows))), -1))
                else:
                    rows.append(tuple(rng.choice(pool) for pool in POOLS))
                    change.append((rows[-1], 1))
            single.step({0: change}, first=step == 0)
            assert single.output == first_rows(rows, types, operator)
        single.step({0: [(row, -1) for row in rows]})
        assert single.output == Counter()
        assert not any(single.state().values())


@pytest.mark.rule("DBSP-13")
def test_rows_are_read_again_only_when_the_spare_rows_are_used_up() -> None:
    operator = StatefulTop((BIG,), (SortColumn(0),), 1, limit=10, buckets=1)
    single = SingleOperator(operator, ((BIG,),))
    single.step({0: [((n,), 1) for n in range(1000)]}, first=True)
    assert single.state()["best"].total() == 74, "those needed, and 64 more"
    single.step({0: [((n,), -1) for n in range(60)]})
    assert single.output == Counter(repr((n,)) for n in range(60, 70))
    assert single.state()["best"].total() == 14
    single.step({0: [((n,), -1) for n in range(60, 65)]})
    assert single.output == Counter(repr((n,)) for n in range(65, 75))
    assert single.state()["best"].total() == 74, "read again"
    single.step({0: [((2000,), 1)]})
    assert single.state()["best"].total() == 74, "a row beyond the bound is not one of the best"
    assert single.state()["all"].total() == 936


@pytest.mark.rule("DBSP-20")
def test_rows_that_are_equal_in_spark_but_not_in_their_bits_are_kept_apart() -> None:
    single = SingleOperator(StatefulTop((REAL,), (SortColumn(0),), 1, limit=2, buckets=1), ((REAL,),))
    single.step({0: [((0.0,), 2), ((-0.0,), 1)]}, first=True)
    assert single.output.total() == 2
    single.step({0: [((0.0,), -2)]})
    assert single.output == Counter([repr((-0.0,))])
    with pytest.raises(WeightNegative):
        single.step({0: [((7.0,), -1)]})


@pytest.mark.rule("DBSP-13")
def test_rows_that_are_read_again_must_contain_all_deleted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_rows, "SPARE", 1)
    single = SingleOperator(StatefulTop((BIG,), (SortColumn(0),), 1, limit=1, buckets=1), ((BIG,),))
    single.step({0: [((n,), 1) for n in range(9)]}, first=True)
    with pytest.raises(WeightNegative):
        single.step({0: [((0,), -1), ((1,), -1), ((99,), -1)]})


@pytest.mark.rule("DBSP-14")
def test_buckets_return_candidates_that_contain_the_first_rows() -> None:
    operator = StatefulTop((BIG,), (SortColumn(0),), 1, limit=5)
    single = SingleOperator(operator, ((BIG,),), 2)
    single.step({0: [((n,), 1) for n in range(5000)]}, first=True)
    assert {repr((n,)) for n in range(5)} <= single.output.keys()
    assert single.output.total() == 5 * operator.buckets


# --- sort codes

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, 0, 127],
    pa.int64(): [-(2**63), -1, 0, 2**63 - 1],
    pa.float32(): [-float("inf"), -1.5, 0.0, 1.5, float("inf"), NAN],
    REAL: [-float("inf"), -1e300, -5e-324, 0.0, 5e-324, 1e300, float("inf"), NAN],
    pa.decimal128(38, 2): [Decimal("-9e30"), Decimal("-0.01"), Decimal("0.00"), Decimal("9e30")],
    TEXT: ["", "A", "B", "a", "a\x00", "aa", "b", "ü", "\U0001f600"],
    pa.binary(): [b"", b"\x00", b"a", b"\x7f", b"\x80", b"\xff"],
    pa.bool_(): [False, True],
    pa.date32(): [date(1900, 1, 1), date(1970, 1, 1), date(2024, 2, 29)],
    pa.timestamp("us", "UTC"): [-2_208_988_800_000_000, 0, 1_700_000_000_000_000],
    pa.timestamp("us"): [-2_208_988_800_000_000, 0, 1_700_000_000_000_000],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
@pytest.mark.rule("DBSP-14")
def test_values_are_sorted_like_in_spark(kind: pa.DataType, *, descending: bool, nulls_first: bool) -> None:
    assert sortable(kind)
    values = VALUES[kind][::-1] if descending else VALUES[kind]
    if kind == pa.binary():
        values = sorted(VALUES[kind], reverse=descending)
    expected = [None, *values] if nulls_first else [*values, None]
    shuffled = random.Random(1).sample(expected, len(expected))
    array = pa.array(shuffled, kind)
    codes = sort_codes(array, descending=descending, nulls_first=nulls_first)
    order = np.lexsort(codes[::-1])
    assert repr(array.take(pa.array(order)).to_pylist()) == repr(pa.array(expected, kind).to_pylist())
    nothing = sort_codes(pa.nulls(2, kind), descending=descending)
    assert all(len(set(code.tolist())) == 1 for code in nothing)


def test_zeros_are_equal_and_nested_values_have_no_codes() -> None:
    (codes,) = sort_codes(pa.array([0.0, -0.0]))
    assert codes[0] == codes[1]
    assert not sortable(pa.list_(pa.int32()))


# --- which top-k has a kernel

A = source("a", "int", "string", "bigint")
JOINED = join(A, source("b", "int", "string", "bigint"), (0, 0))
JOINED_TYPES = ("int", "string", "bigint") * 2


def top(limit: int | None, *keys: SortKey, types: tuple[str, ...] = JOINED_TYPES) -> TopK:
    return TopK(JOINED, (*keys, *map(SortKey, hash_of(types))), limit)


@pytest.mark.rule("DBSP-13", "DBSP-17")
def test_a_top_k_of_few_rows_has_a_kernel() -> None:
    chain = built({"v": top(3, SortKey(column(1), descending=True))}, {})
    operators = [placed.operator for placed in chain.operators if isinstance(placed.operator, StatefulTop)]
    assert [(each.buckets, each.limit, each.hashed) for each in operators] == [(64, 3, 6), (1, 3, 6)]
    assert operators[0].order == (SortColumn(1, descending=True),)
    assert chain.jobs == 1
    # The row had other columns when the hash was added: Spark computes it.
    chain = built({"v": top(3, types=("array<int>",))}, {})
    (first, _) = [placed.operator for placed in chain.operators if isinstance(placed.operator, StatefulTop)]
    assert (len(first.types), first.hashed) == (8, 0)
    assert first.order == (SortColumn(6), SortColumn(7))


@pytest.mark.rule("DBSP-13", "DBSP-17")
def test_a_top_k_of_many_rows_or_with_ties_is_recomputed_from_its_stored_input() -> None:
    for op in (top(None), top(1001), TopK(JOINED, (SortKey(column(0)),), 3)):
        assert built({"v": op}, {}).stored_inputs
