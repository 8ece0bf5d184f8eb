"""What there is and how it stands, from the store alone: for the command line, the page and programs.

Nothing here reads an object or asks Spark (LOT-21), and nothing changes anything.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from tidemill.arcs import barriers, standings
from tidemill.arcs import declarations as arc_rows
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import Missing, Partial, Running
from tidemill.arcs.standings import Standing
from tidemill.errors import ArcUnknown, DatasetUnknown, GroupUnknown, UsageError
from tidemill.lots import datasets, events, lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.pipeline import graph
from tidemill.pipeline.plan.sources import source_context
from tidemill.sources.keys import SourceKeys
from tidemill.sources.source import PushAddress, Source, SourceStatus
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.subscriptions import Scheduled
from tidemill.views.steps import commits, groups, records
from tidemill.views.steps.keys import group_id

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


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A table in a list."""

    name: str
    kind: Literal["dataset", "arc", "view", "quarantine"]
    position: int
    at: float = 0.0
    schema: str = ""
    where: str = ""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An arc, a view group or a source, and what it is at."""

    name: str
    kind: Literal["arc", "views", "source"]
    state: Literal["waiting", "scheduled", "running", "new"]
    behind: int = 0  # lots, or steps, or files in windows that are not published
    node: str = ""
    failures: int = 0
    partial: int = 0
    missing: int = 0
    step: int = 0
    paused: bool = False
    dead: bool = False  # it failed too often, and is not run any more
    notes: tuple[str, ...] = ()
    awaits: tuple[str, ...] = ()  # lots that wait for a source, with what is awaited, and what follows when
    address: str = ""  # where rows are pushed to

    @property
    def troubled(self) -> bool:
        """Is there something that will not come right by itself?"""
        return bool(self.partial or self.missing or self.dead or self.notes)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline at a glance."""

    pipeline: str
    runs: tuple[RunInfo, ...]
    tables: tuple[TableInfo, ...]

    @property
    def ok(self) -> bool:
        """Is everything processed that has arrived, and nothing failed?"""
        return all(
            one.state == "waiting" and not (one.partial or one.missing or one.notes) for one in self.runs
        )


def tables_of(pipeline: "Pipeline") -> list[TableInfo]:
    """All tables, in the order of their declarations."""
    site = pipeline.site
    found = []
    made_by = {sink.name: arc for arc in pipeline.all_arcs().values() for sink in arc.sinks}
    names = [*pipeline.names, *pipeline.quarantines]
    for name in names:
        if name in pipeline.views:
            found.append(_view(pipeline, name))
            continue
        dataset = _id(pipeline, name)

        def read(tx: Tx, dataset: DatasetId = dataset) -> tuple[int, float, str]:
            try:
                schema = datasets.read(tx, site.keys.lots, dataset).schema
            except DatasetUnknown:
                schema = ""
            head = events.head(tx, site.keys.lots, dataset)
            last = events.read(tx, site.keys.lots, dataset, head - 1, 1) if head else []
            return head, last[0].wall_at / 1e6 if last else 0.0, schema

        head, at, schema = site.store.run(read)
        kind: Literal["dataset", "arc", "quarantine"] = "arc" if name in made_by else "dataset"
        where = made_by[name].line if name in made_by else None
        if name in pipeline.datasets:
            where = pipeline.datasets[name].line
        elif name not in made_by:
            kind = "quarantine"
            where = pipeline.quarantines[name]
        found.append(
            TableInfo(name=name, kind=kind, position=head, at=at, schema=schema, where=str(where or ""))
        )
    return found


def _id(pipeline: "Pipeline", name: str) -> DatasetId:
    return DatasetId(name, pipeline.datasets[name].dataset.version if name in pipeline.datasets else "1")


def _view(pipeline: "Pipeline", name: str) -> TableInfo:
    site, decl = pipeline.site, pipeline.views[name]

    def read(tx: Tx) -> tuple[int, float]:
        try:
            step = groups.read(tx, site.keys, pipeline.name, decl.group).step
        except GroupUnknown:
            return 0, 0.0
        last = commits.rows(tx, site.keys, pipeline.name, decl.group, step - 1, step) if step else []
        return step, last[-1].wall_at / 1e6 if last else 0.0

    step, at = site.store.run(read)
    return TableInfo(name=name, kind="view", position=step, at=at, where=str(decl.line))


