"""Find which tables a table depends on, from the declarations and without Spark."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING

from tidemill.arcs import declarations
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.inventory import Span
from tidemill.errors import BadLotId, NoLots, UsageError
from tidemill.lots import datasets, events, ids, lots
from tidemill.lots.ids import AppendId, LotId, Unit
from tidemill.lots.keys import DatasetId
from tidemill.publish.parts import PartSink
from tidemill.spark import queries
from tidemill.store import Tx

if TYPE_CHECKING:
    from tidemill.pipeline.declarations import ArcDecl
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.pipeline.registry import Registry

Bound = str | date | datetime | None
"""The first or last lot of a range: a lot, a day, or a time."""

NO_APPEND = "A"
"""A name that sorts before the lot of the first append."""


def id_of(pipeline: "Registry", table: str) -> DatasetId:
    """Return the dataset id of a table that is not a view."""
    decl = pipeline.datasets.get(table)
    return DatasetId(table) if decl is None else decl.id


def specs(pipeline: "Pipeline") -> list[ArcSpec]:
    """Return what the arcs of a pipeline read and write, for reports."""
    return [
        ArcSpec(
            pipeline=pipeline.name,
            name=arc.name,
            reads=tuple(id_of(pipeline, name) for name in arc.reads),
            sinks=tuple(PartSink(dataset=id_of(pipeline, sink.name)) for sink in arc.sinks),
            max_concurrent=arc.max_concurrent,
            grace_us=arc.grace.grace_us,
            after_grace=arc.grace.then,
        )
        for arc in pipeline.all_arcs().values()
        if not any(name in pipeline.views for name in arc.reads)
    ]


def arc_id(pipeline: "Registry", arc: str) -> str:
    """Return an arc's name in the store."""
    return declarations.arc_id(pipeline.name, arc)


def maker(pipeline: "Pipeline", name: str) -> "ArcDecl":
    """Return the arc with this name, or the arc that writes the table with this name.

    Raise `UsageError` if there is none.
    """
    if name in pipeline.all_arcs():
        return pipeline.all_arcs()[name]
    for arc in pipeline.all_arcs().values():
        if any(sink.name == name for sink in arc.sinks):
            return arc
    if name in pipeline.datasets:
        raise UsageError(
            f"no arc writes the dataset {name}",
            hint="pass the name of an arc, or of a table that an arc writes;"
            " to correct a single lot in a dataset, use replace()",
        )
    if name in pipeline.views:
        raise UsageError(
            f"{name} is a view; arcs do not write views",
            hint="pass the name of a table that the view reads; the view is updated afterwards",
        )
    names = ", ".join([*pipeline.all_arcs(), *pipeline.names]) or "(none)"
    raise UsageError(f"{pipeline.name} has no arc or table {name}", hint=f"use one of: {names}")


def groups(pipeline: "Pipeline") -> dict[str, str]:
    """Map each view to its group. Also map each group's name to the group, unless an arc has that name."""
    arcs = pipeline.all_arcs()
    by_group = {view.group: view.group for view in pipeline.views.values() if view.group not in arcs}
    return by_group | {view.name: view.group for view in pipeline.views.values()}


def inputs_of(pipeline: "Pipeline", table: str) -> list[str]:
    """Return the tables that a table is computed from, directly; none for a dataset."""
    if table in pipeline.views:
        decl = pipeline.views[table]
        names = decl.reads if decl.function else [read.name for read in queries.table_names(decl.sql)]
        return sorted({queries.match(name, dict.fromkeys(pipeline.names)) for name in names})
    for arc in pipeline.all_arcs().values():
        if any(sink.name == table for sink in arc.sinks):
            return list(arc.reads)
    owner = table.removesuffix("_quarantine")
    return [owner] if table in pipeline.quarantines and owner in pipeline.names else []


def read_by(pipeline: "Pipeline", view: str) -> list[str]:
    """Return the tables that a view reads, directly or through other views. Views are not included."""
    tables: dict[str, None] = {}
    views = [view]
    visited = {view}
    while views:
        decl = pipeline.views[views.pop()]
        names = set(decl.reads) if decl.function else {table.name for table in queries.table_names(decl.sql)}
        for name in sorted(queries.match(name, dict.fromkeys(pipeline.names)) for name in names):
            if name not in pipeline.views:
                tables[name] = None
            elif name not in visited:
                visited.add(name)
                views.append(name)
    return list(tables)


def downstream(pipeline: "Pipeline", arc: str) -> Iterator[str]:
    """Yield the other tables and views that are updated after an arc has made lots again."""
    changed = {sink.name for sink in pipeline.all_arcs()[arc].sinks}
    own = set(changed)
    grew = True
    while grew:
        before = len(changed)
        for other in pipeline.all_arcs().values():
            if changed & set(other.reads):
                changed |= {sink.name for sink in other.sinks}
        grew = len(changed) > before
    yield from sorted(changed - own)
    for view in pipeline.views:
        if changed & set(read_by(pipeline, view)):
            yield view


def _origin(pipeline: "Pipeline", table: str) -> str:
    """Return the table whose lots a table has: that of its first input, up to one that no arc writes."""
    makers = {sink.name: arc for arc in pipeline.all_arcs().values() for sink in arc.sinks}
    while table in makers:
        table = makers[table].reads[0]
    return table


