"""A scalar subquery: its value in every row, compared with a product in Python."""

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.single_operator import Row, SingleOperator
from tidemill.errors import ViewFailed
from tidemill.views.chain.scalar_operator import StatefulScalar

BIG, TEXT, REAL = pa.int64(), pa.string(), pa.float64()
NAN = float("nan")


def scalar(count: int = 1) -> SingleOperator:
    operator = StatefulScalar((BIG, TEXT), REAL)
    return SingleOperator(operator, ((BIG, TEXT), (REAL,)), count)


def rewritten(single: SingleOperator) -> int:
    return sum(report.rewritten for report in single.reports)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.rule("DBSP-15", "DBSP-20")
def test_every_row_has_the_value_after_every_step(count: int) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        single = scalar(count)
        rows: list[Row] = []
        value: Any = None
        has_value = False
        for step in range(8):
            change, values = [], []
            for _ in range(rng.randrange(12)):
                if rows and rng.random() < 0.4:
                    change.append((rows.pop(rng.randrange(len(rows))), -1))
                else:
                    rows.append((rng.choice([None, 1, 2]), rng.choice([None, "a", "b"])))
                    change.append((rows[-1], 1))
            if rng.random() < 0.7:
                if has_value:
                    values.append(((value,), -1))
                has_value = rng.random() < 0.8
                value = rng.choice([None, 0.0, -0.0, NAN, 1.5]) if has_value else None
                if has_value:
                    values.append(((value,), 1))
            single.step({0: change, 1: values}, first=step == 0)
            assert single.output == Counter(repr((*row, value)) for row in rows)
        single.step({0: [(row, -1) for row in rows]})
        assert single.output == Counter()
        assert not any(single.state()["rows"].values())


@pytest.mark.rule("DBSP-15")
def test_rows_are_read_only_when_the_value_changes() -> None:
    single = scalar(2)
    single.step({0: [((n, "a"), 1) for n in range(50)], 1: [((1.5,), 1)]}, first=True)
    single.step({0: [((99, "a"), 1)], 1: [((1.5,), -1), ((1.5,), 1)]})
    assert rewritten(single) == 0
    single.step({1: [((1.5,), -1), ((2.5,), 1)]})
    assert rewritten(single) == 51
    assert single.output.total() == 51


@pytest.mark.rule("DBSP-15")
def test_a_second_row_is_an_error_as_in_spark() -> None:
    single = scalar()
    with pytest.raises(ViewFailed, match="more than one row"):
        single.step({0: [((1, "a"), 1)], 1: [((1.5,), 1), ((2.5,), 1)]}, first=True)
    with pytest.raises(ViewFailed, match="more than one row"):
        single.step({0: [((1, "a"), 1)], 1: [((1.5,), 2)]}, first=True)
