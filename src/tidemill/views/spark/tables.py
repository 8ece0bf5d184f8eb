"""A view's table in object storage: a base and the changes since, each row with its identity and weight.

The manifest of a table at a step is a root: its parts are the manifests of the base and of the changes of
later steps, which are those of the steps themselves. A table is thus a list of names, and a step adds one to
it; when the list, or what it holds beside the base, has grown too long, the step writes a new base.

Reading nets the base with its tail. Everything is read through manifests, nothing by listing a folder.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill import crash
from tidemill.clock import Clock
from tidemill.errors import ViewRefused, WriteMismatch
from tidemill.lots import layout, manifest
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import Manifest, ManifestState
from tidemill.spark.operations import WEIGHT
from tidemill.spark.reading import POSITION, read_objects, read_positioned
from tidemill.spark.storage import Storage
from tidemill.spark.writing import Written, write_frame
from tidemill.views.kernels.digest import together
from tidemill.views.spark import digests, rows
from tidemill.views.steps.commits import Aside, StepRow
from tidemill.views.steps.inputs import ManifestReader
from tidemill.views.steps.keys import changes_of, quarantine_of, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MOST_TAIL = 8
"""Changes that a table may consist of beside its base before a step writes a new one."""


LEAST_ROWS = 10_000
"""Fewer changed rows than these are no reason to write a base anew, however small it is."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Whose step writes: everything it writes lies under these names."""

    pipeline: str
    view: str
    lot: str
    attempt: str


class Tables:
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
        schema = self.schema(table)
        leaves = self._leaves(table)
        objects = [item for leaf in leaves for item in leaf.objects]
        df = read_objects(spark, self.storage, stored(schema), objects)
        return rows.netted(df, schema) if len(leaves) > 1 else df

    def content(self, spark: "SparkSession", table: str) -> "DataFrame":
        """The rows of a table, as a query would give them."""
        return rows.repeated(self.weighted(spark, table), self.schema(table))

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
        df = read_positioned(spark, self.storage, stored(schema), found)
        return df.select(*rows.columns_of(schema), sf.col(WEIGHT), sf.col(POSITION))

    def _leaves(self, table: str) -> list[Manifest]:
        return [self._manifests.load(part) for part in self._manifests.load(table).parts]

    # --- writing

    def write_changes(self, place: Place, df: "DataFrame", schema: "StructType") -> tuple[str, Written]:
        """Compute and keep a step's changes; the key of their manifest, empty when there are none."""
        target = changes_of(place.pipeline, place.view)
        frame, digest = digests.observed(df)
        written = write_frame(frame, self.storage, self.storage.objects, _prefix(place, target))
        if not written.rows:
            return "", written
        return self._put(place, target, written=written, schema=schema, digest=digest()), written

    def keep_changes(self, place: Place, written: Written, schema: "StructType", digest: int) -> str:
        """The manifest of changes that were written already; empty when there are none."""
        if not written.rows:
            return ""
        target = changes_of(place.pipeline, place.view)
        return self._put(place, target, written=written, schema=schema, digest=digest)

    def extended(self, place: Place, before: str, changes: str, schema: "StructType") -> str:
        """The table as it was, with a step's changes; `before` is empty for a new one."""
        parts = [*(self._manifests.load(before).parts if before else ()), *([changes] if changes else ())]
        target, content = table_of(place.pipeline, place.view), self._after(before, changes)
        return self._put(place, target, parts=parts, schema=schema, digest=content)

    def _after(self, before: str, changes: str) -> int:
        """The digest of a table after changes: digests add up."""
        return together([self.digest(before), self.digest(changes)])

    def digest(self, key: str) -> int:
        """The digest that a manifest of a table or of changes states; 0 for none."""
        return digests.number_of(self._manifests.load(key).digest) if key else 0

    def is_long(self, table: str) -> bool:
        """Has the tail grown so long that reading it costs too much?"""
        counts = [leaf.rows for leaf in self._leaves(table)]
        return len(counts) > MOST_TAIL + 1 or sum(counts[1:]) > max([LEAST_ROWS, *counts[:1]])

    def merged(self, place: Place, spark: "SparkSession", before: str, changes: str) -> str:
        """A new base: the table as it was, with a step's changes, written anew."""
        schema = self.schema(before)
        keys = [*self._manifests.load(before).parts, changes]
        objects = [item for key in keys for item in self._manifests.load(key).objects]
        df = rows.netted(read_objects(spark, self.storage, stored(schema), objects), schema)
        target, content = table_of(place.pipeline, place.view), self._after(before, changes)
        frame, digest = digests.observed(df)
        written = write_frame(frame, self.storage, self.storage.objects, _prefix(place, target))
        if digest() != content:
            raise WriteMismatch(
                f"the table of {place.view} was written with the digest {digests.text_of(digest())},"
                f" and its steps come to {digests.text_of(content)}"
            )
        parts = []
        if written.rows:
            parts.append(
                self._put(place, target, part="base", written=written, schema=schema, digest=content)
            )
        return self._put(place, target, parts=parts, schema=schema, digest=content)

    def set_aside(
        self,
        pipeline: str,
        group: str,
        lot: str,
        attempt: str,
        frames: "Mapping[str, tuple[DataFrame, StructType]]",
    ) -> Aside | None:
        """Keep what a step sets aside, by dataset; None where that is nothing."""
        target = quarantine_of(pipeline, group)
        place = Place(pipeline=pipeline, view=group, lot=lot, attempt=attempt)
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
        content = together(self.digest(part) for part in parts)
        root = self._put(place, target, parts=parts, schema=schema, digest=content)
        return Aside(manifest=root, rows=counts)

    def _put(
        self,
        place: Place,
        target: DatasetId,
        *,
        schema: "StructType",
        part: str = "",
        parts: Sequence[str] | None = None,
        written: Written | None = None,
        digest: int,
    ) -> str:
        state = ManifestState.COMPLETE if parts or written else ManifestState.EMPTY
        body = Manifest(
            state=state,
            dataset=target.name,
            version=target.version,
            lot=place.lot,
            attempt=place.attempt,
            part=part,
            objects=list(written.objects) if written else [],
            parts=list(parts or ()),
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


def stored(schema: "StructType") -> "StructType":
    """The columns of a table's files."""
    from pyspark.sql import types as st

    extra = [st.StructField(name, st.LongType()) for name in (rows.HIGH, rows.LOW, WEIGHT)]
    return st.StructType([*schema.fields, *extra])


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


def _prefix(place: Place, target: DatasetId) -> str:
    return layout.data_prefix(*target.parts, place.lot, place.attempt)