def lots_of(pipeline: "Pipeline", name: str) -> list[LotInfo]:
    """The lots of a table in the order of their ids; of what an arc makes also those it has not made."""
    if name in pipeline.views:
        return list(_steps(pipeline, name))
    times = _times(pipeline, name)
    published = {row.lot: _published(row, times) for row in _rows(pipeline, name)}
    makers = {sink.name: one for one in pipeline.all_arcs().values() for sink in one.sinks}
    arc = makers.get(name)
    if arc is None:
        return list(published.values())
    standing = {one.lot: one for one in _standings(pipeline, graph.arc_id(pipeline, arc.name))}
    expected = {row.lot for read in arc.reads if read not in pipeline.views for row in _rows(pipeline, read)}
    waits = _awaited(pipeline, arc.name)
    found = []
    for lot in sorted({*published, *standing, *expected}):
        if lot in published:
            shown = published[lot]
            replaying = lot in standing and standing[lot].replaying
            found.append(msgspec.structs.replace(shown, note="replaying") if replaying else shown)
        elif lot in standing:
            found.append(_unpublished(standing[lot]))
        else:
            found.append(LotInfo(lot=lot, state="waiting", note=waits.get(lot, "")))
    return found


def _awaited(pipeline: "Pipeline", arc: str, limit: int = PAGE) -> dict[str, str]:
    """Of an arc over several tables: what its lots wait for, those that wait longest first."""
    keys, name = ArcKeys(pipeline.site.place.cluster), graph.arc_id(pipeline, arc)

    def read(tx: Tx) -> dict[str, str]:
        try:
            spec = arc_rows.read(tx, keys, name)
        except ArcUnknown:
            return {}
        found = barriers.awaiting(tx, keys, spec, limit) if spec.has_barrier else []
        return {one.lot: barriers.words(one, spec, tx.now()) for one in found}

    return pipeline.site.store.run(read)


def _rows(pipeline: "Pipeline", name: str) -> Iterator[LotRow]:
    site, dataset = pipeline.site, _id(pipeline, name)
    after = ""
    while True:
        page = site.store.run(
            lambda tx, after=after: lots.listed(tx, site.keys.lots, dataset, after, PAGE)  # type: ignore[misc]
        )
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].lot


def _standings(pipeline: "Pipeline", arc: str) -> Iterator[Standing]:
    site, keys = pipeline.site, ArcKeys(pipeline.site.place.cluster)
    after = ""
    while True:
        page = site.store.run(lambda tx, after=after: standings.listed(tx, keys, arc, after, PAGE))  # type: ignore[misc]
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].lot


def _times(pipeline: "Pipeline", name: str) -> dict[int, float]:
    """When each position of a table was published."""
    site, dataset = pipeline.site, _id(pipeline, name)
    found: dict[int, float] = {}
    after = 0
    while True:
        page = site.store.run(lambda tx, after=after: events.read(tx, site.keys.lots, dataset, after, PAGE))  # type: ignore[misc]
        found.update({event.position: event.wall_at / 1e6 for event in page})
        if len(page) < PAGE:
            return found
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


def _unpublished(one: Standing) -> LotInfo:
    row = one.row
    match row:
        case Running():
            return LotInfo(lot=one.lot, state="running", generation=one.generation, note=f"on {row.node}")
        case Partial():
            failed = f"{len(row.failed)} parts failed: " if row.failed else ""
            return LotInfo(lot=one.lot, state="partial", generation=one.generation, note=failed + row.error)
        case Missing():
            return LotInfo(lot=one.lot, state="missing", generation=one.generation, note=row.error)
        case _:
            return LotInfo(lot=one.lot, state="waiting", generation=one.generation)


def _steps(pipeline: "Pipeline", name: str) -> Iterator[LotInfo]:
    site, group = pipeline.site, pipeline.views[name].group
    at = 0
    while True:
        page = site.store.run(
            lambda tx, at=at: commits.rows(tx, site.keys, pipeline.name, group, at, 1 << 60)  # type: ignore[misc]
        )
        for row in page:
            made = next((one for one in row.outputs if one.view == name and one.changes), None)
            yield LotInfo(
                lot=f"step {row.step}",
                state="complete" if made else "empty",
                position=row.step,
                rows=made.rows if made else 0,
                size=made.size if made else 0,
                at=row.wall_at / 1e6,
            )
        if not page:
            return
        at = page[-1].step


