"""Subscriptions: what an arc or a view group has seen of its sources, and when it is to run (HEAP-3, HEAP-7).

A row is scheduled or waiting. It carries

- an epoch, which grows whenever a run ends in any way, or its time is changed: one epoch has one time;
- a fence, which grows with every start: a run acts under (epoch, fence), and whoever acts under old ones is
  refused with `LeaseLost`, whatever it believes;
- its progress, one position per source.

`enter` is the one place that writes rows, and keeps the index by time in step with them.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tidemill.errors import IllegalTransition, SubscriptionChanged, SubscriptionUnknown, UsageError
from tidemill.lots import datasets, events
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers.due import At, Next, Nothing, next_due
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.states import SubscriptionEdge, SubscriptionState, step

MOST_SOURCES = 100
"""Each source is a row that is read in every transaction of a run."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for.

    - cadence_us: consecutive starts are at least so far apart (HEAP-1).
    - barrier, grace_us: as in `next_due`.
    """

    sources: tuple[DatasetId, ...]
    cadence_us: int = 0
    barrier: bool = False
    grace_us: int | None = None


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What every state keeps. Epoch, fence and progress only grow."""

    terms: Terms
    epoch: int = 1
    fence: int = 0
    progress: tuple[int, ...]  # one position per source, in their order
    last_start: int | None = None  # store time, µs
    failures: int = 0  # since the last run that came to its end

    @property
    def seen(self) -> dict[DatasetId, int]:
        """The progress by source."""
        return dict(zip(self.terms.sources, self.progress, strict=True))


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
    if isinstance(old, Scheduled) and not (isinstance(new, Scheduled) and new.look_at == old.look_at):
        tx.clear(keys.due[old.look_at, name], quiet=True)
    tx.set(keys.subscription[name], msgspec.msgpack.encode(new), quiet=True)
    if isinstance(new, Scheduled):
        running = new.run is not None
        tx.set(keys.due[new.look_at, name], msgspec.msgpack.encode((new.tally.epoch, running)), quiet=True)
        if not running:
            tx.hint(keys.bell)


def subscribe(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    terms: Terms,
    progress: Mapping[DatasetId, int] | None = None,
) -> AnyRow:
    """Make a subscription, or find it: scheduled at once when its sources have something it has not seen.

    The heads are read in this transaction, so what is published meanwhile is either seen here or by the
    waking that follows it. An equal one is a no-op; other sources are refused (`SubscriptionChanged`), other
    terms hold from the next run on.

    - progress: where to begin; at the beginning if left out.
    """
    old = read(tx, keys, name)
    if old is not None:
        if old.tally.terms == terms:
            return old
        if old.tally.terms.sources != terms.sources:
            raise SubscriptionChanged(f"subscription {name!r} has other sources")
        changed = msgspec.structs.replace(old, tally=msgspec.structs.replace(old.tally, terms=terms))
        place(tx, keys, name, old, changed)
        return changed
    if not 0 < len(terms.sources) <= MOST_SOURCES or len(set(terms.sources)) < len(terms.sources):
        raise UsageError(
            f"subscription {name!r} has {len(terms.sources)} sources",
            hint=f"1 to {MOST_SOURCES}, each once",
        )
    for source in terms.sources:
        if tx.get(lots.head[source.parts]) is None:  # what has a head is there: a group of views, too
            datasets.read(tx, lots, source)
        tx.set(keys.subscriber[(*source.parts, name)], b"", quiet=True)
    floor = tx.get(keys.floor[name])
    epoch = 1 if floor is None else msgspec.msgpack.decode(floor, type=int) + 1
    begin = progress or {}
    heads = events.heads(tx, lots, terms.sources)
    if any(not 0 <= position <= heads.get(source, -1) for source, position in begin.items()):
        raise UsageError(
            f"subscription {name!r} begins where nothing is", hint="begin at a position of one of its sources"
        )
    tally = Tally(terms=terms, epoch=epoch, progress=tuple(begin.get(one, 0) for one in terms.sources))
    new = settled(tx, tally, decide(tx, lots, tally, heads))
    edges = [SubscriptionEdge.SUBSCRIBE]
    if isinstance(new, Scheduled):
        edges.append(SubscriptionEdge.WAKE)
    return enter(tx, keys, name, None, edges, new)


def remove(tx: Tx, keys: TriggerKeys, name: str) -> bool:
    """Remove a subscription; its epoch stays, so that a run of the old one cannot finish a new one's."""
    row = read(tx, keys, name)
    if row is None:
        return False
    step(row.state, SubscriptionEdge.REMOVE)
    if isinstance(row, Scheduled):
        tx.clear(keys.due[row.look_at, name], quiet=True)
    for source in row.tally.terms.sources:
        tx.clear(keys.subscriber[(*source.parts, name)], quiet=True)
    tx.clear(keys.subscription[name], quiet=True)
    tx.set(keys.floor[name], msgspec.msgpack.encode(row.tally.epoch), quiet=True)
    return True


def decide(tx: Tx, lots: LotKeys, tally: Tally, heads: Mapping[DatasetId, int] | None = None) -> Next:
    """What is next for a subscription, by the heads as this transaction sees them."""
    terms = tally.terms
    if heads is None:
        heads = events.heads(tx, lots, terms.sources)
    closed: dict[DatasetId, int] = {}
    if terms.barrier and terms.grace_us is not None:
        for source, position in tally.seen.items():
            event = events.first_unseen(tx, lots, source, position)
            # A source of steps has no events: what is unseen of it counts from this moment on.
            closed[source] = tx.now() if event is None else event.at
    return next_due(heads, tally.seen, closed, tx.now(), barrier=terms.barrier, grace_us=terms.grace_us)


def settled(tx: Tx, tally: Tally, following: Next) -> AnyRow:
    """The row for what is next."""
    if isinstance(following, Nothing):
        return Waiting(tally)
    held = isinstance(following, At)
    return Scheduled(tally, earliest(tally, following.time if isinstance(following, At) else tx.now()), held)


def earliest(tally: Tally, time: int) -> int:
    """This time, or a cadence after the last start if that is later (HEAP-1)."""
    return time if tally.last_start is None else max(time, tally.last_start + tally.terms.cadence_us)
