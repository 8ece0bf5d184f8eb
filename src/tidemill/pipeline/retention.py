"""Retention of a pipeline's tables: `keep=`, registered consumers, and `tidemill vacuum` (LOT-39)."""

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from tidemill.errors import DatasetUnknown, DeclarationError, UsageError
from tidemill.events import Event
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.values.orphans import find_orphans
from tidemill.lots import datasets, expiry
from tidemill.lots.datasets import Kind
from tidemill.lots.keys import DatasetId
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.events import LayoutRemoved
from tidemill.runner.retention import Retention, TableExpiry
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
    - files: how many files were deleted, of lots and changes that expired at least a day ago.
    - orphans: how many objects of futures were deleted, because no row refers to them.
    """

    tables: tuple[TableExpiry, ...] = ()
    files: int = 0
    orphans: int = 0
    dry_run: bool = False


def declared(pipeline: "Pipeline") -> dict[DatasetId, int | None]:
    """Return how long each table of the pipeline is kept (µs): lots of datasets, changes of views."""
    kept = {decl.id: decl.keep_s for decl in pipeline.datasets.values()}
    for arc in pipeline.all_arcs().values():
        kept |= {DatasetId(sink.name): sink.keep_s for sink in arc.sinks}
    kept |= {changes_of(pipeline.name, view.name): view.keep_s for view in pipeline.views.values()}
    return {dataset: None if keep_s is None else int(keep_s * SECOND_US) for dataset, keep_s in kept.items()}


def apply(pipeline: "Pipeline") -> None:
    """Store how long the tables of the pipeline are kept."""
    kept, keys = declared(pipeline), pipeline.context.keys.lots

    def step(tx: Tx) -> None:
        for dataset, keep_us in kept.items():
            if keep_us is not None:
                _check_kind(tx, pipeline, dataset)
            expiry.set_keep(tx, keys, dataset, keep_us)

    pipeline.context.store.run(step)


def _check_kind(tx: Tx, pipeline: "Pipeline", dataset: DatasetId) -> None:
    try:
        kind = datasets.read(tx, pipeline.context.keys.lots, dataset).kind
    except DatasetUnknown:
        return
    if kind is not Kind.ROWS:
        raise DeclarationError(
            f"rows of {dataset.name} can be deleted, so its lots cannot expire", hint="omit keep="
        )


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
    stored = context.store.run(lambda tx: expiry.policies(tx, context.keys.lots))
    policies = {
        dataset: keep_us
        for dataset, keep_us in {**stored, **declared(pipeline)}.items()
        if keep_us is not None
    }
    tables = Retention(scope).expire(policies, dry_run=dry_run)
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
    orphans = find_orphans(context.store, futures, context.objects, context.clock)
    if orphans and not dry_run:
        context.objects.delete_many(orphans)
    return VacuumReport(tables=tuple(tables), files=files, orphans=len(orphans), dry_run=dry_run)


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
