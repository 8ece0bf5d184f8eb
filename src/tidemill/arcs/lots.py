"""Transitions of an arc's lot, as functions of `tx` (LOT-9 to LOT-14).

Two checks ensure that only one node works on a lot. The row of a running lot names a node and the node's
epoch: no other node begins the lot while that node is alive under this epoch (LOT-9). The row also names an
attempt: every later step must pass the attempt's `Hold`, which becomes invalid when another node takes over
the attempt. So a node that was replaced cannot change the row.

The inputs decide which generation to make (LOT-12). A lot that is not complete keeps its generation. A
complete lot gets the next generation if an input has a new generation, or if a replay was requested.
Otherwise there is nothing to make.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tidemill.arcs import base_input, declarations, rows, running_lots
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.parts import LotPart
from tidemill.arcs.rows import AnyLot, CompleteLot, MissingLot, PartialLot, RunningLot
from tidemill.arcs.states import ArcEdge, ArcState
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import ArcLotConflict, ArcUnknown, AttemptUnknown, LeaseLost
from tidemill.lots import lots as published
from tidemill.lots.manifest import InputLot
from tidemill.publish import attempts
from tidemill.publish.adoption import Opened, open_or_adopt
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.store import Tx

MAX_ERROR_CHARS = 1000
MAX_FAILED_PARTS = 100


class BeginRefused(StrEnum):
    """Why a lot does not begin. None of these reasons is an error."""

    RUNNING = "running"  # another node works on it
    COMPLETE = "complete"  # there is nothing new to make
    FULL = "full"  # the arc already works on as many lots as it may
    CHANGED = "changed"  # its inputs changed after it was planned


class MakeOptions(msgspec.Struct, frozen=True):
    """How to make a lot outside of a run of its arc.

    - replay: make it again although it is complete.
    - generation: the generation that was requested, or None. If the request no longer exists, the lot is not
      made.
    - batch, parallel: the batch of the request, and how many of its lots may run at the same time.
    """

    replay: bool = False
    generation: int | None = None
    batch: str = ""
    parallel: int = 0


DEFAULT = MakeOptions()


class LotPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to make a lot: from which generations of its inputs, and in which parts."""

    spec: ArcSpec
    lot: str
    inputs: tuple[InputLot, ...]
    parts: tuple[LotPart, ...] = ()
    options: MakeOptions = DEFAULT

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)


class BegunLot(msgspec.Struct, frozen=True, kw_only=True):
    """A lot that this node works on."""

    opened: Opened
    tries: int

    @property
    def hold(self) -> Hold:
        return self.opened.hold


def due_generation(
    tx: Tx, keys: ArcKeys, arc: str, lot: str, inputs: Sequence[InputLot], *, replay: bool = False
) -> int | None:
    """Return the generation to make from these inputs; None if the lot was already made from them."""
    last = rows.newest(tx, keys, arc, lot)
    if last is None:
        return 0
    generation, row = last
    if not isinstance(row, CompleteLot):
        return generation
    if replay:
        return generation + 1
    return None if row.inputs == tuple(inputs) or _has_expired(tx, keys, arc, lot) else generation + 1


