"""Corrections: a lot that was published is replaced, or taken back (LOT-30).

A correction is the lot's next generation, by the same one transaction as any publication: readers have the
one before until then, and whoever pinned it finds it afterwards as well. Its event makes every dependent
process that lot again, and nothing else. Of two that correct one lot at once the second is refused, and
nothing of it is seen.

A keyed dataset has no second generation of a lot: there a correction is another upsert (LOT-40).
"""

from tidemill.cluster.nodes import Node
from tidemill.errors import CorrectionRefused, LotUnknown
from tidemill.lots import datasets, lots, staging
from tidemill.lots.datasets import Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.states import LotState
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.keys import PublishKeys
from tidemill.store import Tx


def begin(
    tx: Tx, keys: PublishKeys, node: Node, dataset: DatasetId, lot: str, attempt: str, *, remove: bool = False
) -> Hold:
    """Open the attempt at a lot's next generation.

    - remove: the lot is to be taken back; it must be there.
    """
    declared = datasets.read(tx, keys.lots, dataset)
    declared.parse_lot(lot)  # BadLotId: a name that no lot of this dataset has
    if declared.kind is Kind.KEYED:
        raise CorrectionRefused(
            f"lot {lot} of {dataset}, which has a key, cannot be corrected",
            hint="correct it by another upsert",
        )
    current = lots.current(tx, keys.lots, dataset, lot)
    if current is None:
        raise LotUnknown(f"there is no lot {lot} of {dataset}", hint=_hint(tx, keys, dataset, lot))
    if remove and current.state is LotState.REMOVED:
        raise CorrectionRefused(f"lot {lot} of {dataset} is removed already")
    generation = current.generation + 1
    draft = Draft(
        id=attempt,
        author=f"correction {dataset}",
        lot=lot,
        generation=generation,
        targets=(Target(dataset, lot, generation),),
    )
    return attempts.begin(tx, keys, node, draft)


def _hint(tx: Tx, keys: PublishKeys, dataset: DatasetId, lot: str) -> str:
    turn = staging.read(tx, keys.lots, dataset)
    if turn is not None and turn.lot <= lot:
        return "its interval is not closed: what is appended now joins it"
    return "see `tidemill lots`; a correction is of a lot that is published"
