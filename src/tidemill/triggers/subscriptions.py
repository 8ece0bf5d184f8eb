"""Subscriptions: what an arc or a view group has seen of its sources, and when it is to run (HEAP-3, HEAP-7).

A row is scheduled or waiting. It carries

- an epoch, which grows whenever a run ends in any way, or its time is changed: one epoch has one time;
- a fence, which grows with every start: a run acts under (epoch, fence), and whoever acts under old ones is
  refused with `LeaseLost`, whatever it believes;
- its progress, one position per source.

`enter` is the one place that writes rows. It keeps the index by time in step with them, and leaves a row of
what is owed to the heap, which the sweep pushes (HEAP-9): no operation touches both (HEAP-4).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidemill.errors import (
    BadName,
    IllegalTransition,
    SubscriptionChanged,
    SubscriptionUnknown,
    TemplateChild,
    UsageError,
)
from tidemill.lots import datasets, events, layout
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers.due import NEVER, At, Next, Nothing, next_due
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.states import SubscriptionEdge, SubscriptionState, step
from tidemill.triggers.terms import AfterGrace, CatchUp, Terms

__all__ = ["AfterGrace", "AnyRow", "CatchUp", "Run", "Scheduled", "Tally", "Terms", "Waiting"]

MOST_SOURCES = 100
"""Each source is a row that is read in every transaction of a run."""


class Tally(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every state keeps. Epoch, fence and progress only grow."""

    terms: Terms
    epoch: int = 1
    born: int = 1  # its first epoch: with the name, its id (INV1)
    fence: int = 0
    progress: tuple[int, ...]  # one position per source, in their order
    last_start: int | None = None  # store time, µs
    failures: int = 0  # since the last run that came to its end
    why: str = ""  # what the last failure said
    skipped: int = 0  # how often what waited at a barrier was passed over
    ready: bool = True  # its first item is on the heap, or will be
    paused: bool = False
    dead: bool = False
    template: str = ""  # which it descends from

    @property
    def seen(self) -> dict[DatasetId, int]:
        """The progress by source."""
        return dict(zip(self.terms.sources, self.progress, strict=True))

    @property
    def parked(self) -> bool:
        """Whether nobody is to run it, whatever is published."""
        return self.paused or self.dead


class Run(msgspec.Struct, frozen=True):
    """The lease of a run: it lives as long as its node's entry does. Looked at again at `look_at`."""

    node: str
    node_epoch: int
    look_at: int


class Waiting(msgspec.Struct, frozen=True, tag="w"):
    """It has seen everything, or all it can use."""

    tally: Tally

    @property
    def state(self) -> SubscriptionState:
        return SubscriptionState.WAITING


class Scheduled(msgspec.Struct, frozen=True, tag="s"):
    """It is to run at `next_run`, or runs already; `held`: it waits until then for its other sources."""

    tally: Tally
    next_run: int
    held: bool = False
    run: Run | None = None

    @property
    def state(self) -> SubscriptionState:
        return SubscriptionState.SCHEDULED

    @property
    def look_at(self) -> int:
        """When somebody has to look at it: to run it, or to see whether its run is still alive."""
        return self.next_run if self.run is None else self.run.look_at


AnyRow = Waiting | Scheduled
_decoder: msgspec.msgpack.Decoder[AnyRow] = msgspec.msgpack.Decoder(Waiting | Scheduled)


def decode(raw: bytes) -> AnyRow:
    """A subscription's row from its stored bytes."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: TriggerKeys, name: str) -> AnyRow | None:
    """A subscription's row."""
    raw = tx.get(keys.subscription[name])
    return None if raw is None else decode(raw)


def must_read(tx: Tx, keys: TriggerKeys, name: str) -> AnyRow:
    """A subscription's row; `SubscriptionUnknown` when there is none."""
    row = read(tx, keys, name)
    if row is None:
        raise SubscriptionUnknown(f"there is no subscription {name!r}")
    return row


def enter(
    tx: Tx, keys: TriggerKeys, name: str, old: AnyRow | None, edges: Sequence[SubscriptionEdge], new: AnyRow
) -> AnyRow:
    """Follow edges: the row, and its place in the index by time."""
    state = SubscriptionState.ABSENT if old is None else old.state
    for edge in edges:
        state = step(state, edge)
    if new.state is not state:
        raise IllegalTransition(f"{edges} lead to {state.value}, not to {new.state.value}")
    place(tx, keys, name, old, new)
    return new


