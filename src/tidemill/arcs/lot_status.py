"""Read the states of arcs' lots, and find failed lots and lots that no node works on."""

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
    """The state of an arc's lot.

    This is the state of the newest published generation; if none is published, of the newest generation.
    `replaying` means that a newer generation is running or has failed. That is not a gap, because the lot
    exists (LOT-12).
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
    """Return the state of an arc's lot."""
    last = tx.range(*keys.lot.under(arc, lot), limit=2, reverse=True)
    return _status(arc, lot, [_generation(keys, row) for row in reversed(last)])


def _status(arc: str, lot: str, generations: Sequence[tuple[int, AnyLot]]) -> LotStatus:
    """Return the state of a lot from its last generations. Pass two or more, if it has that many."""
    if not generations:
        return LotStatus(arc=arc, lot=lot, generation=0, row=None)
    generation, row = generations[-1]
    if not isinstance(row, CompleteLot) and len(generations) > 1:
        # A generation begins after the one before it was published.
        generation, row = generations[-2]
        return LotStatus(arc=arc, lot=lot, generation=generation, row=row, replaying=True)
    return LotStatus(arc=arc, lot=lot, generation=generation, row=row)


def _generation(keys: ArcKeys, row: Row) -> tuple[int, AnyLot]:
    generation = keys.lot.unpack(row.key)[2]
    assert isinstance(generation, int)
    return generation, rows.decode(row.value)


def listed(tx: Tx, keys: ArcKeys, arc: str, after: str = "", limit: int = 100) -> list[LotStatus]:
    """Return a page of the states of an arc's lots, ordered by lot id.

    Reads many rows at once, because most lots have only one generation.
    """
    statuses: list[LotStatus] = []
    lo, hi = keys.lot.under(arc)
    if after:
        _, lo = keys.lot.under(arc, after)
    while len(statuses) < limit:
        most = limit - len(statuses) + 1
        page = tx.range(lo, hi, limit=most, snapshot=True)
        lots = {
            lot: [_generation(keys, row) for row in same]
            for lot, same in groupby(page, lambda row: str(keys.lot.unpack(row.key)[1]))
        }
        is_last_page = len(page) < most
        for number, (lot, generations) in enumerate(lots.items(), 1):
            is_cut = not is_last_page and number == len(lots)  # the next page may have more of this lot
            statuses.append(status(tx, keys, arc, lot) if is_cut else _status(arc, lot, generations))
            _, lo = keys.lot.under(arc, lot)
        if is_last_page:
            break
    return statuses[:limit]


def failed(tx: Tx, keys: ArcKeys, arc: str, limit: int = 100) -> list[LotStatus]:
    """Return the lots of an arc whose newest generation is partial or missing."""
    page = tx.range(*keys.trouble.under(arc), limit=limit, snapshot=True)
    return _statuses_at(tx, keys, (keys.trouble.unpack(row.key) for row in page))


def stale(
    tx: Tx, keys: ArcKeys, after: bytes | None = None, limit: int = 100, *, node: Node | None = None
) -> tuple[list[LotStatus], bytes | None]:
    """Return a page of the running lots of all arcs: those whose node is gone, and those of `node`.

    Lots of `node` are included because the caller knows which of them it works on. The second value is the
    `after` of the next page; None after the last page.
    """
    lo, hi = keys.running.all()
    page = tx.range(lo if after is None else after + b"\x00", hi, limit=limit, snapshot=True)
    running = _statuses_at(tx, keys, (keys.running.unpack(row.key) for row in page))
    left = [
        status
        for status in running
        if isinstance(status.row, RunningLot)
        and (
            not rows.is_held(tx, keys, status.row) or (node is not None and rows.belongs_to(status.row, node))
        )
    ]
    return left, page[-1].key if len(page) == limit else None


def _statuses_at(tx: Tx, keys: ArcKeys, generations: Iterable[tuple[object, ...]]) -> list[LotStatus]:
    """Return the states of single generations, by (arc, lot, generation)."""
    keyed = [(str(arc), str(lot), number) for arc, lot, number in generations if isinstance(number, int)]
    values = tx.get_many([keys.lot[key] for key in keyed])
    return [
        LotStatus(
            arc=arc,
            lot=lot,
            generation=generation,
            row=None if raw is None else rows.decode(raw),
            replaying=generation > 0,
        )
        for (arc, lot, generation), raw in zip(keyed, values, strict=True)
    ]
