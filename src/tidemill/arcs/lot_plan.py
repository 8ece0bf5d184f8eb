"""Plan a lot: read the generations of its inputs and their objects, and choose the parts to make.

A plan may be outdated when it is used. So `lots.begin` reads the inputs again, in the transaction that begins
the lot. If the inputs have changed, the lot is planned again.
"""

import msgspec

from tidemill.arcs import barriers, base_input, lots, parts, rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lots import DEFAULT, LotPlan, MakeOptions
from tidemill.arcs.rows import MissingLot
from tidemill.lots import lots as lot_rows
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot
from tidemill.lots.states import LotState
from tidemill.publish.manifests import Manifests
from tidemill.store import Tx


class LotInputs(msgspec.Struct, frozen=True):
    """The inputs of a lot at this moment.

    - lots: the generation of the lot in each input that has it.
    - rows: the rows of these input lots, which name their manifests; a base lot can have several.
    - missing: inputs that do not have this lot yet.
    - enough: whether the lot may be made from `rows`: every input has it, or its grace period is over.
    - is_complete: whether the arc has already made the lot from these generations.
    - skipped: whether the arc's policy has given the lot up.
    """

    lots: tuple[InputLot, ...] = ()
    rows: tuple[LotRow, ...] = ()
    missing: tuple[DatasetId, ...] = ()
    enough: bool = False
    is_complete: bool = False
    skipped: bool = False


def inputs(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str, *, replay: bool = False) -> LotInputs:
    """Read the inputs of a lot."""
    if base_input.is_input(tx, keys, spec, lot):
        base = (base_input.input_lot(spec.reads[0]),)
        due = lots.due_generation(tx, keys, spec.id, lot, base, replay=replay)
        manifests = tuple(base_input.lot_rows(tx, keys, spec.reads[0]))
        return LotInputs(base, manifests, enough=True, is_complete=due is None)
    current = {dataset: lot_rows.current(tx, keys.publish.lots, dataset, lot) for dataset in spec.reads}
    missing = tuple(dataset for dataset, row in current.items() if row is None)
    present = tuple(row for row in current.values() if row is not None)
    last = rows.newest(tx, keys, spec.id, lot) if spec.has_barrier else None
    newest = None if last is None else last[1]
    generations = tuple(
        InputLot(dataset=row.dataset.name, version=row.dataset.version, lot=lot, generation=row.generation)
        for row in present
    )
    enough = not missing or (bool(present) and barriers.is_over(tx, keys, spec, lot, newest))
    is_complete = enough and lots.due_generation(tx, keys, spec.id, lot, generations, replay=replay) is None
    skipped = isinstance(newest, MissingLot) and newest.skipped
    return LotInputs(generations, present, missing, enough=enough, is_complete=is_complete, skipped=skipped)


def plan(
    manifests: Manifests,
    spec: ArcSpec,
    lot: str,
    inputs: LotInputs,
    *,
    options: MakeOptions = DEFAULT,
) -> LotPlan:
    """Split a lot into parts, by the objects in the manifests of its inputs.

    An input that does not have the lot is treated as empty.
    """
    filled = [row for row in inputs.rows if row.state is LotState.COMPLETE]
    read = []
    for dataset in spec.reads:
        listed = [manifests.lot_objects(row.manifest) for row in filled if row.dataset == dataset]
        read.append(parts.part_input(dataset, [item for objects in listed for item in objects]))
    empty = not any(part.objects for part in read)
    split = () if empty and spec.on_empty == "publish" else parts.split(read, spec.parts)
    return LotPlan(spec=spec, lot=lot, inputs=inputs.lots, parts=split, options=options)
