"""Rows of older releases that contain -0.0.

The source of a dataset with deletes stores floats in canonical form: -0.0 as 0.0 (`canonical_keys`). Older
releases stored them as written. So a delete may find no row in canonical form, but an equal row with -0.0.
Then it must delete that row, with the stored bits, because other traces contain the same bits.
"""

from itertools import chain, combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.views.kernels.canonical_keys import has_floats
from tidemill.views.kernels.key_matching import positions, sums_at
from tidemill.views.trace.consolidation import chunk, column, consolidate
from tidemill.views.trace.key_hash import row_hashes
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import distinct
from tidemill.views.trace.trace import Trace

MOST_COLUMNS = 4
"""For how many float columns all combinations of signs are looked up."""


def with_stored_signs(change: pa.Table, layout: Layout, trace: Trace) -> pa.Table:
    """Return a change in which deletions have the bits of the rows that they delete.

    Args:
        change: rows in canonical form.
        layout: the layout of the trace.
        trace: the stored rows.
    """
    if not trace.entries or not any(has_floats(each.type) for each in layout.columns):
        return change
    change = consolidate(change, layout)
    deleted = change.filter(pc.less(change[WEIGHT], 0)).combine_chunks()
    hashes = _hashes_with_any_sign(deleted, layout)
    if hashes is None:
        return change
    stored = consolidate(trace.lookup(distinct(hashes)), layout)
    targets, rows = _without_hashes(deleted), _without_hashes(stored)
    equal = positions(targets, rows, layout.names, zeros="equal")
    identical = positions(targets, rows, layout.names, zeros="differ")
    if (equal == identical).all():
        return change
    weights = column(stored, WEIGHT)
    left = -column(deleted, WEIGHT) - np.maximum(sums_at(identical, weights, len(deleted)), 0)
    taken = np.zeros(len(stored), np.int64)
    for row in np.flatnonzero((equal >= 0) & (identical < 0) & (weights > 0)):
        taken[row] = max(0, min(int(left[equal[row]]), int(weights[row])))
        left[equal[row]] -= taken[row]
    used = np.flatnonzero(taken)
    moved = [_weighted(stored, used, -taken[used]), _weighted(deleted, equal[used], taken[used])]
    return consolidate(pa.concat_tables([change, *moved]), layout)


def _hashes_with_any_sign(rows: pa.Table, layout: Layout) -> Any:
    """Return the hashes of the rows with any signs of their zeros; None if they contain no zero."""
    floats = [name for name in layout.names if has_floats(layout.columns.field(name).type)]
    simple = [name for name in floats if pat.is_floating(layout.columns.field(name).type)]
    zeros = [name for name in simple if pc.any(pc.equal(rows[name], 0.0)).as_py()]
    if rows.num_rows == 0 or (not zeros and floats == simple):
        return None
    changed = zeros[:MOST_COLUMNS] if layout.fine else []  # other hashes do not depend on signs
    signs = chain.from_iterable(combinations(changed, n) for n in range(len(changed) + 1))
    return np.concatenate([_hashes(rows, layout, negative) for negative in signs])


def _hashes(rows: pa.Table, layout: Layout, negative: tuple[str, ...]) -> Any:
    """Return the hashes of the rows with -0.0 instead of 0.0 in these columns."""
    arrays = []
    for name in layout.hashed_names:
        values = chunk(rows, name)
        if name in negative:
            zero = pc.fill_null(pc.equal(values, 0.0), fill_value=False)
            values = pc.if_else(zero, pa.scalar(-0.0, values.type), values)
        arrays.append(values)
    return row_hashes(arrays, rows.num_rows, layout.key, fine=layout.fine)


def _without_hashes(rows: pa.Table) -> pa.Table:
    """Return the rows with one hash for all: in a fine trace, the hash of a row depends on signs."""
    place = rows.column_names.index(HASH)
    return rows.set_column(place, HASH, pa.array(np.zeros(rows.num_rows, np.int64)))


def _weighted(rows: pa.Table, places: Any, weights: Any) -> pa.Table:
    picked = rows.take(pa.array(places))
    return picked.set_column(picked.column_names.index(WEIGHT), WEIGHT, pa.array(weights))
