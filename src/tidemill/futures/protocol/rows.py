"""The stored rows of a future: an immutable `Spec`, a small state row, results and failures.

The state row is a tagged union with one class per state, so that a row contains only the fields of its state.
It is small because every state change rewrites it. The spec contains the digest of the code. It also contains
the arguments or, if they are large, the digest of an object that contains them (FUT-21).
"""

from typing import ClassVar

import msgspec

from tidemill.futures.protocol.states import FutureState


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Bytes: `inline` if they are small, otherwise the digest and size of an object."""

    inline: bytes | None
    digest: bytes = b""
    size: int = 0


class Needs(msgspec.Struct, frozen=True, array_like=True):
    """The resources that a future needs (FUT-23). By default it needs none."""

    cpu: float = 0.0
    ram: int = 0  # bytes
    gpu: float = 0.0
    named: tuple[str, ...] = ()


class LaneEntry(msgspec.Struct, frozen=True, array_like=True):
    """The value of an index row: what a worker needs to choose futures without reading other rows."""

    needs: Needs
    queue: str = ""


class Spec(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The call as it was submitted. Retries and recomputations never change it (FUT-14, FUT-19)."""

    id: bytes
    name: str
    code: bytes  # digest of the code blob
    args: Blob
    inputs: tuple[bytes, ...] = ()
    needs: Needs = Needs()
    queue: str = ""
    priority: int = 0  # higher priorities run first
    max_retries: int = 0
    submitted_at: int = 0
    deadline_at: int = 0  # by the store's clock; 0 for none
    key: str = ""  # idempotency key
    parent: bytes = b""
    owner: str = ""  # the client whose handle keeps the result
    durable: bool = False
    near: bytes = b""  # the id of another future: run on the node that has its result
    hard: bool = False  # run on no other node
    actor: bytes = b""
    ordinal: int = 0  # of an actor's call
    reconstruct: bool = True  # may be computed again if its result is lost
    progress_timeout_s: float = 0.0
    unsatisfiable_grace_s: float = -1.0  # how long to wait for a suitable node; negative for no limit
    python: str = ""
    signature: bytes = b""


class Location(msgspec.Struct, frozen=True, array_like=True):
    """Where a result is: in the row, in a node's segment, in object storage, or in an actor's process."""

    kind: str  # "inline" | "segment" | "object" | "actor" | "freed" (deleted, because it was not needed)
    name: str = ""
    node: str = ""
    node_epoch: int = 0
    host: str = ""  # the machine's boot id: processes on the same machine can map the segment
    address: str = ""  # where the node serves it to other machines


class Result(msgspec.Struct, frozen=True, array_like=True):
    """One result. It contains the signed, pickled head; `location` says where large buffers are (FUT-28)."""

    version: int  # the epoch of the claim that computed it
    at: int
    size: int
    location: Location
    head: bytes = b""
    signature: bytes = b""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt or a future failed. It can be read without unpickling anything."""

    kind: str  # one of `KINDS`
    type: str = ""
    message: str = ""
    traceback: str = ""
    pickled: bytes = b""
    signature: bytes = b""
    node: str = ""
    at: int = 0
    upstream: tuple[str, ...] = ()  # the chain of causes, nearest first (FUT-46)


class AttemptCounts(msgspec.Struct, frozen=True, array_like=True):
    """The counts of a future's attempts, by kind of failure (FUT-20). Every state keeps them."""

    epoch: int = 0  # grows with every claim, return, reap and requeue (FUT-13)
    exceptions: int = 0
    crashes: int = 0
    ooms: int = 0
    strange: int = 0  # attempts whose code could not be loaded
    reaps: int = 0  # claims that ended because their node died
    rebuilds: int = 0  # how often a lost result was computed again; not attempts (FUT-9)
    ram: int = 0  # bytes needed since the last out-of-memory error (FUT-52); 0 for the spec's value
    dependents: bool = False  # other futures depend on it and must be notified
    released: bool = False  # the owner has no handle left


class StateRow(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="state"):
    """The base class of the state rows."""

    state: ClassVar[FutureState]
    tally: AttemptCounts = AttemptCounts()


class Blocked(StateRow, frozen=True, array_like=True, kw_only=True, tag=0):
    """The future waits for inputs. `extra` lists further futures that its parked task waits for."""

    state = FutureState.BLOCKED
    waits_on: int
    extra: tuple[bytes, ...] = ()


class Unclaimed(StateRow, frozen=True, array_like=True, kw_only=True, tag=1):
    """The future is in a lane of the pool, or assigned to a node. `ready_at` is part of its index key."""

    state = FutureState.UNCLAIMED
    ready_at: int
    assigned: str = ""
    hard: bool = False


class Claimed(StateRow, frozen=True, array_like=True, kw_only=True, tag=2):
    """A node has claimed the future."""

    state = FutureState.CLAIMED
    holder: str
    node_epoch: int
    claimed_at: int
    cancel: str = ""  # why it must end: "cancelled" or "deadline"
    limited: bool = False  # counts towards its queue's limit


class Realized(StateRow, frozen=True, array_like=True, kw_only=True, tag=3):
    """The future has a result; `result` is the latest one (FUT-18)."""

    state = FutureState.REALIZED
    result: Result
    at: int


class Failed(StateRow, frozen=True, array_like=True, kw_only=True, tag=4):
    """The future failed; the error row contains the reason."""

    state = FutureState.FAILED
    at: int
    kind: str


class Cancelled(StateRow, frozen=True, array_like=True, kw_only=True, tag=5):
    """The future was cancelled."""

    state = FutureState.CANCELLED
    at: int


class Quarantined(StateRow, frozen=True, array_like=True, kw_only=True, tag=6):
    """The future crashed its workers too often, and waits until a user requeues it."""

    state = FutureState.QUARANTINED
    at: int


class Unsatisfiable(StateRow, frozen=True, array_like=True, kw_only=True, tag=7):
    """No live node can run the future. It is checked again when a node joins."""

    state = FutureState.UNSATISFIABLE
    since: int


AnyRow = Blocked | Unclaimed | Claimed | Realized | Failed | Cancelled | Quarantined | Unsatisfiable

KINDS = (
    "exception",
    "crash",
    "oom",
    "hang",
    "deadline",
    "cancelled",
    "upstream",
    "unsatisfiable",
    "deserialize",
    "actor",
    "lost",
    "reaped",
)

_row: msgspec.msgpack.Decoder[AnyRow] = msgspec.msgpack.Decoder(AnyRow)
_spec = msgspec.msgpack.Decoder(Spec)
_failure = msgspec.msgpack.Decoder(Failure)
_lane_entry = msgspec.msgpack.Decoder(LaneEntry)
_result = msgspec.msgpack.Decoder(Result)
_encode = msgspec.msgpack.Encoder().encode


def encode(value: msgspec.Struct) -> bytes:
    """Encode any of these structs."""
    return _encode(value)


def decode_row(raw: bytes) -> AnyRow:
    """Decode a state row."""
    return _row.decode(raw)


def decode_spec(raw: bytes) -> Spec:
    """Decode a spec."""
    return _spec.decode(raw)


def decode_failure(raw: bytes) -> Failure:
    """Decode a failure."""
    return _failure.decode(raw)


def decode_lane_entry(raw: bytes) -> LaneEntry:
    """Decode the value of an index row."""
    return _lane_entry.decode(raw)


def decode_result(raw: bytes) -> Result:
    """Decode the record of a copy."""
    return _result.decode(raw)
