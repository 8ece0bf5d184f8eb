"""What the keyed rung needs of traces: the rows of some keys, and new results in the place of stored ones.

A keyed operator fetches the rows of the keys that changed, lets Spark SQL compute their result, and takes
back what it has *stored* for them; a result is never computed again to take it back, since sums in another
order or ties would leave a residue (DBSP-17). Upserts of a keyed dataset are the same: the stored row goes,
the new one comes.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidemill.errors import WeightNegative
from tidemill.views.kernels.canonical_keys import canonical_keys
from tidemill.views.kernels.key_matching import distinct_keys, positions, sums_at
from tidemill.views.trace.consolidation import column, consolidate
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import distinct
from tidemill.views.trace.trace import Trace


def rows_of_keys(keys: pa.Table, trace: Trace, delta: pa.Table | None = None) -> pa.Table:
    """All rows of these keys with their weights, added up: of the trace, and of the step if it is given.

    Args:
        keys: `_h` and the columns of the trace's key; each may be there several times.
        trace: where the rows are.
        delta: the change of the step, with the columns of the trace.
    """
    layout = trace.layout
    wanted = distinct_keys([canonical_keys(keys, layout.key_names)], layout.key_names)
    rows = trace.lookup(distinct(column(wanted, HASH)))
    if delta is not None:
        rows = pa.concat_tables([rows, layout.conform(delta)])
    rows = rows.combine_chunks()
    mine = positions(wanted, rows, layout.key_names) >= 0
    found = consolidate(rows if mine.all() else rows.filter(pa.array(mine)), layout)
    if WEIGHT in layout.sums and found.num_rows and int(column(found, WEIGHT).min()) < 0:
        raise WeightNegative(f"a row of trace {trace.name} would be there fewer than no times")
    return found


def replacement(keys: pa.Table, results: pa.Table, stored: Trace) -> pa.Table:
    """The change that puts new results in the place of the stored ones; it is what the trace gets, too.

    Args:
        keys: `_h` and the key columns of all keys whose result was computed, also where there is none now.
        results: the new results, with the columns of the trace.
        stored: the operator's last output.
    """
    layout = stored.layout
    old = rows_of_keys(keys, stored)
    place = old.column_names.index(WEIGHT)
    taken = old.set_column(place, old.schema.field(place), pa.array(-column(old, WEIGHT)))
    return consolidate(pa.concat_tables([layout.conform(results), taken]), layout)


class AdmittedRows(NamedTuple):
    """What a step gives.

    Args:
        out: what the circuit gets.
        quarantine: rows that were set aside (negative weights), or left the quarantine (positive ones).
        state: what the trace gets.
    """

    out: pa.Table
    quarantine: pa.Table
    state: pa.Table


class AdmissionKernel:
    """A source operator.

    Args:
        layout: of its trace, in which `_h` tells rows apart: the whole row is the key, or it is fine.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def step(self, delta: pa.Table, trace: Trace, *, quarantined: bool = True) -> AdmittedRows:
        """Admit a change.

        What is there already is looked up for rows that are taken away; for those that come it matters only
        while some are in quarantine.

        Args:
            delta: `_h`, the columns and `_w`.
            trace: all rows so far, with negative weights for those in quarantine.
            quarantined: whether any may be there.
        """
        change = consolidate(delta, self.layout)
        weights = column(change, WEIGHT)
        asked = change if quarantined else change.filter(pa.array(weights < 0))
        known = trace.lookup(distinct(column(asked, HASH)))
        place = positions(change, known, self.layout.names, zeros="differ")
        before = sums_at(place, column(known, WEIGHT), change.num_rows)
        after = before + weights
        out = np.maximum(after, 0) - np.maximum(before, 0)
        aside = np.minimum(after, 0) - np.minimum(before, 0)
        return AdmittedRows(_weighed(change, out), _weighed(change, aside), change)


def _weighed(rows: pa.Table, weights: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    there = weights != 0
    if not there.any():
        return rows.slice(0, 0)
    place = rows.column_names.index(WEIGHT)
    weighed = rows.set_column(place, rows.schema.field(place), pa.array(weights))
    return weighed if there.all() else weighed.filter(pa.array(there))
