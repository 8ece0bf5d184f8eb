"""What the keyed rung needs of traces: the rows of some keys, and new results in the place of stored ones.

A keyed operator fetches the rows of the keys that changed, lets Spark SQL compute their result, and takes
back what it has *stored* for them; a result is never computed again to take it back, since sums in another
order or ties would leave a residue (DBSP-17). Upserts of a keyed dataset are the same: the stored row goes,
the new one comes.
"""

import pyarrow as pa

from tidemill.errors import WeightNegative
from tidemill.views.kernels.align import distinct_keys, positions
from tidemill.views.kernels.canonical import canonical
from tidemill.views.trace.consolidate import column, consolidate
from tidemill.views.trace.layout import HASH, WEIGHT
from tidemill.views.trace.order import distinct
from tidemill.views.trace.spine import Spine


def rows_of_keys(keys: pa.Table, trace: Spine, delta: pa.Table | None = None) -> pa.Table:
    """All rows of these keys with their weights, added up: of the trace, and of the step if it is given.

    Args:
        keys: `_h` and the columns of the trace's key; each may be there several times.
        trace: where the rows are.
        delta: the change of the step, with the columns of the trace.
    """
    layout = trace.layout
    wanted = distinct_keys([canonical(keys, layout.key_names)], layout.key_names)
    rows = trace.lookup(distinct(column(wanted, HASH)))
    if delta is not None:
        rows = pa.concat_tables([rows, layout.conform(delta)])
    rows = rows.combine_chunks()
    mine = positions(wanted, rows, layout.key_names) >= 0
    found = consolidate(rows if mine.all() else rows.filter(pa.array(mine)), layout)
    if WEIGHT in layout.sums and found.num_rows and int(column(found, WEIGHT).min()) < 0:
        raise WeightNegative(f"a row of trace {trace.name} would be there fewer than no times")
    return found


def exchange(keys: pa.Table, results: pa.Table, stored: Spine) -> pa.Table:
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
