"""How arcs stand with lots, for reports: lot by lot, those in trouble, those that nobody works on."""

import msgspec

from tidemill.arcs import rows
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import AnyLot, Complete, Running
from tidemill.arcs.states import ArcState
from tidemill.cluster.nodes import Node
from tidemill.store import Tx


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How an arc stands with a lot: its newest published generation, or else the newest there is.

    `replaying`: a newer generation is under way or failed; that is no gap, the lot is there (LOT-12).
    """

    arc: str
    lot: str
    generation: int
    row: AnyLot | None
    replaying: bool = False

    @property
    def state(self) -> ArcState:
        return ArcState.NONE if self.row is None else self.row.state


def standing(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> Standing:
    """How an arc stands with a lot."""
    last = rows.newest(tx, keys, arc, lot)
    if last is None:
        return Standing(arc=arc, lot=lot, generation=0, row=None)
    generation, row = last
    if not isinstance(row, Complete) and generation > 0:
        # generations begin one after the other, so the one before is published
        before = rows.read(tx, keys, arc, lot, generation - 1)
        return Standing(arc=arc, lot=lot, generation=generation - 1, row=before, replaying=True)
    return Standing(arc=arc, lot=lot, generation=generation, row=row)


def listed(tx: Tx, keys: ArcKeys, arc: str, after: str = "", limit: int = 100) -> list[Standing]:
    """A page of an arc's lots, by id: each as it stands."""
    found: list[Standing] = []
    lo, hi = keys.lot.under(arc)
    if after:
        _, lo = keys.lot.under(arc, after)
    while len(found) < limit:
        page = tx.range(lo, hi, limit=1, snapshot=True)
        if not page:
            break
        lot = str(keys.lot.unpack(page[0].key)[1])
        found.append(standing(tx, keys, arc, lot))
        _, lo = keys.lot.under(arc, lot)
    return found


def troubled(tx: Tx, keys: ArcKeys, arc: str, limit: int = 100) -> list[Standing]:
    """Lots of an arc whose newest generation is partial or missing."""
    page = tx.range(*keys.trouble.under(arc), limit=limit, snapshot=True)
    return [_standing_at(tx, keys, keys.trouble.unpack(row.key)) for row in page]


def stale(
    tx: Tx, keys: ArcKeys, after: bytes | None = None, limit: int = 100, *, node: Node | None = None
) -> tuple[list[Standing], bytes | None]:
    """A page of running lots, of all arcs, whose node is gone, or is `node`: it knows itself what it does.

    The second value is where the next page begins; None after the last.
    """
    lo, hi = keys.running.all()
    page = tx.range(lo if after is None else after + b"\x00", hi, limit=limit, snapshot=True)
    found = [_standing_at(tx, keys, keys.running.unpack(row.key)) for row in page]
    left = [
        one
        for one in found
        if isinstance(one.row, Running)
        and (not rows.is_held(tx, keys, one.row) or (node is not None and rows.is_of(one.row, node)))
    ]
    return left, page[-1].key if len(page) == limit else None


def _standing_at(tx: Tx, keys: ArcKeys, key: tuple[object, ...]) -> Standing:
    arc, lot, generation = str(key[0]), str(key[1]), key[2]
    assert isinstance(generation, int)
    row = rows.read(tx, keys, arc, lot, generation)
    return Standing(arc=arc, lot=lot, generation=generation, row=row, replaying=generation > 0)
