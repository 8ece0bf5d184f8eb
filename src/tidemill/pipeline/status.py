"""Show the state of a pipeline: its tables, and what every source, arc and view group is doing now.

This module reads only the store. It reads no objects, does not use Spark (LOT-21), and changes nothing.
"""

from typing import TYPE_CHECKING, Literal

import msgspec

from tidemill.arcs import lot_requests, lot_status
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import MissingLot, PartialLot
from tidemill.cluster import nodes
from tidemill.errors import DatasetUnknown, GroupUnknown, UsageError
from tidemill.lots import datasets, events
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import graph
from tidemill.pipeline.declarations import SourceDecl
from tidemill.pipeline.lot_info import unpublished, waiting_lots
from tidemill.pipeline.plan.sources import source_context
from tidemill.pipeline.tables import RetiredDataset, RetiredView
from tidemill.runner import job_deaths
from tidemill.runner.keys import RunnerKeys
from tidemill.sources.keys import SourceKeys
from tidemill.sources.source import PushAddress, Source, SourceStatus, source_id
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.subscriptions import Scheduled
from tidemill.views.steps import commits, failed_views, groups, records
from tidemill.views.steps.keys import group_id

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

MAX_NOTES = 5
GONE = "its runner {} is gone; the next runner continues"


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a pipeline; `at` is when it changed last, in seconds since 1970."""

    name: str
    kind: Literal["dataset", "arc", "view", "quarantine", "retired"]
    position: int
    at: float = 0.0
    schema: str = ""
    where: str = ""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a source, an arc or a view group.

    - behind: how many lots, steps or windows of files it still has to process.
    - requested: how many lots of a replay, a backfill or a retry are not made yet.
    - dead: whether it failed too often in a row; it does not run until it is retried.
    - waiting: what it waits for: a runner that continues the work of a dead one, or, for a lot, another input
      and the time until which it waits.
    - address: the address to which senders push rows.
    """

    name: str
    kind: Literal["arc", "views", "source"]
    state: Literal["waiting", "scheduled", "running", "new"]
    behind: int = 0
    requested: int = 0
    node: str = ""
    failures: int = 0
    partial: int = 0
    missing: int = 0
    step: int = 0
    paused: bool = False
    dead: bool = False
    notes: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    address: str = ""

    @property
    def needs_attention(self) -> bool:
        """Whether it has a problem that a user must fix."""
        return bool(self.partial or self.missing or self.dead or self.notes)


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a whole pipeline."""

    pipeline: str
    runs: tuple[RunInfo, ...]
    tables: tuple[TableInfo, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that arrived has been processed without failures."""
        return all(
            run.state == "waiting" and not (run.partial or run.missing or run.notes) for run in self.runs
        )


def status_of(pipeline: "Pipeline") -> PipelineStatus:
    """Return the state of every source, arc and view group, and of every table."""
    runs = [_source_run(pipeline, decl) for decl in pipeline.sources.values()]
    runs += [_arc_run(pipeline, name) for name in pipeline.all_arcs()]
    runs += [_group_run(pipeline, name) for name in dict.fromkeys(v.group for v in pipeline.views.values())]
    return PipelineStatus(pipeline=pipeline.name, runs=tuple(runs), tables=tuple(tables_of(pipeline)))


# --- tables


def tables_of(pipeline: "Pipeline") -> list[TableInfo]:
    """Return all tables, in the order of their declarations; retired tables come last."""
    makers = {sink.name: arc for arc in pipeline.all_arcs().values() for sink in arc.sinks}
    infos = []
    for name in (*pipeline.names, *pipeline.quarantines):
        if name in pipeline.views:
            infos.append(_view(pipeline, name))
            continue
        kind: Literal["dataset", "arc", "quarantine"] = "arc" if name in makers else "dataset"
        line = makers[name].line if name in makers else None
        if name in pipeline.datasets:
            line = pipeline.datasets[name].line
        elif name not in makers:
            kind = "quarantine"
            line = pipeline.quarantines[name]
        position, at, schema = _read_table(pipeline, graph.id_of(pipeline, name))
        infos.append(
            TableInfo(name=name, kind=kind, position=position, at=at, schema=schema, where=str(line or ""))
        )
    return [*infos, *(_retired(table) for table in pipeline.retired().values())]


def _retired(table: RetiredView | RetiredDataset) -> TableInfo:
    if isinstance(table, RetiredView):
        return TableInfo(name=table.name, kind="retired", position=table.position)
    position, at, schema = _read_table(table.pipeline, table.dataset)
    return TableInfo(name=table.name, kind="retired", position=position, at=at, schema=schema)


def _read_table(pipeline: "Pipeline", dataset: DatasetId) -> tuple[int, float, str]:
    """Return the position, the time of the last publication and the schema of a table."""
    keys = pipeline.context.keys.lots

    def read(tx: Tx) -> tuple[int, float, str]:
        try:
            schema = datasets.read(tx, keys, dataset).schema
        except DatasetUnknown:
            schema = ""
        head = events.head(tx, keys, dataset)
        last = events.read(tx, keys, dataset, head - 1, 1) if head else []
        return head, last[0].wall_at / 1e6 if last else 0.0, schema

    return pipeline.context.store.run(read)


def _view(pipeline: "Pipeline", name: str) -> TableInfo:
    context, decl = pipeline.context, pipeline.views[name]

    def read(tx: Tx) -> tuple[int, float]:
        try:
            step = groups.read(tx, context.keys, pipeline.name, decl.group).step
        except GroupUnknown:
            return 0, 0.0
        last = commits.rows(tx, context.keys, pipeline.name, decl.group, step - 1, step) if step else []
        return step, last[-1].wall_at / 1e6 if last else 0.0

    step, at = context.store.run(read)
    return TableInfo(name=name, kind="view", position=step, at=at, where=str(decl.line))


