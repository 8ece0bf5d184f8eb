"""The manifests of an attempt: what it means to write, what its parts wrote, what the lot is (LOT-8, LOT-16).

All of an attempt's manifests carry the attempt *and the epoch of whoever holds it* in their names, so that no
two writers ever write one name: a zombie's late PUT lands beside its successor's and changes nothing.

    …/state=partial/gen=G/attempt={id}.{epoch}/manifest.json          the intent, before any data
    …/state=complete/gen=G/attempt={id}.{epoch}/part=P/manifest.json  a part that is made (or state=empty)
    …/state=partial/gen=G/attempt={id}.{epoch}/part=P/manifest.json   a part that failed
    …/state=complete/gen=G/attempt={id}.{epoch}/manifest-root.json    the lot, if it has parts
    …/state=complete/gen=G/attempt={id}.{epoch}/manifest.json         the lot, if it is one part

Lists of objects are those that the tasks returned, never a listing (LOT-17). After an adoption the new holder
takes over the parts for which every sink has a manifest of one and the same earlier holder, because only
those come from one run of the part, and only after all of them were verified (LOT-20).
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

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
WORDS = 2000
"""Of an error that goes into a manifest."""

Fingerprints: TypeAlias = Mapping[DatasetId, str]
"""Of the schemas, by dataset; one that is not in it has none."""


class SinkPart(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest that is written: what one part made for one sink."""

    dataset: DatasetId
    key: str
    manifest: Manifest


