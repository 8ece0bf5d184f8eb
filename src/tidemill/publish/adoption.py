"""Adoption: open an attempt at a lot, or take over an attempt that a dead node left open.

Only one node at a time works on a lot, in one attempt. A node takes over an open attempt if the attempt has
the same inputs, code, sinks and parts as the new work. The node then reuses the parts that are finished
(LOT-18, LOT-20). The same transaction abandons every other open attempt that no node works on.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster.nodes import Node
from tidemill.publish import attempts
from tidemill.publish.attempts import PARTS_PAGE, Abandoned, Draft, Hold, Open
from tidemill.publish.keys import PublishKeys
from tidemill.store import Tx


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that this node holds, newly opened or adopted."""

    hold: Hold
    adopted: bool = False
    abandoned: tuple[Abandoned, ...] = ()


def open_or_adopt(tx: Tx, keys: PublishKeys, node: Node, draft: Draft, parts: Sequence[str]) -> Opened | None:
    """Adopt an open attempt at the draft's lot if it does the same work; otherwise open a new one.

    Return None if another node may still work on the lot. The list of parts, which must fit on one page, is
    stored with the attempt.
    """
    abandoned: list[Abandoned] = []
    # Ended attempts are kept for a while, and ids grow with time: an open one is among the newest.
    rows = attempts.attempts_at(tx, keys, draft.author, draft.lot, draft.generation, newest_first=True)
    for row in rows:
        if not isinstance(row, Open):
            continue
        if _is_same_work(tx, keys, row, draft, parts):
            hold = attempts.adopt(tx, keys, node, row, draft.inputs, draft.code)
            if hold is None:
                return None
            if row.parts is None:  # its holder died before it had stored the whole list
                attempts.list_parts(tx, keys, hold, 0, parts, last=True)
            return Opened(hold=hold, adopted=True, abandoned=tuple(abandoned))
        ended = attempts.abandon_left(
            tx, keys, row.draft.id, "its inputs, code, sinks or parts have changed", node
        )
        if ended is None:
            return None
        abandoned.append(ended)
    hold = attempts.begin(tx, keys, node, draft)
    attempts.list_parts(tx, keys, hold, 0, parts, last=True)
    return Opened(hold=hold, abandoned=tuple(abandoned))


def _is_same_work(tx: Tx, keys: PublishKeys, row: Open, draft: Draft, parts: Sequence[str]) -> bool:
    old = row.draft
    if (old.inputs, old.code, old.targets) != (draft.inputs, draft.code, draft.targets):
        return False
    if row.parts is None:
        return True
    return row.parts == len(parts) <= PARTS_PAGE and attempts.parts(tx, keys, old.id) == list(parts)
