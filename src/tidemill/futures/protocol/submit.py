"""Submitting futures: the edge from nowhere."""

from collections.abc import Callable, Sequence

import msgspec

from tidemill.errors import FutureUnknown, UsageError
from tidemill.futures.protocol import edges, rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import (
    AnyRow,
    AttemptCounts,
    Blocked,
    Cancelled,
    Failed,
    Failure,
    Quarantined,
    Realized,
    Result,
    Spec,
    Unclaimed,
)
from tidemill.futures.protocol.states import ENDED
from tidemill.store import Tx

ROOM_WRITES = 800
"""What a transaction of submissions may write: within the limit, with room for what the caller adds."""

MOST_INPUTS = 300
"""Each input is two writes, in one transaction with the future."""

WAITING, SERVED = b"w", b"s"


def weight(spec: Spec) -> int:
    """How many rows submitting this writes at most."""
    return 8 + 2 * len(spec.inputs)


def pages(specs: Sequence[Spec], weigh: Callable[[Spec], int] = weight) -> list[list[Spec]]:
    """A batch cut into transactions: by the number of writes, and by the size of what is written."""
    found: list[list[Spec]] = []
    writes = size = 0
    for spec in specs:
        more = weigh(spec)
        bulk = len(spec.args.inline or b"") + 40 * len(spec.inputs) + 1_000
        if not found or writes + more > ROOM_WRITES or size + bulk > 800_000:
            found.append([])
            writes = size = 0
        found[-1].append(spec)
        writes, size = writes + more, size + bulk
    return found


def submit(tx: Tx, keys: FutureKeys, specs: Sequence[Spec]) -> list[bytes]:
    """Enter futures: unclaimed, or blocked while an input is not realised (FUT-1). Returns their ids.

    A spec whose idempotency key is known already makes nothing; the id of the first one is returned. A
    future whose input has failed for good fails at once, with the chain of causes. The batch is one
    transaction: cut it with `pages`.
    """
    return [submit_one(tx, keys, spec) for spec in specs]


def submit_one(tx: Tx, keys: FutureKeys, spec: Spec) -> bytes:
    """Enter one future."""
    if len(spec.inputs) > MOST_INPUTS:
        raise UsageError(
            f"{spec.name} has {len(spec.inputs)} inputs; at most {MOST_INPUTS}",
            hint="gather them in steps: futures that each combine some of them",
        )
    known = known_as(tx, keys, spec)
    if known is not None:
        return known
    spec = begin(tx, keys, spec)
    missing, broken = attach(tx, keys, spec, must_exist=True)
    if broken is not None:
        edges.set_failure(tx, keys, spec.id, broken)
        edges.enter(tx, keys, spec, Failed(at=tx.now(), kind=broken.kind))
    elif missing:
        edges.enter(tx, keys, spec, Blocked(waits_on=missing))
    else:
        edges.enter(tx, keys, spec, unclaimed(tx, keys, spec, AttemptCounts()))
    return spec.id


def known_as(tx: Tx, keys: FutureKeys, spec: Spec) -> bytes | None:
    """The id of the future that was submitted under the same idempotency key."""
    return tx.get(keys.key[spec.key]) if spec.key else None


def begin(tx: Tx, keys: FutureKeys, spec: Spec) -> Spec:
    """Write what never changes: the spec, and the indices of its key and its deadline."""
    spec = msgspec.structs.replace(spec, submitted_at=tx.now())
    tx.set(keys.spec[spec.id], rows.encode(spec), quiet=True)
    if spec.key:
        tx.set(keys.key[spec.key], spec.id)
    if spec.deadline_at:
        tx.set(keys.deadline[spec.deadline_at, spec.id], b"")
    return spec


