"""Request lots: backfill missing lots, replay existing ones, retry failed ones (LOT-31).

A plan lists the action and the arc for each lot. `submit` then stores a request for each lot, and runners
process the requests, a limited number at a time. Nothing is removed: a replayed lot stays as it is until its
next generation is published. Arcs and views downstream then process the new generation, because its
publication writes an event like any other.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidemill import crash
from tidemill.arcs import lot_plan, lot_requests, rows
from tidemill.arcs.inventory import Inventory, Span
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lot_requests import RequestKind, RequestOptions
from tidemill.arcs.rows import CompleteLot, RunningLot
from tidemill.arcs.states import ArcState
from tidemill.errors import LotUnknown, NoLots, UsageError
from tidemill.lots.keys import DatasetId
from tidemill.lots.states import LotState
from tidemill.pipeline import graph
from tidemill.pipeline.graph import Bound
from tidemill.pipeline.notebook import html_table, preformatted
from tidemill.runner import job_deaths
from tidemill.runner.keys import RunnerKeys
from tidemill.sources.source import source_id
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.views.steps.keys import group_id

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

PAGE = 200
"""How many requests one transaction stores."""

Report = Callable[[int, int], None]
"""Called with the number of stored requests and the total number."""


def ignore(stored: int, total: int) -> None:
    """Report no progress."""


class LotAction(StrEnum):
    """The action of a request for one lot."""

    MAKE = "make"  # it does not exist; a runner makes it
    REMAKE = "remake"  # it exists; a runner makes its next generation
    FOLLOW = "follow"  # it is made automatically when its inputs exist
    SKIP = "skip"  # nothing to do
    BLOCKED = "blocked"  # an input is missing, and no arc makes it


class PlannedLot(msgspec.Struct, frozen=True):
    """One lot of a plan, and its action."""

    arc: str
    lot: str
    action: LotAction
    why: str = ""


class LotRequestPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The lots that a backfill or a replay requests. For a dry run, `batch` is empty.

    >>> from tidemill.arcs.lot_requests import RequestKind
    >>> lots = (PlannedLot("clean", "20260131PT1H014", LotAction.MAKE),)
    >>> print(LotRequestPlan(kind=RequestKind.BACKFILL, arc="clean", lots=lots, parallel=4, downstream=()))
    backfill of clean: 1 make, 4 in parallel

    - parallel: how many lots run in parallel.
    - downstream: the tables and views that will be updated.
    """

    kind: RequestKind
    arc: str
    lots: tuple[PlannedLot, ...]
    parallel: int
    downstream: tuple[str, ...]
    batch: str = ""

    def with_action(self, *actions: LotAction) -> list[PlannedLot]:
        """Return the lots with one of these actions."""
        return [lot for lot in self.lots if lot.action in actions]

    @property
    def requested(self) -> list[PlannedLot]:
        """The lots that runners make because of this request."""
        return self.with_action(LotAction.MAKE, LotAction.REMAKE)

    @property
    def counts(self) -> dict[str, int]:
        """The number of lots with each action."""
        counts = dict.fromkeys((action.value for action in LotAction), 0)
        for lot in self.lots:
            counts[lot.action.value] += 1
        return counts

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {action}" for action, count in self.counts.items() if count)
        return f"{self.kind.value} of {self.arc}: {counts or 'nothing'}, {self.parallel} in parallel"

    def _repr_html_(self) -> str:
        rows = ([lot.lot, lot.action.value, lot.arc, lot.why] for lot in self.lots)
        return preformatted(str(self)) + html_table(("lot", "action", "arc", "why"), rows)


def plan(
    pipeline: "Pipeline",
    kind: RequestKind,
    name: str,
    lots: Iterable[str] | None = None,
    *,
    first: Bound = None,
    last: Bound = None,
    parallel: int | None = None,
) -> LotRequestPlan:
    """Plan a backfill or a replay.

    - name: an arc, or a table that an arc writes.
    - lots: the lots; or None for all from `first` to `last`, both included and both optional.
    - parallel: how many lots run in parallel; by default as many as the arc allows.
    """
    arc = graph.maker(pipeline, name)
    if parallel is not None and parallel < 1:
        raise UsageError(f"invalid parallel={parallel}", hint="use 1 or more")
    table = name if name not in pipeline.all_arcs() else arc.sinks[0].name
    unit = graph.unit_of(pipeline, table)
    if lots is not None:
        only = sorted({graph.lot_of(table, unit, lot) for lot in lots})
        if first is not None or last is not None or not only:
            raise UsageError(
                "lots and a range were passed together" if only else "the list of lots is empty",
                hint="pass either lots or a range",
            )
        span = Span(only[0], only[-1])
    else:
        only, span = None, graph.span(pipeline, table, first, last)
    planned = _Planner(pipeline, kind, span).plan(graph.id_of(pipeline, table), only)
    return LotRequestPlan(
        kind=kind,
        arc=arc.name,
        lots=tuple(planned),
        parallel=parallel or arc.max_concurrent,
        downstream=tuple(graph.downstream(pipeline, arc.name)),
    )


