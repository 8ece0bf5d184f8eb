"""How arcs stand with lots, for reports: lot by lot, those in trouble, those that nobody works on."""

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from tidemill.arcs import rows
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import AnyLot, CompleteLot, RunningLot
from tidemill.arcs.states import ArcState
from tidemill.cluster.nodes import Node
from tidemill.store import Row, Tx


class LotStatus(msgspec.Struct, frozen=True, kw_only=True):
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


def status(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> LotStatus:
    """How an arc stands with a lot."""
    last = tx.range(*keys.lot.under(arc, lot), limit=2, reverse=True)
    return _stands(arc, lot, [_generation(keys, row) for row in reversed(last)])


def _stands(arc: str, lot: str, generations: Sequence[tuple[int, AnyLot]]) -> LotStatus:
    """The last generations of a lot, in their order: two of them, if there are so many, or more."""
    if not generations:
        return LotStatus(arc=arc, lot=lot, generation=0, row=None)
    generation, row = generations[-1]
    if not isinstance(row, CompleteLot) and len(generations) > 1:
        # generations begin one after the other, so the one before is published
        generation, row = generations[-2]
        return LotStatus(arc=arc, lot=lot, generation=generation, row=row, replaying=True)
    return LotStatus(arc=arc, lot=lot, generation=generation, row=row)


def _generation(keys: ArcKeys, row: Row) -> tuple[int, AnyLot]:
    generation = keys.lot.unpack(row.key)[2]
    assert isinstance(generation, int)
    return generation, rows.decode(row.value)


def listed(tx: Tx, keys: ArcKeys, arc: str, after: str = "", limit: int = 100) -> list[LotStatus]:
    """A page of an arc's lots, by id: each as it stands.

    Rows are read in order, many at a time: most lots have one generation.
    """
    found: list[LotStatus] = []
    lo, hi = keys.lot.under(arc)
    if after:
        _, lo = keys.lot.under(arc, after)
    while len(found) < limit:
        most = limit - len(found) + 1
        page = tx.range(lo, hi, limit=most, snapshot=True)
        lots = {
            lot: [_generation(keys, row) for row in same]
            for lot, same in groupby(page, lambda row: str(keys.lot.unpack(row.key)[1]))
        }
        whole = len(page) < most
        for number, (lot, generations) in enumerate(lots.items(), 1):
            is_cut = not whole and number == len(lots)  # there may be more of it behind the page
            found.append(status(tx, keys, arc, lot) if is_cut else _stands(arc, lot, generations))
            _, lo = keys.lot.under(arc, lot)
        if whole:
            break
    return found[:limit]


def failed(tx: Tx, keys: ArcKeys, arc: str, limit: int = 100) -> list[LotStatus]:
    """Lots of an arc whose newest generation is partial or missing."""
    page = tx.range(*keys.trouble.under(arc), limit=limit, snapshot=True)
    return _standings_at(tx, keys, (keys.trouble.unpack(row.key) for row in page))


def stale(
    tx: Tx, keys: ArcKeys, after: bytes | None = None, limit: int = 100, *, node: Node | None = None
) -> tuple[list[LotStatus], bytes | None]:
    """A page of running lots, of all arcs, whose node is gone, or is `node`: it knows itself what it does.

    The second value is where the next page begins; None after the last.
    """
    lo, hi = keys.running.all()
    page = tx.range(lo if after is None else after + b"\x00", hi, limit=limit, snapshot=True)
    found = _standings_at(tx, keys, (keys.running.unpack(row.key) for row in page))
    left = [
        one
        for one in found
        if isinstance(one.row, RunningLot)
        and (not rows.is_held(tx, keys, one.row) or (node is not None and rows.is_of(one.row, node)))
    ]
    return left, page[-1].key if len(page) == limit else None


def _standings_at(tx: Tx, keys: ArcKeys, places: Iterable[tuple[object, ...]]) -> list[LotStatus]:
    """Generations as they are, by (arc, lot, generation)."""
    named = [(str(arc), str(lot), number) for arc, lot, number in places if isinstance(number, int)]
    raw = tx.get_many([keys.lot[place] for place in named])
    return [
        LotStatus(
            arc=arc,
            lot=lot,
            generation=generation,
            row=None if one is None else rows.decode(one),
            replaying=generation > 0,
        )
        for (arc, lot, generation), one in zip(named, raw, strict=True)
    ]
