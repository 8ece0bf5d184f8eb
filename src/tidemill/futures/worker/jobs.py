"""Jobs: claimed futures that a node holds until their outcome is written, and the loader of their data."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidemill.futures.protocol import edges, rows
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import AnyRow, Needs, Realized, Result, Spec
from tidemill.store import Store, Tx

if TYPE_CHECKING:
    from tidemill.futures.worker.children import WorkerChild

CODE_CACHE_BYTES = 64_000_000

NOTHING = Needs()
"""The needs of a future that requires no resources. Jobs share this object, so `is` is enough to compare."""


class FutureJob:
    """One claimed future. `child` and `number` are set when the job is sent to a child process."""

    __slots__ = (
        "awaits",
        "child",
        "claim",
        "code",
        "end_by_us",
        "ending",
        "has_status",
        "inputs",
        "needs",
        "number",
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
        self.since_us = 0  # when it was claimed, or returned by a child
        self.waiting = False  # it waits for other futures and uses no slot
        self.awaits: tuple[bytes, ...] = ()
        self.segment = ""  # the segment that contains its result, if the result is not in a row
        self.has_status = False  # the task has set a status
        self.ending = ""  # why it must end: "cancelled" or "deadline"
        self.end_by_us = 0  # when it is killed if it has not ended

    @property
    def id(self) -> bytes:
        return self.claim.id

    def __repr__(self) -> str:
        return f"<Job {self.spec.name} {self.id.hex()} epoch {self.claim.epoch}>"


class ClaimRequest(NamedTuple):
    """How many futures a node can claim now, and with which capacity."""

    limit: int
    free: Capacity
    awaited: tuple[bytes, ...] = ()  # futures that its waiting tasks need: claimed first (FUT-41)
    slots: int = 0  # how many of the awaited futures could run at once


class LoadedJobs(NamedTuple):
    """Jobs that can run, and jobs that lost an input after they were claimed."""

    ready: list[FutureJob]
    blocked: list[tuple[FutureJob, list[bytes]]]  # each with its missing inputs


class _JobRows(NamedTuple):
    raw: Sequence[bytes | None]
    specs: list[Spec | None]
    states: dict[bytes, AnyRow]  # of the inputs
    codes: dict[bytes, bytes]


def _decode_specs(raw: Sequence[bytes | None]) -> list[Spec | None]:
    return [None if spec is None else rows.decode_spec(spec) for spec in raw]


class JobLoader:
    """Turns claims into jobs: reads their specs, the results of their inputs, and their code.

    It caches code, because most claims share it.
    """

    def __init__(self, store: Store, keys: FutureKeys) -> None:
        self._store = store
        self._keys = keys
        self._codes: OrderedDict[bytes, bytes] = OrderedDict()
        self._codes_bytes = 0

    def load(self, claims: Sequence[Claim], raw: Sequence[bytes | None] = ()) -> LoadedJobs:
        """Load what the claims need to run, in one transaction. Read nothing if everything is cached.

        Args:
            claims: the new claims.
            raw: their specs as stored, if the caller has read them.
        """
        cached = self._codes
        specs = _decode_specs(raw)
        if raw and all(spec is None or (not spec.inputs and spec.code in cached) for spec in specs):
            read = _JobRows(raw, specs, {}, {})
        else:
            read = self._store.run(lambda tx: self._read(tx, claims, raw))
        self._remember(read.codes)
        loaded = LoadedJobs([], [])
        for claim, spec_raw, spec in zip(claims, read.raw, read.specs, strict=True):
            if spec is None or spec_raw is None:
                continue  # the future was deleted after the claim: there is nothing to run or to write
            inputs: list[tuple[bytes, Result]] = []
            missing: list[bytes] = []
            for upstream in spec.inputs:
                state = read.states.get(upstream)
                if isinstance(state, Realized):
                    inputs.append((upstream, state.result))
                else:
                    missing.append(upstream)
            code = read.codes.get(spec.code) or cached.get(spec.code, b"")
            needs = edges.needs_of(spec, claim.row.tally)
            job = FutureJob(
                claim, spec, spec_raw, NOTHING if needs == NOTHING else needs, tuple(inputs), code
            )
            if missing:
                loaded.blocked.append((job, missing))
            else:
                loaded.ready.append(job)
        return loaded

    def _read(self, tx: Tx, claims: Sequence[Claim], raw: Sequence[bytes | None]) -> _JobRows:
        keys, cached = self._keys, self._codes
        raw = raw or tx.get_many([keys.spec[claim.id] for claim in claims])
        specs = _decode_specs(raw)
        inputs = list({up: None for spec in specs if spec is not None for up in spec.inputs})
        states = zip(inputs, tx.get_many([keys.future[up] for up in inputs]) if inputs else [], strict=True)
        digests = list({spec.code: None for spec in specs if spec is not None and spec.code not in cached})
        codes = tx.get_many([keys.code[digest] for digest in digests]) if digests else []
        return _JobRows(
            raw,
            specs,
            {up: rows.decode_row(state) for up, state in states if state is not None},
            {digest: code for digest, code in zip(digests, codes, strict=True) if code is not None},
        )

    def _remember(self, codes: dict[bytes, bytes]) -> None:
        for digest, code in codes.items():
            self._codes[digest] = code
            self._codes_bytes += len(code)
        while self._codes_bytes > CODE_CACHE_BYTES and len(self._codes) > 1:
            self._codes_bytes -= len(self._codes.popitem(last=False)[1])