def place(tx: Tx, keys: TriggerKeys, name: str, old: AnyRow | None, new: AnyRow) -> None:
    """Write a row and its place in the index."""
    if old is not None:
        _check_growth(name, old, new)
    if isinstance(old, Scheduled) and not (isinstance(new, Scheduled) and new.look_at == old.look_at):
        tx.clear(keys.due[old.look_at, name], quiet=True)
    tx.set(keys.subscription[name], msgspec.msgpack.encode(new), quiet=True)
    if isinstance(new, Scheduled):
        running = new.run is not None
        tx.set(keys.due[new.look_at, name], msgspec.msgpack.encode((new.tally.epoch, running)), quiet=True)
        if new.tally.ready and not (isinstance(old, Scheduled) and old.tally.epoch == new.tally.epoch):
            owe(tx, keys, name, new)
        if not running:
            tx.hint(keys.wakeup)


def owe(tx: Tx, keys: TriggerKeys, name: str, row: "Scheduled") -> None:
    """Its item has to be pushed; whoever has pushed it clears this (`sweep.pushed`)."""
    tx.set(keys.owed[name], msgspec.msgpack.encode((row.tally.epoch, row.next_run)), quiet=True)


def _check_growth(name: str, old: AnyRow, new: AnyRow) -> None:
    before, after = old.tally, new.tally
    assert after.born == before.born, f"INV1: {name} got another id"
    assert after.epoch >= before.epoch, f"INV1: {name} went back to epoch {after.epoch}"
    assert after.fence >= before.fence, f"INV1: {name} went back to fence {after.fence}"
    assert all(at >= before.seen.get(one, 0) for one, at in after.seen.items()), f"{name} went back"
    if isinstance(old, Scheduled) and isinstance(new, Scheduled) and before.epoch == after.epoch:
        assert new.next_run == old.next_run, f"HEAP-9: {name} has two times under epoch {after.epoch}"


def subscribe(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    terms: Terms,
    progress: Mapping[DatasetId, int] | None = None,
    *,
    attach: bool = False,
    instead: bool = False,
    ready: bool = True,
    template: str = "",
) -> AnyRow:
    """Make a subscription, or find it: scheduled at once when its sources have something it has not seen.

    The heads are read in this transaction, so what is published meanwhile is either seen here or by the
    waking that follows it. An equal one is a no-op; other sources are refused (`SubscriptionChanged`), other
    terms hold from the next run on. With another gate it goes on where it was, and a run that is under way
    finishes nothing any more.

    - progress: where to begin; at the beginning if left out.
    - attach: begin as scheduled in any case (INV3): what has nothing to do is sent to rest by its first
      start. Where there is a heap, all do (`attach.attach`, templates); a subscription that is looked for in
      the index alone may begin by waiting, because the heads are read here.
    - instead: with other sources it goes on as well, where it was or where `progress` says.
    - ready: False while its first item is not on the heap; it is not started before.
    - template: which it descends from.
    """
    old = read(tx, keys, name)
    if old is not None:
        if old.tally.terms == terms:
            return old
        if old.tally.terms.tables != terms.tables and not instead:
            raise SubscriptionChanged(f"subscription {name!r} has other sources")
        if old.tally.terms.sources != terms.sources:
            return _changed(tx, keys, lots, name, old, terms, progress or {})
        changed = msgspec.structs.replace(old, tally=msgspec.structs.replace(old.tally, terms=terms))
        place(tx, keys, name, old, changed)
        return changed
    tally = _born(tx, keys, lots, name, terms, progress or {}, ready=ready, template=template)
    if attach:
        row = Scheduled(tally, earliest(tally, tx.now()))
        return enter(tx, keys, name, None, [SubscriptionEdge.ATTACH], row)
    new = settled(tx, tally, decide(tx, lots, tally))
    edges = [SubscriptionEdge.SUBSCRIBE]
    if isinstance(new, Scheduled):
        edges.append(SubscriptionEdge.WAKE)
    return enter(tx, keys, name, None, edges, new)


