"""Orders: lots that are to be made, again or for the first time, planned before they are asked for (LOT-31).

A plan says for each lot what would be done, and by which arc; `ask` then leaves a row for each, which runners
work off, so many at once. Nothing is removed: a lot that is made again is there as it was until its next
generation is published. What depends on it follows by itself, because that is an event like any other.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidemill import crash
from tidemill.arcs import asks
from tidemill.arcs.asks import AskKind, Order
from tidemill.arcs.census import Census, Span
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.states import ArcState
from tidemill.errors import LotUnknown, NoLots, UsageError
from tidemill.lots.keys import DatasetId
from tidemill.lots.states import LotState
from tidemill.pipeline import graph
from tidemill.pipeline.graph import Bound
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.views.steps.keys import group_id

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

PAGE = 200
"""Lots that are asked for in one transaction."""

Tell = Callable[[int, int], None]
"""Told how many of how many are asked for."""


def quiet(done: int, of: int) -> None:
    """Nobody wants to know."""


class Does(StrEnum):
    """What an order does about a lot."""

    MAKE = "make"  # it is not there, and will be
    AGAIN = "again"  # it is there, and will be made once more
    FOLLOW = "follow"  # it comes by itself when what it is made from is there
    LEAVE = "leave"  # nothing has to be done
    BLOCKED = "blocked"  # it cannot be made: something is not there that nothing here makes


class PlannedLot(msgspec.Struct, frozen=True):
    """One lot of a plan."""

    arc: str
    lot: str
    does: Does
    why: str = ""


class LotRequestPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The lots that a backfill or a replay requests. `batch` is empty for a dry run.

    >>> from tidemill.arcs.asks import AskKind
    >>> lots = (PlannedLot("clean", "20260131PT1H014", Does.MAKE),)
    >>> print(LotRequestPlan(kind=AskKind.BACKFILL, arc="clean", lots=lots, at_once=4, follows=()))
    backfill of clean: 1 make, 4 at once
    """

    kind: AskKind
    arc: str
    lots: tuple[PlannedLot, ...]
    at_once: int
    follows: tuple[str, ...]
    batch: str = ""

    def those(self, *kinds: Does) -> list[PlannedLot]:
        """The lots for which this is done."""
        return [one for one in self.lots if one.does in kinds]

    @property
    def asked(self) -> list[PlannedLot]:
        """The lots that runners make for this order."""
        return self.those(Does.MAKE, Does.AGAIN)

    @property
    def counts(self) -> dict[str, int]:
        """How many lots there are of each kind."""
        found = dict.fromkeys((kind.value for kind in Does), 0)
        for one in self.lots:
            found[one.does.value] += 1
        return found

    def __str__(self) -> str:
        words = ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count)
        return f"{self.kind.value} of {self.arc}: {words or 'nothing'}, {self.at_once} at once"


def plan(
    pipeline: "Pipeline",
    kind: AskKind,
    name: str,
    lots: Iterable[str] | None = None,
    *,
    first: Bound = None,
    last: Bound = None,
    at_once: int | None = None,
) -> LotRequestPlan:
    """What an order would do.

    - name: an arc, or a table that one makes.
    - lots: these; or else all from `first` to `last`, both included and each optional.
    - at_once: how many may run at a time; by default as many as the arc allows.
    """
    arc = graph.maker(pipeline, name)
    if at_once is not None and at_once < 1:
        raise UsageError(f"{at_once} lots at once", hint="1 or more")
    table = name if name not in pipeline.all_arcs() else arc.sinks[0].name
    unit = graph.unit_of(pipeline, table)
    if lots is not None:
        named = sorted({graph.lot_of(table, unit, lot) for lot in lots})
        if first is not None or last is not None or not named:
            raise UsageError("lots and a range of them", hint="name lots, or a range")
        span = Span(named[0], named[-1])
    else:
        named, span = None, graph.span(unit, first, last)
    made = _Planner(pipeline, kind, span).plan(graph.id_of(pipeline, table), named)
    return LotRequestPlan(
        kind=kind,
        arc=arc.name,
        lots=tuple(made),
        at_once=at_once or arc.max_concurrent,
        follows=tuple(graph.behind(pipeline, arc.name)),
    )


