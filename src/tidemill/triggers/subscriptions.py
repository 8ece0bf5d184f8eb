"""Subscriptions: the progress of an arc or view group in its inputs, and when it runs next (HEAP-3, HEAP-7).

A row is scheduled or waiting. It has

- an epoch, which grows when a run ends or the time changes: each epoch has one time;
- a fence, which grows with every start: a run acts under (epoch, fence), and an old pair is refused with
  `LeaseLost`;
- the progress: one position per input.

`transition` and `write` are the only functions that write rows. They also update the index by time, and
record that the row's item must be pushed to the heap. The scheduler pushes the item later (HEAP-9), because
no operation touches both a row and the heap (HEAP-4).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidemill.errors import (
    BadName,
    IllegalTransition,
    InvariantBroken,
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
"""The maximum number of inputs of a subscription. Every transaction of a run reads one row per input."""


class Tally(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that all states share. Epoch, fence and progress only grow."""

    terms: Terms
    epoch: int = 1
    born: int = 1  # its first epoch; with the name it identifies the subscription (INV1)
    fence: int = 0
    progress: tuple[int, ...]  # one position per source, in their order
    last_start: int | None = None  # store time, µs
    failures: int = 0  # since the last run that succeeded
    deaths: int = 0  # failures whose node died, since the last run that succeeded
    why: str = ""  # the error of the last failure
    skipped: int = 0  # how often its barrier skipped
    ready: bool = True  # its first item is on the heap, or will be
    paused: bool = False
    dead: bool = False
    template: str = ""  # the template that created it

    @property
    def seen(self) -> dict[DatasetId, int]:
        """The progress by input."""
        return dict(zip(self.terms.sources, self.progress, strict=True))

    @property
    def parked(self) -> bool:
        """Whether the subscription is paused or dead. Then new data does not start a run."""
        return self.paused or self.dead


class Run(msgspec.Struct, frozen=True):
    """The lease of a run. It lasts as long as its node's entry. `look_at` is the time of the next check."""

    node: str
    node_epoch: int
    look_at: int


class Waiting(msgspec.Struct, frozen=True, tag="w"):
    """The subscription has processed everything that it can process now."""

    tally: Tally

    @property
    def state(self) -> SubscriptionState:
        return SubscriptionState.WAITING


class Scheduled(msgspec.Struct, frozen=True, tag="s"):
    """The subscription runs at `next_run`, or is running.

    `held` means that it waits until then for other inputs, or for its inputs to be quiet.
    """

    tally: Tally
    next_run: int
    held: bool = False
    run: Run | None = None

    @property
    def state(self) -> SubscriptionState:
        return SubscriptionState.SCHEDULED

    @property
    def look_at(self) -> int:
        """When to start a run or, during a run, when to check whether its node is alive."""
        return self.next_run if self.run is None else self.run.look_at


AnyRow = Waiting | Scheduled
_decoder: msgspec.msgpack.Decoder[AnyRow] = msgspec.msgpack.Decoder(Waiting | Scheduled)


def decode(raw: bytes) -> AnyRow:
    """Decode a stored row."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: TriggerKeys, name: str) -> AnyRow | None:
    """Read the row of a subscription, if there is one."""
    raw = tx.get(keys.subscription[name])
    return None if raw is None else decode(raw)


def must_read(tx: Tx, keys: TriggerKeys, name: str) -> AnyRow:
    """Read the row of a subscription; raise `SubscriptionUnknown` if there is none."""
    row = read(tx, keys, name)
    if row is None:
        raise SubscriptionUnknown(f"there is no trigger {name!r}")
    return row


def transition(
    tx: Tx, keys: TriggerKeys, name: str, old: AnyRow | None, edges: Sequence[SubscriptionEdge], new: AnyRow
) -> AnyRow:
    """Follow these edges, and write the row that they lead to."""
    state = SubscriptionState.ABSENT if old is None else old.state
    for edge in edges:
        state = step(state, edge)
    if new.state is not state:
        raise IllegalTransition(
            f"the transitions {edges} end in state {state.value}, but the new row is in state"
            f" {new.state.value}"
        )
    write(tx, keys, name, old, new)
    return new


def write(tx: Tx, keys: TriggerKeys, name: str, old: AnyRow | None, new: AnyRow) -> None:
    """Write a row and its entry in the index by time. For a new epoch, add a debt too (`add_debt`)."""
    if old is not None:
        _check_growth(name, old, new)
    if isinstance(old, Scheduled) and not (isinstance(new, Scheduled) and new.look_at == old.look_at):
        tx.clear(keys.due[old.look_at, name], quiet=True)
    tx.set(keys.subscription[name], msgspec.msgpack.encode(new), quiet=True)
    if isinstance(new, Scheduled):
        running = new.run is not None
        tx.set(keys.due[new.look_at, name], msgspec.msgpack.encode((new.tally.epoch, running)), quiet=True)
        if new.tally.ready and not (isinstance(old, Scheduled) and old.tally.epoch == new.tally.epoch):
            add_debt(tx, keys, name, new)
        if not running:
            tx.hint(keys.wakeup)


def add_debt(tx: Tx, keys: TriggerKeys, name: str, row: Scheduled) -> None:
    """Record that the row's item must be pushed to the heap (`heap_sync.clear_debts` removes the record)."""
    tx.set(keys.owed[name], msgspec.msgpack.encode((row.tally.epoch, row.next_run)), quiet=True)


