"""Retention: let old lots and old changes expire, but nothing that is still needed (LOT-39).

A dataset or a view with `keep=` has a row in the store. For each of them, `Retention` looks for lots or steps
that are older, and removes them a page at a time. The same transaction reads the lower bound, so nothing can
begin to need a lot while it expires. The bound of a dataset is the lowest of these positions:

- the progress of its subscribers: arcs and groups of views;
- the position before the first lot that an arc is working on, has failed at, or was requested to make;
- 0 while a group of views reads the dataset as a whole: it rebuilds a view, or recomputes one in each step;
- the positions of registered consumers.

A dataset that keeps the rows of expired lots in a base lot can always be read as a whole, so the third rule
does not apply to it.

Files stay for a day after that, for readers that have already listed them.
"""

from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from tidemill.arcs import lots as arc_lots
from tidemill.arcs.keys import ArcKeys
from tidemill.cluster import nodes
from tidemill.lots import base_lot, events, expiry, lots
from tidemill.lots.checks import quarantine_of
from tidemill.lots.expiry import ExpiringLot, KeepPolicy
from tidemill.lots.keys import DatasetId
from tidemill.runner.events import LotsExpired
from tidemill.scope import Scope
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.views.steps import groups, records, step_expiry
from tidemill.views.steps.commits import StepRow
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.keys import StepKeys, group_source

MOST_ARC_LOTS = 1000
"""How many unfinished lots of an arc to check. If there are more, nothing expires."""

ROOM_WRITES = 800
"""How many rows a transaction of expiry may write. The limit of the store is higher."""


class LowerBound(msgspec.Struct, frozen=True, order=True):
    """Lots up to this position may expire; `held_by` names what needs the next one."""

    position: int
    held_by: str = ""


class TableExpiry(msgspec.Struct, frozen=True, kw_only=True):
    """What expires in one table.

    - table: the dataset, or the group of views.
    - lots: how many lots, or steps of the group.
    - position: everything up to this position has expired.
    - rows, size: the rows and bytes of the lots, or of the changes.
    - held_by: what keeps older lots from expiring; empty if all lots that are old enough expire.
    """

    table: str
    lots: int
    position: int
    rows: int = 0
    size: int = 0
    held_by: str = ""