class _Planner:
    def __init__(self, pipeline: "Pipeline", kind: RequestKind, span: Span) -> None:
        context = pipeline.context
        self._kind = kind
        self._span = span
        self._inventory = Inventory(
            context.store, ArcKeys(context.place.cluster), graph.specs(pipeline), span, late_s=0
        )

    def plan(self, table: DatasetId, only: Sequence[str] | None) -> list[PlannedLot]:
        expected, published = self._inventory.expected(table), self._inventory.published(table)
        existing = expected | published.keys()
        if only is not None:
            unknown = [lot for lot in only if lot not in existing]
            if unknown:
                raise LotUnknown(
                    f"{table.name}: no inputs exist for lot {unknown[0]}"
                    + (f" and {len(unknown) - 1} other lots" if len(unknown) > 1 else "")
                )
        elif not existing:
            raise self._no_lots(table)
        planned: dict[tuple[str, str], PlannedLot] = {}
        for lot in sorted(existing) if only is None else only:
            steps = (
                self._replay(table, lot) if self._kind is RequestKind.REPLAY else self._backfill(table, lot)
            )
            for step in steps:
                planned.setdefault((step.arc, step.lot), step)
        return list(planned.values())

    def _no_lots(self, table: DatasetId) -> NoLots:
        bounds = [f"from {self._span.first}" if self._span.first else ""]
        bounds += [f"to {self._span.last}" if self._span.last else ""]
        unbounded = Inventory(
            self._inventory.store, self._inventory.keys, self._inventory.makers.values(), late_s=0
        )
        lots = sorted(unbounded.expected(table) | unbounded.published(table).keys())
        range_ = " ".join(bound for bound in bounds if bound)
        return NoLots(
            f"{table.name} has no lots {range_}".rstrip(),
            hint=f"it has lots from {lots[0]} to {lots[-1]}" if lots else "append rows, or run the pipeline",
        )

    def _replay(self, table: DatasetId, lot: str) -> list[PlannedLot]:
        spec = self._inventory.makers[table]
        unfinished = self._inventory.unfinished(spec.id).get(lot)
        state = self._inventory.published(table).get(lot)
        if unfinished is not None and unfinished[0] is ArcState.RUNNING:
            return [PlannedLot(spec.name, lot, LotAction.SKIP, "it is running")]
        if unfinished is not None and state is not None:
            return [PlannedLot(spec.name, lot, LotAction.REMAKE, "its last replay failed")]
        if state is None or state is LotState.REMOVED:
            return [PlannedLot(spec.name, lot, LotAction.SKIP, "it was never made; use backfill")]
        return [PlannedLot(spec.name, lot, LotAction.REMAKE)]

    def _backfill(self, table: DatasetId, lot: str) -> list[PlannedLot]:
        """Plan the requests that a lot needs: to its arc, or to the arcs upstream that must run first."""
        inventory, spec = self._inventory, self._inventory.makers.get(table)
        if spec is None:
            return [
                PlannedLot("", lot, LotAction.BLOCKED, f"{table.name} has no lot {lot}, and no arc writes it")
            ]
        if inventory.has_lot(table, lot):
            return [PlannedLot(spec.name, lot, LotAction.SKIP, "it exists")]
        unfinished = inventory.unfinished(spec.id).get(lot)
        if unfinished is not None and unfinished[0] is ArcState.RUNNING:
            return [PlannedLot(spec.name, lot, LotAction.SKIP, "it is running")]
        missing = inventory.missing_inputs(spec, lot)
        if not missing:
            why = unfinished[0].value if unfinished is not None else "absent"
            return [PlannedLot(spec.name, lot, LotAction.MAKE, f"it is {why}")]
        upstream = [step for source in missing for step in self._backfill(source, lot)]
        blocked = [step for step in upstream if step.action is LotAction.BLOCKED]
        if blocked:
            return [PlannedLot(spec.name, lot, LotAction.BLOCKED, blocked[0].why)]
        names = ", ".join(dict.fromkeys(step.arc for step in upstream if step.action is not LotAction.FOLLOW))
        return [*upstream, PlannedLot(spec.name, lot, LotAction.FOLLOW, f"after {names}")]