def _check_growth(name: str, old: AnyRow, new: AnyRow) -> None:
    before, after = old.tally, new.tally
    if after.born != before.born:
        raise InvariantBroken(f"INV1: {name} changed its identity")
    if after.epoch < before.epoch:
        raise InvariantBroken(f"INV1: {name} went back to epoch {after.epoch}")
    if after.fence < before.fence:
        raise InvariantBroken(f"INV1: {name} went back to fence {after.fence}")
    if any(position < before.seen.get(source, 0) for source, position in after.seen.items()):
        raise InvariantBroken(f"HEAP-8: {name} went back to an earlier position")
    if not isinstance(old, Scheduled) or not isinstance(new, Scheduled):
        return
    if after.epoch == before.epoch and new.next_run != old.next_run:
        raise InvariantBroken(f"HEAP-9: {name} has two start times in epoch {after.epoch}")


class Creation(msgspec.Struct, frozen=True, kw_only=True):
    """How to create a subscription.

    - scheduled: create the subscription in the state scheduled, even if there is nothing to process (INV3);
      then its first start makes it wait. A heap requires this. If False, the heads decide whether the
      subscription is scheduled or waits.
    - ready: False until its first item is on the heap; no run starts before that.
    - template: the template that creates it.
    """

    scheduled: bool = False
    ready: bool = True
    template: str = ""


DEFAULT = Creation()
SCHEDULED = Creation(scheduled=True)


def subscribe(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    terms: Terms,
    progress: Mapping[DatasetId, int] | None = None,
    *,
    replace_inputs: bool = False,
    creation: Creation = DEFAULT,
) -> AnyRow:
    """Create a subscription, or update the existing one.

    This transaction reads the heads, so a publication at the same time is either seen here or wakes the
    subscription afterwards. Equal terms change nothing. Other inputs are refused with `SubscriptionChanged`.
    Other terms apply from the next run. If the gate changes, the subscription keeps its progress, and a
    current run can no longer finish.

    - progress: the position to begin after, by input; by default the beginning.
    - replace_inputs: accept other inputs. A known input keeps its progress, unless its position in `progress`
      is further.
    - creation: used if the subscription is new.
    """
    old = read(tx, keys, name)
    if old is not None:
        if old.tally.terms == terms:
            return old
        if old.tally.terms.tables != terms.tables and not replace_inputs:
            raise SubscriptionChanged(f"trigger {name!r} already exists with different inputs")
        if old.tally.terms.sources != terms.sources:
            return _change_inputs(tx, keys, lots, name, old, terms, progress or {})
        changed = msgspec.structs.replace(old, tally=msgspec.structs.replace(old.tally, terms=terms))
        write(tx, keys, name, old, changed)
        return changed
    tally = _new_tally(tx, keys, lots, name, terms, progress or {}, creation)
    if creation.scheduled:
        row = Scheduled(tally, earliest(tally, tx.now()))
        return transition(tx, keys, name, None, [SubscriptionEdge.ATTACH], row)
    new = next_row(tx, tally, decide(tx, lots, tally))
    edges = [SubscriptionEdge.SUBSCRIBE]
    if isinstance(new, Scheduled):
        edges.append(SubscriptionEdge.WAKE)
    return transition(tx, keys, name, None, edges, new)