def status_of(pipeline: "Pipeline") -> Status:
    """How a pipeline stands."""
    runs = [_source_run(pipeline, name) for name in pipeline.sources]
    runs += [_arc_run(pipeline, name) for name in pipeline.all_arcs()]
    runs += [_group_run(pipeline, name) for name in dict.fromkeys(v.group for v in pipeline.views.values())]
    return Status(pipeline=pipeline.name, runs=tuple(runs), tables=tuple(tables_of(pipeline)))


def _subscription(tx: Tx, pipeline: "Pipeline", name: str) -> tuple[RunInfo, int]:
    """What the subscription of this name is at, and how far it is behind its sources."""
    site = pipeline.site
    kind: Literal["arc", "views"] = "arc" if name.startswith("arc:") else "views"
    shown = RunInfo(name=name.partition("/")[2], kind=kind, state="new")
    row = subscriptions.read(tx, site.keys.triggers, name)
    if row is None:
        return shown, 0
    heads = events.heads(tx, site.keys.lots, row.tally.terms.sources)
    behind = sum(heads[source] - seen for source, seen in row.tally.seen.items())
    run = row.run if isinstance(row, Scheduled) else None
    state: Literal["running", "scheduled", "waiting"] = (
        "running" if run is not None else "scheduled" if isinstance(row, Scheduled) else "waiting"
    )
    shown = msgspec.structs.replace(
        shown,
        state="scheduled" if state == "waiting" and behind else state,
        node=run.node if run is not None else "",
        failures=row.tally.failures,
        paused=row.tally.paused,
        dead=row.tally.dead,
        behind=behind,
    )
    return shown, behind


def _arc_run(pipeline: "Pipeline", name: str) -> RunInfo:
    keys, arc = ArcKeys(pipeline.site.place.cluster), graph.arc_id(pipeline, name)

    def read(tx: Tx) -> RunInfo:
        shown, _ = _subscription(tx, pipeline, arc)
        troubled = standings.troubled(tx, keys, arc, 1000)
        return msgspec.structs.replace(
            shown,
            partial=sum(isinstance(one.row, Partial) for one in troubled),
            missing=sum(isinstance(one.row, Missing) for one in troubled),
            notes=tuple(f"{one.lot}: {_unpublished(one).note}" for one in troubled[:5]),
        )

    waits = _awaited(pipeline, name, 5)
    return msgspec.structs.replace(
        pipeline.site.store.run(read), awaits=tuple(f"{lot}: {words}" for lot, words in waits.items())
    )


def _group_run(pipeline: "Pipeline", group: str) -> RunInfo:
    site = pipeline.site

    def read(tx: Tx) -> RunInfo:
        shown, _ = _subscription(tx, pipeline, group_id(pipeline.name, group))
        try:
            step = groups.read(tx, site.keys, pipeline.name, group).step
        except GroupUnknown:
            return shown
        last = records.last(tx, site.keys, pipeline.name).number
        return msgspec.structs.replace(shown, step=step, behind=max(shown.behind, last - step))

    return site.store.run(read)


def _source_run(pipeline: "Pipeline", dataset: str) -> RunInfo:
    status = _source_status(pipeline, dataset, pipeline.sources[dataset].source)
    failed = [window for window in status.pending if window.error]
    return RunInfo(
        name=dataset,
        kind="source",
        state="scheduled" if status.pending else "waiting",
        behind=len(status.pending),
        node=status.address.node if status.address is not None else "",
        address=status.address.url if status.address is not None else "",
        failures=len(failed) + len(status.errors),
        notes=(
            *(f"window {window.number}: {window.error}" for window in failed[:5]),
            *status.errors,
        ),
    )


def _source_status(pipeline: "Pipeline", dataset: str, source: Source) -> SourceStatus:
    keys = SourceKeys(pipeline.site.place.cluster)
    return pipeline.site.store.run(lambda tx: source.status(tx, keys, pipeline.name, dataset))


def address_of(pipeline: "Pipeline", dataset: str) -> PushAddress:
    """Return where to push rows of a dataset now, and the token to show."""
    decl = pipeline.sources.get(dataset)
    address = None
    if decl is not None:
        source = decl.source.resolve(source_context(pipeline, dataset))
        address = _source_status(pipeline, dataset, source).address
    if address is None:
        raise UsageError(f"{dataset} is not pushed to", hint=f"declare source({dataset}, tm.http_push())")
    return address
