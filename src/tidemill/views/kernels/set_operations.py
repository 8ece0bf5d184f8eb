"""DISTINCT, and UNION, INTERSECT and EXCEPT with and without ALL: one trace of how often each row is there.

The trace has two sums for each row, its weight on the left and on the right side. What the output holds of a
row is a function of the two, so the change is that function after the step less that function before it.
Rows are the same when Spark would group them together.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from tidemill.errors import WeightNegative
from tidemill.views.kernels.canonical_keys import canonical_keys
from tidemill.views.kernels.key_matching import positions, sums_at
from tidemill.views.trace.consolidation import column, consolidate
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import distinct
from tidemill.views.trace.trace import Trace

Kind = Literal["distinct", "union", "intersect", "intersect_all", "except", "except_all"]

_KINDS: dict[Kind, Callable[[Any, Any], Any]] = {
    "distinct": lambda left, _: left > 0,
    "union": lambda left, right: (left > 0) | (right > 0),
    "intersect": lambda left, right: (left > 0) & (right > 0),
    "intersect_all": np.minimum,
    "except": lambda left, right: (left > 0) & (right == 0),
    "except_all": lambda left, right: np.maximum(left - right, 0),
}


class SetChange(NamedTuple):
    """What a step gives: the change of the output, and the rows its trace gets."""

    out: pa.Table
    state: pa.Table


class SetKernel:
    """A set operation over rows with these columns. `_h` is the hash of the whole row.

    Args:
        kind: which one.
        columns: the columns of both sides; for `distinct` there is only a left one.
    """

    def __init__(self, kind: Kind, columns: pa.Schema) -> None:
        self.kind = kind
        self.layout = Layout(columns, len(columns), ("_l", "_r"))
        self._side = Layout(columns, len(columns))
        self.schema = pa.schema([*columns, pa.field(WEIGHT, pa.int64())])

    def step(self, left: pa.Table, right: pa.Table | None, trace: Trace) -> SetChange:
        """One step.

        Args:
            left: the change of the left side, with `_h`, the columns and `_w`.
            right: that of the right side, or None.
            trace: what was there before.
        """
        sides = [self._weighed(left, "_l")] + ([self._weighed(right, "_r")] if right is not None else [])
        delta = consolidate(pa.concat_tables(sides), self.layout)
        if delta.num_rows == 0:
            return SetChange(self.schema.empty_table(), delta)
        known = trace.lookup(distinct(column(delta, HASH)))
        place = positions(delta, known, self.layout.key_names)
        before = {name: sums_at(place, column(known, name), delta.num_rows) for name in ("_l", "_r")}
        after = {name: before[name] + column(delta, name) for name in ("_l", "_r")}
        if any(bool((weights < 0).any()) for weights in after.values()):
            raise WeightNegative(f"a row of {self.kind} would be there fewer than no times")
        holds = _KINDS[self.kind]
        change = holds(after["_l"], after["_r"]).astype(np.int64) - holds(before["_l"], before["_r"])
        moved = change != 0
        rows = delta.select(self.layout.names).filter(pa.array(moved))
        return SetChange(rows.append_column(WEIGHT, pa.array(change[moved])).cast(self.schema), delta)

    def _weighed(self, table: pa.Table, name: str) -> pa.Table:
        table = canonical_keys(self._side.conform(table), self.layout.names)
        weights, none = column(table, WEIGHT), np.zeros(table.num_rows, np.int64)
        sums = [pa.array(weights if each == name else none) for each in ("_l", "_r")]
        return pa.table(
            [*(table[each] for each in (HASH, *self.layout.names)), *sums], schema=self.layout.schema
        )
