"""A supervisor's books: what was done is written to the store, what can be done is claimed from it.

One `take` transaction per round carries every plain success and the next claims together; while it is
committed the next round gathers. Whatever needs a decision (failures, rows that others have touched, tasks
given back or parked) is an *errand*: a function of a transaction, run serially, several in one transaction
as long as it stays small.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, StoreError, TidemillError
from tidemill.futures.protocol import actors, claim, depend, edges, finish, inbox, reap, results, rows
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.finish import Done
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Capacity, Lane
from tidemill.futures.protocol.rows import AnyRow, Claimed, Failure, Realized, Result, Spec
from tidemill.futures.protocol.states import ENDED
from tidemill.futures.worker.jobs import Job, Wish
from tidemill.futures.worker.placement import NOTHING
from tidemill.futures.worker.wire import Loss
from tidemill.store import Store, Tx

ERRANDS_WRITES = 300
ERRANDS_BYTES = 300_000
CODE_CACHE_BYTES = 64_000_000
AWAITED_AT_ONCE = 200
STRAYS = 100
FEW = 4
STATUSES_S = 0.3

Step = Callable[[Tx, Node], AnyRow | None]


class Errand(NamedTuple):
    """Something to be written about a job, or about an actor. `step` fences itself before it writes."""

    job: Job | None
    step: Step


class Round(NamedTuple):
    """What a round came to."""

    made: list[bool]  # for each that was done: is it written?
    claims: list[Claim]
    specs: list[bytes | None]  # of the claims, if they were read with them
    starved: bool  # something is awaited here and did not fit


class Loaded(NamedTuple):
    """Claims with all that it takes to run them, and those whose inputs are not there any more."""

    jobs: list[Job]
    unready: list[tuple[Job, list[bytes]]]


class _Read(NamedTuple):
    raw: Sequence[bytes | None]
    specs: list[Spec | None]
    states: dict[bytes, AnyRow]  # of the inputs
    codes: dict[bytes, bytes]


def _decoded(raw: Sequence[bytes | None]) -> list[Spec | None]:
    return [None if one is None else rows.decode_spec(one) for one in raw]


class Books:
    """Reads and writes futures for one node.

    - serves: which lanes this node takes from; all of them if left out.
    """

    def __init__(
        self,
        store: Store,
        cluster: str,
        chance: random.Random,
        serves: Callable[[Lane], bool] | None = None,
    ) -> None:
        self.store = store
        self.keys = FutureKeys(cluster)
        self.cluster = ClusterKeys(cluster)
        self.chance = chance
        self.serves = serves
        self.errands: deque[Errand] = deque()
        self.telling: list[bytes] = []  # realised, with dependents that are not all told
        self._lanes: list[Lane] = []
        self._lanes_known = False
        self._statuses: dict[bytes, str | None] = {}
        self._statuses_at = 0.0
        self._codes: OrderedDict[bytes, bytes] = OrderedDict()
        self._codes_bytes = 0

    # --- the fast path

    def round(self, node: Node, done: Sequence[Done], wish: Wish | None) -> Round:
        """Realise what is done and claim what is wished for, in one transaction."""
        keys, cluster = self.keys, self.cluster
        lanes = self._lanes if self._lanes_known else None
        awaited = self._awaited_specs(wish) if wish is not None and wish.awaited else []

        # Claiming first spares the store a savepoint. What counts against a limit is counted off before.
        first = any(item.claim.row.limited for item in done)

        def step(tx: Tx) -> tuple[Round, list[Lane]]:
            made = finish.realize_many(tx, keys, cluster, node, done) if first else []
            directory = lanes if lanes is not None else self._served(tx)
            claims: list[Claim] = []
            free = wish.free if wish is not None else Capacity()
            if awaited:
                claims = claim.claim_these(tx, keys, cluster, node, awaited, free)
                taken = {one.id for one in claims}
                for spec in awaited:
                    free = free.minus(spec.needs) if spec.id in taken else free
            starved = bool(awaited) and not claims
            left = wish.limit - len(claims) if wish is not None else 0
            if left > 0:
                claims += claim.claim(tx, keys, cluster, node, directory, free, left)
            few = 0 < len(claims) <= FEW  # a transaction less on the way of somebody who waits for one
            specs = tx.get_many([keys.spec[one.id] for one in claims], lock=True) if few else []
            if done and not first:
                made = finish.realize_many(tx, keys, cluster, node, done)
            return Round(made, claims, specs, starved), directory

        found, self._lanes = self.store.run(step, mode="take")
        self._lanes_known = True
        self.telling += [
            item.claim.id
            for item, ok in zip(done, found.made, strict=True)
            if ok and item.claim.row.tally.dependents
        ]
        return found

    def _served(self, tx: Tx) -> list[Lane]:
        found = claim.read_lanes(tx, self.keys)
        return found if self.serves is None else [lane for lane in found if self.serves(lane)]

    def drop(self) -> None:
        """Our lease is over: nothing of this may be written any more."""
        self.errands.clear()
        self.telling.clear()

    def forget_lanes(self) -> bool:
        """Read the directory again next time: a lane may have been opened. False if it was to be anyway."""
        known, self._lanes_known = self._lanes_known, False
        return known

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
                    elif (
                        isinstance(row, rows.Blocked) and (spec := edges.read_spec(tx, keys, one)) is not None
                    ):
                        below += [up for up in spec.inputs if up not in seen]
                seen.update(below)
                level = below
            return found[: wish.slots]

        return self.store.run(read)

    # --- what a claim needs to run

    def load(self, claims: Sequence[Claim], raw: Sequence[bytes | None] = ()) -> Loaded:
        """Read the specs, unless they are given, the results of inputs and the code, in one transaction."""
        keys, known = self.keys, self._codes

        def read(tx: Tx) -> _Read:
            found = raw or tx.get_many([keys.spec[one.id] for one in claims])
            specs = _decoded(found)
            inputs = list({up: None for spec in specs if spec is not None for up in spec.inputs})
            states = tx.get_many([keys.future[up] for up in inputs]) if inputs else []
            digests = list({spec.code: None for spec in specs if spec is not None and spec.code not in known})
            codes = tx.get_many([keys.code[one] for one in digests]) if digests else []
            return _Read(
                found,
                specs,
                {up: rows.decode_row(one) for up, one in zip(inputs, states, strict=True) if one is not None},
                {digest: code for digest, code in zip(digests, codes, strict=True) if code is not None},
            )

        specs = _decoded(raw)
        if raw and all(one is None or (not one.inputs and one.code in known) for one in specs):
            found = _Read(raw, specs, {}, {})
        else:
            found = self.store.run(read)
        raw, specs, states, codes = found
        self._remember(codes)
        loaded = Loaded([], [])
        for one, spec_raw, spec in zip(claims, raw, specs, strict=True):
            if spec is None or spec_raw is None:
                continue  # deleted under us: there is nothing to run, nor to write
            inputs: list[tuple[bytes, Result]] = []
            missing: list[bytes] = []
            for up in spec.inputs:
                state = states.get(up)
                if isinstance(state, Realized):
                    inputs.append((up, state.result))
                else:
                    missing.append(up)
            code = codes.get(spec.code) or known.get(spec.code, b"")
            needs = edges.needs_of(spec, one.row.tally)
            job = Job(one, spec, spec_raw, NOTHING if needs == NOTHING else needs, tuple(inputs), code)
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

    def realize(self, job: Job, done: Done) -> None:
        """A result whose row somebody has touched since the claim, perhaps we ourselves: a commit whose
        outcome was unknown may have realised it (FUT-54).
        """

        def step(tx: Tx, node: Node) -> AnyRow | None:
            row = edges.read(tx, self.keys, job.id)
            if isinstance(row, Realized) and row.result.version == done.result.version:
                return row
            return finish.realize(tx, self.keys, self.cluster, node, done)

        self._later(job, step)

    def fail(self, job: Job, failure: Failure, *, ram_used: int = 0) -> None:
        """The attempt failed."""
        jitter = self.chance.random()
        self._later(
            job,
            lambda tx, node: finish.fail(
                tx, self.keys, self.cluster, node, job.claim, failure, jitter=jitter, ram_used=ram_used
            ),
        )

    def cancelled(self, job: Job) -> None:
        """The task was ended because somebody had asked for it."""
        self._later(job, lambda tx, node: finish.cancelled(tx, self.keys, self.cluster, node, job.claim))

    def relinquish(self, job: Job) -> None:
        """The task was not begun, or may not be finished here."""
        self._later(
            job, lambda tx, node: finish.relinquish(tx, self.keys, self.cluster, node, [job.claim])[0]
        )

    def block(self, job: Job, upstreams: Sequence[bytes], losses: Sequence[Loss] = ()) -> None:
        """The task can go on only when these are realised; copies that were found gone are reported first.

        Each loss is an errand of its own: hundreds of inputs may be lost with one node.
        """

        def step(tx: Tx, node: Node) -> AnyRow | None:
            if not claim.is_held(edges.read(tx, self.keys, job.id), job.claim):
                return None
            return finish.block(tx, self.keys, self.cluster, node, job.claim, upstreams)

        self.errands.extend(Errand(None, partial(self._report, loss)) for loss in losses)
        self._later(job, step)

    def _report(self, loss: Loss, tx: Tx, node: Node) -> None:
        nodes.check(tx, self.cluster, node)
        results.lose(
            tx,
            self.keys,
            self.cluster,
            loss.id,
            loss.version,
            node=loss.node,
            unreachable=loss.unreachable,
        )

    def actor_died(self, actor_id: bytes, failure: Failure) -> None:
        """An actor of this node is gone, and its calls with it."""

        def step(tx: Tx, node: Node) -> AnyRow | None:
            nodes.check(tx, self.cluster, node)
            actors.died(tx, self.keys, actor_id, failure)
            return None

        self.errands.append(Errand(None, step))

    def _later(self, job: Job, step: Step) -> None:
        self.errands.append(Errand(job, step))

    def run_errands(self, node: Node) -> list[tuple[Job, AnyRow | None]]:
        """Run some of the errands in one transaction: each job with the row it has now, None if it was over.

        They stay in line until the commit is known. One that cannot be carried out at all is dropped, so
        that it does not stop the others: its claim is found as a stray (see `strays`).
        """
        errands = list(self.errands)
        try:
            became = self.store.run(lambda tx: _carry_out(tx, node, errands))
        except StoreError:
            raise
        except TidemillError:
            try:
                became = self.store.run(lambda tx: _carry_out(tx, node, errands[:1]))
            except StoreError:
                raise
            except TidemillError:
                became = [None]
        ended: list[tuple[Job, AnyRow | None]] = []
        for row in became:
            job = self.errands.popleft().job
            if job is not None:
                ended.append((job, row))
        return ended

    def tell_dependents(self) -> None:
        """Wake who hangs on what was realised, a page at a time; what is left has a cursor anyway."""
        waiting, self.telling = self.telling, []
        if self.store.run(lambda tx: depend.tell(tx, self.keys, waiting)):
            self.telling = waiting

    # --- in step with others

    def commands(self, node: Node) -> list[inbox.Command]:
        """What others have asked of this node."""
        return self.store.run(lambda tx: inbox.take(tx, self.keys, node.id), mode="take")

    def reclaim(self, node: Node) -> tuple[int, bool]:
        """Give back a page of what earlier boots at our address hold (FUT-39): how many; are there more?"""
        page = self.store.run(lambda tx: reap.reclaim(tx, self.keys, self.cluster, node))
        return len(page.moved), page.more

    def strays(self, node: Node, known: Container[bytes]) -> tuple[int, bool]:
        """Give back a page of claims of ours that we know nothing of: of an epoch that was lost, or of a
        commit whose outcome was unknown (FUT-38, FUT-54): how many, and is there more?
        """

        def step(tx: Tx) -> tuple[int, bool]:
            nodes.check(tx, self.cluster, node)
            found = tx.range(*self.keys.own.under(node.id))
            ids = [one for row in found if isinstance(one := self.keys.own.unpack(row.key)[1], bytes)]
            strays = [one for one in ids if one not in known]
            page = strays[:STRAYS]
            for one, row in zip(page, edges.read_many(tx, self.keys, page), strict=True):
                there = edges.read_spec(tx, self.keys, one) is not None
                if there and isinstance(row, Claimed) and row.holder == node.id:
                    finish.give_back(tx, self.keys, one, row)
                else:
                    tx.clear(self.keys.own[node.id, one])
            return len(page), len(strays) > STRAYS

        return self.store.run(step)

    def unknown_segments(self, node: Node, names: Sequence[str]) -> list[str]:
        """Those of our segments that no record of a copy names: of losses that were believed meanwhile."""
        ids = [_id_in(name) for name in names]

        def read(tx: Tx) -> list[bytes | None]:
            return tx.get_many([self.keys.copy[one, node.id] for one in ids])

        unknown = []
        for name, raw in zip(names, self.store.run(read) if names else [], strict=True):
            if raw is None or not rows.decode_result(raw).location.name.endswith(name):
                unknown.append(name)
        return unknown

    def next_call(self, actor_id: bytes, ordinal: int) -> int:
        """The ordinal of the first call from this one on that has not ended."""

        def read(tx: Tx) -> int:
            at = ordinal
            for call in actors.calls(tx, self.keys, actor_id, ordinal, limit=50):
                if call.row is not None and call.row.state not in ENDED:
                    return call.ordinal
                at = call.ordinal + 1
            return at

        return self.store.run(read)

    # --- what tasks say of themselves

    def say(self, future_id: bytes, text: str) -> None:
        """Told with the next round, the last word only."""
        self._statuses[future_id] = text

    def hush(self, future_id: bytes) -> None:
        """Its task is over."""
        self._statuses[future_id] = None

    def tell_statuses(self, now: float) -> None:
        """Write what tasks said, some times a second."""
        if not self._statuses or now < self._statuses_at:
            return
        self._statuses_at = now + STATUSES_S
        some = dict(islice(self._statuses.items(), STRAYS))

        def write(tx: Tx) -> None:
            for future_id, text in some.items():
                if text is None:
                    tx.clear(self.keys.status[future_id])
                else:
                    tx.set(self.keys.status[future_id], text.encode())

        self.store.run(write)
        for future_id, text in some.items():
            if self._statuses.get(future_id, "") == text:
                del self._statuses[future_id]

    def stands(self, node: Node) -> bool:
        """Is our lease good in the store?"""
        try:
            self.store.run(lambda tx: nodes.check(tx, self.cluster, node))
        except LeaseLost:
            return False
        return True


def _id_in(segment: str) -> bytes:
    """The future whose result a segment holds; no id for one that holds something else."""
    try:
        return bytes.fromhex(segment.partition(".")[0])
    except ValueError:
        return b""


def _carry_out(tx: Tx, node: Node, errands: Sequence[Errand]) -> list[AnyRow | None]:
    """As many errands as one transaction should have."""
    became: list[AnyRow | None] = []
    for errand in errands:
        try:
            became.append(errand.step(tx, node))
        except LeaseLost:  # raised before it wrote: of this claim, or of the node and so of all
            became.append(None)
        if tx.writes > ERRANDS_WRITES or tx.bytes_written > ERRANDS_BYTES:
            break
    return became


def result_of(job: Job, result: Result, node: Node) -> Done:
    """What a child made, as the store is told: made under this claim, and held by this node as it is now."""
    where = result.location
    if where.kind in ("segment", "actor"):
        where = msgspec.structs.replace(where, node=node.id, node_epoch=node.epoch)
    return Done(job.claim, job.spec, msgspec.structs.replace(result, version=job.claim.epoch, location=where))
