"""The lot grid: for each table its last lots, published or expected, with the reason for each gap.

All tables that arcs make from one dataset have the same lot ids. So they share a span of lots, and one
inventory of that span. A span is short, so the cost of a row does not depend on the number of lots.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from tidemill.arcs.gaps import Gaps
from tidemill.arcs.inventory import Inventory, Span
from tidemill.lots import events, ids, lots
from tidemill.lots.ids import LotId
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.store import Tx
from tidemill.ui.model.answers import GridRow, LotCell, LotPage, TableLine
from tidemill.ui.model.catalog import Declarations, ViewEntry
from tidemill.ui.model.reader import StoreReader
from tidemill.views.steps import commits
from tidemill.views.steps.commits import StepRow

COLUMNS = 48
AHEAD = 6
"""How many overdue intervals after the newest lot the grid shows."""


# --- tables


def table_line(reader: StoreReader, catalog: Declarations, table: DatasetId) -> TableLine:
    """Describe a table that is not a view."""
    keys = reader.keys.lots

    def read(tx: Tx) -> tuple[int, float]:
        head = events.head(tx, keys, table)
        last = events.read(tx, keys, table, head - 1, 1) if head else []
        return head, last[0].wall_at / 1e6 if last else 0.0

    position, published_at = reader.run(read)
    row, spec = catalog.datasets[table], catalog.makers.get(table)
    return TableLine(
        name=table.name,
        version=table.version,
        kind="quarantine" if table in catalog.quarantines else "arc" if spec is not None else "dataset",
        pipelines=tuple(sorted(catalog.owners.get(table, {}))),
        position=position,
        published_at=published_at,
        unit="" if row.unit is None else str(row.unit),
        maker="" if spec is None else spec.name,
        retired=catalog.is_retired(table),
    )


def view_line(reader: StoreReader, entry: ViewEntry) -> TableLine:
    """Describe a view as a table."""
    last = reader.run(
        partial(
            commits.newest, keys=reader.keys, pipeline=entry.pipeline, group=entry.group.spec.name, limit=1
        )
    )
    return TableLine(
        name=entry.name,
        version="",
        kind="view",
        pipelines=(entry.pipeline,),
        position=entry.group.step,
        published_at=last[0].wall_at / 1e6 if last else 0.0,
        maker=entry.group.spec.name,
    )


# --- lots


class LotGrid:
    """Reads rows of the grid; tables of one family share an inventory."""

    def __init__(self, reader: StoreReader, catalog: Declarations) -> None:
        self._reader = reader
        self._catalog = catalog
        self._gaps: dict[Span, tuple[Inventory, Gaps]] = {}
        self._spans: dict[DatasetId, Span] = {}

    def row(self, table: DatasetId) -> GridRow:
        """Return the row of a table with its last lots."""
        cells = self._cells(table, self._last_span(table))[-COLUMNS:]
        return GridRow(table=table_line(self._reader, self._catalog, table), cells=tuple(cells))

    def view_row(self, entry: ViewEntry) -> GridRow:
        """Return the row of a view with its last steps."""
        steps = self._reader.run(
            partial(
                commits.newest,
                keys=self._reader.keys,
                pipeline=entry.pipeline,
                group=entry.group.spec.name,
                limit=COLUMNS,
            )
        )
        cells = [step_cell(row, entry.name) for row in reversed(steps)]
        return GridRow(table=view_line(self._reader, entry), cells=tuple(cells))

    def page(self, table: DatasetId, before: str, limit: int) -> LotPage:
        """Return a page of a table's lots, published or expected, newest first."""
        base = self._catalog.base(table)
        newest = self._newest(base, before, limit) or self._newest(table, before, limit)
        if not newest:
            return LotPage(items=())
        first, last = newest[-1].lot, before
        if not before:
            last = self._last_span(table).last
        cells = [cell for cell in self._cells(table, Span(first, last)) if not before or cell.lot < before]
        more = self._newest(base, first, 1) or self._newest(table, first, 1)
        return LotPage(items=tuple(reversed(cells)), next=first if more else "")

    def _newest(self, table: DatasetId, before: str, limit: int) -> list[LotRow]:
        keys = self._reader.keys.lots
        return self._reader.run(partial(lots.newest, keys=keys, dataset=table, before=before, limit=limit))

    def _last_span(self, table: DatasetId) -> Span:
        """Return the span of the last lots of a table's family, with some overdue intervals."""
        base = self._catalog.base(table)
        if base not in self._spans:
            newest = self._newest(base, "", COLUMNS)
            if newest:
                self._spans[base] = Span(newest[-1].lot, _ahead(newest[0].lot))
        if base in self._spans:
            return self._spans[base]
        own = self._newest(table, "", COLUMNS)
        return Span(own[-1].lot, _ahead(own[0].lot)) if own else Span("", "")

    def _cells(self, table: DatasetId, span: Span) -> list[LotCell]:
        if not span.first:
            return []
        if span not in self._gaps:
            inventory = Inventory(self._reader.store, self._reader.arcs, self._catalog.arcs.values(), span)
            self._gaps[span] = (inventory, Gaps(inventory))
        inventory, gaps = self._gaps[span]
        missing = {gap.lot: gap for gap in gaps.of(table).gaps}
        rows = {row.lot: row for row in self._rows(table, span)}
        held = self._quarantined(table, span)
        spec = self._catalog.makers.get(table)
        replaying = {} if spec is None else inventory.unfinished(spec.id)
        cells = []
        for lot in sorted({*rows, *missing, *inventory.published(table)}):
            row, gap = rows.get(lot), missing.get(lot)
            if row is not None:
                cells.append(
                    LotCell(
                        lot=lot,
                        state=row.state.value,
                        rows=row.rows,
                        size=row.size,
                        generation=row.generation,
                        position=row.position,
                        quarantined=held.get(lot, 0),
                        why=f"a replay is {replaying[lot][0].value}" if lot in replaying else "",
                    )
                )
            elif gap is not None:
                cause = gap.cause.table if gap.cause.table != table.name else ""
                cells.append(LotCell(lot=lot, state=gap.state.value, why=gap.cause.why, cause=cause))
        return cells

    def _rows(self, table: DatasetId, span: Span) -> Iterator[LotRow]:
        """Yield the published lots of a span. It has about a page of them."""
        before = ""
        for _ in range(10):
            page = self._reader.run(
                partial(
                    lots.newest,
                    keys=self._reader.keys.lots,
                    dataset=table,
                    before=before or _after(span.last),
                    limit=500,
                )
            )
            yield from (row for row in page if row.lot >= span.first)
            if len(page) < 500 or page[-1].lot < span.first:
                return
            before = page[-1].lot

    def _quarantined(self, table: DatasetId, span: Span) -> dict[str, int]:
        for quarantine, owner in self._catalog.quarantines.items():
            if owner == table:
                return {row.lot: row.rows for row in self._rows(quarantine, span) if row.rows}
        return {}


