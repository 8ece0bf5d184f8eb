"""A view's table in object storage: runs of rows, each row with its identity and weight.

The manifest of a table at a step is a root: its parts are the manifests of runs, which are the changes of
steps, as the steps themselves have them, and what merges made of earlier ones. A table is thus a list of
names, and a step adds one to it; where too many lie above each other, the step also rewrites a window of hash
space, within a budget that follows the change and not the table (see `pieces` and `table_merges`).

Reading adds up what the pieces hold. Everything is read through manifests, nothing by listing a folder.
"""

import json
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
    """Whose step writes: everything it writes lies under these names."""

    pipeline: str
    view: str
    lot: str
    attempt: str


class ViewTables:
    """Writes and reads the tables of views."""

    def __init__(self, storage: Storage, manifests: ManifestReader, clock: Clock) -> None:
        self.storage = storage
        self._manifests = manifests
        self._clock = clock

    # --- reading

    def schema(self, table: str) -> "StructType":
        """The columns of a table."""
        from pyspark.sql import types as st

        return st.StructType.fromJson(json.loads(self._manifests.load(table).schema))

    def weighted(self, spark: "SparkSession", table: str) -> "DataFrame":
        """The rows of a table with identity and weight, each row once."""
        schema, pieces = self.schema(table), self.pieces(table)
        df = table_merges.frame_of_pieces(spark, self.storage, self._manifests.load, pieces, schema)
        return weighted_rows.netted(df, schema) if overlap(pieces) else df

    def content(self, spark: "SparkSession", table: str) -> "DataFrame":
        """The rows of a table, as a query would give them."""
        return weighted_rows.repeated(self.weighted(spark, table), self.schema(table))

    def changes(self, spark: "SparkSession", table: str, view: str, steps: Sequence[StepRow]) -> "DataFrame":
        """What changed in these steps, with `_weight` and the step as `_position`.

        `ViewRefused` when the columns are others than those of `table` in one of them.
        """
        from pyspark.sql import functions as sf

        schema = self.schema(table)
        found = []
        for row in steps:
            for output in row.outputs:
                if output.view == view and output.changes:
                    made = self._manifests.load(output.changes)
                    if made.schema != self._manifests.load(table).schema:
                        raise ViewRefused(
                            f"the columns of view {view} were others at step {row.step}",
                            hint=f"read it whole, and its changes after {row.step}",
                        )
                    found.append((row.step, made.objects))
        df = read_positioned(spark, self.storage, stored_columns(schema), found)
        return df.select(*weighted_rows.columns_of(schema), sf.col(WEIGHT), sf.col(POSITION))

    def pieces(self, table: str) -> list[TablePiece]:
        """What a table consists of; nothing for none."""
        if not table:
            return []
        root = self._manifests.load(table)
        return pieces_of(root, self._manifests.load_all(root.parts))

    # --- writing

    def write_changes(self, place: ViewAttempt, df: "DataFrame", schema: "StructType") -> tuple[str, Written]:
        """Compute and keep a step's changes; the key of their manifest, empty when there are none."""
        target = changes_of(place.pipeline, place.view)
        frame, digest = digests.observed(df.sortWithinPartitions(weighted_rows.HIGH))
        written = write_frame(
            frame,
            self.storage,
            self.storage.objects,
            _prefix(place, target),
            block_bytes=table_merges.BLOCK_BYTES,
        )
        if not written.rows:
            return "", written
        return self._put(place, target, written=written, schema=schema, digest=digest()), written

    def keep_changes(self, place: ViewAttempt, written: Written, schema: "StructType", digest: int) -> str:
        """The manifest of changes that were written already; empty when there are none."""
        if not written.rows:
            return ""
        target = changes_of(place.pipeline, place.view)
        return self._put(place, target, written=written, schema=schema, digest=digest)

    def extended(
        self,
        place: ViewAttempt,
        before: str,
        changes: str,
        schema: "StructType",
        spark: "SparkSession | None" = None,
    ) -> str:
        """The table as it was, with a step's changes; `before` is empty for a new one.

        Where too many runs have come to lie above each other, a window of them is rewritten.

        - spark: for merges of many rows, after a step with many changes; without it they wait.
        """
        pieces = self.pieces(before)
        changed = 0
        if changes:
            leaf = self._manifests.load(changes)
            pieces += [run_of(changes, span(leaf), leaf.rows)]
            changed = leaf.rows
        allowed = window_budget(changed, pieces)
        for number, window in enumerate(
            plan_windows(pieces, allowed if spark else min(allowed, table_merges.HERE_ROWS))
        ):
            made = self._merged(place, number, window, schema, spark)
            if made is None:
                break
            pieces = pieces_after_merge(pieces, window, made)
        parts, within = listing(pieces)
        target, content = table_of(place.pipeline, place.view), self._after(before, changes)
        return self._put(place, target, parts=parts, within=within, schema=schema, digest=content)

    def _merged(
        self,
        place: ViewAttempt,
        number: int,
        window: MergeWindow,
        schema: "StructType",
        spark: "SparkSession | None",
    ) -> list[TablePiece] | None:
        """Rewrite a window: what takes its place, which is nothing if no row is left; None without Spark."""
        target, part = table_of(place.pipeline, place.view), f"merge-{number}"
        prefix = f"{_prefix(place, target)}{part}/"
        made = table_merges.merge(self.storage, self._manifests.load, window, schema, prefix, spark)
        if made is None:
            return None
        if not made.written.rows:
            return []
        grains = (window.low, window.high)
        within = [] if grains == EVERY else [[grains]]
        key = self._put(
            place, target, part=part, written=made.written, within=within, schema=schema, digest=made.digest
        )
        return [run_of(key, grains, made.written.rows)]

    def _after(self, before: str, changes: str) -> int:
        """The digest of a table after changes: digests add up."""
        return total_digest([self.digest(before), self.digest(changes)])

    def digest(self, key: str) -> int:
        """The digest that a manifest of a table or of changes states; 0 for none."""
        return digests.number_of(self._manifests.load(key).digest) if key else 0

    def set_aside(
        self,
        pipeline: str,
        group: str,
        lot: str,
        attempt: str,
        frames: "Mapping[str, tuple[DataFrame, StructType]]",
    ) -> QuarantinedRows | None:
        """Keep what a step sets aside, by dataset; None where that is nothing."""
        target = quarantine_of(pipeline, group)
        place = ViewAttempt(pipeline=pipeline, view=group, lot=lot, attempt=attempt)
        parts, counts = [], {}
        schema: StructType | None = None
        for number, (name, (df, columns)) in enumerate(sorted(frames.items())):
            frame, digest = digests.observed(df)
            prefix = f"{_prefix(place, target)}{number}/"
            written = write_frame(frame, self.storage, self.storage.objects, prefix)
            if written.rows:
                counts[name], schema = written.rows, columns
                parts.append(
                    self._put(place, target, part=name, written=written, schema=columns, digest=digest())
                )
        if schema is None:
            return None
        content = total_digest(self.digest(part) for part in parts)
        root = self._put(place, target, parts=parts, schema=schema, digest=content)
        return QuarantinedRows(manifest=root, rows=counts)

    def _put(
        self,
        place: ViewAttempt,
        target: DatasetId,
        *,
        schema: "StructType",
        part: str = "",
        parts: Sequence[str] | None = None,
        within: list[list[tuple[int, int]]] | None = None,
        written: Written | None = None,
        digest: int,
    ) -> str:
        state = ManifestState.COMPLETE if parts or written else ManifestState.EMPTY
        body = Manifest(
            format=2 if within else 1,
            state=state,
            dataset=target.name,
            version=target.version,
            lot=place.lot,
            attempt=place.attempt,
            part=part,
            objects=list(written.objects) if written else [],
            parts=list(parts or ()),
            within=within or [],
            schema=schema_text(schema),
            digest=digests.text_of(digest),
            created_at=datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(),
        )
        key = layout.manifest_key(
            *target.parts, place.lot, state, 0, place.attempt, part=part, root=parts is not None
        )
        crash.point("views.manifest.before")
        self.storage.objects.put(key, manifest.encode(body))
        crash.point("views.manifest.after")
        return key


def schema_text(schema: "StructType") -> str:
    """The columns as text, equal for equal names and types: what may be NULL is not kept."""
    return json.dumps(_nullable(schema.jsonValue()), sort_keys=True, ensure_ascii=False)


def _nullable(value: Any) -> Any:
    if isinstance(value, list):
        return [_nullable(item) for item in value]
    if not isinstance(value, dict):
        return value
    may = ("nullable", "containsNull", "valueContainsNull")
    return {name: True if name in may else _nullable(inner) for name, inner in value.items()}


def _prefix(place: ViewAttempt, target: DatasetId) -> str:
    return layout.data_prefix(*target.parts, place.lot, place.attempt)
