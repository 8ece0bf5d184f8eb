"""Planning a lot: which generations of its inputs, which objects they are, and the parts these make.

Nothing is decided here. `lots.begin` looks at the inputs once more, in the transaction that begins the lot; a
plan whose inputs are others by then is made again.
"""

import msgspec

from tidemill.arcs import barriers, lots, parts, rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lots import Wanted
from tidemill.arcs.parts import Part
from tidemill.arcs.rows import Missing
from tidemill.lots import lots as lot_rows
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot
from tidemill.lots.states import LotState
from tidemill.publish.manifests import Manifests
from tidemill.store import Tx


class Ordered(msgspec.Struct, frozen=True):
    """For whom a lot is made: see `Wanted`."""

    replay: bool = False
    generation: int | None = None
    batch: str = ""
    at_once: int = 0


NOBODY = Ordered()


class Inputs(msgspec.Struct, frozen=True):
    """The inputs of a lot at this moment: their generations, and where each of them is.

    - lacking: sources that have no such lot (yet).
    - enough: it may be made of what is there: no source lacks it, or its grace is over.
    - done: all that is to be made of these is made.
    - skipped: it was given up, by its arc's own policy.
    """

    lots: tuple[InputLot, ...] = ()
    rows: tuple[LotRow, ...] = ()
    lacking: tuple[DatasetId, ...] = ()
    enough: bool = False
    done: bool = False
    skipped: bool = False


class Plan(msgspec.Struct, frozen=True):
    """A lot as it would be made now."""

    wanted: Wanted
    parts: tuple[Part, ...]


def inputs(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str, *, replay: bool = False) -> Inputs:
    """What a lot would be made from now."""
    found = {dataset: lot_rows.current(tx, keys.publish.lots, dataset, lot) for dataset in spec.reads}
    lacking = tuple(dataset for dataset, row in found.items() if row is None)
    there = tuple(row for row in found.values() if row is not None)
    last = rows.newest(tx, keys, spec.id, lot) if spec.has_barrier else None
    newest = None if last is None else last[1]
    named = tuple(
        InputLot(dataset=row.dataset.name, version=row.dataset.version, lot=lot, generation=row.generation)
        for row in there
    )
    enough = not lacking or (bool(there) and barriers.is_over(tx, keys, spec, lot, newest))
    done = enough and lots.due(tx, keys, spec.id, lot, named, replay=replay) is None
    skipped = isinstance(newest, Missing) and newest.skipped
    return Inputs(named, there, lacking, enough=enough, done=done, skipped=skipped)


def plan(
    manifests: Manifests,
    spec: ArcSpec,
    lot: str,
    inputs: Inputs,
    *,
    order: Ordered = NOBODY,
) -> Plan:
    """How a lot is split, by the objects that its inputs' manifests list. Of a source that has no such lot
    nothing is read: it is there, and empty.
    """
    found = {row.dataset: row for row in inputs.rows}
    read = []
    for dataset in spec.reads:
        row = found.get(dataset)
        filled = row is not None and row.state is LotState.COMPLETE
        read.append(parts.part_input(dataset, manifests.listed(row.manifest) if row and filled else []))
    empty = not any(one.objects for one in read)
    split = () if empty and spec.on_empty == "publish" else parts.split(read, spec.parts)
    return Plan(
        Wanted(
            spec=spec,
            lot=lot,
            inputs=inputs.lots,
            parts=tuple(part.name for part in split),
            replay=order.replay,
            generation=order.generation,
            batch=order.batch,
            at_once=order.at_once,
        ),
        split,
    )
