"""The manifests of an attempt: one for its intent, one for each part, and one for the lot (LOT-8, LOT-16).

The names of an attempt's manifests contain the attempt *and the epoch of its holder*, so no two writers ever
write an object with the same name: a late write of a stale holder changes nothing.

    …/state=partial/gen=G/attempt={id}.{epoch}/manifest.json          the intent, before any data
    …/state=complete/gen=G/attempt={id}.{epoch}/part=P/manifest.json  a completed part (or state=empty)
    …/state=partial/gen=G/attempt={id}.{epoch}/part=P/manifest.json   a part that failed
    …/state=complete/gen=G/attempt={id}.{epoch}/manifest-root.json    the lot, if it has parts
    …/state=complete/gen=G/attempt={id}.{epoch}/manifest.json         the lot, if it has one part

The lists of objects come from the tasks, never from a listing (LOT-17). A node that takes over the attempt
reuses a part only if the same earlier holder wrote the part's manifests for all sinks. Otherwise the
manifests could come from different runs of the part. The node verifies all of these manifests first (LOT-20).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from tidemill import crash
from tidemill.clock import Clock
from tidemill.errors import AttemptDamaged, UsageError
from tidemill.lots import layout, manifest
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import Manifest, ManifestState, StoredObject, UriType
from tidemill.lots.states import LotState
from tidemill.objects.port import Objects
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.parts import PartFailed, SinkWritten

LEAF, ROOT = "manifest.json", "manifest-root.json"
MAX_COMMENT_CHARS = 2000

Fingerprints: TypeAlias = Mapping[DatasetId, str]
"""The fingerprint of each dataset's schema. Datasets without a schema have no entry."""


class SinkPart(msgspec.Struct, frozen=True, kw_only=True):
    """A stored manifest: the result of one part for one sink."""

    dataset: DatasetId
    key: str
    manifest: Manifest


class PartMade(msgspec.Struct, frozen=True, kw_only=True):
    """A completed part with its manifests, one for each sink, in the order of the draft's targets."""

    part: str
    sinks: tuple[SinkPart, ...]

    @property
    def states(self) -> tuple[ManifestState, ...]:
        return tuple(sink.manifest.state for sink in self.sinks)