class _Planner:
    def __init__(self, pipeline: "Pipeline", kind: AskKind, span: Span) -> None:
        site = pipeline.site
        self._kind = kind
        self._span = span
        self._census = Census(site.store, ArcKeys(site.place.cluster), graph.specs(pipeline), span, late_s=0)

    def plan(self, table: DatasetId, named: Sequence[str] | None) -> list[PlannedLot]:
        expected, there = self._census.expected(table), self._census.published(table)
        known = expected | there.keys()
        if named is not None:
            strange = [lot for lot in named if lot not in known]
            if strange:
                raise LotUnknown(
                    f"there is nothing that lot {strange[0]} of {table.name} could be made from"
                    + (f", nor {len(strange) - 1} others" if len(strange) > 1 else "")
                )
        elif not known:
            raise self._none(table)
        found: dict[tuple[str, str], PlannedLot] = {}
        for lot in sorted(known) if named is None else named:
            steps = self._replay(table, lot) if self._kind is AskKind.REPLAY else self._backfill(table, lot)
            for one in steps:
                found.setdefault((one.arc, one.lot), one)
        return list(found.values())

    def _none(self, table: DatasetId) -> NoLots:
        bounds = [f"from {self._span.first}" if self._span.first else ""]
        bounds += [f"to {self._span.last}" if self._span.last else ""]
        whole = Census(self._census.store, self._census.keys, self._census.makers.values(), late_s=0)
        lots = sorted(whole.expected(table) | whole.published(table).keys())
        range_ = " ".join(bound for bound in bounds if bound)
        return NoLots(
            f"there are no lots for {table.name} {range_}".rstrip(),
            hint=f"there are lots from {lots[0]} to {lots[-1]}" if lots else "nothing has arrived for it yet",
        )

    def _replay(self, table: DatasetId, lot: str) -> list[PlannedLot]:
        spec = self._census.makers[table]
        unfinished = self._census.unfinished(spec.id).get(lot)
        state = self._census.published(table).get(lot)
        if unfinished is not None and unfinished[0] is ArcState.RUNNING:
            return [PlannedLot(spec.name, lot, Does.LEAVE, "it is being made")]
        if unfinished is not None and state is not None:
            return [PlannedLot(spec.name, lot, Does.AGAIN, "its last replay failed")]
        if state is None or state is LotState.REMOVED:
            return [PlannedLot(spec.name, lot, Does.LEAVE, "it was never made: backfill it")]
        return [PlannedLot(spec.name, lot, Does.AGAIN)]

    def _backfill(self, table: DatasetId, lot: str) -> list[PlannedLot]:
        """What makes a lot: its arc, or arcs further up, whose lots it follows."""
        census, spec = self._census, self._census.makers.get(table)
        if spec is None:
            return [PlannedLot("", lot, Does.BLOCKED, f"{table.name} has no lot {lot}, and no arc makes it")]
        if census.answered(table, lot):
            return [PlannedLot(spec.name, lot, Does.LEAVE, "it is there")]
        unfinished = census.unfinished(spec.id).get(lot)
        if unfinished is not None and unfinished[0] is ArcState.RUNNING:
            return [PlannedLot(spec.name, lot, Does.LEAVE, "it is being made")]
        lacking = census.lacking(spec, lot)
        if not lacking:
            why = unfinished[0].value if unfinished is not None else "absent"
            return [PlannedLot(spec.name, lot, Does.MAKE, f"it is {why}")]
        above = [one for source in lacking for one in self._backfill(source, lot)]
        blocked = [one for one in above if one.does is Does.BLOCKED]
        if blocked:
            return [PlannedLot(spec.name, lot, Does.BLOCKED, blocked[0].why)]
        names = ", ".join(dict.fromkeys(one.arc for one in above if one.does is not Does.FOLLOW))
        return [*above, PlannedLot(spec.name, lot, Does.FOLLOW, f"after {names}")]


