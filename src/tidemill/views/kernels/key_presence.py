"""Semi, anti and outer joins: return the rows of one side whose key the other side has, or lacks.

The kernel counts the rows that the other side has for each key. A changed row looks up the count of its key.
Stored rows of a key are read only if the key appears on the other side or disappears from it. Then all of
them are part of the change. So a step costs what changes in the result, however many rows have the key.

Every row in the output was in the result before the step, or is in it after the step (ADR 21).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidemill.errors import WeightNegative
from tidemill.views.kernels.join import RowLookup, before_and_after
from tidemill.views.kernels.key_matching import distinct_keys, positions, sums_at
from tidemill.views.trace.consolidation import column, consolidate
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import I64, distinct
from tidemill.views.trace.trace import Trace

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


class _Keys(NamedTuple):
    """Distinct keys, and which of them have rows in the result before and after the step."""

    keys: pa.Table
    before: Mask
    after: Mask


@dataclass(frozen=True)
class KeyPresence:
    """The rows of one side whose key the other side has, or lacks.

    Args:
        side: the layout of the rows. The key has the same column names on the other side.
        columns: pairs of a column of the side and its name in the output.
        present: whether to return the rows whose key the other side has; otherwise those whose key it lacks.
    """

    side: Layout
    columns: tuple[tuple[str, str], ...]
    present: bool

    @cached_property
    def counts(self) -> Layout:
        """The layout of the trace that counts the rows of the other side."""
        names = self.side.key_names
        return Layout(pa.schema([self.side.columns.field(name) for name in names]), len(names))

    def count(self, rows: pa.Table) -> pa.Table:
        """Count changed rows of the other side by key: the change of the counts."""
        return consolidate(rows.select(self.counts.schema.names), self.counts)

    def step(self, change: pa.Table, counted: pa.Table, rows: RowLookup, counts: Trace) -> Iterator[pa.Table]:
        """Yield the change in the result, in tables whose rows may cancel each other out.

        Args:
            change: the change in the side, in this range, sorted by hash.
            counted: the change in the counts, as `count` returns it.
            rows: the stored rows of the side, before the step.
            counts: the trace of the counts, before the step.
        """
        names = self.side.key_names
        keys = self._keys(change, counted, counts)
        stays = keys.before & keys.after
        if change.num_rows and stays.any():
            chosen = stays[positions(keys.keys, change, names)]
            yield self._output(change.filter(pa.array(chosen)).combine_chunks(), 1)
        differs = keys.before != keys.after
        if not differs.any():
            return
        changed = keys.keys.filter(pa.array(differs)).combine_chunks()
        appears = keys.after[differs]
        read = [source for source, _ in self.columns]
        for _, before, after in before_and_after(rows, changed, change, self.side, read):
            for table, sign in ((before, -1), (after, 1)):
                place = positions(changed, table, names)
                chosen = (place >= 0) & (appears[place] == (sign > 0))
                yield self._output(table.filter(pa.array(chosen)).combine_chunks(), sign)

    def _keys(self, change: pa.Table, counted: pa.Table, counts: Trace) -> _Keys:
        """Return the keys that changed on any side."""
        names = self.side.key_names
        keys = distinct_keys([change, counted], names)
        stored = counts.lookup(distinct(column(keys, HASH)))
        before = self._counts(keys, stored)
        after = before + self._counts(keys, counted)
        if (after < 0).any():
            raise WeightNegative("the change deletes a row that is not in the input of a join")
        return _Keys(keys, (before > 0) == self.present, (after > 0) == self.present)

    def _counts(self, keys: pa.Table, rows: pa.Table) -> I64:
        place = positions(keys, rows, self.side.key_names)
        return sums_at(place, column(rows, WEIGHT), keys.num_rows)

    def _output(self, rows: pa.Table, sign: int) -> pa.Table:
        arrays = {name: rows[source] for source, name in self.columns}
        weights = column(rows, WEIGHT)
        return pa.table(arrays | {WEIGHT: pa.array(weights if sign > 0 else -weights)})
