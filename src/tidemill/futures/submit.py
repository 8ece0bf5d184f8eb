"""Submitting futures: the edge from nowhere."""

import msgspec

from tidemill.errors import FutureUnknown
from tidemill.futures import edges, rows
from tidemill.futures.keys import FutureKeys
from tidemill.futures.rows import (
    AnyRow,
    Blocked,
    Cancelled,
    Failed,
    Failure,
    Quarantined,
    Realized,
    Result,
    Spec,
    Tally,
    Unclaimed,
)
from tidemill.store import Tx

PAGE = 100
"""Futures per transaction: at most five writes each and one per input stay well within the limits."""

WAITING, SERVED = b"w", b"s"


def submit(tx: Tx, keys: FutureKeys, specs: list[Spec]) -> list[bytes]:
    """Enter futures: unclaimed, or blocked while an input is not realised (FUT-1). Returns their ids.

    A spec whose idempotency key is known already makes nothing; the id of the first one is returned. A
    future whose input has failed for good fails at once, with the chain of causes.
    """
    return [_submit_one(tx, keys, spec) for spec in specs]


def _submit_one(tx: Tx, keys: FutureKeys, spec: Spec) -> bytes:
    if spec.key:
        known = tx.get(keys.key[spec.key])
        if known is not None:
            return known
        tx.set(keys.key[spec.key], spec.id)
    spec = msgspec.structs.replace(spec, submitted_at=tx.now())
    tx.set(keys.spec[spec.id], rows.encode(spec))
    if spec.deadline_at:
        tx.set(keys.deadline[spec.deadline_at, spec.id], b"")
    missing, broken = _attach(tx, keys, spec)
    if broken is not None:
        edges.set_failure(tx, keys, spec.id, broken)
        edges.enter(tx, keys, spec, Failed(at=tx.now(), kind="upstream"))
    elif missing:
        edges.enter(tx, keys, spec, Blocked(waits_on=missing))
    else:
        edges.enter(tx, keys, spec, unclaimed(tx, keys, spec, Tally(), tx.now()))
    return spec.id


def _attach(tx: Tx, keys: FutureKeys, spec: Spec) -> tuple[int, Failure | None]:
    """Hang a future on its inputs: how many are missing, and the failure of one that never comes."""
    inputs = list(dict.fromkeys(spec.inputs))
    missing = 0
    broken: Failure | None = None
    for upstream, row in zip(inputs, edges.read_many(tx, keys, inputs), strict=True):
        if row is None:
            raise FutureUnknown(f"input {upstream.hex()} of {spec.name} does not exist any more")
        if isinstance(row, Failed | Cancelled | Quarantined):
            broken = broken or upstream_failure(tx, keys, upstream, row)
        served = isinstance(row, Realized)
        tx.set(keys.dep[upstream, spec.id], SERVED if served else WAITING)
        missing += not served
        if not row.tally.dependents:
            tally = msgspec.structs.replace(row.tally, dependents=True)
            tx.set(keys.future[upstream], rows.encode(msgspec.structs.replace(row, tally=tally)))
    return missing, broken


def upstream_failure(tx: Tx, keys: FutureKeys, upstream: bytes, row: AnyRow) -> Failure:
    """What a dependent is told of an input that never comes: the chain of causes, nearest first (FUT-46)."""
    raw = tx.get(keys.error[upstream], lock=tx.mode == "take")
    cause = rows.decode_failure(raw) if raw is not None else Failure(kind=row.state.value)
    spec = edges.read_spec(tx, keys, upstream)
    named = (
        f"{spec.name if spec else '?'} ({upstream.hex()}): {cause.type or cause.kind} {cause.message}".strip()
    )
    return Failure(
        kind="upstream",
        type=cause.type,
        message=cause.message or f"an input is {row.state.value}",
        traceback=cause.traceback,
        pickled=cause.pickled,
        signature=cause.signature,
        at=tx.now(),
        upstream=(named, *cause.upstream)[:50],
    )


def unclaimed(tx: Tx, keys: FutureKeys, spec: Spec, tally: Tally, ready_at: int) -> Unclaimed:
    """A row for the pool, or for the node that holds what the future wants to be near (FUT-42)."""
    node = where(tx, keys, spec)
    return Unclaimed(tally=tally, ready_at=ready_at, assigned=node, hard=bool(node) and spec.hard)


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
    spec = msgspec.structs.replace(spec, submitted_at=tx.now(), reconstruct=False)
    tx.set(keys.spec[spec.id], rows.encode(spec))
    edges.enter(tx, keys, spec, Realized(result=msgspec.structs.replace(result, at=tx.now()), at=tx.now()))
    if result.location.kind != "inline":
        keep(tx, keys, spec, result)
    return spec.id


def keep(tx: Tx, keys: FutureKeys, spec: Spec, result: Result) -> None:
    """The records of a result outside the row: where its copy is, and whose handle keeps it."""
    tx.set(keys.copy[spec.id, result.location.node], rows.encode(result))
    if spec.owner:
        tx.set(keys.hold[spec.owner, spec.id], b"")
