"""DISTINCT, UNION, INTERSECT and EXCEPT, with and without ALL: one trace with the weights of each row.

The trace has two sums for each row: its weight on the left side and on the right side. The weight in the
output is a function of the two. So the change in the output is the value of that function after the step
minus its value before the step. Rows are equal if Spark would group them together.

The same kernel selects the rows of a join that have a match, or those that have none: the left side has the
rows, the right side the pairs of the join. These rows stay as they are, so -0.0 and 0.0 are different rows.
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
from tidemill.views.trace.row_equality import Zeros
from tidemill.views.trace.trace import Trace

Kind = Literal[
    "distinct", "union", "intersect", "intersect_all", "except", "except_all", "matched", "unmatched"
]

_KINDS: dict[Kind, Callable[[Any, Any], Any]] = {
    "distinct": lambda left, _: left > 0,
    "union": lambda left, right: (left > 0) | (right > 0),
    "intersect": lambda left, right: (left > 0) & (right > 0),
    "intersect_all": np.minimum,
    "except": lambda left, right: (left > 0) & (right == 0),
    "except_all": lambda left, right: np.maximum(left - right, 0),
    "matched": lambda left, right: np.where(right > 0, left, 0),
    "unmatched": lambda left, right: np.where(right > 0, 0, left),
}

_UNCHANGED: frozenset[Kind] = frozenset({"matched", "unmatched"})
"""The kinds that return rows of a side as they are."""


class SetChange(NamedTuple):
    """The result of a step: the change in the output, and the change in the trace."""

    out: pa.Table
    state: pa.Table


class SetKernel:
    """A set operation over rows with these columns. `_h` is the hash of the whole row.

    Args:
        kind: the operation.
        columns: the columns of both sides; `distinct` has only a left side.
    """

    def __init__(self, kind: Kind, columns: pa.Schema) -> None:
        self.kind = kind
        self.layout = Layout(columns, len(columns), ("_l", "_r"))
        self.side = Layout(columns, len(columns))
        self._zeros: Zeros = "differ" if kind in _UNCHANGED else "equal"
        self.schema = pa.schema([*columns, pa.field(WEIGHT, pa.int64())])

    def step(self, left: pa.Table, right: pa.Table | None, trace: Trace) -> SetChange:
        """Apply a change, and return the change in the output.

        Args:
            left: the change in the left side, with `_h`, the columns and `_w`.
            right: the change in the right side; None if there is no right side.
            trace: the weights before the step.
        """
        sides = [self._weigh(left, "_l")] + ([self._weigh(right, "_r")] if right is not None else [])
        delta = consolidate(pa.concat_tables(sides), self.layout)
        if delta.num_rows == 0:
            return SetChange(self.schema.empty_table(), delta)
        stored = trace.lookup(distinct(column(delta, HASH)))
        place = positions(delta, stored, self.layout.key_names, self._zeros)
        before = {name: sums_at(place, column(stored, name), delta.num_rows) for name in ("_l", "_r")}
        after = {name: before[name] + column(delta, name) for name in ("_l", "_r")}
        if any(bool((weights < 0).any()) for weights in after.values()):
            raise WeightNegative(f"the change deletes a row that is not in the input of {self.kind}")
        output_weight = _KINDS[self.kind]
        new = output_weight(after["_l"], after["_r"]).astype(np.int64)
        change = new - output_weight(before["_l"], before["_r"])
        changed = change != 0
        rows = delta.select(self.layout.names).filter(pa.array(changed))
        return SetChange(rows.append_column(WEIGHT, pa.array(change[changed])).cast(self.schema), delta)

    def _weigh(self, table: pa.Table, side: str) -> pa.Table:
        """Return the rows of one side, with their weights in the sum column of that side."""
        table = self.side.conform(table)
        if self._zeros == "equal":
            table = canonical_keys(table, self.layout.names)
        weights, zeros = column(table, WEIGHT), np.zeros(table.num_rows, np.int64)
        sums = [pa.array(weights if name == side else zeros) for name in ("_l", "_r")]
        return pa.table(
            [*(table[each] for each in (HASH, *self.layout.names)), *sums], schema=self.layout.schema
        )
