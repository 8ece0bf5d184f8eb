"""Jobs: claimed futures that a node holds until their end is written."""

from typing import TYPE_CHECKING, NamedTuple

from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Needs, Result, Spec

if TYPE_CHECKING:
    from tidemill.futures.worker.children import WorkerChild


NOTHING = Needs()
"""The needs of a future that asks for nothing; jobs share this object, so that `is` finds them fast."""


class FutureJob:
    """One claimed future. `child` and `number` say where it was sent; both are empty while it is with us."""

    __slots__ = (
        "awaits",
        "child",
        "claim",
        "code",
        "end_by_us",
        "ending",
        "inputs",
        "needs",
        "number",
        "said",
        "segment",
        "since_us",
        "spec",
        "spec_raw",
        "waiting",
    )

    def __init__(
        self,
        claim: Claim,
        spec: Spec,
        spec_raw: bytes,
        needs: Needs,
        inputs: tuple[tuple[bytes, Result], ...],
        code: bytes,
    ) -> None:
        self.claim = claim
        self.spec = spec
        self.spec_raw = spec_raw
        self.needs = needs
        self.inputs = inputs
        self.code = code
        self.child: WorkerChild | None = None
        self.number = 0
        self.since_us = 0  # when it came to us, or came back
        self.waiting = False  # it awaits other futures and uses no slot
        self.awaits: tuple[bytes, ...] = ()
        self.segment = ""  # where its result lies, if not in a row
        self.said = False  # it has set a status
        self.ending = ""  # why it was asked to end: "cancelled" or "deadline"
        self.end_by_us = 0  # when it is killed unless it has ended

    @property
    def id(self) -> bytes:
        return self.claim.id

    def __repr__(self) -> str:
        return f"<Job {self.spec.name} {self.id.hex()} epoch {self.claim.epoch}>"


class ClaimRequest(NamedTuple):
    """What a node could take on now."""

    limit: int
    free: Capacity
    awaited: tuple[bytes, ...] = ()  # futures that its own waiting tasks await: claimed first (FUT-41)
    slots: int = 0  # how many of those could run at once
