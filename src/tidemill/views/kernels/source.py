"""Source operators of datasets that allow deletes: no row is ever there fewer than no times.

A deletion of what is not there goes into the step's quarantine and not into the circuit. It is remembered,
and netted when its insertion arrives: then the row leaves the quarantine, and the circuit never sees it
(DBSP-21). What is deleted has to be what is there to the bit: 0.0 does not take away a -0.0.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidemill.views.kernels.align import added_at, positions
from tidemill.views.trace.consolidate import column, consolidate
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import distinct
from tidemill.views.trace.spine import Spine


class Admitted(NamedTuple):
    """What a step gives.

    Args:
        out: what the circuit gets.
        quarantine: rows that were set aside (negative weights), or left the quarantine (positive ones).
        state: what the trace gets.
    """

    out: pa.Table
    quarantine: pa.Table
    state: pa.Table


class Source:
    """A source operator.

    Args:
        layout: of its trace, in which `_h` tells rows apart: the whole row is the key, or it is fine.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def step(self, delta: pa.Table, trace: Spine, *, quarantined: bool = True) -> Admitted:
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
        before = added_at(place, column(known, WEIGHT), change.num_rows)
        after = before + weights
        out = np.maximum(after, 0) - np.maximum(before, 0)
        aside = np.minimum(after, 0) - np.minimum(before, 0)
        return Admitted(_weighed(change, out), _weighed(change, aside), change)


def _weighed(rows: pa.Table, weights: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    there = weights != 0
    if not there.any():
        return rows.slice(0, 0)
    place = rows.column_names.index(WEIGHT)
    weighed = rows.set_column(place, rows.schema.field(place), pa.array(weights))
    return weighed if there.all() else weighed.filter(pa.array(there))