def attach(
    tx: Tx, keys: FutureKeys, spec: Spec, *, extra: Sequence[bytes] = (), must_exist: bool = False
) -> tuple[int, Failure | None]:
    """Hang a future on its inputs: how many are missing, and the failure of one that never comes.

    - extra: futures that a parked task awaits: served by any end, since the task itself looks at it.
    - must_exist: an input that is gone is the caller's mistake (`FutureUnknown`), not a failure.
    """
    ids = list(dict.fromkeys((*spec.inputs, *extra)))
    only_awaited = set(extra) - set(spec.inputs)
    missing = 0
    broken: Failure | None = None
    for upstream, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if row is None:
            if must_exist:
                raise FutureUnknown(f"input {upstream.hex()} of {spec.name} does not exist any more")
            if upstream not in only_awaited:
                broken = broken or _gone(tx, spec, upstream)
            continue
        if isinstance(row, Failed | Cancelled | Quarantined) and upstream not in only_awaited:
            broken = broken or upstream_failure(tx, keys, upstream, row, of=spec)
        served = row.state in ENDED if upstream in only_awaited else isinstance(row, Realized)
        tx.set(keys.dep[upstream, spec.id], SERVED if served else WAITING)
        missing += not served
        if not row.tally.dependents:
            tally = msgspec.structs.replace(row.tally, dependents=True)
            tx.set(keys.future[upstream], rows.encode(msgspec.structs.replace(row, tally=tally)))
    return missing, broken


def _gone(tx: Tx, spec: Spec, upstream: bytes) -> Failure:
    message = f"input {upstream.hex()} of {spec.name} does not exist any more"
    return Failure(kind="upstream", type="FutureUnknown", message=message, at=tx.now())


def upstream_failure(
    tx: Tx, keys: FutureKeys, upstream: bytes, row: AnyRow, *, of: Spec | None = None
) -> Failure:
    """What a dependent is told of an input that never comes: the chain of causes, nearest first (FUT-46).

    Of kind "actor" for a call `of` the actor that the input is.
    """
    raw = tx.get(keys.error[upstream], lock=tx.mode == "take")
    cause = rows.decode_failure(raw) if raw is not None else Failure(kind=row.state.value)
    spec = edges.read_spec(tx, keys, upstream)
    named = (
        f"{spec.name if spec else '?'} ({upstream.hex()}): {cause.type or cause.kind} {cause.message}".strip()
    )
    return Failure(
        kind="actor" if of is not None and of.actor == upstream else "upstream",
        type=cause.type,
        message=cause.message or f"an input is {row.state.value}",
        traceback=cause.traceback,
        pickled=cause.pickled,
        signature=cause.signature,
        at=tx.now(),
        upstream=(named, *cause.upstream)[:50],
    )


def unclaimed(
    tx: Tx,
    keys: FutureKeys,
    spec: Spec,
    tally: AttemptCounts,
    *,
    ready_at: int | None = None,
    node: str | None = None,
) -> Unclaimed:
    """A row for the pool, or for the node that holds what the future wants to be near (FUT-42).

    In the pool it has the place of its submission, however often it was given back: the oldest goes first
    (FUT-26). Among assignments it counts from now, because those that wait too long go to the pool (FUT-60).

    - ready_at: not before this time.
    - node: assign it softly to this node instead, unless it is bound to another one.
    """
    home = where(tx, keys, spec)
    hard = bool(home) and spec.hard
    if node is not None and not hard:
        home = node
    if ready_at is None:
        ready_at = tx.now() if home else spec.submitted_at
    return Unclaimed(tally=tally, ready_at=ready_at, assigned=home, hard=hard)


def where(tx: Tx, keys: FutureKeys, spec: Spec) -> str:
    """The node to assign a future to; empty for the pool."""
    if not spec.near:
        return ""
    row = edges.read(tx, keys, spec.near)
    if isinstance(row, Realized) and row.result.location.kind in ("segment", "actor"):
        return row.result.location.node
    return ""


def put(tx: Tx, keys: FutureKeys, spec: Spec, result: Result) -> bytes:
    """Enter a value as a realised future (FUT-33): it has no provenance, so it is never computed again."""
    known = known_as(tx, keys, spec)
    if known is not None:
        return known
    spec = begin(tx, keys, msgspec.structs.replace(spec, reconstruct=False))
    edges.enter(tx, keys, spec, Realized(result=msgspec.structs.replace(result, at=tx.now()), at=tx.now()))
    if result.location.kind != "inline":
        keep(tx, keys, spec, result)
    return spec.id


def keep(tx: Tx, keys: FutureKeys, spec: Spec, result: Result, *, held: bool = True) -> None:
    """The records of a result outside the row: where its copy is, and whose handle keeps it."""
    tx.set(keys.copy[spec.id, result.location.node], rows.encode(result))
    if held and spec.owner:
        tx.set(keys.hold[spec.owner, spec.id], b"")
