"""Parts: how a lot is split, and what makes two parts the same work (LOT-18, LOT-26).

A lot whose objects carry partition values is split along them: objects of one combination of values stay in
one part, and combinations are dealt out so that parts are of about equal size. Everything here is a pure
function of the input's objects, so every node splits a lot alike. A part's name carries the digest of what it
reads: when the layout of an input was revised meanwhile, names differ, and nothing made from the old layout
is mixed with the new.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from tidemill.arcs.declarations import ArcSpec
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot, StoredObject
from tidemill.publish.parts import PartInput, PartTask


class LotPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a lot: its name in manifests, and what it reads."""

    name: str
    inputs: tuple[PartInput, ...]

    @property
    def size(self) -> int:
        """Bytes it reads."""
        return sum(item.size for one in self.inputs for item in one.objects)


def split(inputs: Sequence[PartInput], most: int) -> tuple[LotPart, ...]:
    """The parts of a lot, `most` at most. Several inputs belong together, and are one part."""
    groups = _groups(inputs[0].objects) if len(inputs) == 1 else []
    if len(groups) < 2 or most < 2:
        return (_part(0, inputs),)
    return tuple(
        _part(ordinal, [PartInput(dataset=inputs[0].dataset, objects=tuple(bin_))])
        for ordinal, bin_ in enumerate(_dealt(groups, most))
    )


def _groups(objects: Sequence[StoredObject]) -> list[list[StoredObject]]:
    """Objects by their partition values, largest group first, equal ones by their values."""
    found: dict[tuple[tuple[str, bool, str], ...], list[StoredObject]] = {}
    for item in objects:
        values = sorted((name, value is not None, value or "") for name, value in item.partition.items())
        found.setdefault(tuple(values), []).append(item)
    return [group for _, group in sorted(found.items(), key=lambda one: (-_size(one[1]), one[0]))]


def _dealt(groups: Sequence[list[StoredObject]], most: int) -> list[list[StoredObject]]:
    """Groups dealt out, largest first, each to the bin that is smallest so far."""
    bins: list[list[StoredObject]] = [[] for _ in range(min(most, len(groups)))]
    sizes = [(0, 0)] * len(bins)  # bytes, then groups: so that empty files are spread as well
    for group in groups:
        place = min(range(len(bins)), key=lambda n: (sizes[n], n))
        bins[place] += group
        sizes[place] = (sizes[place][0] + _size(group), sizes[place][1] + 1)
    return [sorted(bin_, key=lambda item: item.uri) for bin_ in bins]


def _part(ordinal: int, inputs: Sequence[PartInput]) -> LotPart:
    named = [(*one.dataset.parts, [item.uri for item in one.objects]) for one in inputs]
    return LotPart(name=f"{ordinal:03}-{_digest(named)[:12]}", inputs=tuple(inputs))


def tasks(
    spec: ArcSpec, lot: str, generation: int, inputs: Sequence[InputLot], parts: Sequence[LotPart]
) -> list[PartTask]:
    """What is to be run for the parts of a lot. The attempt is filled in when there is one."""
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
    """What must be equal for a part to be reused: arc, lot, generation, input generations, code and part."""
    read = [(one.dataset, one.version, one.lot, one.generation) for one in inputs]
    return _digest([spec.id, lot, generation, read, spec.code, part])


def part_input(dataset: DatasetId, objects: Sequence[StoredObject]) -> PartInput:
    """What is read of one table, in one order whoever lists it."""
    return PartInput(dataset=dataset, objects=tuple(sorted(objects, key=lambda item: item.uri)))


def _size(group: Sequence[StoredObject]) -> int:
    return sum(item.size for item in group)


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:32]