def _changed(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    old: AnyRow,
    terms: Terms,
    progress: Mapping[DatasetId, int],
) -> AnyRow:
    """The same subscription with other sources: what it has seen, its last start and its flags stay, and a
    run that is under way is over.
    """
    before = old.tally
    for source in before.terms.sources:
        tx.clear(keys.subscriber[(*source.parts, name)], quiet=True)
    seen = {one: position for one, position in before.seen.items() if one in terms.tables}
    seen |= {one: max(position, seen.get(one, 0)) for one, position in progress.items()}
    begin = _begun(tx, keys, lots, name, terms, seen)
    tally = msgspec.structs.replace(
        before,
        terms=terms,
        epoch=before.epoch + 1,
        progress=tuple(begin.get(one, 0) for one in terms.sources),
    )
    row = Scheduled(tally, earliest(tally, tx.now()))
    return enter(tx, keys, name, old, [SubscriptionEdge.CHANGE], row)


def _born(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    terms: Terms,
    begin: Mapping[DatasetId, int],
    *,
    ready: bool,
    template: str,
) -> Tally:
    """A new tally, under an epoch that no subscription of this name ever had (INV1)."""
    try:
        layout.quote(name)  # an item's key carries it
    except BadName as error:
        raise BadName(
            f"a subscription cannot be called {name[:40]!r}: {error.message}", hint=error.hint
        ) from None
    begin = _begun(tx, keys, lots, name, terms, begin)
    floor = tx.get(keys.floor[name])
    epoch = 1 if floor is None else msgspec.msgpack.decode(floor, type=int) + 1
    return Tally(
        terms=terms,
        epoch=epoch,
        born=epoch,
        progress=tuple(begin.get(one, 0) for one in terms.sources),
        ready=ready,
        template=template,
    )


def _begun(
    tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str, terms: Terms, begin: Mapping[DatasetId, int]
) -> Mapping[DatasetId, int]:
    """Subscribe to its sources; where it begins in each of them."""
    if not 0 < len(terms.sources) <= MOST_SOURCES or len(set(terms.sources)) < len(terms.sources):
        raise UsageError(
            f"subscription {name!r} has {len(terms.sources)} sources",
            hint=f"1 to {MOST_SOURCES}, each once",
        )
    for source in terms.sources:
        if tx.get(lots.head[source.parts]) is None:  # what has a head is there: a group of views, too
            datasets.read(tx, lots, source)
        tx.set(keys.subscriber[(*source.parts, name)], b"", quiet=True)
    if terms.gate is not None:  # what it let through before is over
        begin = {terms.gate: events.head(tx, lots, terms.gate), **begin}
    if begin:
        heads = events.heads(tx, lots, terms.sources)
        if any(not 0 <= position <= heads.get(source, -1) for source, position in begin.items()):
            raise UsageError(
                f"subscription {name!r} begins where nothing is",
                hint="begin at a position of one of its sources",
            )
    return begin


def remove(tx: Tx, keys: TriggerKeys, name: str) -> bool:
    """Remove a subscription; its epoch stays, so that a run of the old one cannot finish a new one's.

    `TemplateChild` while the template it descends from is there (INV6).
    """
    row = read(tx, keys, name)
    if row is None:
        return False
    template = row.tally.template
    if template and tx.get(keys.template[template]) is not None:
        raise TemplateChild(f"subscription {name!r} descends from the template {template!r} (INV6)")
    take_away(tx, keys, name, row, SubscriptionEdge.REMOVE)
    return True


def take_away(tx: Tx, keys: TriggerKeys, name: str, row: AnyRow, edge: SubscriptionEdge) -> None:
    """Clear a row and all that stands beside it; its epoch is not used again (INV1)."""
    step(row.state, edge)
    if isinstance(row, Scheduled):
        tx.clear(keys.due[row.look_at, name], quiet=True)
    for source in row.tally.terms.sources:
        tx.clear(keys.subscriber[(*source.parts, name)], quiet=True)
    tx.clear(keys.subscription[name], quiet=True)
    tx.clear(keys.owed[name], quiet=True)
    tx.set(keys.floor[name], msgspec.msgpack.encode(row.tally.epoch), quiet=True)


def pause(tx: Tx, keys: TriggerKeys, name: str) -> AnyRow:
    """Stop starting runs; a run that is under way comes to its end.

    A paused or dead subscription is woken like any other, so no wake-up is lost. Only its time is never, and
    its item lies there on the heap: nothing that looks for due runs finds it (HEAP-15, LOT-38).
    """
    row = must_read(tx, keys, name)
    if row.tally.paused:
        return row
    return _flagged(tx, keys, name, row, SubscriptionEdge.PAUSE, paused=True)


