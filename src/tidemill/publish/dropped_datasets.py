"""Dropped datasets: delete a dataset that no pipeline declares any more, with its lots and files.

`drop` deletes the declaration. From then on, no lot of the dataset can be published or read. A row stays for
good: a dropped name and version cannot be declared again. Otherwise rows about its lots that other packages
keep, such as the states of arcs and the positions of views, would be taken for those of the new dataset.

`DroppedDatasets.remove` deletes the files and rows later, after the grace period of readers that have already
started. It works in pages. Any number of nodes can do this at the same time, and each step can be repeated.
"""

from itertools import islice

from tidemill import crash
from tidemill.errors import DatasetUnknown, UsageError
from tidemill.lots import datasets, layout, owners, staging
from tidemill.lots.keys import DatasetId
from tidemill.publish.cleaner import READERS_S
from tidemill.publish.events import DatasetRemoved
from tidemill.publish.keys import PublishKeys
from tidemill.scope import Scope
from tidemill.store import Tx

SECOND_US = 1_000_000
PAGE = 500


def drop(tx: Tx, keys: PublishKeys, dataset: DatasetId, pipeline: str) -> None:
    """Drop a dataset that this pipeline has retired.

    Raise `UsageError` if another pipeline declares it, or an arc or a view still reads it.
    """
    pipelines = owners.read(tx, keys.lots, dataset)
    if pipeline not in pipelines:
        raise DatasetUnknown(f"pipeline {pipeline} has no retired dataset {dataset}")
    declaring = [name for name, retired_at in pipelines.items() if not retired_at]
    if declaring:
        raise UsageError(
            f"pipeline {declaring[0]} still declares {dataset}",
            hint="remove the dataset from the pipeline, run the pipeline once, then drop the dataset",
        )
    readers = tx.range(*keys.triggers.subscriber.under(*dataset.parts), limit=1)
    if readers:
        reader = str(keys.triggers.subscriber.unpack(readers[0].key)[2])
        raise UsageError(
            f"{reader} still reads {dataset}",
            hint=f"remove {reader} from its pipeline, run that pipeline once, then drop the dataset",
        )
    staging.forget(tx, keys.lots, dataset)
    tx.clear_range(*keys.lots.keep.under(*dataset.parts))
    owners.forget(tx, keys.lots, dataset)
    datasets.drop(tx, keys.lots, dataset)


class DroppedDatasets:
    """Deletes the files and rows of dropped datasets.

    - readers_s: how long they stay for readers that have already started.
    """

    def __init__(self, scope: Scope, *, readers_s: float = READERS_S) -> None:
        self._scope = scope
        self._keys = PublishKeys(scope.cluster)
        self._readers_us = int(readers_s * SECOND_US)

    def remove(self) -> bool:
        """Delete a page of files and rows of each dropped dataset. Return True if there may be more."""
        lots = self._keys.lots
        dropped, now = self._scope.store.run(lambda tx: (datasets.dropped(tx, lots), tx.now()))
        more = False
        for dataset, at in dropped.items():
            if at + self._readers_us > now:
                continue
            if self._remove_files(dataset) or self._scope.step(
                "publish.drop-rows",
                lambda tx, dataset=dataset: self._remove_rows(tx, dataset),  # type: ignore[misc]
            ):
                more = True
                continue
            self._scope.step(
                "publish.dropped",
                lambda tx, dataset=dataset: datasets.forget_dropped(tx, lots, dataset),  # type: ignore[misc]
            )
            self._scope.emit(DatasetRemoved(dataset=str(dataset)))
        return more

    def _remove_files(self, dataset: DatasetId) -> bool:
        objects = self._scope.objects
        for prefix in layout.dataset_prefixes(dataset.name, dataset.version):
            page = [item.key for item in islice(objects.list(prefix, limit=PAGE), PAGE)]
            if page:
                crash.point("publish.drop-files.before")
                objects.delete_many(page)
                crash.point("publish.drop-files.after")
                return True
        return False

    def _remove_rows(self, tx: Tx, dataset: DatasetId) -> bool:
        """Delete a page of rows; return False if there were none. The head stays, as views may know it."""
        lots, triggers = self._keys.lots, self._keys.triggers
        for space in (
            lots.event,
            lots.lot,
            lots.replaced,
            lots.fragmented,
            lots.receipt,
            lots.producer,
            lots.staged,
            lots.spent,
            lots.columns,
            lots.consumer,
            lots.base_part,
            lots.keep,
        ):
            rows = tx.range(*space.under(*dataset.parts), limit=PAGE)
            if rows:
                tx.clear_range(rows[0].key, rows[-1].key + b"\x00")
                return True
        own = (
            lots.append_number,
            lots.interval,
            lots.expired,
            lots.base_lot,
            triggers.wake,
            triggers.waking,
        )
        for space in own:
            tx.clear(space[dataset.parts], quiet=True)
        return False
