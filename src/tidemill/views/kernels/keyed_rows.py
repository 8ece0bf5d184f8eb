"""Kernels of keyed operators and sources: read the rows of keys, replace stored results, check deletes.

A keyed operator reads the rows of the keys that changed, lets Spark SQL compute their results, and replaces
the results that it *stored* for these keys. It never recomputes an old result to retract it, because a sum in
another order, or a tie broken differently, would not cancel the old rows (DBSP-17). An upsert of a keyed
dataset also replaces the stored row with the new one.
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
    """Return all rows of these keys, consolidated, from the trace and the change.

    Args:
        keys: `_h` and the columns of the trace's key; may contain duplicates.
        trace: the stored rows.
        delta: the changes of this step, with the columns of the trace; None reads the trace alone.
    """
    layout = trace.layout
    targets = distinct_keys([canonical_keys(keys, layout.key_names)], layout.key_names)
    rows = trace.lookup(distinct(column(targets, HASH)))
    if delta is not None:
        rows = pa.concat_tables([rows, layout.conform(delta)])
    rows = rows.combine_chunks()
    matched = positions(targets, rows, layout.key_names) >= 0
    rows = consolidate(rows if matched.all() else rows.filter(pa.array(matched)), layout)
    if WEIGHT in layout.sums and rows.num_rows and int(column(rows, WEIGHT).min()) < 0:
        raise WeightNegative(f"a row of trace {trace.name} has a negative weight")
    return rows


def replacement(results: pa.Table, stored: pa.Table, layout: Layout) -> pa.Table:
    """Return the change that replaces stored results with new ones, for the output and for the trace.

    Args:
        results: the new results, with the columns of the trace.
        stored: the results stored for all computed keys, including keys that no longer have a result
            (`rows_of_keys`).
        layout: the layout of the trace.
    """
    place = stored.column_names.index(WEIGHT)
    retraction = stored.set_column(place, stored.schema.field(place), pa.array(-column(stored, WEIGHT)))
    return consolidate(pa.concat_tables([layout.conform(results), retraction]), layout)


class AdmittedRows(NamedTuple):
    """The result of an admission step.

    Args:
        out: the change that the circuit gets.
        quarantine: rows that enter the quarantine (negative weights) or leave it (positive weights).
        state: the change in the trace.
    """

    out: pa.Table
    quarantine: pa.Table
    state: pa.Table


class AdmissionKernel:
    """Admits the changes of a source, and keeps rows with negative weights in quarantine.

    Args:
        layout: the layout of its trace. `_h` must depend on the whole row: the row is the key, or the trace
            is *fine* (see `Layout`).
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def step(self, delta: pa.Table, trace: Trace, quarantine: Trace) -> AdmittedRows:
        """Admit a change.

        For each deleted row, the kernel looks up the same row in the trace. It looks up an inserted row only
        if a row with its hash was ever in quarantine.

        Args:
            delta: `_h`, the columns and `_w`.
            trace: all rows so far; rows in quarantine have negative weights.
            quarantine: the rows in quarantine.
        """
        change = consolidate(delta, self.layout)
        weights, hashes = column(change, WEIGHT), column(change, HASH)
        lookup = weights < 0
        if quarantine.entries:
            lookup |= np.isin(hashes, column(quarantine.lookup(distinct(hashes), ()), HASH))
        stored = trace.lookup(distinct(hashes[lookup]))
        place = positions(change, stored, self.layout.names, zeros="differ")
        before = sums_at(place, column(stored, WEIGHT), change.num_rows)
        after = before + weights
        out = np.maximum(after, 0) - np.maximum(before, 0)
        negative = np.minimum(after, 0) - np.minimum(before, 0)
        return AdmittedRows(_with_weights(change, out), _with_weights(change, negative), change)


def _with_weights(rows: pa.Table, weights: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    nonzero = weights != 0
    if not nonzero.any():
        return rows.slice(0, 0)
    place = rows.column_names.index(WEIGHT)
    weighted = rows.set_column(place, rows.schema.field(place), pa.array(weights))
    return weighted if nonzero.all() else weighted.filter(pa.array(nonzero))
