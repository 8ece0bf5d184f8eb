"""Compactions: another layout of a lot's content, under an attempt of its own (LOT-37).

The attempt's row is there before its first object, as that of any other; it becomes no generation and has no
event. What it is fenced by is the lot's row as it was seen: whoever replaced, corrected or compacted the lot
meanwhile has won. The layout before it stays for readers that have begun with it, and is removed by the
cleaner after their grace.
"""

from collections.abc import Sequence

from tidemill.cluster.nodes import Node
from tidemill.lots import lots
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot
from tidemill.publish import attempts
from tidemill.publish.adoption import open_or_adopt
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.keys import PublishKeys
from tidemill.store import Tx


def begin(
    tx: Tx, keys: PublishKeys, node: Node, seen: LotRow, inputs: Sequence[InputLot], attempt: str
) -> Hold | None:
    """Open the attempt; None when somebody else compacts the lot, or it is not as seen any more.

    What a dead node left is abandoned: a layout is written anew, never adopted.

    - inputs: of the lot, for its manifest: they are those that its content came from.
    """
    if lots.current(tx, keys.lots, seen.dataset, seen.lot) != seen:
        return None
    draft = Draft(
        id=attempt,
        author=f"compaction {seen.dataset}",
        lot=seen.lot,
        generation=seen.generation,
        targets=(Target(seen.dataset, seen.lot, seen.generation),),
        inputs=tuple(inputs),
        code=attempt,
    )
    opened = open_or_adopt(tx, keys, node, draft, ["all"])
    return None if opened is None else opened.hold


def commit(tx: Tx, keys: PublishKeys, hold: Hold, seen: LotRow, layout: LotRow) -> LotRow:
    """Make what was written the lot's layout; `LotConflict` when the lot is not as seen any more."""
    attempts.check(tx, keys, hold)
    row = lots.revise(tx, keys.lots, seen, layout)
    attempts.end_published(tx, keys, hold, [seen.position], [layout.manifest])
    return row
