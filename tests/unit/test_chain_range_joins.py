"""Joins by comparisons, compared with all pairs in Python."""

import operator as signs
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.memory_chain import source
from tests.unit.single_operator import Row, SingleOperator
from tidemill.views.chain.range_join_operator import StatefulRangeJoin
from tidemill.views.circuit.comparisons import comparisons
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.operators import Join
from tidemill.views.kernels import ordered_trace, range_join
from tidemill.views.kernels.range_join import Comparison

BIG, TEXT, REAL = pa.int64(), pa.string(), pa.float64()
LEFT, RIGHT = (BIG, TEXT, REAL), (BIG, BIG, REAL)
POOLS: dict[pa.DataType, list[Any]] = {
    BIG: [None, *range(12)],
    TEXT: [None, "a", "b"],
    REAL: [None, -1.5, 0.0, -0.0, 2.5, float("nan")],
}
JOINS = {
    "band": (Comparison(0, ">=", 0), Comparison(0, "<=", 1)),
    "less": (Comparison(0, "<", 0),),
    "open": (Comparison(0, ">", 1), Comparison(0, "<", 0)),
    "doubles": (Comparison(2, "<=", 2), Comparison(0, ">", 1)),
    "several": (Comparison(0, ">=", 0), Comparison(2, "<", 2), Comparison(0, "<", 1)),
}
SIGNS = {"<": signs.lt, "<=": signs.le, ">": signs.gt, ">=": signs.ge}


def holds(left: Any, sign: str, right: Any) -> bool:
    """Compare like Spark: NULL never, and NaN is the largest number."""
    if left is None or right is None:
        return False
    first, second = ((value != value, 0 if value != value else value) for value in (left, right))
    return bool(SIGNS[sign](first, second))


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.rule("DBSP-11", "DBSP-20")
def test_pairs_equal_all_pairs_that_match_after_every_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_trace, "BLOCK_ROWS", 3)
    monkeypatch.setattr(range_join, "_PAIRS", 5)
    for seed in range(3):
        rng = random.Random(seed)
        single = SingleOperator(StatefulRangeJoin(LEFT, RIGHT, JOINS[name]), (LEFT, RIGHT), 1 + seed)
        sides: tuple[list[Row], list[Row]] = ([], [])
        for step in range(7):
            change: dict[int, list[tuple[Row, int]]] = {0: [], 1: []}
            for side, types in enumerate((LEFT, RIGHT)):
                for _ in range(20 if step == 0 else rng.randrange(5)):
                    rows = sides[side]
                    if rows and rng.random() < 0.5:
                        change[side].append((rows.pop(rng.randrange(len(rows))), -1))
                    else:
                        rows.append(tuple(rng.choice(POOLS[kind]) for kind in types))
                        change[side].append((rows[-1], 1))
            single.step(change, first=step == 0)
            assert single.output == Counter(
                repr((*left, *right))
                for left in sides[0]
                for right in sides[1]
                if all(holds(left[each.left], each.sign, right[each.right]) for each in JOINS[name])
            )
        single.step({side: [(row, -1) for row in rows] for side, rows in enumerate(sides)})
        assert single.output == Counter()
        assert not any(single.state().values())


@pytest.mark.rule("DBSP-11")
def test_only_comparisons_of_a_column_of_each_side_are_used() -> None:
    sides = source("a", "int", "int"), source("b", "int", "int")
    conditions = ((0, " < ", 3), (2, " >= ", 1), (1, " BETWEEN ", 2, " AND ", 3), (0, " < ", 1), (0, " < 3"))
    op = Join("inner", *sides, (), tuple(map(Expr, conditions)))
    assert comparisons(op) == (
        Comparison(0, "<", 1),
        Comparison(1, "<=", 0),
        Comparison(1, ">=", 0),
        Comparison(1, "<=", 1),
    )
