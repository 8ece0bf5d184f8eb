"""Planning a lot: which generations of its inputs, which objects they are, and the parts these make.

Nothing is decided here. `lots.begin` looks at the inputs once more, in the transaction that begins the lot; a
plan whose inputs are others by then is made again.
"""

from collections.abc import Sequence

import msgspec

from tidemill.arcs import lots, parts
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lots import Wanted
from tidemill.arcs.parts import Part
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

    - lacking: sources that have no such lot (yet); then there is nothing else.
    - done: all that is to be made of these is made.
    """

    lots: tuple[InputLot, ...] = ()
    rows: tuple[LotRow, ...] = ()
    lacking: tuple[DatasetId, ...] = ()
    done: bool = False


class Plan(msgspec.Struct, frozen=True):
    """A lot as it would be made now."""

    wanted: Wanted
    parts: tuple[Part, ...]


def inputs(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str, *, replay: bool = False) -> Inputs:
    """What a lot would be made from now."""
    found = {dataset: lot_rows.current(tx, keys.publish.lots, dataset, lot) for dataset in spec.reads}
    lacking = tuple(dataset for dataset, row in found.items() if row is None)
    if lacking:
        return Inputs(lacking=lacking)
    rows = tuple(row for row in found.values() if row is not None)
    named = tuple(
        InputLot(dataset=row.dataset.name, version=row.dataset.version, lot=lot, generation=row.generation)
        for row in rows
    )
    done = lots.due(tx, keys, spec.id, lot, named, replay=replay) is None
    return Inputs(named, rows, done=done)


def plan(
    manifests: Manifests,
    spec: ArcSpec,
    lot: str,
    inputs: tuple[InputLot, ...],
    rows: Sequence[LotRow],
    *,
    order: Ordered = NOBODY,
) -> Plan:
    """How a lot is split, by the objects that its inputs' manifests list."""
    read = [
        parts.part_input(
            row.dataset, manifests.listed(row.manifest) if row.state is LotState.COMPLETE else []
        )
        for row in rows
    ]
    empty = not any(one.objects for one in read)
    found = () if empty and spec.on_empty == "publish" else parts.split(read, spec.parts)
    names = tuple(part.name for part in found)
    return Plan(
        Wanted(
            spec=spec,
            lot=lot,
            inputs=inputs,
            parts=names,
            replay=order.replay,
            generation=order.generation,
            batch=order.batch,
            at_once=order.at_once,
        ),
        found,
    )