class PartMade(msgspec.Struct, frozen=True, kw_only=True):
    """A part that is made, with its manifests: one for each sink, in the order of the draft's targets."""

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

    def intend(self, hold: Hold) -> None:
        """Say for each target where data may appear, before any does (LOT-16)."""
        for target in hold.draft.targets:
            prefix = StoredObject(uri=data_start(target, hold.draft.id), type=UriType.PREFIX)
            body = self._manifest(hold, target, ManifestState.PARTIAL, objects=[prefix], comment="intent")
            self._put("intent", _key(hold, target, body), body)

    def part_made(
        self,
        hold: Hold,
        part: str,
        written: Sequence[SinkWritten],
        *,
        alone: bool,
        fingerprints: Fingerprints,
    ) -> PartMade:
        """Write the manifests of a part, one for each sink; `alone`: it is the whole lot.

        The objects must lie in this attempt's folder: the cleaner keeps those of no other for us.
        """
        left = {sink.dataset: sink for sink in written}
        sinks = []
        for target in hold.draft.targets:
            found = left.pop(target.dataset, None)
            objects = () if found is None else found.objects
            start = data_start(target, hold.draft.id)
            strange = [one.uri for one in objects if not _is_of(one.uri, start)]
            if strange:
                raise UsageError(
                    f"a part of attempt {hold.draft.id} says that it wrote {strange[0]}",
                    hint="a part writes into the folder of its own attempt",
                )
            body = self._manifest(
                hold,
                target,
                ManifestState.COMPLETE if objects else ManifestState.EMPTY,
                part="" if alone else part,
                objects=list(objects),
                checks={} if found is None else found.checks,
                fingerprint=fingerprints.get(target.dataset, ""),
                schema="" if found is None else found.schema,
            )
            key = _key(hold, target, body)
            self._put("part-manifest", key, body)
            sinks.append(SinkPart(dataset=target.dataset, key=key, manifest=body))
        if left:
            raise UsageError(
                f"a part of attempt {hold.draft.id} wrote to {', '.join(map(str, left))}",
                hint="a part writes to the sinks of its attempt",
            )
        return PartMade(part=part, sinks=tuple(sinks))

    def write_lot(
        self,
        hold: Hold,
        write: Callable[[Mapping[DatasetId, str]], Sequence[SinkWritten]],
        fingerprints: Fingerprints,
    ) -> list[LotRow]:
        """Write a lot that this process makes as a whole; return the rows to publish.

        Appends, fetched batches, pushed requests and compactions have no parts. One process writes the
        intent, the data and the manifest.

        - write: writes the data. It gets the attempt's folder for each sink, and returns what it wrote.
        - fingerprints: of the sinks' schemas.
        """
        self.intend(hold)
        folders = {
            target.dataset: layout.data_prefix(*target.dataset.parts, target.lot, hold.draft.id)
            for target in hold.draft.targets
        }
        part = self.part_made(hold, "", write(folders), alone=True, fingerprints=fingerprints)
        return self.finish(hold, [part], fingerprints)

    def part_failed(self, hold: Hold, failed: PartFailed) -> None:
        """Write for each sink that a part is not made, and why."""
        for target in hold.draft.targets:
            prefix = StoredObject(uri=data_start(target, hold.draft.id), type=UriType.PREFIX)
            body = self._manifest(
                hold,
                target,
                ManifestState.PARTIAL,
                part=failed.task.part,
                objects=[prefix],
                comment=f"{failed.kind}: {failed.message}"[:WORDS],
            )
            self._put("part-failed", _key(hold, target, body), body)

    def finish(self, hold: Hold, made: Sequence[PartMade], fingerprints: Fingerprints) -> list[LotRow]:
        """Write what the lot is of each sink; the rows to publish. An optional sink without rows is left out.

        A lot of one part is that part's manifest; one without parts is empty.
        """
        rows = []
        for place, target in enumerate(hold.draft.targets):
            sinks = [part.sinks[place] for part in made]
            empty = all(sink.manifest.state is ManifestState.EMPTY for sink in sinks)
            if empty and target.optional:
                continue
            state = ManifestState.EMPTY if empty else ManifestState.COMPLETE
            if len(sinks) == 1 and not sinks[0].manifest.part:
                key = sinks[0].key
            else:
                body = self._manifest(
                    hold,
                    target,
                    state,
                    parts=[sink.key for sink in sinks],
                    checks=_summed([sink.manifest.checks for sink in sinks]),
                    fingerprint=fingerprints.get(target.dataset, ""),
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

    def gathered(self, hold: Hold, parts: Sequence[str], rows: int, size: int, fingerprint: str) -> LotRow:
        """Write what the lot is if its parts were written by others, as appends are; the row to publish."""
        (target,) = hold.draft.targets
        state = ManifestState.COMPLETE if parts else ManifestState.EMPTY
        body = self._manifest(hold, target, state, parts=list(parts), fingerprint=fingerprint)
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

    def taken_back(self, hold: Hold, comment: str) -> LotRow:
        """Write that the lot is taken back: it lists nothing; the row to publish (LOT-15)."""
        (target,) = hold.draft.targets
        body = self._manifest(hold, target, ManifestState.REMOVED, comment=comment[:WORDS])
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

    def removed(self, draft: Draft, target: Target, why: str) -> None:
        """Say that what an attempt wrote is deleted: takes the place of its other manifests (LOT-15)."""
        prefix = StoredObject(uri=data_start(target, draft.id), type=UriType.PREFIX)
        body = self._manifest(
            draft, target, ManifestState.REMOVED, objects=[prefix], comment=why[:WORDS] or "abandoned"
        )
        key = layout.manifest_key(
            *target.dataset.parts, target.lot, ManifestState.REMOVED, target.generation, draft.id
        )
        self._put("removed", key, body)

    def _manifest(
        self,
        work: Hold | Draft,
        target: Target,
        state: ManifestState,
        *,
        part: str = "",
        comment: str = "",
        objects: list[StoredObject] | None = None,
        parts: list[str] | None = None,
        checks: dict[str, int] | None = None,
        fingerprint: str = "",
        schema: str = "",
    ) -> Manifest:
        draft = work.draft if isinstance(work, Hold) else work
        return Manifest(
            state=state,
            dataset=target.dataset.name,
            version=target.dataset.version,
            lot=target.lot,
            generation=target.generation,
            attempt=draft.id,
            part=part,
            comment=comment,
            inputs=list(draft.inputs),
            objects=objects or [],
            parts=parts or [],
            schema_fingerprint=fingerprint,
            schema=schema,
            checks=checks or {},
            created_at=datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(),
        )

    def _put(self, step: str, key: str, body: Manifest) -> None:
        crash.point(f"publish.{step}.before")
        self.objects.put(key, manifest.encode(body))
        crash.point(f"publish.{step}.after")

    # --- reading

    def load(self, key: str) -> Manifest:
        """One manifest."""
        return manifest.decode(self.objects.get(key)[0], key)

    def leaves(self, key: str) -> list[Manifest]:
        """The manifests that list a lot's objects: the parts' of a root, else the one itself."""
        found = self.load(key)
        return [self.load(part) for part in found.parts] if found.parts else [found]

    def listed(self, key: str) -> list[StoredObject]:
        """Everything a lot consists of."""
        return [item for leaf in self.leaves(key) for item in leaf.objects]

    # --- after an adoption

    def found(self, hold: Hold, names: Sequence[str]) -> dict[str, PartMade]:
        """The parts that earlier holders of this attempt made, verified; `AttemptDamaged` if one does not.

        Every manifest must decode and every object it lists be there with its size.
        """
        alone = len(names) == 1
        by_epoch: dict[tuple[int, str], dict[DatasetId, str]] = {}
        for target in hold.draft.targets:
            for key in manifest_keys(self.objects, hold.draft, target, _MADE):
                parsed = layout.parse_key(key)
                part = names[0] if alone and parsed["file"] == LEAF else parsed.get("part", "")
                if part not in names or parsed["file"] != LEAF or (not alone and "part" not in parsed):
                    continue
                epoch = int(parsed["attempt"].rpartition(".")[2])
                by_epoch.setdefault((epoch, part), {})[target.dataset] = key
        there: dict[str, int] = {}
        for target in hold.draft.targets if by_epoch else ():
            there |= data_of(self.objects, hold.draft, target)
        made: dict[str, PartMade] = {}
        for (_, part), keys in sorted(by_epoch.items()):
            if len(keys) < len(hold.draft.targets):
                continue  # its holder died between two sinks
            sinks = tuple(
                self._verified(target, keys[target.dataset], there) for target in hold.draft.targets
            )
            made[part] = PartMade(part=part, sinks=sinks)
        return made

    def _verified(self, target: Target, key: str, there: Mapping[str, int]) -> SinkPart:
        body = self.load(key)
        for item in body.objects:
            if there.get(item.uri) != item.size:
                raise AttemptDamaged(f"{item.uri}, which {key} lists, is not there, or not as it was written")
        return SinkPart(dataset=target.dataset, key=key, manifest=body)


_MADE = (ManifestState.COMPLETE, ManifestState.EMPTY)


def data_start(target: Target, attempt: str) -> str:
    """What the name of every data object of an attempt begins with, for one target."""
    return layout.data_prefix(*target.dataset.parts, target.lot, attempt).removesuffix("/")


def data_of(objects: Objects, draft: Draft, target: Target) -> dict[str, int]:
    """The data objects of an attempt that are there, with their sizes."""
    start = data_start(target, draft.id)
    return {info.key: info.size for info in objects.list(start) if _is_of(info.key, start)}


def manifest_keys(
    objects: Objects, draft: Draft, target: Target, states: Sequence[ManifestState]
) -> list[str]:
    """The manifests of an attempt that are there, in these states, whoever held it."""
    found = []
    for state in states:
        name = layout.manifest_key(*target.dataset.parts, target.lot, state, target.generation, draft.id)
        start = name.removesuffix("/" + LEAF)
        found += [info.key for info in objects.list(start) if _is_of(info.key, start)]
    return found


def attempt_in(key: str) -> str:
    """The attempt that a manifest's or a data object's name carries, whoever held it."""
    return layout.parse_key(key).get("attempt", "").partition(".")[0]


def _is_of(key: str, start: str) -> bool:
    """An attempt's folder, or one of a holder or part of it; not that of an id that begins like it."""
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


def _summed(checks: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in checks:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total
