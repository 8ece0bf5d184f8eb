"""Retries on request: a row asks for one, and any runner works it off, outside the arc's subscription.

The subscription has passed the lot when it was left partial or missing, so that later lots do not wait for
it. A row is gone as soon as the lot is begun again: from then on the lease of the running lot says who has to
go on with it.
"""

import msgspec

from tidemill.arcs import lots
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lots import Missing, Partial
from tidemill.arcs.states import ArcState
from tidemill.errors import ArcLotConflict
from tidemill.store import Tx


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants a lot of an arc to be tried again."""

    arc: str
    lot: str
    generation: int
    at: int  # store time, µs


_at = msgspec.msgpack.Decoder(int)


def ask(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> Ask:
    """Ask for a retry; `ArcLotConflict` for a lot that is neither partial nor missing. May be repeated."""
    last = lots.newest(tx, keys, arc, lot)
    if last is None or not isinstance(last[1], Partial | Missing):
        state = ArcState.NONE if last is None else last[1].state
        raise ArcLotConflict(f"lot {lot} of {arc} is {state.value}: there is nothing to retry")
    generation = last[0]
    key = keys.retry[arc, lot, generation]
    raw = tx.get(key)
    if raw is not None:
        return Ask(arc=arc, lot=lot, generation=generation, at=_at.decode(raw))
    now = tx.now()
    tx.set(key, msgspec.msgpack.encode(now), quiet=True)
    tx.hint(keys.bell)
    return Ask(arc=arc, lot=lot, generation=generation, at=now)


def asked(tx: Tx, keys: ArcKeys, after: Ask | None = None, limit: int = 100) -> list[Ask]:
    """A page of what was asked for, by arc and lot."""
    lo, hi = keys.retry.all()
    if after is not None:
        lo = keys.retry[after.arc, after.lot, after.generation] + b"\x00"
    found = []
    for row in tx.range(lo, hi, limit=limit, snapshot=True):
        arc, lot, generation = keys.retry.unpack(row.key)
        assert isinstance(generation, int)
        found.append(Ask(arc=str(arc), lot=str(lot), generation=generation, at=_at.decode(row.value)))
    return found


def withdraw(tx: Tx, keys: ArcKeys, asked: Ask) -> None:
    """It is not wanted any more."""
    tx.clear(keys.retry[asked.arc, asked.lot, asked.generation], quiet=True)