class Retention:
    """Lets the lots and changes of one cluster expire, as one node."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._keys = StepKeys(scope.cluster)
        self._arcs = ArcKeys(scope.cluster)

    def expire(
        self, policies: Mapping[DatasetId, KeepPolicy] | None = None, *, dry_run: bool = False
    ) -> list[TableExpiry]:
        """Expire everything that is old enough and not needed; return what expired, by table.

        - policies: how long to keep the lots of datasets and the changes of views; by default, the stored
          policies.
        - dry_run: change nothing, and return what would expire.
        """
        store, keys = self._scope.store, self._keys
        now, stored = store.run(lambda tx: (tx.now(), expiry.policies(tx, keys.lots)))
        policies = stored if policies is None else policies
        expired = []
        for dataset, keep in policies.items():
            if dataset.version != "changes" or not dataset.name.startswith("view:"):
                tables = {dataset: keep, quarantine_of(dataset): KeepPolicy(keep.keep_us)}
                expired += [
                    self._expire_dataset(table, now, table_keep, dry_run=dry_run)
                    for table, table_keep in tables.items()
                ]
        pipelines = set()
        for pipeline, group in store.run(self._groups):
            keep_us = step_expiry.keep_of(policies, pipeline, group)
            if keep_us is not None:
                pipelines.add(pipeline)
                expired.append(self._expire_steps(pipeline, group, now - keep_us, dry_run=dry_run))
        if not dry_run:
            for pipeline in sorted(pipelines):
                records_page = partial(step_expiry.expire_records, keys=keys, pipeline=pipeline)
                while self._scope.step("retention.records", records_page):
                    pass
        return [each for each in expired if each.lots or each.held_by]

    # --- datasets

    def _expire_dataset(
        self, dataset: DatasetId, now: int, keep: KeepPolicy, *, dry_run: bool
    ) -> TableExpiry:
        total = TableExpiry(table=dataset.name, lots=0, position=0)
        after: int | None = None
        before = now - keep.keep_us
        remove_base = partial(expiry.remove_base, keys=self._keys.lots, dataset=dataset)
        while not dry_run and not keep.rows and self._scope.step("retention.remove-base", remove_base):
            pass
        while True:
            step = partial(
                self._page,
                dataset=dataset,
                before=before,
                after=after,
                keep_rows=keep.rows,
                dry_run=dry_run,
            )
            bound, page, is_last = (
                self._scope.store.run(step) if dry_run else self._scope.step("retention.expire", step)
            )
            if page:
                after = page[-1].event.position
                total = msgspec.structs.replace(
                    total,
                    lots=total.lots + sum(item.is_current for item in page),
                    position=after,
                    rows=total.rows + sum(item.row.rows for item in page),
                    size=total.size + sum(item.row.size for item in page),
                )
            if is_last:
                break
        if total.lots and not dry_run:
            self._scope.emit(LotsExpired(table=dataset.name, lots=total.lots, position=total.position))
        held = self._scope.store.run(partial(self._is_held, dataset=dataset, before=before, bound=bound))
        return msgspec.structs.replace(total, held_by=bound.held_by if held else "")

    def _page(
        self,
        tx: Tx,
        dataset: DatasetId,
        before: int,
        after: int | None,
        *,
        keep_rows: bool,
        dry_run: bool,
    ) -> tuple[LowerBound, list[ExpiringLot], bool]:
        """Expire one page, or only select it; return the bound, the page, and whether it is the last."""
        keys = self._keys.lots
        bound = lower_bound(tx, self._keys, self._arcs, dataset, keep_rows=keep_rows)
        start = expiry.read(tx, keys, dataset).position if after is None else after
        arcs = [name for name in _subscribers(tx, self._keys, dataset) if name.startswith("arc:")]
        limit = _lots_of_page(len(arcs))
        page = expiry.expiring(tx, keys, dataset, start, before=before, bound=bound.position, limit=limit)
        if not dry_run:
            nodes.check(tx, self._keys.cluster, self._scope.node)
            # Arcs forget lots that none of their inputs has any more; the last one names the base lot.
            gone = [item.row.lot for item in page if item.is_current]
            last = base_lot.read(tx, keys, dataset).last
            expiry.expire(tx, keys, dataset, page, keep_rows=keep_rows)
            for lot in [last, *gone] if gone and last else gone:
                for arc in arcs:
                    arc_lots.forget_expired(tx, self._arcs, arc, lot)
        return bound, page, len(page) < limit

    def _is_held(self, tx: Tx, dataset: DatasetId, before: int, bound: LowerBound) -> bool:
        """Return whether the next event is old enough, but above the bound."""
        event = next(iter(events.read(tx, self._keys.lots, dataset, bound.position, 1)), None)
        return event is not None and event.at < before

    # --- steps

    def _groups(self, tx: Tx) -> list[tuple[str, ViewGroup]]:
        return list(_all_groups(tx, self._keys))

    def _expire_steps(self, pipeline: str, group: ViewGroup, before: int, *, dry_run: bool) -> TableExpiry:
        name = group.spec.name
        total = TableExpiry(table=f"views of group {name}", lots=0, position=0)
        after: int | None = None
        while True:

            def step(tx: Tx, after: int | None = after) -> tuple[list[StepRow], str]:
                current = groups.read(tx, self._keys, pipeline, name)
                bound, holder = step_expiry.bound(tx, self._keys, pipeline, current)
                start = expiry.read(tx, self._keys.lots, group_source(pipeline, name)).position
                page = step_expiry.expiring(
                    tx,
                    self._keys,
                    pipeline,
                    current,
                    start if after is None else after,
                    before=before,
                    bound=bound,
                )
                if not dry_run:
                    nodes.check(tx, self._keys.cluster, self._scope.node)
                    step_expiry.expire(tx, self._keys, pipeline, name, page)
                return page, holder

            page, holder = (
                self._scope.store.run(step) if dry_run else self._scope.step("retention.steps", step)
            )
            if page:
                after = page[-1].step
                outputs = [output for row in page for output in row.outputs]
                total = msgspec.structs.replace(
                    total,
                    lots=total.lots + len(page),
                    position=after,
                    rows=total.rows + sum(output.rows for output in outputs),
                    size=total.size + sum(output.size for output in outputs),
                )
            if len(page) < step_expiry.PAGE:
                break
        if total.lots and not dry_run:
            self._scope.emit(LotsExpired(table=total.table, lots=total.lots, position=total.position))
        return msgspec.structs.replace(total, held_by=holder)


def lower_bound(
    tx: Tx, keys: StepKeys, arcs: ArcKeys, dataset: DatasetId, *, keep_rows: bool = False
) -> LowerBound:
    """Return the position up to which the lots of a dataset may expire, and what holds the next one.

    - keep_rows: whether expired lots go to the base lot.
    """
    in_base = keep_rows and expiry.is_complete(tx, keys.lots, dataset)
    bounds = [LowerBound(events.head(tx, keys.lots, dataset))]
    for name in _subscribers(tx, keys, dataset):
        row = subscriptions.must_read(tx, keys.triggers, name)
        bounds.append(LowerBound(row.tally.seen.get(dataset, 0), name))
        if name.startswith("arc:"):
            bounds += _arc_bounds(tx, keys, arcs, name, dataset)
    for pipeline, group in _all_groups(tx, keys):
        if dataset in group.spec.bases:
            bounds.append(_group_bound(tx, keys, pipeline, group, dataset, in_base=in_base))
    for consumer, position in expiry.consumers(tx, keys.lots, dataset).items():
        bounds.append(LowerBound(position, f"consumer {consumer}"))
    return min(bounds)


def _lots_of_page(arcs: int) -> int:
    """Return how many lots one transaction expires: it deletes rows of each lot, and a range per arc."""
    return max(1, min(expiry.PAGE, ROOM_WRITES // (expiry.LOT_WRITES + arcs)))


def _subscribers(tx: Tx, keys: StepKeys, dataset: DatasetId) -> list[str]:
    space = keys.triggers.subscriber
    return [str(space.unpack(row.key)[2]) for row in tx.range(*space.under(*dataset.parts))]


def _all_groups(tx: Tx, keys: StepKeys) -> Iterator[tuple[str, ViewGroup]]:
    for row in tx.range(*keys.group.all()):
        pipeline, name = keys.group.unpack(row.key)
        yield str(pipeline), groups.read(tx, keys, str(pipeline), str(name))


def _group_bound(
    tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup, dataset: DatasetId, *, in_base: bool
) -> LowerBound:
    name = group.spec.name
    whole = groups.whole_reads(tx, keys, pipeline, name)
    if group.stale and not in_base:
        return LowerBound(0, f"group {name}: it has to build {', '.join(sorted(group.stale))}")
    if (whole is None or dataset in whole) and not in_base:
        return LowerBound(0, f"group {name}: it reads the whole table in each step")
    position = records.positions_at(tx, keys, pipeline, [dataset], group.step)[dataset]
    return LowerBound(position, f"group {name}")


def _arc_bounds(tx: Tx, keys: StepKeys, arcs: ArcKeys, arc: str, dataset: DatasetId) -> Iterator[LowerBound]:
    """Yield a bound for each lot that an arc has begun and not finished, or that was requested."""
    for space in (arcs.running, arcs.trouble, arcs.request, arcs.barrier):
        page = tx.range(*space.under(arc), limit=MOST_ARC_LOTS)
        if len(page) == MOST_ARC_LOTS:
            yield LowerBound(0, f"{arc}: it has {MOST_ARC_LOTS} unfinished lots or more")
            return
        for lot in {str(space.unpack(row.key)[1]) for row in page}:
            row = lots.current(tx, keys.lots, dataset, lot)
            if row is not None:
                yield LowerBound(_first_position(tx, keys, row) - 1, f"{arc}: lot {lot} is not finished")
            elif lot == base_lot.read(tx, keys.lots, dataset).last:
                position = expiry.read(tx, keys.lots, dataset).position
                yield LowerBound(
                    position, f"{arc}: lot {lot}, which it makes from the base lot, is not finished"
                )


def _first_position(tx: Tx, keys: StepKeys, row: lots.LotRow) -> int:
    """Return the position of the first generation of a lot that is left."""
    replaced = tx.range(*keys.lots.replaced.under(*row.dataset.parts, row.lot), limit=1)
    if not replaced:
        return row.position
    generation = keys.lots.replaced.unpack(replaced[0].key)[3]
    assert isinstance(generation, int)
    return lots.resolve(tx, keys.lots, row.dataset, row.lot, generation).position
