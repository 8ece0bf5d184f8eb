"""The store's side of a supervisor: what was done is written, what can be done is claimed.

One `take` transaction per round carries every plain success and the next claims together; while it is
committed the next round gathers. Whatever needs a decision (failures, rows that others have touched, tasks
given back or parked) is an *errand*: a function of a transaction, run serially, several in one transaction
as long as it stays small.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.futures import claim, depend, edges, finish, inbox, rows
from tidemill.futures.claim import Claim
from tidemill.futures.finish import Done
from tidemill.futures.jobs import Job
from tidemill.futures.keys import FutureKeys
from tidemill.futures.lanes import Capacity, Lane
from tidemill.futures.rows import AnyRow, Realized, Result, Spec
from tidemill.store import Store, Tx

ERRANDS_WRITES = 300
ERRANDS_BYTES = 300_000
ROUND_BYTES = 500_000
CODE_CACHE_BYTES = 64_000_000
AWAITED_AT_ONCE = 200

Step = Callable[[Tx, Node], AnyRow | None]


class Errand(NamedTuple):
    """Something to be written about one job. `step` must fence itself before it writes."""

    job: Job
    step: Step


class Wish(NamedTuple):
    """What a supervisor could take on now."""

    limit: int
    free: Capacity
    awaited: tuple[bytes, ...] = ()  # futures that its own waiting tasks await: they go first (FUT-41)
    slots: int = 0  # how many of those could run at once


class Loaded(NamedTuple):
    """Claims with all that it takes to run them, and those whose inputs are not there any more."""

    jobs: list[Job]
    unready: list[tuple[Job, list[bytes]]]


class Ledger:
    """Reads and writes futures for one node."""

    def __init__(self, store: Store, cluster: str, chance: random.Random) -> None:
        self.store = store
        self.keys = FutureKeys(cluster)
        self.cluster = ClusterKeys(cluster)
        self.chance = chance
        self.errands: deque[Errand] = deque()
        self.telling: list[bytes] = []  # realised, with dependents that are not all told
        self._lanes: list[Lane] = []
        self._lanes_known = False
        self._codes: OrderedDict[bytes, bytes] = OrderedDict()
        self._codes_bytes = 0

    # --- the fast path

    def round(self, node: Node, done: Sequence[Done], wish: Wish | None) -> tuple[list[bool], list[Claim]]:
        """Realise what is done and claim what is wished for, in one transaction."""
        keys, cluster = self.keys, self.cluster
        lanes = self._lanes if self._lanes_known else None
        awaited = self._awaited_specs(wish) if wish is not None and wish.awaited else []

        def step(tx: Tx) -> tuple[list[bool], list[Claim], list[Lane]]:
            made = finish.realize_many(tx, keys, cluster, node, done) if done else []
            directory = lanes if lanes is not None else claim.read_lanes(tx, keys)
            claims: list[Claim] = []
            if wish is not None:
                if awaited:
                    claims = claim.claim_these(tx, keys, cluster, node, awaited, wish.free)
                left = wish.limit - len(claims)
                if left > 0:
                    claims += claim.claim(tx, keys, cluster, node, directory, wish.free, left)
            return made, claims, directory

        made, claims, self._lanes = self.store.run(step, mode="take")
        self._lanes_known = True
        self.telling += [
            item.claim.id
            for item, ok in zip(done, made, strict=True)
            if ok and item.claim.row.tally.dependents
        ]
        return made, claims

    def forget_lanes(self) -> None:
        """Read the directory again next time: a lane may have been opened."""
        self._lanes_known = False

    def _awaited_specs(self, wish: Wish) -> list[Spec]:
        """Unclaimed futures that our waiting tasks await, or that those in turn wait for."""
        keys = self.keys

        def read(tx: Tx) -> list[Spec]:
            found: list[Spec] = []
            level, seen = list(wish.awaited), set(wish.awaited)
            while level and len(found) < wish.slots and len(seen) <= AWAITED_AT_ONCE:
                below: list[bytes] = []
                raw = tx.get_many([keys.future[one] for one in level])
                for one, state in zip(level, raw, strict=True):
                    row = rows.decode_row(state) if state is not None else None
                    if isinstance(row, rows.Unclaimed) and row.ready_at <= tx.now():
                        if (spec := edges.read_spec(tx, keys, one)) is not None:
                            found.append(spec)
                    elif isinstance(row, rows.Blocked) and (spec := edges.read_spec(tx, keys, one)) is not None:
                        below += [up for up in spec.inputs if up not in seen]
                seen.update(below)
                level = below
            return found[: wish.slots]

        return self.store.run(read)

    # --- what a claim needs to run

    def load(self, claims: Sequence[Claim]) -> Loaded:
        """Read specs, the results of inputs and the code, all in one transaction."""
        keys, known = self.keys, self._codes

        def read(tx: Tx) -> tuple[list[bytes | None], list[Spec | None], dict[bytes, AnyRow], dict[bytes, bytes]]:
            raw = tx.get_many([keys.spec[one.id] for one in claims])
            specs = [None if one is None else rows.decode_spec(one) for one in raw]
            inputs = list({up: None for spec in specs if spec is not None for up in spec.inputs})
            states = tx.get_many([keys.future[up] for up in inputs]) if inputs else []
            digests = list({spec.code: None for spec in specs if spec is not None and spec.code not in known})
            codes = tx.get_many([keys.code[one] for one in digests]) if digests else []
            return (
                raw,
                specs,
                {up: rows.decode_row(one) for up, one in zip(inputs, states, strict=True) if one is not None},
                {digest: code for digest, code in zip(digests, codes, strict=True) if code is not None},
            )

        raw, specs, states, codes = self.store.run(read)
        self._remember(codes)
        loaded = Loaded([], [])
        for one, spec_raw, spec in zip(claims, raw, specs, strict=True):
            if spec is None or spec_raw is None:
                continue  # deleted under us: there is nothing to run, nor to write
            results: list[tuple[bytes, Result]] = []
            missing: list[bytes] = []
            for up in spec.inputs:
                state = states.get(up)
                if isinstance(state, Realized):
                    results.append((up, state.result))
                else:
                    missing.append(up)
            code = codes.get(spec.code) or known.get(spec.code, b"")
            job = Job(one, spec, spec_raw, edges.needs_of(spec, one.row.tally), tuple(results), code)
            if missing:
                loaded.unready.append((job, missing))
            else:
                loaded.jobs.append(job)
        return loaded

    def _remember(self, codes: dict[bytes, bytes]) -> None:
        for digest, code in codes.items():
            self._codes[digest] = code
            self._codes_bytes += len(code)
        while self._codes_bytes > CODE_CACHE_BYTES and len(self._codes) > 1:
            self._codes_bytes -= len(self._codes.popitem(last=False)[1])

    # --- errands

    def run_errands(self, node: Node) -> list[tuple[Job, AnyRow | None]]:
        """Run some of the errands in one transaction: each job with the row it has now, None if it was over.

        They stay in line until the commit is known.
        """
        errands = list(self.errands)

        def step(tx: Tx) -> list[AnyRow | None]:
            became: list[AnyRow | None] = []
            for errand in errands:
                try:
                    became.append(errand.step(tx, node))
                except LeaseLost:  # raised before it wrote: of this claim, or of the node, and then of all
                    became.append(None)
                if tx.writes > ERRANDS_WRITES or tx.bytes_written > ERRANDS_BYTES:
                    break
            return became

        became = self.store.run(step)
        ended: list[tuple[Job, AnyRow | None]] = []
        for row in became:
            ended.append((self.errands.popleft().job, row))
        return ended

    def tell_dependents(self) -> None:
        """Wake who hangs on what was realised, a page at a time; what is left has a cursor anyway."""
        waiting, self.telling = self.telling, []
        if self.store.run(lambda tx: depend.tell(tx, self.keys, waiting)):
            self.telling = waiting

    def commands(self, node: Node) -> list[inbox.Command]:
        """What others have asked of this node."""
        return self.store.run(lambda tx: inbox.take(tx, self.keys, node.id), mode="take")


def result_of(job: Job, result: Result) -> Done:
    """What a child made, as the store is told."""
    return Done(job.claim, job.spec, msgspec.structs.replace(result, version=job.claim.epoch))
