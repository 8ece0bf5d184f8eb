"""Merge a base lot: write the rows of expired lots into the next base lot of their dataset (LOT-39).

    read     the base lot and the expired lots after it
    open     an attempt, before its first object is written
    write    the merged rows into new files; compare the content of old and new files
    commit   in one transaction: replace the row of the base, retire the old files, end the attempt
    forget   delete the rows of the merged lots, in pages

There is no event, and no subscriber is woken: every reader sees the same rows before and after. A process may
die at any point: readers find the old base and all parts, or the new base, and the cleaner removes unused
files.

A merge writes the whole base again, so it waits until enough lots have expired. The base then grows by a
fixed ratio with each merge, and a row is rewritten a limited number of times.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from tidemill.errors import DatasetUnknown, LotConflict, WriteMismatch
from tidemill.lots import base_lot, datasets, manifest
from tidemill.lots.base_lot import BaseLot, BasePart
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.publish.attempts import Hold
from tidemill.publish.manifests import Manifests, attempt_in
from tidemill.publish.parts import SinkWritten
from tidemill.publish.publisher import Publisher
from tidemill.runner.events import BaseMerged
from tidemill.runner.job_tags import JobTags
from tidemill.scope import Scope
from tidemill.spark.compaction import content_digest
from tidemill.spark.lot_reader import read_errors
from tidemill.spark.lot_writer import TARGET_BYTES, Written, write_frame
from tidemill.spark.storage import Storage
from tidemill.store import Tx
from tidemill.views.spark.dataset_contents import base_frame, dataset_frame
from tidemill.views.steps.inputs import LotSlice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Merge: TypeAlias = Callable[[DatasetRow, Sequence[LotSlice], str], Written]
"""Writes the merged rows of a dataset's slices into a new folder."""

MANY_PARTS = 100
MOST_PARTS = 1000
"""One merge reads at most this many expired lots."""

GROWTH = 4
"""With many parts, merge when they have at least the size of the base divided by this."""


class MergedBase(msgspec.Struct, frozen=True, kw_only=True):
    """The base lot of a table, after a merge.

    - lots: how many expired lots were merged.
    - position: the base has the rows of all lots up to this position.
    - rows, size: the rows and bytes of the base.
    """

    table: str
    lots: int
    position: int
    rows: int
    size: int


def on_spark(spark: "SparkSession", storage: Storage, tags: JobTags | None = None) -> Merge:
    """Return a `Merge` that runs Spark jobs. Each job is tagged with its attempt."""
    job_tags = tags or JobTags(spark)

    def run(dataset: DatasetRow, slices: Sequence[LotSlice], prefix: str) -> Written:
        size = sum(item.size for part in slices for item in part.objects)
        with job_tags.marked(attempt_in(prefix)), read_errors(storage):
            merged = base_frame(spark, storage, dataset, slices)
            written = write_frame(merged.coalesce(max(1, -(-size // TARGET_BYTES))), storage, prefix)
            contents = [
                content_digest(dataset_frame(spark, storage, dataset, files))
                for files in (slices, [LotSlice(0, base_lot.LOT, 0, written.objects)])
            ]
        if contents[0] != contents[1]:
            raise WriteMismatch(
                f"the merged files of {dataset.id} do not have the same rows as its expired lots; nothing was"
                " changed"
            )
        return written

    return run


def is_due(tx: Tx, keys: LotKeys, dataset: DatasetId) -> bool:
    """Return whether enough lots have expired to merge them."""
    base = base_lot.read(tx, keys, dataset)
    parts = base_lot.parts(tx, keys, dataset, base.position, limit=MOST_PARTS)
    size = sum(part.size for part in parts)
    if len(parts) < MANY_PARTS:
        return len(parts) > 1 and size >= base.size
    return len(parts) == MOST_PARTS or size * GROWTH >= base.size


class BaseMerger:
    """Merges base lots, as one node.

    - merge: writes the merged files; on Spark in production.
    """

    def __init__(self, scope: Scope, merge: Merge) -> None:
        self._scope = scope
        self._keys = LotKeys(scope.cluster)
        self._manifests = Manifests(scope.objects, scope.clock)
        self._publisher = Publisher(scope)
        self._merge = merge

    def merge(self, dataset_id: DatasetId) -> MergedBase | None:
        """Merge the expired lots of a dataset; None if there are too few, or another node merges them.

        Raises `WriteMismatch` if the merged files do not have the same rows. Then nothing changes.
        """
        self._publisher.forget_merged(dataset_id)  # of a merge whose node died
        work = self._scope.store.run(lambda tx: self._work(tx, dataset_id))
        if work is None:
            return None
        dataset, base, parts = work
        hold = self._publisher.begin_merge(dataset_id, base, self._scope.new_attempt())
        if hold is None:
            return None
        try:
            merged = self._write(dataset, base, parts, hold)
            self._publisher.commit_merge(hold, dataset_id, base, merged)
        except LotConflict as conflict:
            self._publisher.abandon(hold, conflict.message)
            return None
        except Exception as error:
            self._publisher.abandon(hold, f"{type(error).__name__}: {error}")
            raise
        self._publisher.forget_merged(dataset_id)
        result = MergedBase(
            table=dataset_id.name,
            lots=len(parts),
            position=merged.position,
            rows=merged.rows,
            size=merged.size,
        )
        self._scope.emit(BaseMerged(table=result.table, lots=result.lots, position=result.position))
        return result

    def _work(self, tx: Tx, dataset: DatasetId) -> tuple[DatasetRow, BaseLot, list[BasePart]] | None:
        """Read everything in one transaction, so that the dataset has all columns of the lots."""
        if not is_due(tx, self._keys, dataset):
            return None
        try:
            declared = datasets.read(tx, self._keys, dataset)
        except DatasetUnknown:  # it was dropped
            return None
        base = base_lot.read(tx, self._keys, dataset)
        return declared, base, base_lot.parts(tx, self._keys, dataset, base.position, limit=MOST_PARTS)

    def _write(self, dataset: DatasetRow, base: BaseLot, parts: Sequence[BasePart], hold: Hold) -> BaseLot:
        slices = [
            LotSlice(part.position, part.lot, part.generation, tuple(self._objects(part.manifest)))
            for part in parts
        ]
        if base.manifest:
            objects = tuple(self._objects(base.manifest))
            slices.insert(0, LotSlice(base.position, base_lot.LOT, base.generation, objects))
        [row] = self._manifests.write_lot(
            hold,
            lambda folders: [self._written(dataset, slices, folders[dataset.id])],
            {dataset.id: dataset.fingerprint},
        )
        return BaseLot(
            position=parts[-1].position,
            generation=base.generation + 1,
            manifest=row.manifest,
            rows=row.rows,
            size=row.size,
        )

    def _written(self, dataset: DatasetRow, slices: Sequence[LotSlice], folder: str) -> SinkWritten:
        written = self._merge(dataset, slices, folder)
        return SinkWritten(dataset=dataset.id, objects=written.objects, rows=written.rows)

    def _objects(self, key: str) -> list[manifest.StoredObject]:
        return self._manifests.lot_objects(key)