class Manifests:
    """Writes and reads the manifests of attempts."""

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self.objects = objects
        self._clock = clock

    # --- writing

    def write_intents(self, hold: Hold) -> None:
        """Record for each target where its data will be written, before any data is written (LOT-16)."""
        for target in hold.draft.targets:
            body = replace(
                self._new(hold.draft, target, ManifestState.PARTIAL),
                objects=[_all_data(target, hold.draft.id)],
                comment="intent",
            )
            self._put("intent", _key(hold, target, body), body)

    def write_part(
        self,
        hold: Hold,
        part: str,
        written: Sequence[SinkWritten],
        *,
        alone: bool,
        fingerprints: Fingerprints,
    ) -> PartMade:
        """Write the manifests of a part, one for each sink. `alone` means that the lot has no other part.

        The objects must be in this attempt's folder, because the cleaner deletes other attempts' objects.
        """
        by_dataset = {sink.dataset: sink for sink in written}
        sinks = []
        for target in hold.draft.targets:
            sink = by_dataset.pop(target.dataset, SinkWritten(dataset=target.dataset))
            start = data_start(target, hold.draft.id)
            outside = [item.uri for item in sink.objects if not _is_in(item.uri, start)]
            if outside:
                raise UsageError(
                    f"a part of attempt {hold.draft.id} wrote an object outside its folder: {outside[0]}",
                    hint="write into the folder of the attempt",
                )
            state = ManifestState.COMPLETE if sink.objects else ManifestState.EMPTY
            body = replace(
                self._new(hold.draft, target, state),
                part="" if alone else part,
                objects=list(sink.objects),
                checks=sink.checks,
                schema_fingerprint=fingerprints.get(target.dataset, ""),
                schema=sink.schema,
            )
            key = _key(hold, target, body)
            self._put("part-manifest", key, body)
            sinks.append(SinkPart(dataset=target.dataset, key=key, manifest=body))
        if by_dataset:
            raise UsageError(
                f"a part of attempt {hold.draft.id} wrote to datasets that are not its sinks: "
                f"{', '.join(map(str, by_dataset))}",
                hint="write only to the sinks of the attempt",
            )
        return PartMade(part=part, sinks=tuple(sinks))

    def write_lot(
        self,
        hold: Hold,
        write: Callable[[Mapping[DatasetId, str]], Sequence[SinkWritten]],
        fingerprints: Fingerprints,
    ) -> list[LotRow]:
        """Write a lot without parts; return the rows to publish.

        Appends, fetched batches, pushed requests and compactions use this: one process writes the intent, the
        data and the manifest.

        - write: writes the data. It gets the attempt's folder for each sink, and returns what it wrote.
        - fingerprints: the fingerprints of the sinks' schemas.
        """
        self.write_intents(hold)
        folders = {
            target.dataset: layout.data_prefix(*target.dataset.parts, target.lot, hold.draft.id)
            for target in hold.draft.targets
        }
        part = self.write_part(hold, "", write(folders), alone=True, fingerprints=fingerprints)
        return self.finish(hold, [part], fingerprints)

    def write_failed_part(self, hold: Hold, failed: PartFailed) -> None:
        """Record for each sink that a part failed, with the reason."""
        for target in hold.draft.targets:
            body = replace(
                self._new(hold.draft, target, ManifestState.PARTIAL),
                part=failed.task.part,
                objects=[_all_data(target, hold.draft.id)],
                comment=f"{failed.kind}: {failed.message}"[:MAX_COMMENT_CHARS],
            )
            self._put("part-failed", _key(hold, target, body), body)

    def finish(self, hold: Hold, parts: Sequence[PartMade], fingerprints: Fingerprints) -> list[LotRow]:
        """Write the manifest of the lot for each sink, and return the rows to publish.

        An optional sink without rows is left out. A lot with one part uses the manifest of that part; a lot
        without parts is empty.
        """
        rows = []
        for number, target in enumerate(hold.draft.targets):
            sinks = [part.sinks[number] for part in parts]
            empty = all(sink.manifest.state is ManifestState.EMPTY for sink in sinks)
            if empty and target.optional:
                continue
            state = ManifestState.EMPTY if empty else ManifestState.COMPLETE
            if len(sinks) == 1 and not sinks[0].manifest.part:
                key = sinks[0].key
            else:
                body = replace(
                    self._new(hold.draft, target, state),
                    parts=[sink.key for sink in sinks],
                    checks=_add_counts([sink.manifest.checks for sink in sinks]),
                    schema_fingerprint=fingerprints.get(target.dataset, ""),
                )
                key = _key(hold, target, body, root=bool(sinks))
                self._put("manifest", key, body)
            rows.append(
                LotRow(
                    dataset=target.dataset,
                    lot=target.lot,
                    generation=target.generation,
                    state=LotState(state.value),
                    manifest=key,
                    attempt=hold.draft.id,
                    rows=sum(sink.manifest.rows for sink in sinks),
                    size=sum(sink.manifest.size for sink in sinks),
                    files=sum(len(sink.manifest.objects) for sink in sinks),
                )
            )
        return rows

    def write_root(self, hold: Hold, parts: Sequence[str], rows: int, size: int, fingerprint: str) -> LotRow:
        """Write the root manifest of a lot whose parts, such as appends, are already stored.

        Return the row to publish.
        """
        (target,) = hold.draft.targets
        state = ManifestState.COMPLETE if parts else ManifestState.EMPTY
        body = replace(
            self._new(hold.draft, target, state), parts=list(parts), schema_fingerprint=fingerprint
        )
        key = _key(hold, target, body, root=bool(parts))
        self._put("manifest", key, body)
        return LotRow(
            dataset=target.dataset,
            lot=target.lot,
            generation=target.generation,
            state=LotState(state.value),
            manifest=key,
            attempt=hold.draft.id,
            rows=rows,
            size=size,
            files=len(parts),
        )

    def write_removal(self, hold: Hold, comment: str) -> LotRow:
        """Write the manifest of a removed lot, which lists no objects; return the row to publish (LOT-15)."""
        (target,) = hold.draft.targets
        body = replace(
            self._new(hold.draft, target, ManifestState.REMOVED), comment=comment[:MAX_COMMENT_CHARS]
        )
        key = _key(hold, target, body)
        self._put("manifest", key, body)
        return LotRow(
            dataset=target.dataset,
            lot=target.lot,
            generation=target.generation,
            state=LotState.REMOVED,
            manifest=key,
            attempt=hold.draft.id,
        )

    def write_deletion(self, draft: Draft, target: Target, why: str) -> None:
        """Record that the objects of an attempt were deleted. This replaces its other manifests (LOT-15)."""
        body = replace(
            self._new(draft, target, ManifestState.REMOVED),
            objects=[_all_data(target, draft.id)],
            comment=why[:MAX_COMMENT_CHARS] or "abandoned",
        )
        self._put("removed", self.deletion_key(draft, target), body)

    @staticmethod
    def deletion_key(draft: Draft, target: Target) -> str:
        """Return the key of the manifest that `write_deletion` writes."""
        return layout.manifest_key(
            *target.dataset.parts, target.lot, ManifestState.REMOVED, target.generation, draft.id
        )

    def _new(self, draft: Draft, target: Target, state: ManifestState) -> Manifest:
        """Return a manifest of an attempt that lists nothing yet."""
        return Manifest(
            state=state,
            dataset=target.dataset.name,
            version=target.dataset.version,
            lot=target.lot,
            generation=target.generation,
            attempt=draft.id,
            inputs=list(draft.inputs),
            created_at=datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(),
        )

    def _put(self, step: str, key: str, body: Manifest) -> None:
        crash.point(f"publish.{step}.before")
        self.objects.put(key, manifest.encode(body))
        crash.point(f"publish.{step}.after")

    # --- reading

    def load(self, key: str) -> Manifest:
        """Read one manifest."""
        return manifest.decode(self.objects.get(key)[0], key)

    def leaves(self, key: str) -> list[Manifest]:
        """Return the manifests that list a lot's objects: those of the parts, or the lot's own."""
        root = self.load(key)
        return [self.load(part) for part in root.parts] if root.parts else [root]

    def lot_objects(self, key: str) -> list[StoredObject]:
        """Return all objects of a lot."""
        return [item for leaf in self.leaves(key) for item in leaf.objects]

    # --- after an adoption

    def finished_parts(self, hold: Hold, names: Sequence[str]) -> dict[str, PartMade]:
        """Return the parts that earlier holders of this attempt completed.

        Raise `AttemptDamaged` if an object that a manifest lists is missing or has another size, and
        `ManifestUnreadable` if a manifest cannot be decoded.
        """
        alone = len(names) == 1
        by_epoch: dict[tuple[int, str], dict[DatasetId, str]] = {}
        for target in hold.draft.targets:
            for key in manifest_keys(self.objects, hold.draft, target, _COMPLETED):
                parsed = layout.parse_key(key)
                part = names[0] if alone and parsed["file"] == LEAF else parsed.get("part", "")
                if part not in names or parsed["file"] != LEAF or (not alone and "part" not in parsed):
                    continue
                epoch = int(parsed["attempt"].rpartition(".")[2])
                by_epoch.setdefault((epoch, part), {})[target.dataset] = key
        sizes: dict[str, int] = {}
        for target in hold.draft.targets if by_epoch else ():
            sizes |= data_of(self.objects, hold.draft, target)
        parts: dict[str, PartMade] = {}
        for (_, part), keys in sorted(by_epoch.items()):
            if len(keys) < len(hold.draft.targets):
                continue  # its holder died between two sinks
            sinks = tuple(self._verify(target, keys[target.dataset], sizes) for target in hold.draft.targets)
            parts[part] = PartMade(part=part, sinks=sinks)
        return parts

    def _verify(self, target: Target, key: str, sizes: Mapping[str, int]) -> SinkPart:
        body = self.load(key)
        for item in body.objects:
            if sizes.get(item.uri) != item.size:
                raise AttemptDamaged(
                    f"{item.uri} is missing, or its size differs from the one in its manifest {key}"
                )
        return SinkPart(dataset=target.dataset, key=key, manifest=body)


