"""The tables of views in object storage: runs of rows, each row with its identity and weight.

The manifest of a table is a root manifest. Its parts are the manifests of runs: the changes of steps, and the
results of merges. A step adds one part. If too many runs overlap, the step also rewrites a window of hash
space. The step's budget for this grows with the size of the change. For a small change it is at most a fixed
number of rows, however large the table is (see `table_pieces` and `table_merges`).

Readers add up the rows of all pieces. They find files through manifests and never list a folder.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill import crash
from tidemill.clock import Clock
from tidemill.errors import ViewRefused
from tidemill.lots import layout, manifest
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import Manifest, ManifestState
from tidemill.spark.lot_reader import POSITION, read_positioned
from tidemill.spark.lot_writer import Written, write_frame
from tidemill.spark.operations import WEIGHT
from tidemill.spark.storage import Storage
from tidemill.views.kernels.zsets import total_digest
from tidemill.views.spark import digests, table_merges, weighted_rows
from tidemill.views.spark.rows_by_check import rows_by_check
from tidemill.views.spark.table_merges import stored_columns
from tidemill.views.spark.table_pieces import (
    EVERY,
    MergeWindow,
    TablePiece,
    listing,
    overlap,
    pieces_after_merge,
    pieces_of,
    plan_windows,
    run_of,
    span,
    window_budget,
)
from tidemill.views.steps.commits import QuarantinedRows, StepRow
from tidemill.views.steps.inputs import ManifestReader
from tidemill.views.steps.keys import changes_of, quarantine_of, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class ViewAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at one view's step: the names under which it writes.

    - by_check: whether the view contains the rows of another view that fail checks. Then the manifest of its
      table counts the rows of each check.
    """

    pipeline: str
    view: str
    lot: str
    attempt: str
    by_check: bool = False


