"""What is stored of a future: an immutable `Spec`, a small mutable state row, and what hangs on them.

The state row is a tagged union with one class per state, so that a row carries only what its state may
carry. It stays small because it is rewritten on every edge; code and arguments are in the spec or, when
large, in object storage by digest (FUT-21).
"""

from typing import ClassVar

import msgspec

from tidemill.futures.protocol.states import FutureState


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Bytes, here or in object storage: `inline` when small, else the object's digest and size."""

    inline: bytes | None
    digest: bytes = b""
    size: int = 0


class Needs(msgspec.Struct, frozen=True, array_like=True):
    """What a future asks of a node (FUT-23); what is not said is 0 and still counts as asked."""

    cpu: float = 0.0
    ram: int = 0  # bytes
    gpu: float = 0.0
    named: tuple[str, ...] = ()


class LaneEntry(msgspec.Struct, frozen=True, array_like=True):
    """The value of an index row: what a worker must know to choose without reading more."""

    needs: Needs
    queue: str = ""


class Spec(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What was submitted: never changes, through every retry and reconstruction (FUT-14, FUT-19)."""

    id: bytes
    name: str
    code: bytes  # digest of the code blob
    args: Blob
    inputs: tuple[bytes, ...] = ()
    needs: Needs = Needs()
    queue: str = ""
    priority: int = 0  # higher first
    max_retries: int = 0
    submitted_at: int = 0
    deadline_at: int = 0  # store time; 0 is none
    key: str = ""  # idempotency key
    parent: bytes = b""
    owner: str = ""  # the client whose handle keeps the result
    durable: bool = False
    near: bytes = b""  # run where this future's result is
    hard: bool = False  # ... and nowhere else
    actor: bytes = b""
    ordinal: int = 0  # of an actor's call
    reconstruct: bool = True  # may be computed again when its result is lost
    progress_timeout_s: float = 0.0
    unsatisfiable_grace_s: float = -1.0  # how long to wait for a node that fits; below 0 for ever
    python: str = ""
    signature: bytes = b""


class Location(msgspec.Struct, frozen=True, array_like=True):
    """Where a result is: in the row, in a node's segment, in object storage, or in an actor's process."""

    kind: str  # "inline" | "segment" | "object" | "actor" | "freed": nobody wanted it any more
    name: str = ""
    node: str = ""
    node_epoch: int = 0
    host: str = ""  # the machine's boot id: the same one can map the segment
    address: str = ""  # where the node serves it to other machines


class Result(msgspec.Struct, frozen=True, array_like=True):
    """One result: the pickled head is signed and here; large buffers are behind `location` (FUT-28)."""

    version: int  # the claim epoch that made it
    at: int
    size: int
    location: Location
    head: bytes = b""
    signature: bytes = b""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt or a future failed, as data: readable without unpickling anything."""

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
    """What a future has been through; every state keeps it. Each kind of failure has its count (FUT-20)."""

    epoch: int = 0  # grows with every claim, relinquish, reap and resubmit (FUT-13)
    exceptions: int = 0
    crashes: int = 0
    ooms: int = 0
    strange: int = 0  # code that could not be loaded
    reaps: int = 0  # claims whose node died, whoever was to blame
    rebuilds: int = 0  # reconstructions: not attempts (FUT-9)
    ram: int = 0  # bytes asked for since the last out-of-memory (FUT-52); 0: as submitted
    dependents: bool = False  # somebody waits: realising must wake them
    released: bool = False  # no handle of the owner is left


class StateRow(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="state"):
    """The base of the state rows."""

    state: ClassVar[FutureState]
    tally: AttemptCounts = AttemptCounts()


class Blocked(StateRow, frozen=True, array_like=True, kw_only=True, tag=0):
    """Waits for inputs; `extra` are those it waits for only now, because its task asked for them."""

    state = FutureState.BLOCKED
    waits_on: int
    extra: tuple[bytes, ...] = ()


class Unclaimed(StateRow, frozen=True, array_like=True, kw_only=True, tag=1):
    """In the pool's lane, or in a node's assignments; `ready_at` is part of its key there."""

    state = FutureState.UNCLAIMED
    ready_at: int
    assigned: str = ""
    hard: bool = False


class Claimed(StateRow, frozen=True, array_like=True, kw_only=True, tag=2):
    """A node works on it."""

    state = FutureState.CLAIMED
    holder: str
    node_epoch: int
    claimed_at: int
    cancel: str = ""  # why it must end: "cancelled" or "deadline"
    limited: bool = False  # counts against its queue's limit


class Realized(StateRow, frozen=True, array_like=True, kw_only=True, tag=3):
    """Has a result; `result` is the latest one (FUT-18)."""

    state = FutureState.REALIZED
    result: Result
    at: int


class Failed(StateRow, frozen=True, array_like=True, kw_only=True, tag=4):
    """Never has a result; the reason is the future's error row."""

    state = FutureState.FAILED
    at: int
    kind: str


class Cancelled(StateRow, frozen=True, array_like=True, kw_only=True, tag=5):
    """Somebody asked for its end."""

    state = FutureState.CANCELLED
    at: int


class Quarantined(StateRow, frozen=True, array_like=True, kw_only=True, tag=6):
    """Killed its workers; waits for a person."""

    state = FutureState.QUARANTINED
    at: int


class Unsatisfiable(StateRow, frozen=True, array_like=True, kw_only=True, tag=7):
    """No live node can run it; looked at again when a node joins."""

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
_ask = msgspec.msgpack.Decoder(LaneEntry)
_result = msgspec.msgpack.Decoder(Result)
_encode = msgspec.msgpack.Encoder().encode


def encode(value: msgspec.Struct) -> bytes:
    """Any of these structs as stored."""
    return _encode(value)


def decode_row(raw: bytes) -> AnyRow:
    """A state row from its stored bytes."""
    return _row.decode(raw)


def decode_spec(raw: bytes) -> Spec:
    """A spec from its stored bytes."""
    return _spec.decode(raw)


def decode_failure(raw: bytes) -> Failure:
    """A failure from its stored bytes."""
    return _failure.decode(raw)


def decode_ask(raw: bytes) -> LaneEntry:
    """The value of an index row."""
    return _ask.decode(raw)


def decode_result(raw: bytes) -> Result:
    """A copy's record from its stored bytes."""
    return _result.decode(raw)
