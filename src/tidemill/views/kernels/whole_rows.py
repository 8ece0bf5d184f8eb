"""Kernels of recomputed operators: read all rows of a trace with a change, and replace all rows of a trace.

Both walk through the trace in the order of its hashes, a bounded number of rows at a time. Traces and changes
are sorted by the hash of the whole row, so equal rows are always in the same piece.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tidemill.errors import WeightNegative
from tidemill.views.trace.consolidation import column, consolidate
from tidemill.views.trace.layout import HASH, WEIGHT
from tidemill.views.trace.trace import Trace


def rows_after(trace: Trace, change: pa.Table) -> Iterator[pa.Table]:
    """Yield all rows of a trace after a change, consolidated.

    Args:
        trace: the stored rows.
        change: the consolidated change, with the columns of the trace.
    """
    for stored, changed in _pieces(trace, change):
        rows = consolidate(pa.concat_tables([stored, changed]), trace.layout) if changed.num_rows else stored
        if rows.num_rows and int(column(rows, WEIGHT).min()) < 0:
            raise WeightNegative(f"a row of trace {trace.name} has a negative weight")
        yield rows


def replaced_by(trace: Trace, rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the change that replaces all rows of a trace.

    Args:
        trace: the stored rows.
        rows: the new rows, consolidated, with the columns of the trace.
    """
    for stored, new in _pieces(trace, rows):
        place = stored.column_names.index(WEIGHT)
        retracted = stored.set_column(place, stored.schema.field(place), pa.array(-column(stored, WEIGHT)))
        yield consolidate(pa.concat_tables([new, retracted]), trace.layout)


def _pieces(trace: Trace, rows: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield pieces of a trace, each with the given rows that have hashes of this piece."""
    hashes, begin = column(rows, HASH), 0
    for stored in trace.scan():
        end = int(np.searchsorted(hashes, column(stored, HASH)[-1], "right"))
        yield stored, rows.slice(begin, end - begin)
        begin = end
    if begin < rows.num_rows:
        yield trace.layout.empty(), rows.slice(begin)