# --- sources, arcs, view groups


def _subscription(tx: Tx, pipeline: "Pipeline", name: str) -> RunInfo:
    """Return the state of the subscription of an arc or a view group."""
    context = pipeline.context
    kind: Literal["arc", "views"] = "arc" if name.startswith("arc:") else "views"
    info = RunInfo(name=name.partition("/")[2], kind=kind, state="new")
    row = subscriptions.read(tx, context.keys.triggers, name)
    if row is None:
        return info
    heads = events.heads(tx, context.keys.lots, row.tally.terms.sources)
    behind = sum(heads[source] - position for source, position in row.tally.seen.items())
    run = row.run if isinstance(row, Scheduled) else None
    if run is not None and not nodes.is_alive(tx, context.keys.cluster, run.node, run.node_epoch):
        info = msgspec.structs.replace(info, waiting=(GONE.format(run.node),))
        run = None
    state: Literal["running", "scheduled", "waiting"] = (
        "running" if run is not None else "scheduled" if isinstance(row, Scheduled) else "waiting"
    )
    return msgspec.structs.replace(
        info,
        state="scheduled" if state == "waiting" and behind else state,
        node=run.node if run is not None else "",
        failures=row.tally.failures,
        paused=row.tally.paused,
        dead=row.tally.dead,
        behind=behind,
    )


def _arc_run(pipeline: "Pipeline", name: str) -> RunInfo:
    keys, arc = ArcKeys(pipeline.context.place.cluster), graph.arc_id(pipeline, name)

    def read(tx: Tx) -> RunInfo:
        failed = lot_status.failed(tx, keys, arc, 1000)
        info = _subscription(tx, pipeline, arc)
        requested = lot_requests.count_unfinished(tx, keys, [arc]).get(arc, 0)
        if info.state == "waiting" and tx.range(*keys.running.under(arc), limit=1, snapshot=True):
            info = msgspec.structs.replace(info, state="running")  # a requested lot
        elif info.state == "waiting" and requested:
            info = msgspec.structs.replace(info, state="scheduled")
        return msgspec.structs.replace(
            info,
            requested=requested,
            partial=sum(isinstance(lot.row, PartialLot) for lot in failed),
            missing=sum(isinstance(lot.row, MissingLot) for lot in failed),
            notes=tuple(f"{lot.lot}: {unpublished(lot).note}" for lot in failed[:MAX_NOTES]),
        )

    waiting = waiting_lots(pipeline, name, MAX_NOTES)
    info = pipeline.context.store.run(read)
    lines = tuple(f"{lot}: {why}" for lot, why in waiting.items())
    return msgspec.structs.replace(info, waiting=info.waiting + lines)


def _group_run(pipeline: "Pipeline", group: str) -> RunInfo:
    context = pipeline.context

    def read(tx: Tx) -> RunInfo:
        info = _subscription(tx, pipeline, group_id(pipeline.name, group))
        try:
            step = groups.read(tx, context.keys, pipeline.name, group).step
        except GroupUnknown:
            return info
        last = records.last(tx, context.keys, pipeline.name).number
        failed = failed_views.listed(tx, context.keys, pipeline.name, group)
        notes = tuple(f"view {row.view}: {row.text}" for row in failed.values() if row.is_aside)
        return msgspec.structs.replace(info, step=step, behind=max(info.behind, last - step), notes=notes)

    return context.store.run(read)


def _source_run(pipeline: "Pipeline", decl: SourceDecl) -> RunInfo:
    id_ = source_id(pipeline.name, decl.label)
    status = _source_status(pipeline, id_, decl.source)
    failed = [window for window in status.pending if window.error]
    context = pipeline.context
    keys = RunnerKeys(context.place.cluster)
    deaths = context.store.run(lambda tx: job_deaths.deaths(tx, keys, id_))
    dead = deaths >= job_deaths.MOST_DEATHS
    _, _, schema = _read_table(pipeline, graph.id_of(pipeline, decl.dataset))
    return RunInfo(
        name=decl.label,
        kind="source",
        state="scheduled" if status.pending else "waiting" if schema else "new",
        behind=len(status.pending),
        node=status.address.node if status.address is not None else "",
        address=status.address.url if status.address is not None else "",
        failures=len(failed) + len(status.errors) + deaths,
        dead=dead,
        notes=(
            *([f"stopped: the runner died {deaths} times in a row while it polled"] if dead else []),
            *(f"window {window.number}: {window.error}" for window in failed[:MAX_NOTES]),
            *status.errors,
        ),
    )


def _source_status(pipeline: "Pipeline", id_: str, source: Source) -> SourceStatus:
    keys = SourceKeys(pipeline.context.place.cluster)
    return pipeline.context.store.run(lambda tx: source.status(tx, keys, id_))


def address_of(pipeline: "Pipeline", dataset: str) -> PushAddress:
    """Return the address to which senders push rows of a dataset now, and the token that they must send."""
    for decl in pipeline.sources_of(dataset):
        source = decl.source.resolve(source_context(pipeline, decl))
        address = _source_status(pipeline, source_id(pipeline.name, decl.label), source).address
        if address is not None:
            return address
    raise UsageError(
        f"{dataset} has no push source", hint=f"declare one: pipeline.source({dataset}, tm.http_push())"
    )
