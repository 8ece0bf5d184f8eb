"""List the lots of a table: those that are published, and those that an arc still has to write."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from tidemill.arcs import barriers, lot_status
from tidemill.arcs import declarations as arc_rows
from tidemill.arcs.inventory import Inventory
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lot_status import LotStatus
from tidemill.arcs.rows import MissingLot, PartialLot, RunningLot
from tidemill.errors import ArcUnknown
from tidemill.lots import events, lots
from tidemill.lots.lots import LotRow
from tidemill.pipeline import graph
from tidemill.store import Tx
from tidemill.views.steps import commits

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

PAGE = 500

LotWord = Literal["complete", "empty", "removed", "running", "partial", "missing", "waiting"]


class LotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One lot of a table, published or not.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> receipt = shop.dataset("orders", "id BIGINT").append([{"id": 1}, {"id": 2}])
    >>> [(lot.state, lot.rows) for lot in shop["orders"].lots()]
    [('complete', 2)]

    - at: when it was published, in seconds since 1970.
    - note: why it is not complete.
    """

    lot: str
    state: LotWord
    generation: int = 0
    position: int = 0
    rows: int = 0
    size: int = 0
    at: float = 0.0
    note: str = ""


def lots_of(pipeline: "Pipeline", name: str) -> list[LotInfo]:
    """Return the lots of a table in the order of their ids; for a view, return its steps in order."""
    if name in pipeline.views:
        return list(_steps(pipeline, name))
    times = _publication_times(pipeline, name)
    published = {row.lot: _published(row, times) for row in lot_rows(pipeline, name)}
    makers = {sink.name: arc for arc in pipeline.all_arcs().values() for sink in arc.sinks}
    arc = makers.get(name)
    if arc is None:
        return list(published.values())
    statuses = {lot.lot: lot for lot in _statuses(pipeline, graph.arc_id(pipeline, arc.name))}
    expected = {
        row.lot for read in arc.reads if read not in pipeline.views for row in lot_rows(pipeline, read)
    }
    waits = waiting_lots(pipeline, arc.name)
    context = pipeline.context
    inventory = Inventory(context.store, ArcKeys(context.place.cluster), ())
    requested = inventory.requested(graph.arc_id(pipeline, arc.name))
    infos = []
    for lot in sorted({*published, *statuses, *expected}):
        if lot in published:
            replaying = lot in statuses and statuses[lot].replaying
            info = msgspec.structs.replace(published[lot], note="replaying" if replaying else "")
        elif lot in statuses:
            info = unpublished(statuses[lot])
        else:
            info = LotInfo(lot=lot, state="waiting", note=waits.get(lot, ""))
        if lot in requested:
            note = f"requested; {info.note}" if info.note else "requested"
            info = msgspec.structs.replace(info, note=note)
        infos.append(info)
    return infos


def waiting_lots(pipeline: "Pipeline", arc: str, limit: int = PAGE) -> dict[str, str]:
    """Return the lots of an arc that wait for an input, and what each waits for; the longest wait first."""
    keys, name = ArcKeys(pipeline.context.place.cluster), graph.arc_id(pipeline, arc)

    def read(tx: Tx) -> dict[str, str]:
        try:
            spec = arc_rows.read(tx, keys, name)
        except ArcUnknown:
            return {}
        waiting = barriers.awaited_lots(tx, keys, spec, limit) if spec.has_barrier else []
        return {lot.lot: barriers.explain(lot, spec, tx.now()) for lot in waiting}

    return pipeline.context.store.run(read)


def unpublished(lot: LotStatus) -> LotInfo:
    """Return the state of a lot that an arc has not published."""
    row = lot.row
    match row:
        case RunningLot():
            return LotInfo(lot=lot.lot, state="running", generation=lot.generation, note=f"on {row.node}")
        case PartialLot():
            failed = f"{len(row.failed)} parts failed: " if row.failed else ""
            return LotInfo(lot=lot.lot, state="partial", generation=lot.generation, note=failed + row.error)
        case MissingLot():
            return LotInfo(lot=lot.lot, state="missing", generation=lot.generation, note=row.error)
        case _:
            return LotInfo(lot=lot.lot, state="waiting", generation=lot.generation)


def lot_rows(pipeline: "Pipeline", name: str) -> Iterator[LotRow]:
    """Yield the rows of all published lots of a table, in the order of their ids."""
    context, dataset = pipeline.context, graph.id_of(pipeline, name)
    after = ""
    while True:
        page = context.store.run(
            lambda tx, after=after: lots.listed(tx, context.keys.lots, dataset, after, PAGE)  # type: ignore[misc]
        )
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].lot


def _statuses(pipeline: "Pipeline", arc: str) -> Iterator[LotStatus]:
    context, keys = pipeline.context, ArcKeys(pipeline.context.place.cluster)
    after = ""
    while True:
        page = context.store.run(
            lambda tx, after=after: lot_status.listed(tx, keys, arc, after, PAGE)  # type: ignore[misc]
        )
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].lot


def _publication_times(pipeline: "Pipeline", name: str) -> dict[int, float]:
    """Return when each position of a table was published."""
    context, dataset = pipeline.context, graph.id_of(pipeline, name)
    times: dict[int, float] = {}
    after = 0
    while True:
        page = context.store.run(
            lambda tx, after=after: events.read(tx, context.keys.lots, dataset, after, PAGE)  # type: ignore[misc]
        )
        times.update({event.position: event.wall_at / 1e6 for event in page})
        if len(page) < PAGE:
            return times
        after = page[-1].position


def _published(row: LotRow, times: Mapping[int, float]) -> LotInfo:
    return LotInfo(
        lot=row.lot,
        state=row.state.value,
        generation=row.generation,
        position=row.position,
        rows=row.rows,
        size=row.size,
        at=times.get(row.position, 0.0),
    )


def _steps(pipeline: "Pipeline", view: str) -> Iterator[LotInfo]:
    context, group = pipeline.context, pipeline.views[view].group
    after = 0
    while True:
        page = context.store.run(
            lambda tx, after=after: commits.rows(tx, context.keys, pipeline.name, group, after, 1 << 60)  # type: ignore[misc]
        )
        for row in page:
            output = next((out for out in row.outputs if out.view == view and out.changes), None)
            yield LotInfo(
                lot=f"step {row.step}",
                state="complete" if output else "empty",
                position=row.step,
                rows=output.rows if output else 0,
                size=output.size if output else 0,
                at=row.wall_at / 1e6,
            )
        if not page:
            return
        after = page[-1].step
