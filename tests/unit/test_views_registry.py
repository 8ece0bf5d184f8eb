"""The registry of aggregates: one entry makes an aggregate known, native, and computed."""

from collections.abc import Sequence
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.unit.single_operator import SingleOperator
from tests.unit.views_stage import output
from tidemill.views.aggregates import registry
from tidemill.views.aggregates.registry import AGGREGATES, Accumulator, AggregateFunction, Empty, Kernel
from tidemill.views.chain.native_operators import StatefulAggregate
from tidemill.views.chain.preparation import prepared
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import Aggregate as AggregateOperator
from tidemill.views.circuit.operators import ViewOutput
from tidemill.views.circuit.rungs import Rung, rungs
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import GroupKernel


def _takes(argument: pa.DataType | None, result: pa.DataType) -> bool:
    return argument == pa.int32() and result == pa.bool_()


def _is_odd(raw: Sequence[pa.Array], _argument: pa.DataType, _result: pa.DataType) -> pa.Array:
    return pc.equal(pc.bit_wise_and(raw[0].cast(pa.int64()), 1), 1)


BOOL_XOR = AggregateFunction(
    "bool_xor",
    Kernel(Accumulator.SUM, value="CAST({} AS INT)", takes=_takes, final=_is_odd),
    empty=Empty.NULL,
)


@pytest.fixture
def bool_xor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(dict[str, AggregateFunction], AGGREGATES), BOOL_XOR.name, BOOL_XOR)


def rung(view: ViewOutput) -> Rung:
    return next(placed.rung for op, placed in rungs(view).items() if isinstance(op, AggregateOperator))


SQL = "SELECT cust, bool_xor(amount > 1) AS x FROM orders GROUP BY cust"


@pytest.mark.usefixtures("bool_xor")
def test_one_entry_makes_an_aggregate_native() -> None:
    view = output(SQL)
    assert rung(view) is Rung.NATIVE
    (operator,) = (op for op in walk(prepared(view)) if isinstance(op, AggregateOperator))
    assert [call.name for call in operator.calls] == ["bool_xor"]
    assert "CAST(c2 > 1 AS INT)" in [str(expr) for expr in operator.input.expressions]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("bool_xor")
def test_one_entry_makes_an_aggregate_computed() -> None:
    kernel = GroupKernel(
        pa.schema([("k0", pa.int64())]),
        pa.schema([("v1", pa.int32())]),
        (GroupAggregate("bool_xor", "v1", "a0"),),
    )
    operator = StatefulAggregate(kernel, (pa.bool_(),))
    single = SingleOperator(operator, [[pa.int64(), pa.int32()]])
    single.step({0: [((1, 1), 1), ((1, 1), 1), ((1, 0), 1), ((2, None), 1), ((3, 1), 3)]}, first=True)
    assert single.output == {"(1, False)": 1, "(2, None)": 1, "(3, True)": 1}
    single.step({0: [((1, 1), -1), ((3, 1), -2), ((2, 1), 1)]})
    assert single.output == {"(1, True)": 1, "(2, True)": 1, "(3, True)": 1}


def test_an_aggregate_without_a_kernel_is_keyed() -> None:
    assert rung(output("SELECT cust, median(id) AS x FROM orders GROUP BY cust")) is Rung.KEYED
    assert AGGREGATES["median"].rung == "keyed"


def test_entries_that_are_computed_as_others_share_their_kernel() -> None:
    for entry in AGGREGATES.values():
        if entry.same_as:
            target = AGGREGATES[entry.same_as]
            assert target.kernel is not None
            assert entry.kernel is not None
            assert target.kernel.accumulator is entry.kernel.accumulator
            assert registry.kernel_of(entry.name) is None