def ask(pipeline: "Pipeline", planned: LotRequestPlan, tell: Tell = quiet) -> LotRequestPlan:
    """Leave a row for every lot that is to be made, in pages; the plan with its batch.

    It may be repeated: what is asked for already, or was made meanwhile, is left as it is. Whoever dies on
    the way has asked for the first lots.
    """
    site = pipeline.site
    keys, batch = ArcKeys(site.place.cluster), site.scope.new_attempt()
    order = Order(planned.kind, batch, planned.at_once)
    wanted = planned.asked
    for first in range(0, len(wanted), PAGE):
        page = wanted[first : first + PAGE]

        def step(tx: Tx, page: Sequence[PlannedLot] = page) -> None:
            for one in page:
                asks.enter(tx, keys, graph.arc_id(pipeline, one.arc), one.lot, order)

        crash.point("orders.ask.before")
        site.store.run(step)
        crash.point("orders.ask.after")
        tell(first + len(page), len(wanted))
    return msgspec.structs.replace(planned, batch=batch)


def left(pipeline: "Pipeline", planned: LotRequestPlan) -> int:
    """How many lots of an order that was asked for are not made yet, and have not failed."""
    keys, arcs = ArcKeys(pipeline.site.place.cluster), {one.arc for one in planned.asked}

    def read(tx: Tx) -> int:
        counts = [asks.left(tx, keys, graph.arc_id(pipeline, arc), planned.batch) for arc in sorted(arcs)]
        return sum(one["waiting"] + one["running"] for one in counts)

    return pipeline.site.store.run(read)


def retry(pipeline: "Pipeline", arc: str | None = None, lots: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Ask for another try at lots that are partial or missing, of one arc or of all; which ones.

    What failed too often to be run any more is armed again: arcs, and groups of views.
    """
    arcs, groups = pipeline.all_arcs(), graph.groups(pipeline)
    site = pipeline.site
    keys = ArcKeys(site.place.cluster)
    for group in set(groups.values()) if arc is None else {groups[arc]} if arc in groups else set():
        site.store.run(partial(_arm, keys=keys, name=group_id(pipeline.name, group)))
    if arc is None:
        wanted = list(arcs)
    elif arc in pipeline.templates:
        wanted = [one.name for one in arcs.values() if one.template == arc]
    else:
        wanted = [arc] if arc in arcs else [] if arc in groups else [graph.maker(pipeline, arc).name]
    named = {name: _named(pipeline, name, lots) for name in wanted}  # all of them, before any is asked for
    asked: list[tuple[str, str]] = []
    for name in wanted:
        id_ = graph.arc_id(pipeline, name)
        names = named[name] or _troubled(pipeline, keys, _reading(pipeline, name))
        for first in range(0, len(names), PAGE):
            page = names[first : first + PAGE]
            site.store.run(lambda tx, page=page, id_=id_: [asks.ask(tx, keys, id_, lot) for lot in page])  # type: ignore[misc]
            asked += [(name, lot) for lot in page]
        site.store.run(partial(_arm, keys=keys, name=id_))
    return asked


def _named(pipeline: "Pipeline", arc: str, lots: Sequence[str]) -> list[str]:
    """Lots as they were asked for, each of the arc's own unit."""
    table = pipeline.all_arcs()[arc].sinks[0].name
    unit = graph.unit_of(pipeline, table) if lots else None
    return [graph.lot_of(table, unit, lot) for lot in lots]


def _reading(pipeline: "Pipeline", arc: str) -> ArcSpec:
    return next(one for one in graph.specs(pipeline) if one.name == arc)


def _troubled(pipeline: "Pipeline", keys: ArcKeys, spec: ArcSpec) -> list[str]:
    found = Census(pipeline.site.store, keys, [spec]).unfinished(spec.id)
    return sorted(lot for lot, (state, _) in found.items() if state is not ArcState.RUNNING)


def _arm(tx: Tx, keys: ArcKeys, name: str) -> None:
    row = subscriptions.read(tx, keys.publish.triggers, name)
    if row is not None and row.tally.dead:
        subscriptions.retry(tx, keys.publish.triggers, name)