def submit(pipeline: "Pipeline", planned: LotRequestPlan, report: Report = ignore) -> LotRequestPlan:
    """Store a request for each lot that runners must make, page by page. Return the plan with its batch.

    Repeating this is safe: lots that are already requested, or that exist by now, are skipped. If the process
    dies before the end, only the first pages are requested.
    """
    context = pipeline.context
    keys, batch = ArcKeys(context.place.cluster), context.scope.new_attempt()
    options = RequestOptions(planned.kind, batch, planned.parallel)
    requested = planned.requested
    for first in range(0, len(requested), PAGE):
        page = requested[first : first + PAGE]

        def step(tx: Tx, page: Sequence[PlannedLot] = page) -> None:
            for lot in page:
                lot_requests.request(tx, keys, graph.arc_id(pipeline, lot.arc), lot.lot, options)

        crash.point("lot_requests.submit.before")
        context.store.run(step)
        crash.point("lot_requests.submit.after")
        report(first + len(page), len(requested))
    return msgspec.structs.replace(planned, batch=batch)


class LotProgress:
    """Follows the lots of a plan until runners have made them or failed to make them.

    It reads the state of each lot. So it does not matter why a runner makes the lot: because of this plan, or
    because of an earlier request, or because the lot was already running.

    - total: the number of lots to wait for.
    - remaining: the lots that are neither made nor failed yet.
    - failed: the lots that a runner could not make.
    """

    def __init__(self, pipeline: "Pipeline", planned: LotRequestPlan) -> None:
        self._pipeline = pipeline
        self._keys = ArcKeys(pipeline.context.place.cluster)
        self._specs = {spec.name: spec for spec in graph.specs(pipeline)}
        self.failed: list[PlannedLot] = []
        running = self._unfinished(planned.with_action(LotAction.SKIP))
        self.remaining = [*planned.requested, *running, *planned.with_action(LotAction.FOLLOW)]
        self.total = len(self.remaining)

    def update(self) -> None:
        """Read which lots are made or failed by now."""
        unfinished = self._unfinished(self.remaining)
        still_waiting = set(unfinished)
        ended = [lot for lot in self.remaining if lot not in still_waiting]
        self.failed += self._filter(ended, self._is_incomplete)
        self.remaining = unfinished

    def _unfinished(self, lots: Sequence[PlannedLot]) -> list[PlannedLot]:
        requested = [lot for lot in lots if lot.action is not LotAction.FOLLOW]
        following = [lot for lot in lots if lot.action is LotAction.FOLLOW]
        unfinished = self._filter(requested, self._is_unfinished)
        awaited = {lot.lot for lot in unfinished}
        unfinished += [lot for lot in following if lot.lot in awaited]
        return unfinished + self._filter(
            [lot for lot in following if lot.lot not in awaited], self._is_following
        )

    def _filter(
        self, lots: Sequence[PlannedLot], matches: Callable[[Tx, PlannedLot], bool]
    ) -> list[PlannedLot]:
        """Return the lots for which `matches` returns True."""
        matching: list[PlannedLot] = []
        for first in range(0, len(lots), PAGE):
            page = lots[first : first + PAGE]
            matching += self._pipeline.context.store.run(
                lambda tx, page=page: [lot for lot in page if matches(tx, lot)]  # type: ignore[misc]
            )
        return matching

    def _is_unfinished(self, tx: Tx, lot: PlannedLot) -> bool:
        """Return whether a lot is requested or running."""
        arc = self._specs[lot.arc].id
        if tx.range(*self._keys.request.under(arc, lot.lot), limit=1, snapshot=True):
            return True
        last = rows.newest(tx, self._keys, arc, lot.lot)
        return last is not None and isinstance(last[1], RunningLot)

    def _is_following(self, tx: Tx, lot: PlannedLot) -> bool:
        """Return whether a lot will be made because its inputs exist now."""
        if rows.newest(tx, self._keys, self._specs[lot.arc].id, lot.lot) is not None:
            return self._is_unfinished(tx, lot)
        return lot_plan.inputs(tx, self._keys, self._specs[lot.arc], lot.lot).enough

    def _is_incomplete(self, tx: Tx, lot: PlannedLot) -> bool:
        last = rows.newest(tx, self._keys, self._specs[lot.arc].id, lot.lot)
        return last is None or not isinstance(last[1], CompleteLot)


