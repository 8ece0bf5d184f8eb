"""The operator that replaces the results of changed keys."""

import pyarrow as pa
import pytest

from tests.unit.single_operator import SingleOperator
from tidemill.views.chain.keyed_operators import ReplaceRows
from tidemill.views.trace.hash_space import ALL
from tidemill.views.trace.trace import Trace


@pytest.mark.rule("DBSP-20")
def test_changed_keys_may_be_marked_as_not_nullable() -> None:
    operator = ReplaceRows((pa.int64(),), (pa.int32(),))
    placed = SingleOperator(operator, ((pa.int64(), pa.int32()), (pa.int32(),)))
    (name,) = placed.chain.traces
    trace = Trace.of(placed.version, name, operator.layouts["main"], placed.cache, ALL, placed.version.step)
    fields = [pa.field("c0", pa.int32(), nullable=False), pa.field("_w", pa.int64())]
    keys = pa.table([[7], [1]], schema=pa.schema(fields))
    rows = pa.table({"c0": pa.array([3], pa.int64()), "c1": pa.array([7], pa.int32()), "_w": [1]})
    packed = {**operator.pack(0, rows), **operator.pack(1, keys)}
    output = operator.step({part: [table] for part, table in packed.items()}, {"main": trace})
    (piece,) = output.out
    assert piece.to_pylist() == [{"c0": 3, "_w": 1}]
