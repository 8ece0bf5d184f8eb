"""Planning a lot: which generations of its inputs, which objects they are, and the parts these make.

Nothing is decided here. `lots.begin` looks at the inputs once more, in the transaction that begins the lot; a
plan whose inputs are others by then is made again.
"""

from collections.abc import Sequence

import msgspec

from tidemill.arcs import parts
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lots import Wanted
from tidemill.arcs.parts import Part
from tidemill.lots import lots as lot_rows
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot
from tidemill.lots.states import LotState
from tidemill.publish import attempts
from tidemill.publish.manifests import Manifests
from tidemill.store import Tx


class Plan(msgspec.Struct, frozen=True):
    """A lot as it would be made now."""

    wanted: Wanted
    parts: tuple[Part, ...]


def inputs(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> tuple[tuple[InputLot, ...], list[LotRow]]:
    """The generations of a lot's inputs at this moment, and where each of them is."""
    found = attempts.resolved(tx, keys.publish, [(dataset, lot) for dataset in spec.reads])
    rows = [
        lot_rows.resolve(tx, keys.publish.lots, dataset, one.lot, one.generation)
        for dataset, one in zip(spec.reads, found, strict=True)
    ]
    return found, rows


def plan(
    manifests: Manifests,
    spec: ArcSpec,
    lot: str,
    inputs: tuple[InputLot, ...],
    rows: Sequence[LotRow],
    *,
    replay: bool = False,
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
    return Plan(Wanted(spec=spec, lot=lot, inputs=inputs, parts=names, replay=replay), found)
