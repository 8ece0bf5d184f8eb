"""Parts: how a lot is split, and when the result of a part can be reused (LOT-18, LOT-26).

A lot is split by the partition values of its objects. Objects with the same values stay in one part, and the
parts have about the same size. Splitting is a pure function of the input's objects, so every node splits a
lot in the same way. The name of a part contains a digest of what the part reads. If the layout of an input
changes, the names change too, so results from the old and the new layout are never mixed.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from tidemill.arcs.declarations import ArcSpec
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot, StoredObject
from tidemill.publish.parts import PartInput, PartTask


class LotPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a lot: the part's name in manifests, and its inputs."""

    name: str
    inputs: tuple[PartInput, ...]

    @property
    def size(self) -> int:
        """The size of the part's inputs, in bytes."""
        return sum(item.size for part_input in self.inputs for item in part_input.objects)


def split(inputs: Sequence[PartInput], most: int) -> tuple[LotPart, ...]:
    """Split a lot into at most `most` parts. A lot with several inputs has one part."""
    groups = _groups(inputs[0].objects) if len(inputs) == 1 else []
    if len(groups) < 2 or most < 2:
        return (_part(0, inputs),)
    return tuple(
        _part(ordinal, [PartInput(dataset=inputs[0].dataset, objects=tuple(objects))])
        for ordinal, objects in enumerate(_distribute(groups, most))
    )


def _groups(objects: Sequence[StoredObject]) -> list[list[StoredObject]]:
    """Group objects by partition values, largest group first; groups of equal size by value."""
    groups: dict[tuple[tuple[str, bool, str], ...], list[StoredObject]] = {}
    for item in objects:
        values = sorted((name, value is not None, value or "") for name, value in item.partition.items())
        groups.setdefault(tuple(values), []).append(item)
    return [objects for _, objects in sorted(groups.items(), key=lambda group: (-_size(group[1]), group[0]))]


def _distribute(groups: Sequence[list[StoredObject]], most: int) -> list[list[StoredObject]]:
    """Distribute groups over bins, largest first, each to the bin that is smallest so far."""
    bins: list[list[StoredObject]] = [[] for _ in range(min(most, len(groups)))]
    sizes = [(0, 0)] * len(bins)  # bytes, then groups: so that empty files are distributed too
    for group in groups:
        smallest = min(range(len(bins)), key=lambda n: (sizes[n], n))
        bins[smallest] += group
        sizes[smallest] = (sizes[smallest][0] + _size(group), sizes[smallest][1] + 1)
    return [sorted(bin_, key=lambda item: item.uri) for bin_ in bins]


def _part(ordinal: int, inputs: Sequence[PartInput]) -> LotPart:
    names = [(*source.dataset.parts, [item.uri for item in source.objects]) for source in inputs]
    return LotPart(name=f"{ordinal:03}-{_digest(names)[:12]}", inputs=tuple(inputs))


def tasks(
    spec: ArcSpec, lot: str, generation: int, inputs: Sequence[InputLot], parts: Sequence[LotPart]
) -> list[PartTask]:
    """Return the tasks for the parts of a lot. The attempt is filled in later."""
    options = {**spec.options, **({"changes": spec.changes} if spec.changes else {})}
    return [
        PartTask(
            kind="arc",
            pipeline=spec.pipeline,
            author=spec.id,
            code=spec.code,
            attempt="",
            lot=lot,
            generation=generation,
            part=part.name,
            key=part_key(spec, lot, generation, inputs, part.name),
            inputs=part.inputs,
            sinks=spec.sinks,
            retries=spec.retries,
            options=options,
        )
        for part in parts
    ]


def part_key(spec: ArcSpec, lot: str, generation: int, inputs: Sequence[InputLot], part: str) -> str:
    """Return a digest of arc, lot, generation, input generations, code and part.

    A stored result of a part is reused if it has the same digest.
    """
    read = [(item.dataset, item.version, item.lot, item.generation) for item in inputs]
    return _digest([spec.id, lot, generation, read, spec.code, part])


def part_input(dataset: DatasetId, objects: Sequence[StoredObject]) -> PartInput:
    """Return the objects of one table as the input of a part, in an order that is always the same."""
    return PartInput(dataset=dataset, objects=tuple(sorted(objects, key=lambda item: item.uri)))


def _size(group: Sequence[StoredObject]) -> int:
    return sum(item.size for item in group)


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:32]
