"""Compacting: the small files of a lot become few large ones, and nobody notices (LOT-37).

    look     the lot's row and what its manifest lists; nothing is done if files cannot be fewer
    open     the attempt, before its first object
    rewrite  the rows of all files into new ones; both are read, and their digests compared
    digest   what the lot holds is written down in its row, if it was not
    commit   one transaction: the row names the new manifest, the old layout is retired, the attempt has ended

The generation stays, there is no event, and no subscriber is woken. Small files of several lots are never put
together: a lot is what is replaced, read and removed as one. A process may die anywhere: what it wrote is
found by the cleaner, and the lot is as it was or as it is to be.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from tidemill.errors import LotConflict, LotUnknown, WriteMismatch
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
"""Writes the rows of a dataset's objects into a folder of its own."""


def on_spark(spark: "Session", storage: Storage, tags: JobTags | None = None) -> Rewrite:
    """Rewriting by jobs of this session, under the attempt whose folder they write into."""
    marks = tags or JobTags(spark)

    def run(dataset: DatasetRow, items: Sequence[StoredObject], prefix: str) -> Rewritten:
        schema = stored_schema(dataset.schema, dataset.kind)
        with marks.marked(attempt_in(prefix)):
            return rewrite(spark, storage, schema, items, prefix)

    return run


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """Report the files of a lot before and after it was compacted.

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

    - rewrite: has it done; on Spark in the product.
    - projections: shows the new manifest under the lot's plain name.
    - target_bytes: files of less than half of it are small.
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

    def compact(self, of: DatasetId, lot: str) -> Compacted | None:
        """Compact one lot; None when its files cannot be fewer, or somebody else is at it.

        `WriteMismatch` when what was written is not what was read: then the lot stays as it is.
        """
        keys = self._keys
        # Both of one moment: a lot never has columns that its dataset has not.
        dataset, seen = self._scope.store.run(
            lambda tx: (datasets.read(tx, keys, of), lots.current(tx, keys, of, lot))
        )
        if seen is None:
            raise LotUnknown(f"there is no lot {lot} of {of}")
        if seen.state is not LotState.COMPLETE:
            return None
        root = self._manifests.load(seen.manifest)
        items = self._manifests.listed(seen.manifest)
        if not can_be_fewer(items, self._target_bytes) or _gathers(dataset, items):
            self._scope.store.run(lambda tx: lots.unmark_fragmented(tx, keys, seen))
            return None
        hold = self._publisher.begin_compaction(seen, root.inputs, self._scope.new_attempt())
        if hold is None:
            return None
        try:
            row = self._compacted(dataset, seen, root, items, hold)
        except LotConflict as conflict:
            self._publisher.abandon(hold, conflict.message)
            return None
        except Exception as error:
            self._publisher.abandon(hold, f"{type(error).__name__}: {error}")
            raise
        if self._projections is not None:
            self._projections.lot(dataset.id, lot)
        done = Compacted(
            lot=lot,
            generation=row.generation,
            revision=row.revision,
            files_before=len(items),
            files=row.files,
            size_before=seen.size,
            size=row.size,
        )
        self._scope.emit(
            LotCompacted(
                dataset=str(dataset.id),
                lot=lot,
                generation=done.generation,
                revision=done.revision,
                files_before=done.files_before,
                files=done.files,
            )
        )
        return done

    def _compacted(
        self, dataset: DatasetRow, seen: LotRow, root: Manifest, items: Sequence[StoredObject], hold: Hold
    ) -> LotRow:
        digest = ""

        def write(folders: Mapping[DatasetId, str]) -> list[SinkWritten]:
            nonlocal digest
            made = self._rewrite(dataset, items, folders[dataset.id])
            digest = self._verified(dataset, seen, made)
            counts = self._checks(root)
            return [
                SinkWritten(
                    dataset=dataset.id, objects=made.written.objects, rows=made.written.rows, checks=counts
                )
            ]

        [new] = self._manifests.write_lot(hold, write, {dataset.id: dataset.fingerprint})
        if seen.digest != digest:
            seen = self._publisher.digest_lot(seen, digest)
        return self._publisher.commit_compaction(hold, seen, msgspec.structs.replace(new, digest=digest))

    def _verified(self, dataset: DatasetRow, seen: LotRow, made: Rewritten) -> str:
        """Return the digest of a lot's content; `WriteMismatch` if the new files hold other rows."""
        if made.after != made.before or made.written.rows != seen.rows:
            raise WriteMismatch(
                f"another layout of lot {seen.lot} of {dataset.id} has other content:"
                f" {made.written.rows} rows of {seen.rows}"
            )
        # A digest is of rows of certain columns: the schema may be another one since it was written down.
        digest = f"{dataset.fingerprint[:8]}:{made.before}"
        if seen.digest.partition(":")[0] == digest.partition(":")[0] and seen.digest != digest:
            raise WriteMismatch(f"lot {seen.lot} of {dataset.id} does not hold what was published")
        return digest

    def _checks(self, root: Manifest) -> dict[str, int]:
        """What was counted when the lot was made: of a root that gathers appends, by each of them."""
        if root.checks or not root.parts:
            return root.checks
        total: dict[str, int] = {}
        for part in root.parts:
            for name, count in self._manifests.load(part).checks.items():
                total[name] = total.get(name, 0) + count
        return total


def _gathers(dataset: DatasetRow, items: Sequence[StoredObject]) -> bool:
    """Do the files say what came before what? Those of a keyed lot that gathers several appends do: which of
    two writes of a key is the later one is told by the append it is in (LOT-40).
    """
    return dataset.kind is Kind.KEYED and len({attempt_in(item.uri) for item in items}) > 1


def can_be_fewer(items: Sequence[StoredObject], target_bytes: int) -> bool:
    """Are there two small files with the same partition values?"""
    seen = set()
    for item in items:
        if item.size < target_bytes // 2:
            place = tuple(sorted(item.partition.items(), key=lambda one: one[0]))
            if place in seen:
                return True
            seen.add(place)
    return False
