"""Create futures, and store values as realized futures (`put`)."""

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
"""How many rows a transaction of submissions may write. The limit of the store is higher."""

MOST_INPUTS = 300
"""How many inputs a future may have. Each input is two writes in the future's transaction."""

WAITING, SERVED = b"w", b"s"


def weight(spec: Spec) -> int:
    """Return the maximum number of rows that submitting this future writes."""
    return 8 + 2 * len(spec.inputs) + args_weight(spec)


def args_weight(spec: Spec) -> int:
    """Return how many rows are written for arguments outside of the spec: their draft, and their garbage."""
    return 0 if spec.args.inline is not None else 2


def pages(specs: Sequence[Spec], weigh: Callable[[Spec], int] = weight) -> list[list[Spec]]:
    """Split a batch into transactions, by the number of rows and by the number of bytes."""
    batches: list[list[Spec]] = []
    writes = size = 0
    for spec in specs:
        spec_writes = weigh(spec)
        spec_size = len(spec.args.inline or b"") + 40 * len(spec.inputs) + 1_000
        if not batches or writes + spec_writes > ROOM_WRITES or size + spec_size > 800_000:
            batches.append([])
            writes = size = 0
        batches[-1].append(spec)
        writes, size = writes + spec_writes, size + spec_size
    return batches


def submit(tx: Tx, keys: FutureKeys, specs: Sequence[Spec]) -> list[bytes]:
    """Create futures: unclaimed, or blocked while an input is not realized (FUT-1). Return their ids.

    If the idempotency key of a spec already exists, nothing is created and the first future's id is returned.
    A future with a failed input fails at once, with the chain of causes. All futures are created in one
    transaction; use `pages` to split a large batch.
    """
    return [submit_one(tx, keys, spec) for spec in specs]


def submit_one(tx: Tx, keys: FutureKeys, spec: Spec) -> bytes:
    """Create one future."""
    if len(spec.inputs) > MOST_INPUTS:
        raise UsageError(
            f"{spec.name} has {len(spec.inputs)} inputs; at most {MOST_INPUTS} are allowed",
            hint="combine the inputs in groups first, then combine the results",
        )
    existing = existing_id(tx, keys, spec)
    if existing is not None:
        return existing
    spec = write_spec(tx, keys, spec)
    missing, broken = attach(tx, keys, spec, must_exist=True)
    if broken is not None:
        edges.set_failure(tx, keys, spec.id, broken)
        edges.enter(tx, keys, spec, Failed(at=tx.now(), kind=broken.kind))
    elif missing:
        edges.enter(tx, keys, spec, Blocked(waits_on=missing))
    else:
        edges.enter(tx, keys, spec, unclaimed(tx, keys, spec, AttemptCounts()))
    return spec.id


def existing_id(tx: Tx, keys: FutureKeys, spec: Spec) -> bytes | None:
    """Return the id of the future with the same idempotency key, if there is one."""
    return tx.get(keys.key[spec.key]) if spec.key else None


def write_spec(tx: Tx, keys: FutureKeys, spec: Spec) -> Spec:
    """Write the rows that never change: the spec, and the indices of its key and its deadline."""
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
    """Make a future a dependent of its inputs.

    Return how many inputs are missing, and the failure of an input, if any has failed.

    Args:
        tx: the transaction.
        keys: the keys of futures.
        spec: the future.
        extra: futures that a parked task waits for. They may end in any way; the task itself checks how.
        must_exist: raise `FutureUnknown` for an input that does not exist, instead of returning a failure.
    """
    ids = list(dict.fromkeys((*spec.inputs, *extra)))
    only_awaited = set(extra) - set(spec.inputs)
    missing = 0
    broken: Failure | None = None
    for upstream, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if row is None:
            if must_exist:
                raise FutureUnknown(f"input {upstream.hex()} of {spec.name} does not exist or was deleted")
            if upstream not in only_awaited:
                broken = broken or _missing_input(tx, spec, upstream)
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


def _missing_input(tx: Tx, spec: Spec, upstream: bytes) -> Failure:
    message = f"input {upstream.hex()} of {spec.name} does not exist or was deleted"
    return Failure(kind="upstream", type="FutureUnknown", message=message, at=tx.now())


def upstream_failure(
    tx: Tx, keys: FutureKeys, upstream: bytes, row: AnyRow, *, of: Spec | None = None
) -> Failure:
    """Return the failure of a future whose input failed, with the chain of causes, nearest first (FUT-46).

    `of` is the spec of the future whose input failed. If it is a call of an actor, and the actor is the
    failed input, the kind of the failure is "actor".
    """
    raw = tx.get(keys.error[upstream], lock=tx.mode == "take")
    cause = rows.decode_failure(raw) if raw is not None else Failure(kind=row.state.value)
    spec = edges.read_spec(tx, keys, upstream)
    name = spec.name if spec else "?"
    link = f"{name} ({upstream.hex()}): {cause.type or cause.kind} {cause.message}".strip()
    return Failure(
        kind="actor" if of is not None and of.actor == upstream else "upstream",
        type=cause.type,
        message=cause.message or f"an input is {row.state.value}",
        traceback=cause.traceback,
        pickled=cause.pickled,
        signature=cause.signature,
        at=tx.now(),
        upstream=(link, *cause.upstream)[:50],
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
    """Return the row of an unclaimed future, in the pool or assigned to a node (FUT-42).

    If `spec.near` names a future, the node that has its result gets the assignment. In the pool, a future
    keeps the position of its submission through all retries: the oldest runs first (FUT-26). The wait of an
    assignment starts now; assignments that wait too long go to the pool (FUT-60).

    Args:
        tx: the transaction.
        keys: the keys of futures.
        spec: the future.
        tally: the counts of the new row.
        ready_at: do not run the future before this time.
        node: assign the future to this node, unless it is bound to another node; an empty string for the
            pool.
    """
    home = preferred_node(tx, keys, spec)
    hard = bool(home) and spec.hard
    if node is not None and not hard:
        home = node
    if ready_at is None:
        ready_at = tx.now() if home else spec.submitted_at
    return Unclaimed(tally=tally, ready_at=ready_at, assigned=home, hard=hard)


def preferred_node(tx: Tx, keys: FutureKeys, spec: Spec) -> str:
    """Return the node to assign a future to; an empty string for the pool."""
    if not spec.near:
        return ""
    row = edges.read(tx, keys, spec.near)
    if isinstance(row, Realized) and row.result.location.kind in ("segment", "actor"):
        return row.result.location.node
    return ""


def put(tx: Tx, keys: FutureKeys, spec: Spec, result: Result) -> bytes:
    """Store a value as a realized future (FUT-33). It has no inputs, so it cannot be computed again."""
    existing = existing_id(tx, keys, spec)
    if existing is not None:
        return existing
    spec = write_spec(tx, keys, msgspec.structs.replace(spec, reconstruct=False))
    edges.enter(tx, keys, spec, Realized(result=msgspec.structs.replace(result, at=tx.now()), at=tx.now()))
    if result.location.kind != "inline":
        record_copy(tx, keys, spec, result)
    return spec.id


def record_copy(tx: Tx, keys: FutureKeys, spec: Spec, result: Result, *, has_handle: bool = True) -> None:
    """Record a result outside the row: where its copy is, and which client's handle keeps it."""
    tx.set(keys.copy[spec.id, result.location.node], rows.encode(result))
    if result.location.kind == "object":  # see `drafts`
        tx.clear(keys.draft[result.location.name], quiet=True)
    if has_handle and spec.owner:
        tx.set(keys.hold[spec.owner, spec.id], b"")
