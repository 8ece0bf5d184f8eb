"""Adoption: begin an attempt, or go on with the one that was left open, in one step of a transaction.

At most one attempt at a thing is worked on at a time. What is found open is adopted if it is the very same
work, inputs, code, sinks and parts alike, so that its finished parts are reused (LOT-18, LOT-20); anything
else that nobody works on is abandoned, in the same transaction.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster.nodes import Node
from tidemill.publish import attempts
from tidemill.publish.attempts import PARTS_PAGE, Abandoned, Draft, Hold, Open
from tidemill.publish.keys import PublishKeys
from tidemill.store import Tx


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is ours."""

    hold: Hold
    adopted: bool = False
    abandoned: tuple[Abandoned, ...] = ()


def open_or_adopt(tx: Tx, keys: PublishKeys, node: Node, draft: Draft, parts: Sequence[str]) -> Opened | None:
    """Adopt what was left open at the draft's lot if it is the same work, else begin; None if somebody else
    may still work on it. The list of parts, a page at most, is stored with the attempt's row.
    """
    gone: list[Abandoned] = []
    # Ended ones are kept for a while, and ids grow with time: the open one is among the newest.
    found = attempts.attempts_at(tx, keys, draft.author, draft.lot, draft.generation, newest_first=True)
    for row in found:
        if not isinstance(row, Open):
            continue
        if _same(tx, keys, row, draft, parts):
            hold = attempts.adopt(tx, keys, node, row, draft.inputs, draft.code)
            if hold is None:
                return None
            if row.parts is None:  # its holder died before the list was whole
                attempts.list_parts(tx, keys, hold, 0, parts, last=True)
            return Opened(hold=hold, adopted=True, abandoned=tuple(gone))
        left = attempts.abandon_left(
            tx, keys, row.draft.id, "its inputs, code, sinks or parts are others now", node
        )
        if left is None:
            return None
        gone.append(left)
    hold = attempts.begin(tx, keys, node, draft)
    attempts.list_parts(tx, keys, hold, 0, parts, last=True)
    return Opened(hold=hold, abandoned=tuple(gone))


def _same(tx: Tx, keys: PublishKeys, row: Open, draft: Draft, parts: Sequence[str]) -> bool:
    known = row.draft
    if (known.inputs, known.code, known.targets) != (draft.inputs, draft.code, draft.targets):
        return False
    if row.parts is None:
        return True
    return row.parts == len(parts) <= PARTS_PAGE and attempts.parts(tx, keys, known.id) == list(parts)