def resume(tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str, catch_up: CatchUp | None = None) -> AnyRow:
    """Start runs again.

    - catch_up: which lots published during the pause to process; by default as its terms say. The others
      count as seen.
    """
    row = must_read(tx, keys, name)
    if not row.tally.paused:
        return row
    running = isinstance(row, Scheduled) and row.run is not None
    policy = catch_up or row.tally.terms.catch_up
    if running or policy is CatchUp.ALL:
        return _flagged(tx, keys, name, row, SubscriptionEdge.RESUME, paused=False)
    tally = msgspec.structs.replace(row.tally, paused=False, epoch=row.tally.epoch + 1)
    heads = events.heads(tx, lots, tally.terms.sources)
    keep = 1 if policy is CatchUp.LATEST else 0
    progress = tuple(max(position, heads[one] - keep) for one, position in tally.seen.items())
    tally = msgspec.structs.replace(tally, progress=progress)
    new = settled(tx, tally, decide(tx, lots, tally, heads))
    edges = [SubscriptionEdge.RESUME]
    if new.state is not row.state:
        edges.append(SubscriptionEdge.REST if isinstance(new, Waiting) else SubscriptionEdge.WAKE)
    return enter(tx, keys, name, row, edges, new)


def retry(tx: Tx, keys: TriggerKeys, name: str) -> AnyRow:
    """Restart a dead subscription with no failures; one that backs off is due at once."""
    row = must_read(tx, keys, name)
    if isinstance(row, Waiting) or row.run is not None or not (row.tally.failures or row.tally.dead):
        return row
    return _flagged(tx, keys, name, row, SubscriptionEdge.RETRY, dead=False, failures=0)


def _flagged(
    tx: Tx, keys: TriggerKeys, name: str, row: AnyRow, edge: SubscriptionEdge, **flags: Any
) -> AnyRow:
    """Change a row's flags, and its time accordingly: a new time is a new epoch (HEAP-9)."""
    tally: Tally = msgspec.structs.replace(row.tally, **flags)
    if isinstance(row, Waiting) or row.run is not None or not tally.ready:
        new: AnyRow = msgspec.structs.replace(row, tally=tally)
    else:
        tally = msgspec.structs.replace(tally, epoch=tally.epoch + 1)
        new = Scheduled(tally, earliest(tally, tx.now()))
    return enter(tx, keys, name, row, [edge], new)


def decide(
    tx: Tx,
    lots: LotKeys,
    tally: Tally,
    heads: Mapping[DatasetId, int] | None = None,
    *,
    starting: bool = False,
) -> Next:
    """What is next for a subscription, by the heads as this transaction sees them.

    - starting: its time has come, so what has no time of its own has waited for long enough.
    """
    terms = tally.terms
    if heads is None:
        heads = events.heads(tx, lots, terms.sources)
    grace_us = None if terms.after_grace is AfterGrace.WAIT else terms.grace_us
    closed: dict[DatasetId, int] = {}
    newest: dict[DatasetId, int] = {}
    if terms.debounce_us or (terms.barrier and grace_us is not None):
        for source, position in tally.seen.items():
            event = events.first_unseen(tx, lots, source, position)
            # A source of steps has no events: what is unseen of it counts from the moment it is seen.
            unknown = 0 if starting else tx.now()
            closed[source] = newest[source] = unknown if event is None else event.at
            if terms.debounce_us and event is not None and heads[source] > position + 1:
                last = events.first_unseen(tx, lots, source, heads[source] - 1)
                newest[source] = unknown if last is None else last.at
    return next_due(
        heads,
        tally.seen,
        closed,
        tx.now(),
        gate=terms.gate,
        barrier=terms.barrier,
        grace_us=grace_us,
        newest=newest,
        debounce_us=terms.debounce_us,
        max_wait_us=terms.longest_wait_us,
    )


def settled(tx: Tx, tally: Tally, following: Next) -> AnyRow:
    """The row for what is next."""
    if isinstance(following, Nothing):
        return Waiting(tally)
    held = isinstance(following, At)
    return Scheduled(tally, earliest(tally, following.time if isinstance(following, At) else tx.now()), held)


def earliest(tally: Tally, time: int) -> int:
    """This time, or a cadence after the last start if that is later (HEAP-1); never, for a parked one."""
    if tally.parked:
        return NEVER
    return time if tally.last_start is None else max(time, tally.last_start + tally.terms.cadence_us)
