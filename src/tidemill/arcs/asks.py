"""Asks: lots that somebody wants to be made, outside of what an arc's subscription does by itself (LOT-31).

There is one queue for all kinds, one row per lot, worked off by any runner:

- retry: a lot that is partial or missing is tried again. The subscription has passed it when it failed, so
  that later lots do not wait for it.
- backfill: a lot that was never made, or that failed, is made.
- replay: a lot that is there is made once more, as its next generation; readers have the one before it until
  then.

A row names the generation it asks for, and is gone as soon as that generation is begun, by whomever: from
then on the lease of the running lot says who has to go on with it. Acting for a row that is gone is refused
(`lots.begin`), so of two runners that have read one row, one makes the lot.

Replays and backfills are throttled: those of one batch by what was asked for, all of an arc by its
`max_concurrent`, and one place of that is left to what arrives, as long as something has.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from tidemill.arcs import crowds, rows
from tidemill.arcs.crowds import Crowd
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import AnyLot, Complete, Missing, Partial
from tidemill.arcs.states import ArcState
from tidemill.errors import ArcLotConflict
from tidemill.store import Tx
from tidemill.triggers import subscriptions

PAGE = 100


class AskKind(StrEnum):
    """What is wanted."""

    RETRY = "retry"
    BACKFILL = "backfill"
    REPLAY = "replay"


class Order(msgspec.Struct, frozen=True, array_like=True):
    """What several lots are asked for by: `at_once` of a batch run at a time; 0 for as many as may."""

    kind: AskKind = AskKind.RETRY
    batch: str = ""
    at_once: int = 0


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants a generation of a lot of an arc to be made."""

    arc: str
    lot: str
    generation: int
    at: int  # store time, µs
    order: Order = Order()


class _Row(msgspec.Struct, frozen=True, array_like=True):
    at: int
    order: Order


_row = msgspec.msgpack.Decoder(_Row)


def ask(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> Ask:
    """Ask for a retry; `ArcLotConflict` for a lot that is neither partial nor missing. May be repeated."""
    found = enter(tx, keys, arc, lot, Order())
    if found is None:
        last = rows.newest(tx, keys, arc, lot)
        state = ArcState.NONE if last is None else last[1].state
        raise ArcLotConflict(f"lot {lot} of {arc} is {state.value}: there is nothing to retry")
    return found


def enter(tx: Tx, keys: ArcKeys, arc: str, lot: str, order: Order) -> Ask | None:
    """Ask for a lot; None when there is nothing of this kind to do for it. May be repeated."""
    generation = wanted(rows.newest(tx, keys, arc, lot), order.kind)
    if generation is None:
        return None
    key = keys.ask[arc, lot, generation]
    raw = tx.get(key)
    row = _Row(tx.now(), order) if raw is None else _row.decode(raw)
    if raw is None:
        tx.set(key, msgspec.msgpack.encode(row), quiet=True)
        tx.hint(keys.bell)
    return Ask(arc=arc, lot=lot, generation=generation, at=row.at, order=row.order)


def wanted(last: tuple[int, AnyLot] | None, kind: AskKind) -> int | None:
    """The generation that an ask of this kind is for, by the newest there is; None if there is none.

    A lot that runs is being made from what is current: nothing has to be asked for.
    """
    if last is None:
        return 0 if kind is AskKind.BACKFILL else None
    generation, row = last
    if isinstance(row, Partial | Missing):
        return generation
    return generation + 1 if isinstance(row, Complete) and kind is AskKind.REPLAY else None


def asked(
    tx: Tx, keys: ArcKeys, after: Ask | None = None, limit: int = PAGE, *, arc: str | None = None
) -> list[Ask]:
    """A page of what was asked for, by arc and lot; of one arc, if it is given."""
    lo, hi = keys.ask.all() if arc is None else keys.ask.under(arc)
    if after is not None:
        lo = keys.ask[after.arc, after.lot, after.generation] + b"\x00"
    found = []
    for row in tx.range(lo, hi, limit=limit, snapshot=True):
        of, lot, generation = keys.ask.unpack(row.key)
        assert isinstance(generation, int)
        kept = _row.decode(row.value)
        found.append(Ask(arc=str(of), lot=str(lot), generation=generation, at=kept.at, order=kept.order))
    return found


def workable(tx: Tx, keys: ArcKeys, specs: Iterable[ArcSpec]) -> list[Ask]:
    """What may be begun now, of these arcs: as many of each as there is room for. A hint: `lots.begin`
    decides. Nothing of an arc that is paused.
    """
    if not tx.range(*keys.ask.all(), limit=1, snapshot=True):
        return []
    found: list[Ask] = []
    for spec in specs:
        page = asked(tx, keys, arc=spec.id, limit=PAGE)
        if page and not paused(tx, keys, spec.id):
            if len(page) == PAGE:
                page = list(dict.fromkeys([*_retries(tx, keys, spec.id), *page]))
            found += chosen(page, spec, crowds.crowd(tx, keys, spec.id))
    return found


def _retries(tx: Tx, keys: ArcKeys, arc: str) -> list[Ask]:
    """Retries that were asked for, found by the lots that failed: they do not wait behind a large batch."""
    failed = [keys.trouble.unpack(row.key) for row in tx.range(*keys.trouble.under(arc), limit=PAGE)]
    found = []
    for (_, lot, generation), raw in zip(
        failed, tx.get_many([keys.ask[place] for place in failed]), strict=True
    ):
        assert isinstance(generation, int)
        row = None if raw is None else _row.decode(raw)
        if row is not None and not row.order.batch:
            found.append(Ask(arc=arc, lot=str(lot), generation=generation, at=row.at, order=row.order))
    return found


def paused(tx: Tx, keys: ArcKeys, arc: str) -> bool:
    """Is this arc disabled for now? Then nothing of it is begun, and nothing that was asked for is lost."""
    row = subscriptions.read(tx, keys.publish.triggers, arc)
    return row is not None and row.tally.paused


def parked(tx: Tx, keys: ArcKeys, arc: str) -> bool:
    """Is nothing of this arc begun by itself: paused, given up, or not declared any more?"""
    row = subscriptions.read(tx, keys.publish.triggers, arc)
    return row is None or row.tally.parked


def chosen(page: Sequence[Ask], spec: ArcSpec, crowd: Crowd) -> list[Ask]:
    """Those of a page for which there is room beside what runs, if each of them is begun."""
    found = []
    for one in page:
        if crowd.has_room(spec.max_concurrent, one.order.batch, one.order.at_once):
            found.append(one)
            crowd = crowd.joined(one.order.batch)
    return found


def withdraw(tx: Tx, keys: ArcKeys, asked: Ask) -> None:
    """It is not wanted any more."""
    tx.clear(keys.ask[asked.arc, asked.lot, asked.generation], quiet=True)


def left(tx: Tx, keys: ArcKeys, arc: str, batch: str, limit: int = 10_000) -> Mapping[str, int]:
    """How many lots of a batch still wait, among the first that are asked for, and how many run: for whoever
    watches it.
    """
    waiting = sum(one.order.batch == batch for one in asked(tx, keys, limit=limit, arc=arc))
    return {"waiting": waiting, "running": crowds.crowd(tx, keys, arc).batches.get(batch, 0)}
