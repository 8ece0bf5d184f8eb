"""Lot requests: lots that users ask an arc to make, in addition to those of its subscription (LOT-31).

There is one queue for all kinds of requests, with one row per lot. Any runner can work on a request:

- retry: try a partial or missing lot again. The subscription moved on when the lot failed, so that later lots
  do not wait for it.
- backfill: make a lot that was never made, or that failed.
- replay: make a lot again, as its next generation. Readers see the previous generation until then.

A row names the requested generation. The node that begins this generation removes the row. From then on the
lease of the running lot decides which node continues it. `lots.begin` refuses a request whose row was
removed. So if two runners have read the same row, only one of them makes the lot.

A batch can limit how many of its lots run at the same time, and `max_concurrent` limits all lots of an arc.
Replays and backfills leave room for one lot of the subscription while the subscription has lots to make.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from tidemill.arcs import rows, running_lots
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import AnyLot, CompleteLot, MissingLot, PartialLot
from tidemill.arcs.running_lots import RunningLots
from tidemill.arcs.states import ArcState
from tidemill.errors import ArcLotConflict
from tidemill.store import Tx
from tidemill.triggers import subscriptions

PAGE = 100
MOST_COUNTED = 1000


class RequestKind(StrEnum):
    """The kind of a request."""

    RETRY = "retry"
    BACKFILL = "backfill"
    REPLAY = "replay"


class RequestOptions(msgspec.Struct, frozen=True, array_like=True):
    """The kind of a request, its batch, and how many lots of the batch may run at once (0 for no limit)."""

    kind: RequestKind = RequestKind.RETRY
    batch: str = ""
    parallel: int = 0


class LotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to make one generation of a lot of an arc."""

    arc: str
    lot: str
    generation: int
    at: int  # store time, µs
    options: RequestOptions = RequestOptions()


class _Row(msgspec.Struct, frozen=True, array_like=True):
    at: int
    options: RequestOptions


_row = msgspec.msgpack.Decoder(_Row)