def step_cell(row: StepRow, view: str) -> LotCell:
    """Describe a step of a view as a cell of the grid."""
    output = next((out for out in row.outputs if out.view == view and out.changes), None)
    return LotCell(
        lot=f"step {row.step}",
        state="complete" if output else "empty",
        rows=output.rows if output else 0,
        size=output.size if output else 0,
        position=row.step,
    )


def _ahead(lot: str) -> str:
    """Return the end of a span: some intervals after a lot; the lot itself if lots are appends."""
    id_ = ids.parse(lot) if not lot.startswith("S") else None
    if not isinstance(id_, LotId):
        return ""
    for _ in range(AHEAD):
        id_ = id_.next()
    return str(id_)


def _after(lot: str) -> str:
    """Return a text that sorts after a lot and before the next one."""
    return f"{lot}\x00" if lot else ""


def tables_page(catalog: Declarations) -> Sequence[DatasetId | ViewEntry]:
    """Return everything that has a row in the grid, in the order of the data flow; retired tables last."""
    live = [table for table in catalog.ordered if not catalog.is_retired(table)]
    retired = [table for table in catalog.ordered if catalog.is_retired(table)]
    return [*live, *catalog.views.values(), *retired]


def rows_of(
    reader: StoreReader, catalog: Declarations, tables: Iterable[DatasetId | ViewEntry]
) -> list[GridRow]:
    """Return the rows of these tables."""
    grid = LotGrid(reader, catalog)
    return [grid.view_row(table) if isinstance(table, ViewEntry) else grid.row(table) for table in tables]