def _has_expired(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> bool:
    """Return whether a complete lot has expired in all tables that the arc writes (LOT-39).

    Such a lot is not made again: views have kept its rows, and could not exchange them.
    """
    try:
        sinks = declarations.read(tx, keys, arc).sinks
    except ArcUnknown:
        return False
    return all(published.current(tx, keys.publish.lots, sink.dataset, lot) is None for sink in sinks)


def forget_expired(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> None:
    """Delete the rows of a lot, if it has expired in all tables that the arc reads (LOT-39)."""
    try:
        spec = declarations.read(tx, keys, arc)
    except ArcUnknown:
        return
    if not current_inputs(tx, keys, spec, lot):
        tx.clear_range(*keys.lot.under(arc, lot))


def is_outdated(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> bool:
    """Return whether a lot is being made, or was made, from old generations of its inputs.

    A lot that has not begun is not outdated: it will begin with the current inputs.
    """
    last = rows.newest(tx, keys, spec.id, lot)
    if last is None or isinstance(last[1], MissingLot):
        return False
    row = last[1]
    try:
        current = current_inputs(tx, keys, spec, lot)
        if isinstance(row, CompleteLot):
            return row.inputs != current
        return attempts.read(tx, keys.publish, row.attempt).draft.inputs != current
    except AttemptUnknown:
        return False


def current_inputs(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> tuple[InputLot, ...]:
    """Return the current generation of a lot in every input that has it."""
    if base_input.is_input(tx, keys, spec, lot):
        return (base_input.input_lot(spec.reads[0]),)
    rows = [published.current(tx, keys.publish.lots, dataset, lot) for dataset in spec.reads]
    return tuple(
        InputLot(dataset=row.dataset.name, version=row.dataset.version, lot=lot, generation=row.generation)
        for row in rows
        if row is not None
    )


def begin(
    tx: Tx, keys: ArcKeys, node: Node, plan: LotPlan, attempt: str, *, idle: bool = False
) -> BegunLot | BeginRefused:
    """Begin a lot, or take it over from a node that is gone. Open an attempt, or take over the earlier one.

    - attempt: the id of a new attempt, if one is opened.
    - idle: the caller knows that this node does not work on the lot, even if the row names this node.
    """
    spec, lot, options = plan.spec, plan.lot, plan.options
    nodes.check(tx, keys.publish.cluster, node)
    if current_inputs(tx, keys, spec, lot) != plan.inputs:
        return BeginRefused.CHANGED
    generation = _generation_to_make(tx, keys, plan)
    if generation is None:
        return BeginRefused.COMPLETE
    row = rows.read(tx, keys, spec.id, lot, generation)
    if (
        isinstance(row, RunningLot)
        and rows.is_held(tx, keys, row)
        and not (idle and rows.belongs_to(row, node))
    ):
        return BeginRefused.RUNNING
    running = running_lots.running_lots(tx, keys, spec.id, except_=(lot, generation))
    if not running.has_room(spec.max_concurrent, options.batch, options.parallel):
        return BeginRefused.FULL
    draft = Draft(
        id=attempt,
        author=spec.id,
        lot=lot,
        generation=generation,
        targets=_targets(tx, keys, spec, lot, generation),
        inputs=plan.inputs,
        code=spec.code,
    )
    opened = open_or_adopt(tx, keys.publish, node, draft, plan.part_names)
    if opened is None:
        return BeginRefused.RUNNING
    tries = 1 if row is None else row.tries + (not isinstance(row, RunningLot))
    _run(tx, keys, node, opened.hold, row, tries, options.batch)
    if spec.has_barrier:
        stop_waiting(tx, keys, spec.id, lot, begun=True)
    return BegunLot(opened=opened, tries=tries)


def _targets(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str, generation: int) -> tuple[Target, ...]:
    """Return the lots that an attempt writes: one for each sink, and one for each quarantine table.

    A quarantine table has separate generation numbers, because it has no lot until a check drops rows. From
    then on, every generation of the lot also writes the quarantine table, even if no check drops rows.
    """
    targets = [Target(sink.dataset, lot, generation) for sink in spec.sinks]
    for sink in spec.sinks:
        if sink.quarantine is not None:
            row = published.current(tx, keys.publish.lots, sink.quarantine, lot)
            next_generation = 0 if row is None else row.generation + 1
            targets.append(Target(sink.quarantine, lot, next_generation, optional=row is None))
    return tuple(targets)


def renew(tx: Tx, keys: ArcKeys, began: BegunLot, parts: Sequence[str], attempt: str, why: str) -> BegunLot:
    """Replace the attempt at a lot with a new attempt, because the results of the old one are damaged."""
    row = _check_held(tx, keys, began.hold)
    abandoned = attempts.abandon(tx, keys.publish, began.hold, why)
    draft = msgspec.structs.replace(began.hold.draft, id=attempt)
    hold = attempts.begin(tx, keys.publish, began.hold.node, draft)
    attempts.list_parts(tx, keys.publish, hold, 0, parts, last=True)
    _run(tx, keys, began.hold.node, hold, row, row.tries)
    return BegunLot(opened=Opened(hold=hold, abandoned=(abandoned,)), tries=row.tries)


def complete(tx: Tx, keys: ArcKeys, hold: Hold, *, barrier: bool = False) -> None:
    """Change a lot from running to complete, in the transaction that checks and publishes the attempt."""
    draft = hold.draft
    if barrier:
        stop_waiting(tx, keys, draft.author, draft.lot)
    row = _read_running(tx, keys, draft)
    new = CompleteLot(attempt=draft.id, inputs=draft.inputs, at=tx.now(), tries=row.tries)
    rows.write(tx, keys, draft.author, draft.lot, draft.generation, row, [ArcEdge.COMPLETE], new)


def fail(tx: Tx, keys: ArcKeys, hold: Hold, failed: Sequence[str], error: str) -> PartialLot:
    """Change a lot from running to partial. Park the attempt, so that a retry by any node can continue it."""
    draft = hold.draft
    row = _check_held(tx, keys, hold)
    attempts.park(tx, keys.publish, hold)
    new = PartialLot(
        attempt=draft.id,
        failed=tuple(failed[:MAX_FAILED_PARTS]),
        error=error[:MAX_ERROR_CHARS],
        at=tx.now(),
        tries=row.tries,
    )
    rows.write(tx, keys, draft.author, draft.lot, draft.generation, row, [ArcEdge.FAIL], new)
    return new


def miss(tx: Tx, keys: ArcKeys, node: Node, plan: LotPlan, error: str) -> AnyLot | BeginRefused:
    """Begin and end a lot in one step if it cannot be made, for example because an input is unreadable.

    Nothing was written, so the lot is missing. A partial lot stays partial, so that a retry can reuse its
    parts.
    """
    arc, lot = plan.spec.id, plan.lot
    nodes.check(tx, keys.publish.cluster, node)
    generation = _generation_to_make(tx, keys, plan)
    if generation is None:
        return BeginRefused.COMPLETE
    if plan.spec.has_barrier:
        stop_waiting(tx, keys, arc, lot, begun=True)
    row = rows.read(tx, keys, arc, lot, generation)
    if isinstance(row, RunningLot) and rows.is_held(tx, keys, row) and row.node != node.id:
        return BeginRefused.RUNNING
    tries = 1 if row is None else row.tries + (not isinstance(row, RunningLot))
    edges = [] if isinstance(row, RunningLot) else [_begin_edge(row)]
    if isinstance(row, PartialLot):
        partial = msgspec.structs.replace(row, error=error[:MAX_ERROR_CHARS], at=tx.now(), tries=tries)
        return rows.write(tx, keys, arc, lot, generation, row, [*edges, ArcEdge.FAIL], partial)
    if isinstance(row, RunningLot):
        attempts.abandon_left(tx, keys.publish, row.attempt, error, node)
    new = MissingLot(error=error[:MAX_ERROR_CHARS], at=tx.now(), tries=tries)
    return rows.write(tx, keys, arc, lot, generation, row, [*edges, ArcEdge.MISS], new)


def skip(tx: Tx, keys: ArcKeys, arc: str, lot: str, why: str) -> MissingLot | None:
    """Give up a lot before it begins; return None if it has already begun or was already given up."""
    last = rows.newest(tx, keys, arc, lot)
    if last is not None and not (isinstance(last[1], MissingLot) and not last[1].skipped):
        return None
    generation, row = last or (0, None)
    tries = 1 if row is None else row.tries + 1
    new = MissingLot(error=why[:MAX_ERROR_CHARS], at=tx.now(), tries=tries, skipped=True)
    rows.write(tx, keys, arc, lot, generation, row, [_begin_edge(row), ArcEdge.MISS], new)
    return new


def stop_waiting(tx: Tx, keys: ArcKeys, arc: str, lot: str, *, begun: bool = False) -> None:
    """End a lot's wait for its inputs (`barriers`). If the lot has `begun`, keep the start of the wait."""
    raw = tx.get(keys.barrier[arc, lot])
    if raw is None:
        return
    tx.clear(keys.grace[arc, msgspec.msgpack.decode(raw, type=int), lot], quiet=True)
    if not begun:
        tx.clear(keys.barrier[arc, lot], quiet=True)


def clean(tx: Tx, keys: ArcKeys, arc: str, lot: str, why: str = "cleaned up on request") -> MissingLot:
    """Change a lot from partial to missing. The cleaner removes the results of the lot's parts."""
    last = rows.newest(tx, keys, arc, lot)
    if last is None or not isinstance(last[1], PartialLot):
        state = ArcState.NONE if last is None else last[1].state
        raise ArcLotConflict(
            f"lot {lot} of {arc} cannot be cleaned up: it is {state.value}",
            hint="only partial lots can be cleaned up; to see the states of lots, run: tidemill lots TABLE",
        )
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
    edge = ArcEdge.TAKE_OVER if isinstance(old, RunningLot) else _begin_edge(old)
    rows.write(tx, keys, draft.author, draft.lot, draft.generation, old, [edge], new)


def _begin_edge(row: AnyLot | None) -> ArcEdge:
    return ArcEdge.BEGIN if row is None else ArcEdge.RETRY


def _check_held(tx: Tx, keys: ArcKeys, hold: Hold) -> RunningLot:
    """Check that the lot is running, in the attempt that this node holds; raise an error if not."""
    attempts.check(tx, keys.publish, hold)
    return _read_running(tx, keys, hold.draft)


def _read_running(tx: Tx, keys: ArcKeys, draft: Draft) -> RunningLot:
    row = rows.read(tx, keys, draft.author, draft.lot, draft.generation)
    if not isinstance(row, RunningLot) or row.attempt != draft.id:
        raise LeaseLost(
            f"attempt {draft.id} is no longer the one that processes lot {draft.lot} of {draft.author}"
        )
    return row


def _generation_to_make(tx: Tx, keys: ArcKeys, plan: LotPlan) -> int | None:
    """Return the generation to make; None if there is nothing to make.

    If the plan is for a request, the request must still exist and name this generation.
    """
    arc, lot, requested = plan.spec.id, plan.lot, plan.options.generation
    generation = due_generation(tx, keys, arc, lot, plan.inputs, replay=plan.options.replay)
    if generation is None or requested is None:
        return generation
    exists = requested == generation and tx.get(keys.request[arc, lot, generation]) is not None
    return generation if exists else None