def retry(pipeline: "Pipeline", arc: str | None = None, lots: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Request a retry of partial or missing lots, of one arc or of all arcs. Return them as (arc, lot).

    Arcs, view groups and sources that stopped after too many failures run again. Views and sources have no
    lots that could be retried one by one.
    """
    arcs, groups = pipeline.all_arcs(), graph.groups(pipeline)
    if arc is not None and lots:
        _refuse_lots(pipeline, arc)
    revived = set(groups.values()) if arc is None else {groups.get(arc, arc)} & set(groups.values())
    context = pipeline.context
    keys = ArcKeys(context.place.cluster)
    sources = _sources_named(pipeline, arc)
    for label in sources:
        forgive = partial(
            job_deaths.forgive,
            keys=RunnerKeys(context.place.cluster),
            name=source_id(pipeline.name, label),
        )
        context.store.run(forgive)
    for group in revived:
        context.store.run(partial(_revive, keys=keys, name=group_id(pipeline.name, group)))
    if arc is None:
        names = list(arcs)
    elif arc in pipeline.templates:
        names = [child.name for child in arcs.values() if child.template == arc]
    else:
        stopped = revived or sources
        names = [arc] if arc in arcs else [] if stopped else [graph.maker(pipeline, arc).name]
    chosen = {name: _parse_lots(pipeline, name, lots) for name in names}  # before any request
    requested: list[tuple[str, str]] = []
    for name in names:
        id_ = graph.arc_id(pipeline, name)
        failed = chosen[name] or _failed_lots(pipeline, keys, name)
        for first in range(0, len(failed), PAGE):
            page = failed[first : first + PAGE]
            context.store.run(
                lambda tx, page=page, id_=id_: [  # type: ignore[misc]
                    lot_requests.request_retry(tx, keys, id_, lot) for lot in page
                ]
            )
            requested += [(name, lot) for lot in page]
        context.store.run(partial(_revive, keys=keys, name=id_))
    return requested


def _sources_named(pipeline: "Pipeline", name: str | None) -> list[str]:
    """Return the labels of all sources, of the sources of a dataset, or of one source."""
    return [label for label, decl in pipeline.sources.items() if name in (None, label, decl.dataset)]


def _refuse_lots(pipeline: "Pipeline", name: str) -> None:
    """Raise `UsageError` if a name belongs to a view, a group or a source, and not to an arc."""
    if name in pipeline.all_arcs():
        return
    if name in pipeline.views or name in graph.groups(pipeline).values():
        raise UsageError(
            f"lots of {name} are not retried one by one: a step computes a view as a whole",
            hint=f"tidemill retry {name} retries it; tidemill retry VIEW LOT --skip lets a view pass over a"
            " lot on which it fails",
        )
    if _sources_named(pipeline, name):
        raise UsageError(
            f"lots of {name} are not retried one by one: a source ingests them",
            hint=f"tidemill retry {name} runs a source that stopped",
        )


def _parse_lots(pipeline: "Pipeline", arc: str, lots: Sequence[str]) -> list[str]:
    """Parse the ids of lots. Raise `BadLotId` if the table of the arc has another kind of lots."""
    table = pipeline.all_arcs()[arc].sinks[0].name
    unit = graph.unit_of(pipeline, table) if lots else None
    return [graph.lot_of(table, unit, lot) for lot in lots]


def _failed_lots(pipeline: "Pipeline", keys: ArcKeys, arc: str) -> list[str]:
    spec = next(spec for spec in graph.specs(pipeline) if spec.name == arc)
    unfinished = Inventory(pipeline.context.store, keys, [spec]).unfinished(spec.id)
    return sorted(lot for lot, (state, _) in unfinished.items() if state is not ArcState.RUNNING)


def _revive(tx: Tx, keys: ArcKeys, name: str) -> None:
    row = subscriptions.read(tx, keys.publish.triggers, name)
    if row is not None and row.tally.dead:
        subscriptions.retry(tx, keys.publish.triggers, name)
