"""How arcs stand with lots: one row per (arc, lot, generation), moved by functions of `tx` (LOT-9 to LOT-14).

Who works on a lot is fenced twice. A running row names its node and the node's epoch: nobody else begins the
lot before that epoch is over (LOT-9). And it names its attempt: every later step shows the attempt's `Hold`,
which an adoption makes void, so that a zombie moves nothing whatever it believes.

Which generation is due follows from the inputs (LOT-12): that of a lot that is not complete yet; for one that
is complete, the next one if a generation of an input is new, or if a replay was asked for; else none.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.states import ArcEdge, ArcState, step
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import ArcLotConflict, AttemptUnknown, LeaseLost
from tidemill.lots import lots as published
from tidemill.lots.manifest import InputLot
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.opening import Opened, open_or_adopt
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.subscriptions import Scheduled

WORDS = 1000
MOST_NAMED = 100
MOST_RUNNING = 1000
SOON_US = 5_000_000
"""A run that is due within this has a place kept for it; one that waits for its cadence has not."""


class Running(msgspec.Struct, frozen=True, kw_only=True, tag="running"):
    """A node works on it, as long as the node's epoch lasts."""

    attempt: str
    node: str
    node_epoch: int
    since: int  # store time, µs
    tries: int = 1
    batch: str = ""  # of the replay or backfill that it belongs to

    @property
    def state(self) -> ArcState:
        return ArcState.RUNNING


class Complete(msgspec.Struct, frozen=True, kw_only=True, tag="complete"):
    """It is published, from these generations of its inputs."""

    attempt: str
    inputs: tuple[InputLot, ...]
    at: int
    tries: int

    @property
    def state(self) -> ArcState:
        return ArcState.COMPLETE


class Partial(msgspec.Struct, frozen=True, kw_only=True, tag="partial"):
    """Parts of it failed; its attempt is kept for a retry."""

    attempt: str
    failed: tuple[str, ...]
    error: str
    at: int
    tries: int

    @property
    def state(self) -> ArcState:
        return ArcState.PARTIAL


class Missing(msgspec.Struct, frozen=True, kw_only=True, tag="missing", omit_defaults=True):
    """There is nothing of it; `skipped`: by its arc's own policy, so that only an order makes it."""

    error: str
    at: int
    tries: int
    skipped: bool = False

    @property
    def state(self) -> ArcState:
        return ArcState.MISSING


AnyLot = Running | Complete | Partial | Missing
_decoder: msgspec.msgpack.Decoder[AnyLot] = msgspec.msgpack.Decoder(Running | Complete | Partial | Missing)


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


class Refused(StrEnum):
    """Why a lot is not begun; none of these is an error."""

    RUNNING = "running"  # somebody works on it
    COMPLETE = "complete"  # there is nothing new to make
    FULL = "full"  # the arc works on as many lots as it may
    CHANGED = "changed"  # its inputs are not those it was planned with


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """What living nodes work on of one arc: lots of its subscription and retries, and lots of batches.

    `awaited`: the subscription has something to run for, now or soon.
    """

    live: int = 0
    batches: dict[str, int] = {}
    awaited: bool = False

    def has_room(self, most: int, batch: str = "", at_once: int = 0) -> bool:
        """May one more lot be begun? A batch leaves one place to what arrives, if anything has."""
        bulk = sum(self.batches.values())
        if not batch:
            return self.live + bulk < most
        if at_once and self.batches.get(batch, 0) >= at_once:
            return False
        return bulk + max(self.live, int(self.awaited)) < most

    def joined(self, batch: str) -> "Crowd":
        """With one more lot."""
        if not batch:
            return msgspec.structs.replace(self, live=self.live + 1)
        return msgspec.structs.replace(self, batches=self.batches | {batch: self.batches.get(batch, 0) + 1})


class _Runs(msgspec.Struct, frozen=True, array_like=True):
    """A row of the index of what runs."""

    node: str
    node_epoch: int
    batch: str = ""