class ViewTables:
    """Writes and reads the tables of views."""

    def __init__(self, storage: Storage, manifests: ManifestReader, clock: Clock) -> None:
        self.storage = storage
        self._manifests = manifests
        self._clock = clock

    # --- reading

    def schema(self, table: str) -> "StructType":
        """Return the columns of a table."""
        from pyspark.sql import types as st

        return st.StructType.fromJson(json.loads(self._manifests.load(table).schema))

    def weighted(self, spark: "SparkSession", table: str) -> "DataFrame":
        """Return the distinct rows of a table with identity and weight."""
        schema, pieces = self.schema(table), self.pieces(table)
        df = table_merges.frame_of_pieces(spark, self.storage, self._manifests.load, pieces, schema)
        return weighted_rows.netted(df, schema) if overlap(pieces) else df

    def content(self, spark: "SparkSession", table: str) -> "DataFrame":
        """Return the rows of a table, as the view's query returns them."""
        return weighted_rows.repeated(self.weighted(spark, table), self.schema(table))

    def content_without(
        self, spark: "SparkSession", table: str, view: str, steps: Sequence[StepRow]
    ) -> "DataFrame":
        """Return the rows that a table had before these steps, which are its last ones.

        Raises `ViewRefused` if the columns of a step differ from those of the table.
        """
        from pyspark.sql import functions as sf

        if not any(output.view == view and output.changes for row in steps for output in row.outputs):
            return self.content(spark, table)
        schema = self.schema(table)
        later = weighted_rows.identified(self.changes(spark, table, view, steps).drop(POSITION), schema)
        undone = later.withColumn(WEIGHT, -sf.col(WEIGHT))
        before = weighted_rows.netted(self.weighted(spark, table).unionByName(undone), schema)
        return weighted_rows.repeated(before, schema)

    def changes(self, spark: "SparkSession", table: str, view: str, steps: Sequence[StepRow]) -> "DataFrame":
        """Return the changes of these steps, with `_weight` and the step as `_position`.

        Raises `ViewRefused` if the columns of a step differ from those of the table.
        """
        from pyspark.sql import functions as sf

        schema = self.schema(table)
        positions = []
        for row in steps:
            for output in row.outputs:
                if output.view == view and output.changes:
                    changes = self._manifests.load(output.changes)
                    if changes.schema != self._manifests.load(table).schema:
                        raise ViewRefused(
                            f"the columns of view {view} at step {row.step} differ from its current columns",
                            hint="read the complete view, and then only its changes after the current step",
                        )
                    positions.append((row.step, changes.objects))
        df = read_positioned(spark, self.storage, stored_columns(schema), positions)
        return df.select(*weighted_rows.columns_of(schema), sf.col(WEIGHT), sf.col(POSITION))

    def load(self, key: str) -> Manifest:
        """Return a manifest of a table or of one of its runs."""
        return self._manifests.load(key)

    def pieces(self, table: str) -> list[TablePiece]:
        """Return the pieces of a table; none for an empty key."""
        if not table:
            return []
        root = self._manifests.load(table)
        return pieces_of(root, self._manifests.load_all(root.parts))

    # --- writing

    def write_changes(
        self, view_attempt: ViewAttempt, df: "DataFrame", schema: "StructType"
    ) -> tuple[str, Written]:
        """Write the changes of a step; return the key of their manifest, empty if there are none."""
        target = changes_of(view_attempt.pipeline, view_attempt.view)
        frame, digest = digests.observed(df.sortWithinPartitions(weighted_rows.HIGH))
        written = write_frame(
            frame,
            self.storage,
            _prefix(view_attempt, target),
            block_bytes=table_merges.BLOCK_BYTES,
        )
        if not written.rows:
            return "", written
        return self._put(view_attempt, target, written=written, schema=schema, digest=digest()), written

    def record_changes(
        self, view_attempt: ViewAttempt, written: Written, schema: "StructType", digest: int
    ) -> str:
        """Write the manifest of changes that tasks wrote; return its key, empty if there are none."""
        if not written.rows:
            return ""
        target = changes_of(view_attempt.pipeline, view_attempt.view)
        return self._put(view_attempt, target, written=written, schema=schema, digest=digest)

    def failing_rows(self, table: str) -> dict[str, int]:
        """Return how many rows each check has in a table; none for an empty key."""
        return self._manifests.load(table).checks if table else {}

    def extended(
        self,
        view_attempt: ViewAttempt,
        before: str,
        changes: str,
        schema: "StructType",
        spark: "SparkSession | None" = None,
    ) -> str:
        """Write the manifest of a table after a step's changes; return its key.

        If too many runs overlap, a window of them is rewritten.

        Args:
            view_attempt: the names under which the step writes.
            before: the manifest of the table before the step; empty for a new table.
            changes: the manifest of the changes; empty if there are none.
            schema: the columns of the table.
            spark: the session for merges of many rows; without it, such merges are postponed.
        """
        pieces = self.pieces(before)
        changed = 0
        if changes:
            leaf = self._manifests.load(changes)
            pieces += [run_of(changes, span(leaf), leaf.rows)]
            changed = leaf.rows
        budget = window_budget(changed, pieces)
        if not spark:
            budget = min(budget, table_merges.IN_PROCESS_ROWS)
        for number, window in enumerate(plan_windows(pieces, budget)):
            merged = self._merged(view_attempt, number, window, schema, spark)
            if merged is None:
                break
            pieces = pieces_after_merge(pieces, window, merged)
        parts, within = listing(pieces)
        target = table_of(view_attempt.pipeline, view_attempt.view)
        content = total_digest([self.digest(before), self.digest(changes)])
        failing = Counter(self.failing_rows(before))
        if view_attempt.by_check and changes:
            failing.update(rows_by_check(self.storage.objects, self._manifests.load(changes).objects))
        return self._put(
            view_attempt,
            target,
            parts=parts,
            within=within,
            schema=schema,
            digest=content,
            checks={name: rows for name, rows in failing.items() if rows},
        )

    def _merged(
        self,
        view_attempt: ViewAttempt,
        number: int,
        window: MergeWindow,
        schema: "StructType",
        spark: "SparkSession | None",
    ) -> list[TablePiece] | None:
        """Rewrite a window; return the pieces that replace it, or None if this needs a Spark session."""
        target, part = table_of(view_attempt.pipeline, view_attempt.view), f"merge-{number}"
        prefix = f"{_prefix(view_attempt, target)}{part}/"
        merged = table_merges.merge(self.storage, self._manifests.load, window, schema, prefix, spark)
        if merged is None:
            return None
        if not merged.written.rows:
            return []
        grains = (window.low, window.high)
        within = [] if grains == EVERY else [[grains]]
        key = self._put(
            view_attempt,
            target,
            part=part,
            written=merged.written,
            within=within,
            schema=schema,
            digest=merged.digest,
        )
        return [run_of(key, grains, merged.written.rows)]

    def digest(self, key: str) -> int:
        """Return the digest in a manifest of a table or of changes; 0 for an empty key."""
        return digests.number_of(self._manifests.load(key).digest) if key else 0

    def write_quarantine(
        self,
        pipeline: str,
        group: str,
        lot: str,
        attempt: str,
        frames: "Mapping[str, tuple[DataFrame, StructType]]",
    ) -> QuarantinedRows | None:
        """Write the quarantined rows of each dataset in a step; return None if there are none."""
        target = quarantine_of(pipeline, group)
        view_attempt = ViewAttempt(pipeline=pipeline, view=group, lot=lot, attempt=attempt)
        parts, counts = [], {}
        schema: StructType | None = None
        for number, (name, (df, columns)) in enumerate(sorted(frames.items())):
            frame, digest = digests.observed(df)
            prefix = f"{_prefix(view_attempt, target)}{number}/"
            written = write_frame(frame, self.storage, prefix)
            if written.rows:
                counts[name], schema = written.rows, columns
                parts.append(
                    self._put(
                        view_attempt, target, part=name, written=written, schema=columns, digest=digest()
                    )
                )
        if schema is None:
            return None
        content = total_digest(self.digest(part) for part in parts)
        root = self._put(view_attempt, target, parts=parts, schema=schema, digest=content)
        return QuarantinedRows(manifest=root, rows=counts)

    def _put(
        self,
        view_attempt: ViewAttempt,
        target: DatasetId,
        *,
        schema: "StructType",
        part: str = "",
        parts: Sequence[str] | None = None,
        within: list[list[tuple[int, int]]] | None = None,
        written: Written | None = None,
        digest: int,
        checks: dict[str, int] | None = None,
    ) -> str:
        state = ManifestState.COMPLETE if parts or written else ManifestState.EMPTY
        body = Manifest(
            format=2 if within else 1,
            state=state,
            dataset=target.name,
            version=target.version,
            lot=view_attempt.lot,
            attempt=view_attempt.attempt,
            part=part,
            objects=list(written.objects) if written else [],
            parts=list(parts or ()),
            within=within or [],
            schema=schema_text(schema),
            checks=checks or {},
            digest=digests.text_of(digest),
            created_at=datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(),
        )
        key = layout.manifest_key(
            *target.parts, view_attempt.lot, state, 0, view_attempt.attempt, part=part, root=parts is not None
        )
        crash.point("views.manifest.before")
        self.storage.objects.put(key, manifest.encode(body))
        crash.point("views.manifest.after")
        return key


def schema_text(schema: "StructType") -> str:
    """Return the columns as text.

    Two schemas with the same names and types give the same text, even if nullability differs.
    """
    return json.dumps(_nullable(schema.jsonValue()), sort_keys=True, ensure_ascii=False)


def _nullable(value: Any) -> Any:
    if isinstance(value, list):
        return [_nullable(item) for item in value]
    if not isinstance(value, dict):
        return value
    flags = ("nullable", "containsNull", "valueContainsNull")
    return {name: True if name in flags else _nullable(inner) for name, inner in value.items()}


def _prefix(view_attempt: ViewAttempt, target: DatasetId) -> str:
    return layout.data_prefix(*target.parts, view_attempt.lot, view_attempt.attempt)