_COMPLETED = (ManifestState.COMPLETE, ManifestState.EMPTY)


def data_start(target: Target, attempt: str) -> str:
    """Return the common prefix of all data objects of an attempt, for one target."""
    return layout.data_prefix(*target.dataset.parts, target.lot, attempt).removesuffix("/")


def data_of(objects: Objects, draft: Draft, target: Target) -> dict[str, int]:
    """List the data objects of an attempt, with their sizes."""
    start = data_start(target, draft.id)
    return {info.key: info.size for info in objects.list(start) if _is_in(info.key, start)}


def manifest_keys(
    objects: Objects, draft: Draft, target: Target, states: Sequence[ManifestState]
) -> list[str]:
    """List the manifests that are in one of these states, from all holders of the attempt."""
    keys = []
    for state in states:
        name = layout.manifest_key(*target.dataset.parts, target.lot, state, target.generation, draft.id)
        start = name.removesuffix("/" + LEAF)
        keys += [info.key for info in objects.list(start) if _is_in(info.key, start)]
    return keys


def attempt_in(key: str) -> str:
    """Return the id of the attempt in the name of a manifest or data object."""
    return layout.parse_key(key).get("attempt", "").partition(".")[0]


def _all_data(target: Target, attempt: str) -> StoredObject:
    return StoredObject(uri=data_start(target, attempt), type=UriType.PREFIX)


def _is_in(key: str, start: str) -> bool:
    """Return whether a key is in this attempt's folder, and not in that of an attempt with a longer id."""
    return key.startswith(start) and key[len(start) : len(start) + 1] in ("/", ".")


def _key(hold: Hold, target: Target, body: Manifest, *, root: bool = False) -> str:
    return layout.manifest_key(
        *target.dataset.parts,
        target.lot,
        body.state,
        target.generation,
        f"{hold.draft.id}.{hold.epoch}",
        part=body.part,
        root=root,
    )


def _add_counts(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in counts:
        total.update(part)
    return dict(total)
