"""Rows that a source remembers for a join: the join reads them there, and keeps no copy (ADR 20).

A source that has to know which rows there are keeps all of them. If it keeps them by the key of a join above
it, that is the very trace the join would write: rows are then sorted, written and merged once instead of
twice, and what leaves the source is already in the range where the join needs it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.views.chain.source_stations import ASIDE, ChangesStation, UpsertsStation
from tidemill.views.chain.station import Traces, column_name
from tidemill.views.trace.consolidate import chunk, column
from tidemill.views.trace.key_hash import key_hashes
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.slices import Hashes


@dataclass(frozen=True)
class Lent:
    """What a side of a join reads of a source.

    Args:
        source: what remembers the rows, by the same columns in the same order as the join's key.
        places: the columns of the source that come to the side.
    """

    source: ChangesStation | UpsertsStation
    places: tuple[int, ...]

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The traces that are read, by their names at the source."""
        return self.source.layouts

    def rows(self, layout: Layout, traces: Traces) -> "LentRows":
        """What the side remembers.

        Args:
            layout: of the side, with the columns p0, p1, … in the order of `places`.
            traces: those of the source.
        """
        names = {name: name for name in (HASH, *layout.key_names, WEIGHT)}
        for place, origin in enumerate(self.places):
            names[f"p{place}"] = column_name(origin, self.source.types, self.source.key)
        return LentRows(layout, {name: names[name] for name in layout.schema.names}, traces)


class LentRows:
    """The rows of a source's traces as those of a side of a join."""

    def __init__(self, layout: Layout, names: Mapping[str, str], traces: Traces) -> None:
        self._layout = layout
        self._names = names
        self._traces = traces

    def lookups(self, hashes: Hashes, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows with keys of these hashes, in tables of a bounded size, each in one chunk.

        A row that is set aside has a negative weight in the source's trace, and was never there for anyone
        else: what was set aside is taken off again.
        """
        wanted = self._layout.select(columns)
        for name, spine in self._traces.items():
            if not spine.entries:
                continue
            theirs = [self._names[one] for one in wanted]
            for table in spine.lookups(hashes, theirs, keys=spine.layout.fine):
                found = {one: table[self._names[one]] for one in wanted}
                if spine.layout.fine:
                    keys = [chunk(table, one) for one in spine.layout.key_names]
                    found[HASH] = pa.array(key_hashes(keys, table.num_rows))
                if name == ASIDE:
                    found[WEIGHT] = pa.array(np.negative(column(table, WEIGHT)))
                yield pa.table(found)