def _change_inputs(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    old: AnyRow,
    terms: Terms,
    progress: Mapping[DatasetId, int],
) -> AnyRow:
    """Give a subscription other inputs.

    Its progress, last start and flags stay; a current run cannot finish.
    """
    before = old.tally
    for source in before.terms.sources:
        tx.clear(keys.subscriber[(*source.parts, name)], quiet=True)
    positions = {source: position for source, position in before.seen.items() if source in terms.tables}
    positions |= {source: max(position, positions.get(source, 0)) for source, position in progress.items()}
    begin = _add_subscriber(tx, keys, lots, name, terms, positions)
    tally = msgspec.structs.replace(
        before,
        terms=terms,
        epoch=before.epoch + 1,
        progress=tuple(begin.get(source, 0) for source in terms.sources),
    )
    row = Scheduled(tally, earliest(tally, tx.now()))
    return transition(tx, keys, name, old, [SubscriptionEdge.CHANGE], row)


def _new_tally(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    terms: Terms,
    begin: Mapping[DatasetId, int],
    creation: Creation,
) -> Tally:
    """Return the tally of a new subscription, with an epoch that this name never had before (INV1)."""
    try:
        layout.quote(name)  # it is part of an item's key
    except BadName as error:
        raise BadName(
            f"{name[:40]!r} cannot be the name of a trigger: {error.message}", hint=error.hint
        ) from None
    begin = _add_subscriber(tx, keys, lots, name, terms, begin)
    floor = tx.get(keys.floor[name])
    epoch = 1 if floor is None else msgspec.msgpack.decode(floor, type=int) + 1
    return Tally(
        terms=terms,
        epoch=epoch,
        born=epoch,
        progress=tuple(begin.get(source, 0) for source in terms.sources),
        ready=creation.ready,
        template=creation.template,
    )


def _add_subscriber(
    tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str, terms: Terms, begin: Mapping[DatasetId, int]
) -> Mapping[DatasetId, int]:
    """Register a subscription with its inputs; return the position to begin after, by input."""
    if not 0 < len(terms.sources) <= MOST_SOURCES or len(set(terms.sources)) < len(terms.sources):
        raise UsageError(
            f"trigger {name!r} has an invalid list of inputs:"
            f" {', '.join(map(str, terms.sources)) or 'nothing'}",
            hint=f"use 1 to {MOST_SOURCES} inputs, and do not repeat any",
        )
    for source in terms.sources:
        if tx.get(lots.head[source.parts]) is None:  # a source with a head exists, such as a group of views
            datasets.read(tx, lots, source)
        tx.set(keys.subscriber[(*source.parts, name)], b"", quiet=True)
    if terms.gate is not None:  # begin with the next opening of the gate
        begin = {terms.gate: events.head(tx, lots, terms.gate), **begin}
    if begin:
        heads = events.heads(tx, lots, terms.sources)
        if any(not 0 <= position <= heads.get(source, -1) for source, position in begin.items()):
            raise UsageError(
                f"the start position of trigger {name!r} does not exist",
                hint="use an existing position of one of its inputs",
            )
    return begin


def remove(tx: Tx, keys: TriggerKeys, name: str) -> bool:
    """Remove a subscription. Its last epoch is kept, so an old run cannot finish under a new subscription.

    Raises `TemplateChild` while the template that created it exists (INV6).
    """
    row = read(tx, keys, name)
    if row is None:
        return False
    template = row.tally.template
    if template and tx.get(keys.template[template]) is not None:
        raise TemplateChild(
            f"trigger {name!r} belongs to the template {template!r} and cannot be removed on its own"
            " (rule INV6)"
        )
    delete(tx, keys, name, row, SubscriptionEdge.REMOVE)
    return True


def delete(tx: Tx, keys: TriggerKeys, name: str, row: AnyRow, edge: SubscriptionEdge) -> None:
    """Delete a row with its index entries; its epoch is not used again (INV1)."""
    step(row.state, edge)
    if isinstance(row, Scheduled):
        tx.clear(keys.due[row.look_at, name], quiet=True)
    for source in row.tally.terms.sources:
        tx.clear(keys.subscriber[(*source.parts, name)], quiet=True)
    tx.clear(keys.subscription[name], quiet=True)
    tx.clear(keys.owed[name], quiet=True)
    tx.set(keys.floor[name], msgspec.msgpack.encode(row.tally.epoch), quiet=True)


def pause(tx: Tx, keys: TriggerKeys, name: str) -> AnyRow:
    """Start no more runs; a current run can finish.

    A paused or dead subscription is woken like any other, so no wake-up is lost. But its time is `NEVER`, so
    a query for due runs does not find its item (HEAP-15, LOT-38).
    """
    row = must_read(tx, keys, name)
    if row.tally.paused:
        return row
    return _set_flags(tx, keys, name, row, SubscriptionEdge.PAUSE, paused=True)


