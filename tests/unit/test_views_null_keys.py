"""Rows with a NULL key in a join: they are spread over all ranges, are not stored, and cost nothing else."""

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.unit.memory_chain import MemoryChain, built, join, rows_of, source
from tidemill.views.chain.join_operators import StatefulJoin
from tidemill.views.circuit.operators import JoinKind
from tidemill.views.trace.hash_space import ranges, split
from tidemill.views.trace.layout import HASH

A, B = source("a", "int", "int"), source("b", "int", "int")
INT = pa.int32()
COUNT = 400


def operator(kind: JoinKind) -> StatefulJoin:
    return StatefulJoin((INT, INT), (INT, INT), (0,), (0,), (False,), kind=kind)


def nulls(count: int) -> pa.Table:
    columns = [pa.nulls(count, INT), pa.array(range(count), INT), pa.array([1] * count, pa.int64())]
    return pa.table(columns, names=["c0", "c1", "_w"])


@pytest.mark.parametrize("kind", ["left", "full", "anti"])
@pytest.mark.rule("DBSP-11")
def test_rows_with_a_null_key_are_spread_over_all_ranges(kind: JoinKind) -> None:
    ((_, packed),) = [item for item in operator(kind).pack(0, nulls(COUNT)).items() if item[1].num_rows]
    sizes = [len(part) for part in split(packed, ranges(8), packed[HASH].to_numpy())]
    assert sum(sizes) == COUNT
    assert min(sizes) > COUNT / 8 / 3


@pytest.mark.parametrize("kind", ["inner", "semi", "right"])
def test_rows_with_a_null_key_that_are_not_returned_are_not_sent(kind: JoinKind) -> None:
    assert not any(table.num_rows for table in operator(kind).pack(0, nulls(COUNT)).values())


def test_rows_with_a_null_key_are_returned_but_not_stored() -> None:
    op = replace(join(A, B, (0, 0)), join="full")
    chain = built({"v": op}, {"a": "rows", "b": "rows"})
    memory = MemoryChain(chain)
    (number,) = (each.number for each in chain.operators if isinstance(each.operator, StatefulJoin))
    rows = [((None, n), 1) for n in range(10)]
    output = memory.step({"a": rows, "b": rows}, 3)
    expected = [((None, n, None, None), 1) for n in range(10)] + [
        ((None, None, None, n), 1) for n in range(10)
    ]
    assert sorted(map(repr, rows_of(output[number]))) == sorted(map(repr, expected))
    assert not memory.version.traces
