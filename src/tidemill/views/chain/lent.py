"""Rows that a source remembers for a join: the join reads them there, and keeps no copy (ADR 20).

A source that has to know which rows there are keeps all of them. If it keeps them by the key of a join above
it, that is the very trace the join would write: rows are then sorted, written and merged once instead of
twice, and what leaves the source is already in the range where the join needs it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemill.views.chain.source_stations import ASIDE, MAIN, ChangesStation, UpsertsStation
from tidemill.views.chain.station import Traces, column_name
from tidemill.views.kernels.align import positions
from tidemill.views.trace.consolidate import chunk, consolidate
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

        What is set aside is left out, as if it were nowhere: the source's trace has it with a negative
        weight, but nobody else may see it, not even for as long as it takes to cancel it.
        """
        wanted = self._layout.select(columns)
        main, fine = self._traces[MAIN], self._traces[MAIN].layout.fine
        aside = self._set_aside(hashes)
        theirs = [self._names[one] for one in wanted] if aside is None else None
        for table in main.lookups(hashes, theirs, keys=fine):
            there = table if aside is None else _without(aside, table, main.layout)
            found = {one: there[self._names[one]] for one in wanted}
            if fine:
                keys = [chunk(there, one) for one in main.layout.key_names]
                found[HASH] = pa.array(key_hashes(keys, there.num_rows))
            yield pa.table(found)

    def _set_aside(self, hashes: Hashes) -> pa.Table | None:
        """The rows with keys of these hashes that are set aside, each once; None if there are none."""
        spine = self._traces.get(ASIDE)
        if spine is None or not spine.entries:
            return None
        every = [spine.layout.empty(), *spine.lookups(hashes, keys=spine.layout.fine)]
        found = consolidate(pa.concat_tables(every), spine.layout)
        return found if found.num_rows else None


def _without(some: pa.Table, rows: pa.Table, layout: Layout) -> pa.Table:
    """The rows that are none of some, which are in their one form; in one chunk."""
    others = positions(some, rows, layout.names, zeros="differ") < 0
    return rows if others.all() else rows.filter(pa.array(others)).combine_chunks()
