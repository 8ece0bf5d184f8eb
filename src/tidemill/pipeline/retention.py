"""Retention of a pipeline's tables: `keep=`, registered consumers, and `tidemill vacuum` (LOT-39)."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidemill.errors import DatasetUnknown, UsageError
from tidemill.events import Event
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.values.orphans import find_orphans
from tidemill.lots import datasets, expiry, wall_clock
from tidemill.lots.datasets import Kind
from tidemill.lots.expiry import KeepPolicy
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.events import LayoutRemoved
from tidemill.runner import base_merges
from tidemill.runner.base_merges import BaseMerger, MergedBase, on_spark
from tidemill.runner.retention import Retention, TableExpiry
from tidemill.scope import Scope
from tidemill.store import Tx
from tidemill.views.steps.collector import Collector
from tidemill.views.steps.events import FilesCollected
from tidemill.views.steps.keys import changes_of

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

SECOND_US = 1_000_000
MOST_LAYOUTS = 10_000
"""How many expired lots one dry run lists."""


class VacuumReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a vacuum did, or would do.

    - tables: what expired in each table. The files of these lots are deleted a day later.
    - merged: the base lots that were written, with the rows of expired lots.
    - files: how many files were deleted, of lots and changes that expired at least a day ago.
    - orphans: how many objects of futures were deleted, because no row refers to them.
    """

    tables: tuple[TableExpiry, ...] = ()
    merged: tuple[MergedBase, ...] = ()
    files: int = 0
    orphans: int = 0
    dry_run: bool = False


def declared(pipeline: "Pipeline") -> dict[DatasetId, KeepPolicy | None]:
    """Return how long each table of the pipeline is kept: lots of datasets, changes of views."""
    kept = {decl.id: _keep(decl.keep_s, keep_rows=decl.keep_rows) for decl in pipeline.datasets.values()}
    for arc in pipeline.all_arcs().values():
        kept |= {DatasetId(sink.name): _keep(sink.keep_s, keep_rows=sink.keep_rows) for sink in arc.sinks}
    return kept | {
        changes_of(pipeline.name, view.name): _keep(view.keep_s) for view in pipeline.views.values()
    }


def _keep(keep_s: float | None, *, keep_rows: bool = False) -> KeepPolicy | None:
    return None if keep_s is None else KeepPolicy(int(keep_s * SECOND_US), keep_rows)


def apply(pipeline: "Pipeline") -> None:
    """Store how long the tables of the pipeline are kept."""
    kept, keys = declared(pipeline), pipeline.context.keys.lots

    def step(tx: Tx) -> None:
        expiry.set_keep(tx, keys, pipeline.name, _with_kinds(tx, keys, kept))

    pipeline.context.store.run(step)


def _with_kinds(
    tx: Tx, keys: LotKeys, kept: Mapping[DatasetId, KeepPolicy | None]
) -> dict[DatasetId, KeepPolicy | None]:
    """Keep the rows of tables whose rows can be deleted: later lots refer to them."""
    return {
        dataset: msgspec.structs.replace(keep, rows=True)
        if keep is not None and _has_deletions(tx, keys, dataset)
        else keep
        for dataset, keep in kept.items()
    }


def _has_deletions(tx: Tx, keys: LotKeys, dataset: DatasetId) -> bool:
    try:
        return datasets.read(tx, keys, dataset).kind is not Kind.ROWS
    except DatasetUnknown:
        return False


def vacuum(pipeline: "Pipeline", *, dry_run: bool = False) -> VacuumReport:
    """Expire what is old enough and not needed, and delete files that no reader needs; see `Pipeline`."""
    context = pipeline.context
    files = 0

    def count(event: Event) -> None:
        nonlocal files
        if isinstance(event, LayoutRemoved):
            files += event.objects
        elif isinstance(event, FilesCollected):
            files += event.files

    scope = dataclasses.replace(context.scope, emit=count)
    if not dry_run:
        apply(pipeline)
    kept, keys = declared(pipeline), context.keys.lots
    policies = context.store.run(
        lambda tx: expiry.policies(tx, keys, pipeline.name, _with_kinds(tx, keys, kept))
    )
    tables = Retention(scope).expire(policies, dry_run=dry_run)
    merged = (
        () if dry_run else _merge(pipeline, scope, [each for each, keep in policies.items() if keep.rows])
    )
    cleaner = Cleaner(scope)
    collector = Collector(
        context.store, context.keys, pipeline.name, context.objects, emit=count, delete=not dry_run
    )
    if dry_run:
        cleaner.remove_retired(MOST_LAYOUTS, delete=False)
    else:
        while cleaner.remove_retired():
            pass
    while collector.collect():
        pass
    futures = FutureKeys(context.place.cluster)
    wall_us = context.store.run(lambda tx: wall_clock.believed(tx, keys))
    orphans = find_orphans(context.store, futures, context.objects, wall_us / 1_000_000)
    if orphans and not dry_run:
        context.objects.delete_many(orphans)
    return VacuumReport(
        tables=tuple(tables), merged=merged, files=files, orphans=len(orphans), dry_run=dry_run
    )


def _merge(pipeline: "Pipeline", scope: Scope, kept: Sequence[DatasetId]) -> tuple[MergedBase, ...]:
    """Merge the base lots for which that is worthwhile. Start Spark only if there are any."""
    store, keys = scope.store, LotKeys(scope.cluster)
    due = [dataset for dataset in kept if store.run(partial(base_merges.is_due, keys=keys, dataset=dataset))]
    if not due:
        return ()
    with pipeline.context.spark() as spark:
        merger = BaseMerger(scope, on_spark(spark, pipeline.context.storage))
        return tuple(merged for dataset in due if (merged := merger.merge(dataset)) is not None)


def register_consumer(pipeline: "Pipeline", table: str, consumer: str, position: int) -> None:
    """Keep the changes of a table after a position; see `Table.register_consumer`."""
    if not consumer:
        raise UsageError("the name of the consumer is empty", hint="pass a name")
    head = pipeline[table].position
    if not 0 <= position <= head:
        raise UsageError(
            f"{table} has no position {position}: its last position is {head}",
            hint="pass a position that the table has reached",
        )
    dataset, keys = _consumed(pipeline, table), pipeline.context.keys.lots
    pipeline.context.store.run(lambda tx: expiry.set_consumer(tx, keys, dataset, consumer, position))


def remove_consumer(pipeline: "Pipeline", table: str, consumer: str) -> bool:
    """Remove a consumer; see `Table.remove_consumer`."""
    dataset, keys = _consumed(pipeline, table), pipeline.context.keys.lots
    return pipeline.context.store.run(lambda tx: expiry.remove_consumer(tx, keys, dataset, consumer))


def _consumed(pipeline: "Pipeline", table: str) -> DatasetId:
    if table in pipeline.views:
        return changes_of(pipeline.name, table)
    version = pipeline.datasets[table].dataset.version if table in pipeline.datasets else "1"
    return DatasetId(table, version)