def resume(tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str, catch_up: CatchUp | None = None) -> AnyRow:
    """Start runs again.

    - catch_up: which lots to process if they were published during the pause; by default the terms decide.
      The other lots are marked as seen.
    """
    row = must_read(tx, keys, name)
    if not row.tally.paused:
        return row
    running = isinstance(row, Scheduled) and row.run is not None
    policy = catch_up or row.tally.terms.catch_up
    if running or policy is CatchUp.ALL:
        return _set_flags(tx, keys, name, row, SubscriptionEdge.RESUME, paused=False)
    tally = msgspec.structs.replace(row.tally, paused=False, epoch=row.tally.epoch + 1)
    heads = events.heads(tx, lots, tally.terms.sources)
    keep = 1 if policy is CatchUp.LATEST else 0
    progress = tuple(max(position, heads[source] - keep) for source, position in tally.seen.items())
    tally = msgspec.structs.replace(tally, progress=progress)
    new = next_row(tx, tally, decide(tx, lots, tally, heads))
    edges = [SubscriptionEdge.RESUME]
    if new.state is not row.state:
        edges.append(SubscriptionEdge.REST if isinstance(new, Waiting) else SubscriptionEdge.WAKE)
    return transition(tx, keys, name, row, edges, new)


def retry(tx: Tx, keys: TriggerKeys, name: str) -> AnyRow:
    """Restart a dead subscription, or end the backoff of a failed one; reset its failures."""
    row = must_read(tx, keys, name)
    if isinstance(row, Waiting) or row.run is not None or not (row.tally.failures or row.tally.dead):
        return row
    return _set_flags(tx, keys, name, row, SubscriptionEdge.RETRY, dead=False, failures=0, deaths=0)


def _set_flags(
    tx: Tx, keys: TriggerKeys, name: str, row: AnyRow, edge: SubscriptionEdge, **flags: Any
) -> AnyRow:
    """Change the flags of a row, and its time accordingly; a new time needs a new epoch (HEAP-9)."""
    tally: Tally = msgspec.structs.replace(row.tally, **flags)
    if isinstance(row, Waiting) or row.run is not None or not tally.ready:
        new: AnyRow = msgspec.structs.replace(row, tally=tally)
    else:
        tally = msgspec.structs.replace(tally, epoch=tally.epoch + 1)
        new = Scheduled(tally, earliest(tally, tx.now()))
    return transition(tx, keys, name, row, [edge], new)


def decide(
    tx: Tx,
    lots: LotKeys,
    tally: Tally,
    heads: Mapping[DatasetId, int] | None = None,
    *,
    starting: bool = False,
) -> Next:
    """Decide when a subscription runs next, from the heads that this transaction reads.

    - starting: the time of the subscription has come. So new steps of a view, whose publication time is
      unknown, count as having waited long enough.
    """
    conditions = tally.terms.conditions
    if heads is None:
        heads = events.heads(tx, lots, tally.terms.sources)
    closed: dict[DatasetId, int] = {}
    newest: dict[DatasetId, int] = {}
    if conditions.debounce_us or (conditions.barrier and conditions.grace_us is not None):
        for source, position in tally.seen.items():
            event = events.first_unseen(tx, lots, source, position)
            # A view as an input has no events: its waiting time begins when its step is first seen.
            unknown = 0 if starting else tx.now()
            closed[source] = newest[source] = unknown if event is None else event.at
            if conditions.debounce_us and event is not None and heads[source] > position + 1:
                last = events.first_unseen(tx, lots, source, heads[source] - 1)
                newest[source] = unknown if last is None else last.at
    return next_due(heads, tally.seen, closed, tx.now(), conditions, newest)


def next_row(tx: Tx, tally: Tally, following: Next) -> AnyRow:
    """Return the row that a decision leads to."""
    if isinstance(following, Nothing):
        return Waiting(tally)
    held = isinstance(following, At)
    return Scheduled(tally, earliest(tally, following.time if isinstance(following, At) else tx.now()), held)


def earliest(tally: Tally, time: int) -> int:
    """Return this time, or the last start plus the cadence if that is later (HEAP-1).

    Return `NEVER` if the subscription is paused or dead.
    """
    if tally.parked:
        return NEVER
    return time if tally.last_start is None else max(time, tally.last_start + tally.terms.cadence_us)