_runs = msgspec.msgpack.Decoder(_Runs)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A lot as it was planned: from these generations of its inputs, in these parts.

    - replay: make it once more although it is complete.
    - generation: the one that was asked for, by a row that must still be there; None when nobody asked.
    - batch, at_once: what it was asked for with.
    """

    spec: ArcSpec
    lot: str
    inputs: tuple[InputLot, ...]
    parts: tuple[str, ...]
    replay: bool = False
    generation: int | None = None
    batch: str = ""
    at_once: int = 0


class Began(msgspec.Struct, frozen=True, kw_only=True):
    """A lot that is ours to work on."""

    opened: Opened
    tries: int

    @property
    def hold(self) -> Hold:
        return self.opened.hold


def decode(raw: bytes) -> AnyLot:
    """A row from its stored bytes."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: ArcKeys, arc: str, lot: str, generation: int) -> AnyLot | None:
    """One generation's row; None before it began."""
    raw = tx.get(keys.lot[arc, lot, generation])
    return None if raw is None else _decoder.decode(raw)


def newest(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> tuple[int, AnyLot] | None:
    """The newest generation that ever began."""
    found = tx.range(*keys.lot.under(arc, lot), limit=1, reverse=True)
    if not found:
        return None
    generation = keys.lot.unpack(found[0].key)[2]
    assert isinstance(generation, int)
    return generation, _decoder.decode(found[0].value)


def standing(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> Standing:
    """How an arc stands with a lot."""
    last = newest(tx, keys, arc, lot)
    if last is None:
        return Standing(arc=arc, lot=lot, generation=0, row=None)
    generation, row = last
    if not isinstance(row, Complete) and generation > 0:
        # generations begin one after the other, so the one before is published
        before = read(tx, keys, arc, lot, generation - 1)
        return Standing(arc=arc, lot=lot, generation=generation - 1, row=before, replaying=True)
    return Standing(arc=arc, lot=lot, generation=generation, row=row)


def due(
    tx: Tx, keys: ArcKeys, arc: str, lot: str, inputs: Sequence[InputLot], *, replay: bool = False
) -> int | None:
    """The generation to make from these inputs; None when that is made already."""
    last = newest(tx, keys, arc, lot)
    if last is None:
        return 0
    generation, row = last
    if not isinstance(row, Complete):
        return generation
    return generation + 1 if replay or row.inputs != tuple(inputs) else None


def overtaken(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> bool:
    """Is a lot being made, or was it made last, from generations of its inputs that are not current any more?

    One that is not begun yet is not: whoever begins it takes what is current.
    """
    last = newest(tx, keys, spec.id, lot)
    if last is None or isinstance(last[1], Missing):
        return False
    row = last[1]
    try:
        current = present(tx, keys, spec, lot)
        if isinstance(row, Complete):
            return row.inputs != current
        return attempts.read(tx, keys.publish, row.attempt).draft.inputs != current
    except AttemptUnknown:
        return False


def present(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> tuple[InputLot, ...]:
    """The generations that a lot would be made from now: of every source that has it."""
    rows = [published.current(tx, keys.publish.lots, dataset, lot) for dataset in spec.reads]
    return tuple(
        InputLot(dataset=row.dataset.name, version=row.dataset.version, lot=lot, generation=row.generation)
        for row in rows
        if row is not None
    )


def begin(
    tx: Tx, keys: ArcKeys, node: Node, wanted: Wanted, attempt: str, *, idle: bool = False
) -> Began | Refused:
    """Begin a lot, or take it over from a node that is gone, with an attempt at it: opened or adopted.

    - attempt: the id of a new one, if there has to be one.
    - idle: this very life of the node is known not to work on the lot any more, though its row says so.
    """
    spec, lot = wanted.spec, wanted.lot
    nodes.check(tx, keys.publish.cluster, node)
    if present(tx, keys, spec, lot) != wanted.inputs:
        return Refused.CHANGED
    generation = due(tx, keys, spec.id, lot, wanted.inputs, replay=wanted.replay)
    if generation is None or not _is_asked(tx, keys, spec.id, lot, generation, wanted.generation):
        return Refused.COMPLETE
    row = read(tx, keys, spec.id, lot, generation)
    if isinstance(row, Running) and _held(tx, keys, row) and not (idle and _is_of(row, node)):
        return Refused.RUNNING
    others = crowd(tx, keys, spec.id, beside=(lot, generation))
    if not others.has_room(spec.max_concurrent, wanted.batch, wanted.at_once):
        return Refused.FULL
    draft = Draft(
        id=attempt,
        author=spec.id,
        lot=lot,
        generation=generation,
        targets=_targets(tx, keys, spec, lot, generation),
        inputs=wanted.inputs,
        code=spec.code,
    )
    opened = open_or_adopt(tx, keys.publish, node, draft, wanted.parts)
    if opened is None:
        return Refused.RUNNING
    tries = 1 if row is None else row.tries + (not isinstance(row, Running))
    _run(tx, keys, node, opened.hold, row, tries, wanted.batch)
    if spec.has_barrier:
        no_longer_awaited(tx, keys, spec.id, lot, begun=True)
    return Began(opened=opened, tries=tries)


def _targets(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str, generation: int) -> tuple[Target, ...]:
    """What a lot is to become: of every sink, and of the quarantines of those whose checks take rows out.

    A quarantine counts its own generations, since there is none while nothing was taken out; once there is,
    it is written anew with the lot, also when there is nothing in it any more.
    """
    found = [Target(sink.dataset, lot, generation) for sink in spec.sinks]
    for sink in spec.sinks:
        if sink.quarantine is not None:
            row = published.current(tx, keys.publish.lots, sink.quarantine, lot)
            due = 0 if row is None else row.generation + 1
            found.append(Target(sink.quarantine, lot, due, optional=row is None))
    return tuple(found)


def renew(tx: Tx, keys: ArcKeys, began: Began, parts: Sequence[str], attempt: str, why: str) -> Began:
    """Give up the attempt at a lot that is ours, and open another: what it left does not verify."""
    row = _ours(tx, keys, began.hold)
    gone = attempts.abandon(tx, keys.publish, began.hold, why)
    draft = msgspec.structs.replace(began.hold.draft, id=attempt)
    hold = attempts.begin(tx, keys.publish, began.hold.node, draft)
    attempts.list_parts(tx, keys.publish, hold, 0, parts, last=True)
    _run(tx, keys, began.hold.node, hold, row, row.tries)
    return Began(opened=Opened(hold=hold, abandoned=(gone,)), tries=row.tries)


def complete(tx: Tx, keys: ArcKeys, hold: Hold, *, barrier: bool = False) -> None:
    """Running -> complete, in the transaction that publishes the attempt, and has fenced it."""
    draft = hold.draft
    if barrier:
        no_longer_awaited(tx, keys, draft.author, draft.lot)
    row = _run_by(tx, keys, draft)
    new = Complete(attempt=draft.id, inputs=draft.inputs, at=tx.now(), tries=row.tries)
    _write(tx, keys, draft.author, draft.lot, draft.generation, row, [ArcEdge.COMPLETE], new)


def fail(tx: Tx, keys: ArcKeys, hold: Hold, failed: Sequence[str], error: str) -> Partial:
    """Running -> partial: the attempt is parked, so that a retry by any node goes on with it."""
    draft = hold.draft
    row = _ours(tx, keys, hold)
    attempts.park(tx, keys.publish, hold)
    new = Partial(
        attempt=draft.id,
        failed=tuple(failed[:MOST_NAMED]),
        error=error[:WORDS],
        at=tx.now(),
        tries=row.tries,
    )
    _write(tx, keys, draft.author, draft.lot, draft.generation, row, [ArcEdge.FAIL], new)
    return new


def miss(
    tx: Tx,
    keys: ArcKeys,
    node: Node,
    spec: ArcSpec,
    lot: str,
    inputs: Sequence[InputLot],
    error: str,
    *,
    replay: bool = False,
    asked: int | None = None,
) -> AnyLot | Refused:
    """It could not even be begun, say because an input cannot be read: begun and over in one step.

    Nothing was written, so the lot is missing; one that is partial stays so, with what a retry may reuse.
    """
    arc = spec.id
    nodes.check(tx, keys.publish.cluster, node)
    generation = due(tx, keys, arc, lot, inputs, replay=replay)
    if generation is None or not _is_asked(tx, keys, arc, lot, generation, asked):
        return Refused.COMPLETE
    if spec.has_barrier:
        no_longer_awaited(tx, keys, arc, lot, begun=True)
    row = read(tx, keys, arc, lot, generation)
    if isinstance(row, Running) and _held(tx, keys, row) and row.node != node.id:
        return Refused.RUNNING
    tries = 1 if row is None else row.tries + (not isinstance(row, Running))
    edges = [] if isinstance(row, Running) else [_beginning(row)]
    if isinstance(row, Partial):
        again = msgspec.structs.replace(row, error=error[:WORDS], at=tx.now(), tries=tries)
        return _write(tx, keys, arc, lot, generation, row, [*edges, ArcEdge.FAIL], again)
    if isinstance(row, Running):
        attempts.abandon_left(tx, keys.publish, row.attempt, error, node)
    new = Missing(error=error[:WORDS], at=tx.now(), tries=tries)
    return _write(tx, keys, arc, lot, generation, row, [*edges, ArcEdge.MISS], new)


def skip(tx: Tx, keys: ArcKeys, arc: str, lot: str, why: str) -> Missing | None:
    """It is given up before it began; None when it has begun, or was given up already."""
    last = newest(tx, keys, arc, lot)
    if last is not None and not (isinstance(last[1], Missing) and not last[1].skipped):
        return None
    generation, row = last or (0, None)
    tries = 1 if row is None else row.tries + 1
    new = Missing(error=why[:WORDS], at=tx.now(), tries=tries, skipped=True)
    _write(tx, keys, arc, lot, generation, row, [_beginning(row), ArcEdge.MISS], new)
    return new


def no_longer_awaited(tx: Tx, keys: ArcKeys, arc: str, lot: str, *, begun: bool = False) -> None:
    """Its sources are not waited for any more (`barriers`); `begun`: that they were is kept until its end."""
    raw = tx.get(keys.barrier[arc, lot])
    if raw is None:
        return
    tx.clear(keys.grace[arc, msgspec.msgpack.decode(raw, type=int), lot], quiet=True)
    if not begun:
        tx.clear(keys.barrier[arc, lot], quiet=True)


def clean(tx: Tx, keys: ArcKeys, arc: str, lot: str, why: str = "cleaned up on request") -> Missing:
    """Partial -> missing: give up what its parts made; the cleaner removes it."""
    last = newest(tx, keys, arc, lot)
    if last is None or not isinstance(last[1], Partial):
        state = ArcState.NONE if last is None else last[1].state
        raise ArcLotConflict(f"lot {lot} of {arc} is {state.value}: there is nothing to clean up")
    generation, row = last
    assert isinstance(row, Partial)
    attempts.abandon_left(tx, keys.publish, row.attempt, why)
    new = Missing(error=row.error, at=tx.now(), tries=row.tries)
    _write(tx, keys, arc, lot, generation, row, [ArcEdge.CLEAN], new)
    return new


# --- reports


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
    rows = tx.range(*keys.trouble.under(arc), limit=limit, snapshot=True)
    return [_standing_at(tx, keys, keys.trouble.unpack(row.key)) for row in rows]


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
        and (not _held(tx, keys, one.row) or (node is not None and _is_of(one.row, node)))
    ]
    return left, page[-1].key if len(page) == limit else None


def _standing_at(tx: Tx, keys: ArcKeys, key: tuple[object, ...]) -> Standing:
    arc, lot, generation = str(key[0]), str(key[1]), key[2]
    assert isinstance(generation, int)
    row = read(tx, keys, arc, lot, generation)
    return Standing(arc=arc, lot=lot, generation=generation, row=row, replaying=generation > 0)


# --- steps


def _run(
    tx: Tx, keys: ArcKeys, node: Node, hold: Hold, old: AnyLot | None, tries: int, batch: str = ""
) -> None:
    draft = hold.draft
    new = Running(
        attempt=draft.id,
        node=node.id,
        node_epoch=node.epoch,
        since=tx.now(),
        tries=tries,
        batch=old.batch if isinstance(old, Running) else batch,
    )
    edge = ArcEdge.TAKE_OVER if isinstance(old, Running) else _beginning(old)
    _write(tx, keys, draft.author, draft.lot, draft.generation, old, [edge], new)


def _beginning(row: AnyLot | None) -> ArcEdge:
    return ArcEdge.BEGIN if row is None else ArcEdge.RETRY


def _ours(tx: Tx, keys: ArcKeys, hold: Hold) -> Running:
    """The fence: the lot runs, by the attempt that we hold."""
    attempts.check(tx, keys.publish, hold)
    return _run_by(tx, keys, hold.draft)


def _run_by(tx: Tx, keys: ArcKeys, draft: Draft) -> Running:
    row = read(tx, keys, draft.author, draft.lot, draft.generation)
    if not isinstance(row, Running) or row.attempt != draft.id:
        raise LeaseLost(f"lot {draft.lot} of {draft.author} is not run by attempt {draft.id} any more")
    return row


def crowd(tx: Tx, keys: ArcKeys, arc: str, *, beside: tuple[str, int] | None = None) -> Crowd:
    """What living nodes work on of an arc, as this transaction sees it; all but one lot, if it is given."""
    live, batches = 0, dict[str, int]()
    for row in tx.range(*keys.running.under(arc), limit=MOST_RUNNING):
        found = _runs.decode(row.value)
        if keys.running.unpack(row.key)[1:] == beside or not _lives(tx, keys, found.node, found.node_epoch):
            continue
        if found.batch:
            batches[found.batch] = batches.get(found.batch, 0) + 1
        else:
            live += 1
    own = subscriptions.read(tx, keys.publish.triggers, arc)
    awaited = isinstance(own, Scheduled) and not own.tally.parked and own.next_run <= tx.now() + SOON_US
    return Crowd(live=live, batches=batches, awaited=awaited)


def _is_asked(tx: Tx, keys: ArcKeys, arc: str, lot: str, generation: int, asked: int | None) -> bool:
    """Is the generation that is due the one that a row asks for? Yes, if nobody acts for a row."""
    return asked is None or (asked == generation and tx.get(keys.ask[arc, lot, generation]) is not None)


def _held(tx: Tx, keys: ArcKeys, row: Running) -> bool:
    return _lives(tx, keys, row.node, row.node_epoch)


def _lives(tx: Tx, keys: ArcKeys, node: str, epoch: int) -> bool:
    entry = nodes.read(tx, keys.publish.cluster, node)
    return entry is not None and entry.epoch == epoch and entry.expires_at > tx.now()


def _is_of(row: Running, node: Node) -> bool:
    return (row.node, row.node_epoch) == (node.id, node.epoch)


def _write(
    tx: Tx,
    keys: ArcKeys,
    arc: str,
    lot: str,
    generation: int,
    old: AnyLot | None,
    edges: Sequence[ArcEdge],
    new: AnyLot,
) -> AnyLot:
    """The one place that writes rows, along edges of the table, and keeps the indexes in step with them."""
    state = ArcState.NONE if old is None else old.state
    for edge in edges:
        state = step(state, edge)
    assert state is new.state
    place = (arc, lot, generation)
    tx.set(keys.lot[place], msgspec.msgpack.encode(new), quiet=True)
    if isinstance(new, Running):
        held = _Runs(new.node, new.node_epoch, new.batch)
        tx.set(keys.running[place], msgspec.msgpack.encode(held), quiet=True)
    elif isinstance(old, Running):
        tx.clear(keys.running[place], quiet=True)
    if isinstance(new, Partial | Missing):
        tx.set(keys.trouble[place], new.state.value.encode(), quiet=True)
    elif isinstance(old, Partial | Missing):
        tx.clear(keys.trouble[place], quiet=True)
    if not isinstance(old, Running):  # it begins: what was asked for is done with, however it ends
        tx.clear(keys.ask[place], quiet=True)
    return new
