"""Compact a lot: replace its small files with a few large ones, which have the same rows (LOT-37).

    read     the lot's row and the files of its manifest; stop if the number of files cannot be reduced
    open     an attempt, before its first object is written
    rewrite  all rows into new files; read old and new files, and compare their digests
    digest   store the digest of the content in the lot's row, if it has none
    commit   in one transaction: write the new manifest into the row, retire the old files, end the attempt

The generation stays the same, there is no event, and no subscriber is woken. Files of different lots are
never combined, because a lot is replaced, read and removed as one unit. A process may die at any point: the
lot then has either its old layout or the new one, and the cleaner removes unused files.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from tidemill.errors import LotConflict, LotUnknown, WriteMismatch, describe
from tidemill.lots import datasets, lots
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import Manifest, StoredObject
from tidemill.lots.states import LotState
from tidemill.publish.attempts import Hold
from tidemill.publish.events import LotCompacted
from tidemill.publish.manifests import Manifests, attempt_in
from tidemill.publish.parts import SinkWritten
from tidemill.publish.projections import Projections
from tidemill.publish.publisher import Publisher
from tidemill.runner.job_tags import JobTags
from tidemill.scope import Scope
from tidemill.spark.compaction import Rewritten, rewrite
from tidemill.spark.lot_writer import TARGET_BYTES
from tidemill.spark.operations import stored_schema
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession as Session

Rewrite: TypeAlias = Callable[[DatasetRow, Sequence[StoredObject], str], Rewritten]
"""Writes the rows of a dataset's objects into files of a new folder."""


