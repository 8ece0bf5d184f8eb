"""Choose the key of a source's trace, so that joins can read it and need not store the rows (ADR 20)."""

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


def source_of(op: Operator) -> tuple[ops.InputTable, Places] | None:
    """Return the source of an operator that only selects columns, and these columns; otherwise None."""
    if isinstance(op, ops.InputTable):
        return op, tuple(range(op.width))
    if isinstance(op, ops.Project) and (below := source_of(op.input)) is not None:
        source, places = below
        selected = [expr.column for expr in op.expressions]
        if None not in selected:
            return source, tuple(places[place] for place in selected if place is not None)
    return None


def side_key(op: ops.Join, side: int, types: Types) -> tuple[ops.InputTable, Places, Places] | None:
    """Return the source of a join's side, the columns that the side reads, and the key columns.

    Returns None if the join cannot read the source's trace. The join can read the trace only if the join
    compares the stored values unchanged, and by `=`, so that it never looks up NULL. A semi or anti join
    reads no rows of the right side, unless it has a further condition.
    """
    reads = op.keys and not (side and op.left_only and not op.residual)
    below = source_of(op.inputs[side]) if reads else None
    if below is None or any(key.null_safe for key in op.keys):
        return None
    source, places = below
    key_places = []
    for key in op.keys:
        left, right = key.left.column, key.right.column
        if left is None or right is None or types[op.left][left] != types[op.right][right]:
            return None
        key_places.append(places[(left, right)[side]])
    return (source, places, tuple(key_places)) if len(set(key_places)) == len(key_places) else None


def source_keys(operators: Iterable[Operator], types: Types) -> dict[ops.InputTable, Places]:
    """Return for each source the key that most joins can use.

    If several keys fit equally many joins, choose the one with the lowest column numbers.
    """
    usable: dict[ops.InputTable, Counter[Places]] = {}
    for op in operators:
        if isinstance(op, ops.Join):
            for side in (0, 1):
                if (shareable := side_key(op, side, types)) is not None:
                    source, _, key = shareable
                    usable.setdefault(source, Counter())[key] += 1
    return {source: min(keys, key=lambda key: (-keys[key], key)) for source, keys in usable.items()}


@dataclass(frozen=True)
class SharedSource:
    """A source whose trace a side of a join reads.

    Args:
        source: the source; its trace has the join's key columns in the same order.
        places: the columns of the source that the side reads.
    """

    source: ChangesSource | UpsertsSource
    places: tuple[int, ...]

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """Return the layouts of the traces that the side reads, by name."""
        return {name: layout for name, layout in self.source.layouts.items() if name in {MAIN, ASIDE}}

    def rows(self, layout: Layout, traces: Traces) -> "SharedRows":
        """Return the source's rows in the layout of the side.

        Args:
            layout: the layout of the side, with the columns p0, p1, … in the order of `places`.
            traces: the traces of the source.
        """
        names = {name: name for name in (HASH, *layout.key_names, WEIGHT)}
        for place, origin in enumerate(self.places):
            names[f"p{place}"] = column_name(origin, self.source.types, self.source.key)
        return SharedRows(layout, {name: names[name] for name in layout.schema.names}, traces)


class SharedRows:
    """Reads a source's traces in the layout of a side of a join."""

    def __init__(self, layout: Layout, names: Mapping[str, str], traces: Traces) -> None:
        self._layout = layout
        self._names = names
        self._traces = traces

    def lookups(self, hashes: Hashes, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield all rows whose keys have these hashes, in tables of a bounded size with one chunk each.

        Leaves out rows that are set aside. The source's trace stores these with a negative weight until a
        later row cancels them, and no other operator may see them.
        """
        names = self._layout.select(columns)
        main, fine = self._traces[MAIN], self._traces[MAIN].layout.fine
        aside = self._set_aside(hashes)
        source_names = [self._names[name] for name in names] if aside is None else None
        for table in main.lookups(hashes, source_names, keys=fine):
            rows = table if aside is None else _without(aside, table, main.layout)
            arrays = {name: rows[self._names[name]] for name in names}
            if fine:
                keys = [chunk(rows, name) for name in main.layout.key_names]
                arrays[HASH] = pa.array(key_hashes(keys, rows.num_rows))
            yield pa.table(arrays)

    def _set_aside(self, hashes: Hashes) -> pa.Table | None:
        """Return the distinct rows that are set aside and have these key hashes; None if there are none."""
        trace = self._traces.get(ASIDE)
        if trace is None or not trace.entries:
            return None
        tables = [trace.layout.empty(), *trace.lookups(hashes, keys=trace.layout.fine)]
        aside = consolidate(pa.concat_tables(tables), trace.layout)
        return aside if aside.num_rows else None


def _without(excluded: pa.Table, rows: pa.Table, layout: Layout) -> pa.Table:
    """Return the rows that are not in `excluded`, in one chunk.

    The rows of `excluded` must be consolidated.
    """
    remaining = positions(excluded, rows, layout.names, zeros="differ") < 0
    return rows if remaining.all() else rows.filter(pa.array(remaining)).combine_chunks()