def request_retry(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> LotRequest:
    """Request a retry; raise `ArcLotConflict` if the lot is neither partial nor missing. Can be repeated."""
    requested = request(tx, keys, arc, lot, RequestOptions())
    if requested is None:
        last = rows.newest(tx, keys, arc, lot)
        state = ArcState.NONE if last is None else last[1].state
        reason = "it has not started yet" if state is ArcState.NONE else f"it is {state.value}"
        raise ArcLotConflict(f"lot {lot} of {arc} cannot be retried: {reason}")
    return requested


def request(tx: Tx, keys: ArcKeys, arc: str, lot: str, options: RequestOptions) -> LotRequest | None:
    """Request a lot; return None if this kind of request does not apply to it. Can be repeated."""
    generation = requested_generation(rows.newest(tx, keys, arc, lot), options.kind)
    if generation is None:
        return None
    key = keys.request[arc, lot, generation]
    raw = tx.get(key)
    row = _Row(tx.now(), options) if raw is None else _row.decode(raw)
    if raw is None:
        tx.set(key, msgspec.msgpack.encode(row), quiet=True)
        tx.hint(keys.wakeup)
    return LotRequest(arc=arc, lot=lot, generation=generation, at=row.at, options=row.options)


def requested_generation(last: tuple[int, AnyLot] | None, kind: RequestKind) -> int | None:
    """Return the generation that a request of this kind is for; None if the request does not apply.

    `last` is the newest generation and its row.
    A running lot is being made from the current inputs, so it needs no request.
    """
    if last is None:
        return 0 if kind is RequestKind.BACKFILL else None
    generation, row = last
    if isinstance(row, PartialLot | MissingLot):
        return generation
    return generation + 1 if isinstance(row, CompleteLot) and kind is RequestKind.REPLAY else None


def pending(
    tx: Tx, keys: ArcKeys, after: LotRequest | None = None, limit: int = PAGE, *, arc: str | None = None
) -> list[LotRequest]:
    """Return a page of requests, ordered by arc and lot; with `arc`, only the requests of this arc."""
    lo, hi = keys.request.all() if arc is None else keys.request.under(arc)
    if after is not None:
        lo = keys.request[after.arc, after.lot, after.generation] + b"\x00"
    requests = []
    for row in tx.range(lo, hi, limit=limit, snapshot=True):
        arc_id, lot, generation = keys.request.unpack(row.key)
        assert isinstance(generation, int)
        stored = _row.decode(row.value)
        requests.append(
            LotRequest(
                arc=str(arc_id), lot=str(lot), generation=generation, at=stored.at, options=stored.options
            )
        )
    return requests


def count_unfinished(tx: Tx, keys: ArcKeys, arcs: Sequence[str]) -> dict[str, int]:
    """Count the requested lots of these arcs that are not made yet, up to `MOST_COUNTED` for each arc.

    This includes running lots of replays and backfills. Arcs without such lots are left out.
    """
    counts = {}
    for arc in arcs:
        waiting = tx.range(*keys.request.under(arc), limit=MOST_COUNTED, snapshot=True)
        running = tx.range(*keys.running.under(arc), limit=MOST_COUNTED, snapshot=True)
        number = len(waiting) + sum(bool(rows.decode_holder(row.value).batch) for row in running)
        if number:
            counts[arc] = min(number, MOST_COUNTED)
    return counts


def startable(tx: Tx, keys: ArcKeys, specs: Iterable[ArcSpec]) -> list[LotRequest]:
    """Return the requests that may begin now: for each arc that is not paused, as many as it may run.

    This is a hint: `lots.begin` decides.
    """
    if not tx.range(*keys.request.all(), limit=1, snapshot=True):
        return []
    requests: list[LotRequest] = []
    for spec in specs:
        page = pending(tx, keys, arc=spec.id, limit=PAGE)
        if page and not paused(tx, keys, spec.id):
            if len(page) == PAGE:
                page = list(dict.fromkeys([*_retries(tx, keys, spec.id), *page]))
            requests += fitting(page, spec, running_lots.running_lots(tx, keys, spec.id))
    return requests


def _retries(tx: Tx, keys: ArcKeys, arc: str) -> list[LotRequest]:
    """Return the requested retries of failed lots. They come first, so they do not wait for a large batch."""
    failed = [keys.trouble.unpack(row.key) for row in tx.range(*keys.trouble.under(arc), limit=PAGE)]
    retries = []
    for (_, lot, generation), raw in zip(
        failed, tx.get_many([keys.request[key] for key in failed]), strict=True
    ):
        assert isinstance(generation, int)
        row = None if raw is None else _row.decode(raw)
        if row is not None and not row.options.batch:
            retries.append(
                LotRequest(arc=arc, lot=str(lot), generation=generation, at=row.at, options=row.options)
            )
    return retries


def paused(tx: Tx, keys: ArcKeys, arc: str) -> bool:
    """Return whether this arc is paused. A paused arc begins no lots, and keeps its requests."""
    row = subscriptions.read(tx, keys.publish.triggers, arc)
    return row is not None and row.tally.paused


def parked(tx: Tx, keys: ArcKeys, arc: str) -> bool:
    """Return whether this arc does not run by itself: it is paused, dead, or no longer declared."""
    row = subscriptions.read(tx, keys.publish.triggers, arc)
    return row is None or row.tally.parked


def fitting(page: Sequence[LotRequest], spec: ArcSpec, running: RunningLots) -> list[LotRequest]:
    """Return the requests of a page that may begin now, in addition to the running lots."""
    fit = []
    for requested in page:
        if running.has_room(spec.max_concurrent, requested.options.batch, requested.options.parallel):
            fit.append(requested)
            running = running.with_one_more(requested.options.batch)
    return fit


def withdraw(tx: Tx, keys: ArcKeys, requested: LotRequest) -> None:
    """Remove a request."""
    tx.clear(keys.request[requested.arc, requested.lot, requested.generation], quiet=True)