def on_spark(spark: "Session", storage: Storage, tags: JobTags | None = None) -> Rewrite:
    """Return a `Rewrite` that runs Spark jobs. Each job is tagged with its attempt."""
    job_tags = tags or JobTags(spark)

    def run(dataset: DatasetRow, items: Sequence[StoredObject], prefix: str) -> Rewritten:
        schema = stored_schema(dataset.schema, dataset.kind)
        with job_tags.marked(attempt_in(prefix)):
            return rewrite(spark, storage, schema, items, prefix)

    return run


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the files of a lot before and after it was compacted.

    >>> Compacted(lot="a1", generation=1, revision=2, files_before=9, files=1, size_before=90, size=20).files
    1
    """

    lot: str
    generation: int
    revision: int
    files_before: int
    files: int
    size_before: int
    size: int


class Compactor:
    """Compacts lots, as one node.

    - rewrite: writes the new files; on Spark in production.
    - projections: publishes the new manifest under a readable name.
    - target_bytes: a file is small if its size is less than half of this.
    """

    def __init__(
        self,
        scope: Scope,
        rewrite: Rewrite,
        *,
        projections: Projections | None = None,
        target_bytes: int = TARGET_BYTES,
    ) -> None:
        self._scope = scope
        self._keys = LotKeys(scope.cluster)
        self._manifests = Manifests(scope.objects, scope.clock)
        self._publisher = Publisher(scope)
        self._rewrite = rewrite
        self._projections = projections
        self._target_bytes = target_bytes

    def compact(self, dataset_id: DatasetId, lot: str) -> Compacted | None:
        """Compact one lot. Return None if it cannot have fewer files, or if another node is compacting it.

        Raises `WriteMismatch` if the rows of the new files differ from those of the old files. In that case
        the lot does not change.
        """
        keys = self._keys
        # Read both in one transaction, so that the dataset has all columns of the lot.
        dataset, current = self._scope.store.run(
            lambda tx: (datasets.read(tx, keys, dataset_id), lots.current(tx, keys, dataset_id, lot))
        )
        if current is None:
            raise LotUnknown(f"lot {lot} of {dataset_id} does not exist")
        if current.state is not LotState.COMPLETE:
            return None
        root = self._manifests.load(current.manifest)
        items = self._manifests.lot_objects(current.manifest)
        if not can_be_fewer(items, self._target_bytes) or _holds_several_appends(dataset, items):
            self._scope.store.run(lambda tx: lots.unmark_fragmented(tx, keys, current))
            return None
        hold = self._publisher.begin_compaction(current, root.inputs, self._scope.new_attempt())
        if hold is None:
            return None
        try:
            row = self._replace_files(dataset, current, root, items, hold)
        except LotConflict as conflict:
            self._publisher.abandon(hold, conflict.message)
            return None
        except Exception as error:
            self._publisher.abandon(hold, describe(error))
            raise
        if self._projections is not None:
            self._projections.lot(dataset.id, lot)
        compacted = Compacted(
            lot=lot,
            generation=row.generation,
            revision=row.revision,
            files_before=len(items),
            files=row.files,
            size_before=current.size,
            size=row.size,
        )
        self._scope.emit(
            LotCompacted(
                dataset=str(dataset.id),
                lot=lot,
                generation=compacted.generation,
                revision=compacted.revision,
                files_before=compacted.files_before,
                files=compacted.files,
            )
        )
        return compacted

    def _replace_files(
        self, dataset: DatasetRow, current: LotRow, root: Manifest, items: Sequence[StoredObject], hold: Hold
    ) -> LotRow:
        digest = ""

        def write(folders: Mapping[DatasetId, str]) -> list[SinkWritten]:
            nonlocal digest
            rewritten = self._rewrite(dataset, items, folders[dataset.id])
            digest = self._verify(dataset, current, rewritten)
            written = rewritten.written
            return [
                SinkWritten(
                    dataset=dataset.id, objects=written.objects, rows=written.rows, checks=self._checks(root)
                )
            ]

        [new] = self._manifests.write_lot(hold, write, {dataset.id: dataset.fingerprint})
        if current.digest != digest:
            current = self._publisher.digest_lot(current, digest)
        return self._publisher.commit_compaction(hold, current, msgspec.structs.replace(new, digest=digest))

    def _verify(self, dataset: DatasetRow, current: LotRow, rewritten: Rewritten) -> str:
        """Return the digest of a lot's content. Raise `WriteMismatch` if the rows of the new files differ."""
        if rewritten.after != rewritten.before or rewritten.written.rows != current.rows:
            raise WriteMismatch(
                f"the compacted files of lot {current.lot} of {dataset.id} do not have the same rows"
                f" ({rewritten.written.rows} rows, expected {current.rows})"
            )
        # A digest depends on the schema, which may have changed since the digest was stored.
        digest = f"{dataset.fingerprint[:8]}:{rewritten.before}"
        if current.digest.partition(":")[0] == digest.partition(":")[0] and current.digest != digest:
            raise WriteMismatch(
                f"the rows in the files of lot {current.lot} of {dataset.id} differ from the published rows",
                hint="the files may be damaged; restore them from a backup, or replay the lot",
            )
        return digest

    def _checks(self, root: Manifest) -> dict[str, int]:
        """Return the check counts of a lot, from its root manifest or as sums over its parts."""
        if root.checks or not root.parts:
            return root.checks
        total: dict[str, int] = {}
        for part in root.parts:
            for name, count in self._manifests.load(part).checks.items():
                total[name] = total.get(name, 0) + count
        return total


def _holds_several_appends(dataset: DatasetRow, items: Sequence[StoredObject]) -> bool:
    """Return whether a keyed lot has files of several appends.

    The order of appends decides which write of a key is the latest (LOT-40), so such files must not be
    merged.
    """
    return dataset.kind is Kind.KEYED and len({attempt_in(item.uri) for item in items}) > 1


def can_be_fewer(items: Sequence[StoredObject], target_bytes: int) -> bool:
    """Return whether at least two small files have the same partition values, so that they can be merged."""
    partitions = set()
    for item in items:
        if item.size < target_bytes // 2:
            partition = tuple(sorted(item.partition.items(), key=lambda column: column[0]))
            if partition in partitions:
                return True
            partitions.add(partition)
    return False
