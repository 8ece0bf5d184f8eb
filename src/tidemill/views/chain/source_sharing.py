"""By which columns a source remembers its rows: by the key of joins, which then read them there (ADR 20)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemill.views.chain.source_operators import ASIDE, MAIN, ChangesSource, UpsertsSource
from tidemill.views.chain.stateful_operator import Traces, column_name
from tidemill.views.circuit import operators as ops
from tidemill.views.circuit.operators import Operator
from tidemill.views.kernels.key_matching import positions
from tidemill.views.trace.consolidation import chunk, consolidate
from tidemill.views.trace.hash_space import Hashes
from tidemill.views.trace.key_hash import key_hashes
from tidemill.views.trace.layout import HASH, WEIGHT, Layout

Places = tuple[int, ...]
Types = Mapping[Operator, tuple[str, ...]]


def source_of(op: Operator) -> tuple[ops.Source, Places] | None:
    """The source whose rows an operator gives as they are, and which columns of it; None if it does more."""
    if isinstance(op, ops.Source):
        return op, tuple(range(op.width))
    if isinstance(op, ops.Project) and (below := source_of(op.input)) is not None:
        source, places = below
        chosen = [one.column for one in op.expressions]
        if None not in chosen:
            return source, tuple(places[place] for place in chosen if place is not None)
    return None


def side_key(op: ops.Join, side: int, types: Types) -> tuple[ops.Source, Places, Places] | None:
    """The source of a join's side, its columns there, and those of them that are the key.

    None unless the join could read them at the source: it has to compare them as they are stored, and by
    `=`, so that nothing is looked for by NULL.
    """
    below = source_of(op.inputs[side]) if op.join == "inner" and op.keys else None
    if below is None or any(key.null_safe for key in op.keys):
        return None
    source, places = below
    mine = []
    for key in op.keys:
        left, right = key.left.column, key.right.column
        if left is None or right is None or types[op.left][left] != types[op.right][right]:
            return None
        mine.append(places[(left, right)[side]])
    return (source, places, tuple(mine)) if len(set(mine)) == len(mine) else None


def source_keys(operators: Iterable[Operator], types: Types) -> dict[ops.Source, Places]:
    """For each source the key that most joins could use; of several the first by its columns."""
    asked: dict[ops.Source, Counter[Places]] = {}
    for op in operators:
        if isinstance(op, ops.Join):
            for side in (0, 1):
                if (found := side_key(op, side, types)) is not None:
                    source, _, key = found
                    asked.setdefault(source, Counter())[key] += 1
    return {source: min(keys, key=lambda one: (-keys[one], one)) for source, keys in asked.items()}


@dataclass(frozen=True)
class SharedSource:
    """What a side of a join reads of a source.

    Args:
        source: what remembers the rows, by the same columns in the same order as the join's key.
        places: the columns of the source that come to the side.
    """

    source: ChangesSource | UpsertsSource
    places: tuple[int, ...]

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The traces that are read, by their names at the source."""
        return self.source.layouts

    def rows(self, layout: Layout, traces: Traces) -> "SharedRows":
        """What the side remembers.

        Args:
            layout: of the side, with the columns p0, p1, … in the order of `places`.
            traces: those of the source.
        """
        names = {name: name for name in (HASH, *layout.key_names, WEIGHT)}
        for place, origin in enumerate(self.places):
            names[f"p{place}"] = column_name(origin, self.source.types, self.source.key)
        return SharedRows(layout, {name: names[name] for name in layout.schema.names}, traces)


class SharedRows:
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
