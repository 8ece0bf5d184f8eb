"""max_by, min_by, first and last: the value of the row that comes last or first in an order."""

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.single_operator import Row, SingleOperator
from tests.unit.views_stage import output
from tidemill.views.chain.native_operators import StatefulAggregate
from tidemill.views.chain.preparation import prepared
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import Aggregate
from tidemill.views.circuit.rungs import Rung, rungs
from tidemill.views.circuit.ties import break_ties
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import GroupKernel

NAN = float("nan")
HALVES = pa.struct([("h", pa.int64()), ("i", pa.int64())])
ORDER = pa.struct([("k", pa.float64()), ("r", HALVES)])
CHOSEN = pa.struct([("o", ORDER), ("v", pa.string())])
AGGREGATES = (GroupAggregate("max_by", "v1", "a0"), GroupAggregate("min_by", "v1", "a1"))


def sort_key(row: Any) -> tuple[Any, ...]:
    key, tie = row["o"]["k"], row["o"]["r"]
    return key != key, 0.0 if key != key else key + 0.0, tie["h"], tie["i"]


def expected(rows: list[Row]) -> Counter[str]:
    groups: Counter[str] = Counter()
    for group in {row[0] for row in rows}:
        chosen = sorted((row[1] for row in rows if row[0] == group and row[1] is not None), key=sort_key)
        last, first = (chosen[-1]["v"], chosen[0]["v"]) if chosen else (None, None)
        groups[repr((group, last, first))] += 1
    return groups


def drawn(chance: random.Random) -> Row:
    key = chance.choice([1.0, 2.0, -0.0, 0.0, NAN, float("-inf"), None])
    if key is None:  # the key is NULL, or the row is filtered out
        return chance.randrange(3), None
    tie = {"h": chance.randrange(-1, 2), "i": chance.randrange(10**6)}
    return chance.randrange(3), {"o": {"k": key, "r": tie}, "v": chance.choice(["a", "b", None])}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.rule("DBSP-13", "DBSP-20")
def test_the_row_is_chosen_by_the_key_and_then_by_the_hash(seed: int) -> None:
    """Groups have more rows than are stored as the best ones, so some of them are read again."""
    kernel = GroupKernel(pa.schema([("k0", pa.int64())]), pa.schema([("v1", CHOSEN)]), AGGREGATES)
    single = SingleOperator(StatefulAggregate(kernel, (pa.string(), pa.string())), [[pa.int64(), CHOSEN]], 2)
    chance, rows = random.Random(seed), list[Row]()
    for step in range(15):
        change = []
        for _ in range(200 if step == 0 else 15):
            if rows and chance.random() < 0.55:
                change.append((rows.pop(chance.randrange(len(rows))), -1))
            else:
                rows.append(drawn(chance))
                change.append((rows[-1], 1))
        single.step({0: change}, first=step == 0)
        assert single.output == expected(rows)
    single.step({0: [(row, -1) for row in rows]})
    assert not +single.output
    assert not any(single.state().values())


@pytest.mark.parametrize(
    ("call", "kernel"),
    [
        ("first(day)", "min_by"),
        ("any_value(day)", "min_by"),
        ("last(day)", "max_by"),
        ("max_by(day, amount)", "max_by"),
        ("min_by(day, amount) FILTER (WHERE id > 5)", "min_by"),
        ("first(day) IGNORE NULLS", None),
        ("first(day, true)", None),
    ],
)
@pytest.mark.rule("DBSP-17", "DBSP-20")
def test_an_aggregate_that_chooses_a_row_has_a_kernel_if_nothing_else_is_asked(
    call: str, kernel: str | None
) -> None:
    view = output(f"SELECT cust, {call} AS x FROM orders GROUP BY cust")
    types = {op: ("bigint", "bigint", "decimal(10,2)", "date")[: op.width] for op in walk(view)}
    broken = break_ties(view, types)
    (rung,) = (placed.rung for op, placed in rungs(broken).items() if isinstance(op, Aggregate))
    assert rung is (Rung.NATIVE if kernel else Rung.KEYED)
    (operator,) = (op for op in walk(prepared(broken)) if isinstance(op, Aggregate))
    assert (operator.calls[0].value.calls == {kernel}) is (kernel is not None)
    (plain,) = (placed.rung for op, placed in rungs(view).items() if isinstance(op, Aggregate))
    assert plain is Rung.KEYED, "without a rule for ties, only Spark can choose a row"
