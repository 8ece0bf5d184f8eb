"""Which table is made from which, by the declarations alone: no store and no Spark is needed to know."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING

from tidemill.arcs import declarations
from tidemill.arcs.census import Span
from tidemill.arcs.declarations import ArcSpec
from tidemill.errors import BadLotId, UsageError
from tidemill.lots import datasets, ids
from tidemill.lots.ids import AppendId, LotId, Unit
from tidemill.lots.keys import DatasetId
from tidemill.publish.parts import PartSink
from tidemill.spark import queries

if TYPE_CHECKING:
    from tidemill.pipeline.declarations import ArcDecl
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.pipeline.registry import Register

Bound = str | date | datetime | None
"""Where a range of lots begins or ends: a lot, a day, or a moment."""


def id_of(pipeline: "Register", table: str) -> DatasetId:
    """A table of lots by its name."""
    known = pipeline.datasets.get(table)
    return DatasetId(table) if known is None else known.id


def specs(pipeline: "Pipeline") -> list[ArcSpec]:
    """The arcs of a pipeline, as far as reports need them: what they read and write."""
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


def arc_id(pipeline: "Register", arc: str) -> str:
    """An arc's name in the store."""
    return declarations.arc_id(pipeline.name, arc)


def maker(pipeline: "Pipeline", name: str) -> "ArcDecl":
    """The arc that is called so, or makes the table that is; `UsageError` if there is none."""
    if name in pipeline.all_arcs():
        return pipeline.all_arcs()[name]
    for arc in pipeline.all_arcs().values():
        if any(sink.name == name for sink in arc.sinks):
            return arc
    if name in pipeline.datasets:
        raise UsageError(
            f"{name} is written from outside, no arc makes it",
            hint="correct a lot of it by replace(lot, rows); name an arc, or a table that one makes",
        )
    if name in pipeline.views:
        raise UsageError(f"{name} is a view", hint="views follow what they read: replay that")
    known = ", ".join([*pipeline.all_arcs(), *pipeline.names]) or "nothing"
    raise UsageError(f"{pipeline.name} has no arc or table {name}", hint=f"it has {known}")


def groups(pipeline: "Pipeline") -> dict[str, str]:
    """The group of each view; groups go by their own names too, where nothing else is called so."""
    arcs = pipeline.all_arcs()
    named = {view.group: view.group for view in pipeline.views.values() if view.group not in arcs}
    return named | {view.name: view.group for view in pipeline.views.values()}


def read_by(pipeline: "Pipeline", view: str) -> list[str]:
    """The tables of lots that a view is made from, through other views too."""
    found: dict[str, None] = {}
    left = [view]
    seen = {view}
    while left:
        names = {one.name for one in queries.table_names(pipeline.views[left.pop()].sql)}
        for name in sorted(queries.match(name, dict.fromkeys(pipeline.names)) for name in names):
            if name not in pipeline.views:
                found[name] = None
            elif name not in seen:
                seen.add(name)
                left.append(name)
    return list(found)


def behind(pipeline: "Pipeline", arc: str) -> Iterator[str]:
    """What follows when lots of an arc are made again: the tables of other arcs, and views."""
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


def unit_of(pipeline: "Pipeline", table: str) -> Unit | None:
    """How long the intervals of a table are; None where each append is a lot."""
    made_by = {sink.name: arc for arc in pipeline.all_arcs().values() for sink in arc.sinks}
    while table in made_by:
        table = made_by[table].reads[0]
    if table in pipeline.datasets:
        return pipeline.datasets[table].dataset.unit
    site = pipeline.site  # a template reads tables of others, too
    return site.store.run(lambda tx: datasets.read(tx, site.keys.lots, DatasetId(table))).unit


def lot_of(table: str, unit: Unit | None, text: str) -> str:
    """One lot by its id; `BadLotId` for one of another unit, with the unit that these lots have."""
    lot = ids.parse(text)
    given = None if isinstance(lot, AppendId) else lot.unit
    if given == unit:
        return str(lot)
    of = "an append" if given is None else f"a lot of {given}"
    has = "one lot per append" if unit is None else f"lots of {unit}"
    hint = f"see them with `tidemill lots {table}`"
    if unit is not None and isinstance(lot, LotId):
        hint = f"its lot that begins then is {unit.at(lot.start)}"
    raise BadLotId(f"{text} is {of}, and {table} has {has}", hint=hint)


def span(unit: Unit | None, first: Bound, last: Bound) -> Span:
    """A range of lots, both ends included.

    - first, last: a lot; or, where lots are intervals, a day or a moment, also as text: `2026-01-31`,
      `2026-01-31T14:05:00Z`.
    """
    found = Span(_bound(unit, first, end=False), _bound(unit, last, end=True))
    if found.last and found.last < found.first:
        raise BadLotId(f"a range from {found.first} to {found.last}", hint="from the earlier to the later")
    return found


def _bound(unit: Unit | None, value: Bound, *, end: bool) -> str:
    if value is None or value == "":
        return ""
    if unit is None:
        if isinstance(value, str):
            return str(AppendId.parse(value))
        raise BadLotId(f"{value} is a time, and these lots are appends", hint="give ids of lots")
    if isinstance(value, str):
        try:
            lot = LotId.parse(value)
        except BadLotId:
            value = _moment(value)
        else:
            if lot.unit == unit:
                return str(lot)
            value = lot.date if lot.unit.per_day == 1 else lot.start
    if not isinstance(value, datetime):
        midnight = datetime.combine(value, time(), UTC)
        return str(LotId(unit.at(midnight).day, unit, unit.per_day - 1)) if end else str(unit.at(midnight))
    return str(unit.at(value if value.tzinfo else value.replace(tzinfo=UTC)))


def _moment(text: str) -> date | datetime:
    try:
        return date.fromisoformat(text) if len(text) <= 10 else datetime.fromisoformat(text)
    except ValueError:
        raise BadLotId(
            f"{text!r} is neither a lot nor a time", hint="20260131PT5M003, 2026-01-31 or 2026-01-31T14:05Z"
        ) from None