def unit_of(pipeline: "Pipeline", table: str) -> Unit | None:
    """Return the length of the intervals that form a table's lots; None if each append is a lot."""
    table = _origin(pipeline, table)
    if table in pipeline.datasets:
        return pipeline.datasets[table].dataset.unit
    context = pipeline.context  # a template may read tables of other pipelines
    return context.store.run(lambda tx: datasets.read(tx, context.keys.lots, DatasetId(table))).unit


def lot_of(table: str, unit: Unit | None, text: str) -> str:
    """Parse the id of a lot of this table. Raise `BadLotId` if the table has another kind of lots."""
    lot = ids.parse(text)
    lot_unit = None if isinstance(lot, AppendId) else lot.unit
    if lot_unit == unit:
        return str(lot)
    kind = "an append" if lot_unit is None else f"a {lot_unit} lot"
    kinds = "one lot per append" if unit is None else f"{unit} lots"
    hint = f"list its lots with `tidemill lots {table}`"
    if unit is not None and isinstance(lot, LotId):
        hint = f"the lot that begins at the same time is {unit.at(lot.start)}"
    raise BadLotId(f"{text} is {kind}, but {table} has {kinds}", hint=hint)


def span(pipeline: "Pipeline", table: str, first: Bound, last: Bound) -> Span:
    """Return a range of lots of a table, both ends included.

    If each append is a lot, a day or a time selects the lots that were published then.

    - first, last: a lot, a day or a time, or text like `2026-01-31` or `2026-01-31T14:05:00Z`.
    """
    unit = unit_of(pipeline, table)
    if unit is not None:
        return interval_span(unit, first, last)
    dataset = id_of(pipeline, _origin(pipeline, table))
    bounds = Span(_append(pipeline, dataset, first, end=False), _append(pipeline, dataset, last, end=True))
    lots_passed = {str(first), str(last)} >= {bounds.first, bounds.last}
    if bounds.last == NO_APPEND or (bounds.last and bounds.last < bounds.first and not lots_passed):
        raise NoLots(
            f"{table} has no lots from {first or 'the first one'} to {last}",
            hint=f"list its lots with `tidemill lots {table} --list`",
        )
    return _in_order(bounds)


def interval_span(unit: Unit, first: Bound, last: Bound) -> Span:
    """Return a range of lots of a table whose lots are intervals; see `span`."""
    return _in_order(Span(_bound(unit, first, end=False), _bound(unit, last, end=True)))


def _in_order(bounds: Span) -> Span:
    if bounds.last and bounds.last < bounds.first:
        raise BadLotId(
            f"the range from {bounds.first} to {bounds.last} is reversed", hint="pass the earlier lot first"
        )
    return bounds


def _append(pipeline: "Pipeline", dataset: DatasetId, value: Bound, *, end: bool) -> str:
    """Return the first append that was published at a time or later, or the last one until that time."""
    if value is None or value == "":
        return ""
    if isinstance(value, str):
        try:
            return str(AppendId.parse(value))
        except BadLotId:
            value = _day_or_time(value)
    if not isinstance(value, datetime):
        value = datetime.combine(value + timedelta(days=end), time(), UTC)
    value = value if value.tzinfo else value.replace(tzinfo=UTC)
    number = _first_append(pipeline, dataset, round(value.timestamp() * 1e6))
    return str(AppendId(number - 1 if end else number)) if number > end else NO_APPEND


def _first_append(pipeline: "Pipeline", dataset: DatasetId, wall_us: int) -> int:
    """Return the number of the first append that was published at a time or later.

    After the last append, return a number that is larger than all. Corrections also have events, but their
    lots are older.
    """
    context = pipeline.context
    keys = context.keys.lots

    def read(tx: Tx) -> int:
        def at(position: int) -> events.LotEvent | None:
            page = events.read(tx, keys, dataset, position, 1)
            return page[0] if page else None

        before, last = 0, events.head(tx, keys, dataset)
        while before < last:
            middle = (before + last) // 2
            event = at(middle)
            if event is not None and event.wall_at < wall_us:
                before = event.position
            else:
                last = middle
        event = at(before)
        while event is not None and event.generation:
            event = at(event.position)
        if event is not None:
            return AppendId.parse(event.lot).number
        newest = lots.newest(tx, keys, dataset, limit=1)
        return AppendId.parse(newest[0].lot).number + 1 if newest else 1

    return context.store.run(read)


def _bound(unit: Unit, value: Bound, *, end: bool) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, str):
        try:
            lot = LotId.parse(value)
        except BadLotId:
            value = _day_or_time(value)
        else:
            if lot.unit == unit:
                return str(lot)
            value = lot.date if lot.unit.per_day == 1 else lot.start
    if not isinstance(value, datetime):
        midnight = datetime.combine(value, time(), UTC)
        return str(LotId(unit.at(midnight).day, unit, unit.per_day - 1)) if end else str(unit.at(midnight))
    return str(unit.at(value if value.tzinfo else value.replace(tzinfo=UTC)))


def _day_or_time(text: str) -> date | datetime:
    try:
        return date.fromisoformat(text) if len(text) <= 10 else datetime.fromisoformat(text)
    except ValueError:
        raise BadLotId(
            f"{text!r} is neither a lot nor a time",
            hint="write it like 20260131PT5M003, 2026-01-31 or 2026-01-31T14:05Z",
        ) from None
