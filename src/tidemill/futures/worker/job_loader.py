"""Loads claimed futures: their specs, the results of their inputs, and their code."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.futures.protocol import edges, rows
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Realized, Result, Spec
from tidemill.futures.worker.jobs import NOTHING, FutureJob
from tidemill.store import Store, Tx

CODE_CACHE_BYTES = 64_000_000


class LoadedJobs(NamedTuple):
    """Jobs that can run, and jobs whose inputs have been lost since they were claimed."""

    ready: list[FutureJob]
    blocked: list[tuple[FutureJob, list[bytes]]]  # with the inputs that are missing


class _Read(NamedTuple):
    raw: Sequence[bytes | None]
    specs: list[Spec | None]
    states: dict[bytes, AnyRow]  # of the inputs
    codes: dict[bytes, bytes]


def _decoded(raw: Sequence[bytes | None]) -> list[Spec | None]:
    return [None if spec is None else rows.decode_spec(spec) for spec in raw]


class JobLoader:
    """Makes jobs of claims. Keeps code that was read, because most claims share it."""

    def __init__(self, store: Store, keys: FutureKeys) -> None:
        self._store = store
        self._keys = keys
        self._codes: OrderedDict[bytes, bytes] = OrderedDict()
        self._codes_bytes = 0

    def load(self, claims: Sequence[Claim], raw: Sequence[bytes | None] = ()) -> LoadedJobs:
        """Read everything that claims need to run, in one transaction; in none if it is all known.

        Args:
            claims: what was claimed.
            raw: their specs as stored, if the caller has read them.
        """
        known = self._codes
        specs = _decoded(raw)
        if raw and all(spec is None or (not spec.inputs and spec.code in known) for spec in specs):
            read = _Read(raw, specs, {}, {})
        else:
            read = self._store.run(lambda tx: self._read(tx, claims, raw))
        self._remember(read.codes)
        loaded = LoadedJobs([], [])
        for claim, spec_raw, spec in zip(claims, read.raw, read.specs, strict=True):
            if spec is None or spec_raw is None:
                continue  # deleted since the claim: there is nothing to run or to write
            inputs: list[tuple[bytes, Result]] = []
            missing: list[bytes] = []
            for upstream in spec.inputs:
                state = read.states.get(upstream)
                if isinstance(state, Realized):
                    inputs.append((upstream, state.result))
                else:
                    missing.append(upstream)
            code = read.codes.get(spec.code) or known.get(spec.code, b"")
            needs = edges.needs_of(spec, claim.row.tally)
            job = FutureJob(
                claim, spec, spec_raw, NOTHING if needs == NOTHING else needs, tuple(inputs), code
            )
            if missing:
                loaded.blocked.append((job, missing))
            else:
                loaded.ready.append(job)
        return loaded

    def _read(self, tx: Tx, claims: Sequence[Claim], raw: Sequence[bytes | None]) -> _Read:
        keys, known = self._keys, self._codes
        raw = raw or tx.get_many([keys.spec[claim.id] for claim in claims])
        specs = _decoded(raw)
        inputs = list({up: None for spec in specs if spec is not None for up in spec.inputs})
        states = zip(inputs, tx.get_many([keys.future[up] for up in inputs]) if inputs else [], strict=True)
        digests = list({spec.code: None for spec in specs if spec is not None and spec.code not in known})
        codes = tx.get_many([keys.code[digest] for digest in digests]) if digests else []
        return _Read(
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
