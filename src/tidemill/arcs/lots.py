"""Work on lots, step by step: how the row of an arc's lot moves, as functions of `tx` (LOT-9 to LOT-14).

Who works on a lot is fenced twice. A running row names its node and the node's epoch: nobody else begins the
lot before that epoch is over (LOT-9). And it names its attempt: every later step shows the attempt's `Hold`,
which an adoption makes void, so that a zombie moves nothing whatever it believes.

Which generation is due follows from the inputs (LOT-12): that of a lot that is not complete yet; for one that
is complete, the next one if a generation of an input is new, or if a replay was asked for; else none.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tidemill.arcs import rows, running_lots
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import AnyLot, CompleteLot, MissingLot, PartialLot, RunningLot
from tidemill.arcs.states import ArcEdge, ArcState
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import ArcLotConflict, AttemptUnknown, LeaseLost
from tidemill.lots import lots as published
from tidemill.lots.manifest import InputLot
from tidemill.publish import attempts
from tidemill.publish.adoption import Opened, open_or_adopt
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.store import Tx

WORDS = 1000
MOST_NAMED = 100


class BeginRefused(StrEnum):
    """Why a lot is not begun; none of these is an error."""

    RUNNING = "running"  # somebody works on it
    COMPLETE = "complete"  # there is nothing new to make
    FULL = "full"  # the arc works on as many lots as it may
    CHANGED = "changed"  # its inputs are not those it was planned with


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


class BegunLot(msgspec.Struct, frozen=True, kw_only=True):
    """A lot that is ours to work on."""

    opened: Opened
    tries: int

    @property
    def hold(self) -> Hold:
        return self.opened.hold


def due(
    tx: Tx, keys: ArcKeys, arc: str, lot: str, inputs: Sequence[InputLot], *, replay: bool = False
) -> int | None:
    """The generation to make from these inputs; None when that is made already."""
    last = rows.newest(tx, keys, arc, lot)
    if last is None:
        return 0
    generation, row = last
    if not isinstance(row, CompleteLot):
        return generation
    return generation + 1 if replay or row.inputs != tuple(inputs) else None


def overtaken(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> bool:
    """Is a lot being made, or was it made last, from generations of its inputs that are not current any more?

    One that is not begun yet is not: whoever begins it takes what is current.
    """
    last = rows.newest(tx, keys, spec.id, lot)
    if last is None or isinstance(last[1], MissingLot):
        return False
    row = last[1]
    try:
        current = present(tx, keys, spec, lot)
        if isinstance(row, CompleteLot):
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
) -> BegunLot | BeginRefused:
    """Begin a lot, or take it over from a node that is gone, with an attempt at it: opened or adopted.

    - attempt: the id of a new one, if there has to be one.
    - idle: this very life of the node is known not to work on the lot any more, though its row says so.
    """
    spec, lot = wanted.spec, wanted.lot
    nodes.check(tx, keys.publish.cluster, node)
    if present(tx, keys, spec, lot) != wanted.inputs:
        return BeginRefused.CHANGED
    generation = due(tx, keys, spec.id, lot, wanted.inputs, replay=wanted.replay)
    if generation is None or not _is_asked(tx, keys, spec.id, lot, generation, wanted.generation):
        return BeginRefused.COMPLETE
    row = rows.read(tx, keys, spec.id, lot, generation)
    if isinstance(row, RunningLot) and rows.is_held(tx, keys, row) and not (idle and rows.is_of(row, node)):
        return BeginRefused.RUNNING
    others = running_lots.running_lots(tx, keys, spec.id, besides=(lot, generation))
    if not others.has_room(spec.max_concurrent, wanted.batch, wanted.at_once):
        return BeginRefused.FULL
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
        return BeginRefused.RUNNING
    tries = 1 if row is None else row.tries + (not isinstance(row, RunningLot))
    _run(tx, keys, node, opened.hold, row, tries, wanted.batch)
    if spec.has_barrier:
        no_longer_awaited(tx, keys, spec.id, lot, begun=True)
    return BegunLot(opened=opened, tries=tries)


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


def renew(tx: Tx, keys: ArcKeys, began: BegunLot, parts: Sequence[str], attempt: str, why: str) -> BegunLot:
    """Give up the attempt at a lot that is ours, and open another: what it left does not verify."""
    row = _ours(tx, keys, began.hold)
    gone = attempts.abandon(tx, keys.publish, began.hold, why)
    draft = msgspec.structs.replace(began.hold.draft, id=attempt)
    hold = attempts.begin(tx, keys.publish, began.hold.node, draft)
    attempts.list_parts(tx, keys.publish, hold, 0, parts, last=True)
    _run(tx, keys, began.hold.node, hold, row, row.tries)
    return BegunLot(opened=Opened(hold=hold, abandoned=(gone,)), tries=row.tries)


def complete(tx: Tx, keys: ArcKeys, hold: Hold, *, barrier: bool = False) -> None:
    """Running -> complete, in the transaction that publishes the attempt, and has fenced it."""
    draft = hold.draft
    if barrier:
        no_longer_awaited(tx, keys, draft.author, draft.lot)
    row = _run_by(tx, keys, draft)
    new = CompleteLot(attempt=draft.id, inputs=draft.inputs, at=tx.now(), tries=row.tries)
    rows.write(tx, keys, draft.author, draft.lot, draft.generation, row, [ArcEdge.COMPLETE], new)


def fail(tx: Tx, keys: ArcKeys, hold: Hold, failed: Sequence[str], error: str) -> PartialLot:
    """Running -> partial: the attempt is parked, so that a retry by any node goes on with it."""
    draft = hold.draft
    row = _ours(tx, keys, hold)
    attempts.park(tx, keys.publish, hold)
    new = PartialLot(
        attempt=draft.id,
        failed=tuple(failed[:MOST_NAMED]),
        error=error[:WORDS],
        at=tx.now(),
        tries=row.tries,
    )
    rows.write(tx, keys, draft.author, draft.lot, draft.generation, row, [ArcEdge.FAIL], new)
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
) -> AnyLot | BeginRefused:
    """It could not even be begun, say because an input cannot be read: begun and over in one step.

    Nothing was written, so the lot is missing; one that is partial stays so, with what a retry may reuse.
    """
    arc = spec.id
    nodes.check(tx, keys.publish.cluster, node)
    generation = due(tx, keys, arc, lot, inputs, replay=replay)
    if generation is None or not _is_asked(tx, keys, arc, lot, generation, asked):
        return BeginRefused.COMPLETE
    if spec.has_barrier:
        no_longer_awaited(tx, keys, arc, lot, begun=True)
    row = rows.read(tx, keys, arc, lot, generation)
    if isinstance(row, RunningLot) and rows.is_held(tx, keys, row) and row.node != node.id:
        return BeginRefused.RUNNING
    tries = 1 if row is None else row.tries + (not isinstance(row, RunningLot))
    edges = [] if isinstance(row, RunningLot) else [_beginning(row)]
    if isinstance(row, PartialLot):
        again = msgspec.structs.replace(row, error=error[:WORDS], at=tx.now(), tries=tries)
        return rows.write(tx, keys, arc, lot, generation, row, [*edges, ArcEdge.FAIL], again)
    if isinstance(row, RunningLot):
        attempts.abandon_left(tx, keys.publish, row.attempt, error, node)
    new = MissingLot(error=error[:WORDS], at=tx.now(), tries=tries)
    return rows.write(tx, keys, arc, lot, generation, row, [*edges, ArcEdge.MISS], new)


def skip(tx: Tx, keys: ArcKeys, arc: str, lot: str, why: str) -> MissingLot | None:
    """It is given up before it began; None when it has begun, or was given up already."""
    last = rows.newest(tx, keys, arc, lot)
    if last is not None and not (isinstance(last[1], MissingLot) and not last[1].skipped):
        return None
    generation, row = last or (0, None)
    tries = 1 if row is None else row.tries + 1
    new = MissingLot(error=why[:WORDS], at=tx.now(), tries=tries, skipped=True)
    rows.write(tx, keys, arc, lot, generation, row, [_beginning(row), ArcEdge.MISS], new)
    return new


def no_longer_awaited(tx: Tx, keys: ArcKeys, arc: str, lot: str, *, begun: bool = False) -> None:
    """Its sources are not waited for any more (`barriers`); `begun`: that they were is kept until its end."""
    raw = tx.get(keys.barrier[arc, lot])
    if raw is None:
        return
    tx.clear(keys.grace[arc, msgspec.msgpack.decode(raw, type=int), lot], quiet=True)
    if not begun:
        tx.clear(keys.barrier[arc, lot], quiet=True)


def clean(tx: Tx, keys: ArcKeys, arc: str, lot: str, why: str = "cleaned up on request") -> MissingLot:
    """Partial -> missing: give up what its parts made; the cleaner removes it."""
    last = rows.newest(tx, keys, arc, lot)
    if last is None or not isinstance(last[1], PartialLot):
        state = ArcState.NONE if last is None else last[1].state
        raise ArcLotConflict(f"lot {lot} of {arc} is {state.value}: there is nothing to clean up")
    generation, row = last
    assert isinstance(row, PartialLot)
    attempts.abandon_left(tx, keys.publish, row.attempt, why)
    new = MissingLot(error=row.error, at=tx.now(), tries=row.tries)
    rows.write(tx, keys, arc, lot, generation, row, [ArcEdge.CLEAN], new)
    return new


# --- steps


def _run(
    tx: Tx, keys: ArcKeys, node: Node, hold: Hold, old: AnyLot | None, tries: int, batch: str = ""
) -> None:
    draft = hold.draft
    new = RunningLot(
        attempt=draft.id,
        node=node.id,
        node_epoch=node.epoch,
        since=tx.now(),
        tries=tries,
        batch=old.batch if isinstance(old, RunningLot) else batch,
    )
    edge = ArcEdge.TAKE_OVER if isinstance(old, RunningLot) else _beginning(old)
    rows.write(tx, keys, draft.author, draft.lot, draft.generation, old, [edge], new)


def _beginning(row: AnyLot | None) -> ArcEdge:
    return ArcEdge.BEGIN if row is None else ArcEdge.RETRY


def _ours(tx: Tx, keys: ArcKeys, hold: Hold) -> RunningLot:
    """The fence: the lot runs, by the attempt that we hold."""
    attempts.check(tx, keys.publish, hold)
    return _run_by(tx, keys, hold.draft)


def _run_by(tx: Tx, keys: ArcKeys, draft: Draft) -> RunningLot:
    row = rows.read(tx, keys, draft.author, draft.lot, draft.generation)
    if not isinstance(row, RunningLot) or row.attempt != draft.id:
        raise LeaseLost(f"lot {draft.lot} of {draft.author} is not run by attempt {draft.id} any more")
    return row


def _is_asked(tx: Tx, keys: ArcKeys, arc: str, lot: str, generation: int, asked: int | None) -> bool:
    """Is the generation that is due the one that a row asks for? Yes, if nobody acts for a row."""
    return asked is None or (asked == generation and tx.get(keys.request[arc, lot, generation]) is not None)
