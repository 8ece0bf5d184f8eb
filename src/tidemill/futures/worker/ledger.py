"""The claims of one node: the jobs it holds, and what it has to write about them.

An executor reports how each job ended. Plain successes are written many at a time, in the transaction that
also claims the next jobs (`round`). Everything that needs a decision is a *pending write*: a failure, a job
given back or blocked, a row that others have changed. A pending write is a function of a transaction. Several
run in one transaction while it stays small.
"""

import random
from collections import deque
from collections.abc import Callable, Container, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, StoreError, TidemillError
from tidemill.events import Emit, ignore
from tidemill.futures.protocol import actors, claim, depend, edges, finish, inbox, reap, results, rows
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.finish import Completion
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Capacity, Lane
from tidemill.futures.protocol.rows import AnyRow, Claimed, Failure, Realized, Result, Spec
from tidemill.futures.protocol.states import ENDED
from tidemill.futures.worker.events import TaskFailed
from tidemill.futures.worker.jobs import ClaimRequest, FutureJob
from tidemill.futures.worker.wire import Loss
from tidemill.store import Store, Tx

PENDING_WRITES = 300
PENDING_BYTES = 300_000
"""A transaction of pending writes ends when it has written this much."""

ROUND_RESULTS = 100
ROUND_BYTES = 500_000
"""How many results one round writes at most, and of what size."""

AWAITED_AT_ONCE = 200
PAGE = 100
FEW_CLAIMS = 4
STATUS_EVERY_S = 0.3

Step = Callable[[Tx, Node], AnyRow | None]


class PendingWrite(NamedTuple):
    """One thing to write about a job, or about an actor. `step` checks its claim before it writes."""

    job: FutureJob | None
    step: Step


class Round(NamedTuple):
    """What one round wrote and claimed."""

    written: list[bool]  # for each result: was it written?
    claims: list[Claim]
    specs: list[bytes | None]  # of the claims, if the round has read them
    starved: bool  # a waiting task awaits a future that did not fit


class Ledger:
    """The jobs that a node holds claims on, and what is to be written about them. Used by one thread.

    Args:
        store: the opened store.
        cluster: the cluster's name.
        node_id: the node that holds the claims.
        chance: spreads the pauses before retries.
        emit: where events go.
        serves: which lanes this node claims from; all by default.
    """

    def __init__(
        self,
        store: Store,
        cluster: str,
        node_id: str,
        chance: random.Random,
        *,
        emit: Emit = ignore,
        serves: Callable[[Lane], bool] | None = None,
    ) -> None:
        self.store = store
        self.keys = FutureKeys(cluster)
        self.cluster = ClusterKeys(cluster)
        self.node_id = node_id
        self.chance = chance
        self.emit = emit
        self.jobs: dict[bytes, FutureJob] = {}  # every job that we hold a claim on
        self.results: list[tuple[FutureJob, Result]] = []  # made here and not written yet
        self.pending: deque[PendingWrite] = deque()
        self.unnotified: list[bytes] = []  # realized, with dependents that are not all notified
        self._serves = serves
        self._lanes: list[Lane] = []
        self._lanes_known = False
        self._statuses: dict[bytes, str | None] = {}
        self._statuses_at = 0.0

    @property
    def has_writes(self) -> bool:
        """Is there anything to write?"""
        return bool(self.results or self.pending or self.unnotified)

    @property
    def is_clear(self) -> bool:
        """Does the node hold no job, and has it written everything?"""
        return not (self.jobs or self.results or self.pending)

    def drop(self) -> None:
        """Forget all jobs and writes: the lease under which they were claimed is over."""
        self.jobs.clear()
        self.results.clear()
        self.pending.clear()
        self.unnotified.clear()

    def forget(self, job: FutureJob) -> None:
        """Hold this job no more; another write ends its claim."""
        self.jobs.pop(job.id, None)

    # --- how a job ended

    def finished(self, job: FutureJob, result: Result) -> None:
        """The job made its result."""
        self.results.append((job, result))

    def failed(self, job: FutureJob, failure: Failure, *, ram_used: int = 0) -> None:
        """The job's attempt failed. A job that ended because it was asked to is cancelled."""
        if failure.kind == "cancelled":
            if job.ending:
                self.cancelled(job)
                return
            failure = msgspec.structs.replace(failure, kind="exception")  # the task itself raised it
        self.emit(
            TaskFailed(
                node=self.node_id,
                future=job.id.hex(),
                name=job.spec.name,
                kind=failure.kind,
                message=failure.message[:500],
            )
        )
        jitter = self.chance.random()
        self._add(
            job,
            lambda tx, node: finish.fail(
                tx, self.keys, self.cluster, node, job.claim, failure, jitter=jitter, ram_used=ram_used
            ),
        )

    def cancelled(self, job: FutureJob) -> None:
        """The job was ended on request."""
        self._add(job, lambda tx, node: finish.cancelled(tx, self.keys, self.cluster, node, job.claim))

    def relinquish(self, job: FutureJob) -> None:
        """The job was not started, or may not be finished here."""
        self._add(job, lambda tx, node: finish.relinquish(tx, self.keys, self.cluster, node, [job.claim])[0])

    def block(self, job: FutureJob, upstreams: Sequence[bytes], losses: Sequence[Loss] = ()) -> None:
        """The job can run only when these futures are realized. Copies found to be gone are reported first.

        Each loss is a write of its own, because hundreds of inputs may be lost with one node.
        """

        def step(tx: Tx, node: Node) -> AnyRow | None:
            if not claim.is_held(edges.read(tx, self.keys, job.id), job.claim):
                return None
            return finish.block(tx, self.keys, self.cluster, node, job.claim, upstreams)

        self.pending.extend(PendingWrite(None, partial(self._report, loss)) for loss in losses)
        self._add(job, step)

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
        """An actor of this node is dead, and its calls fail."""

        def step(tx: Tx, node: Node) -> AnyRow | None:
            nodes.check(tx, self.cluster, node)
            actors.died(tx, self.keys, actor_id, failure)
            return None

        self.pending.append(PendingWrite(None, step))

    def _add(self, job: FutureJob, step: Step) -> None:
        self.pending.append(PendingWrite(job, step))

    # --- rounds

    def next_results(self) -> list[tuple[FutureJob, Result]]:
        """Take as many results as one round may write."""
        size = 0
        for count, (_, result) in enumerate(self.results):
            size += len(result.head) + 1_000
            if count == ROUND_RESULTS or size > ROUND_BYTES:
                portion, self.results = self.results[:count], self.results[count:]
                return portion
        portion, self.results = self.results, []
        return portion

    def round(self, node: Node, done: Sequence[Completion], request: ClaimRequest | None) -> Round:
        """Write results and claim what is requested, in one transaction."""
        keys, cluster = self.keys, self.cluster
        lanes = self._lanes if self._lanes_known else None
        awaited = self._awaited_specs(request) if request is not None and request.awaited else []

        # Claiming first saves the store a savepoint. But a result that counts against a limit goes first.
        first = any(item.claim.row.limited for item in done)

        def step(tx: Tx) -> tuple[Round, list[Lane]]:
            written = finish.realize_many(tx, keys, cluster, node, done) if first else []
            directory = lanes if lanes is not None else self._read_lanes(tx)
            claims: list[Claim] = []
            free = request.free if request is not None else Capacity()
            if awaited:
                claims = claim.claim_these(tx, keys, cluster, node, awaited, free)
                taken = {claimed.id for claimed in claims}
                for spec in awaited:
                    free = free.minus(spec.needs) if spec.id in taken else free
            starved = bool(awaited) and not claims
            left = request.limit - len(claims) if request is not None else 0
            if left > 0:
                claims += claim.claim(tx, keys, cluster, node, directory, free, left)
            few = 0 < len(claims) <= FEW_CLAIMS  # saves a transaction when a client waits for a single future
            specs = tx.get_many([keys.spec[claimed.id] for claimed in claims], lock=True) if few else []
            if done and not first:
                written = finish.realize_many(tx, keys, cluster, node, done)
            return Round(written, claims, specs, starved), directory

        found, self._lanes = self.store.run(step, mode="take")
        self._lanes_known = True
        self.unnotified += [
            item.claim.id
            for item, ok in zip(done, found.written, strict=True)
            if ok and item.claim.row.tally.dependents
        ]
        return found

    def _read_lanes(self, tx: Tx) -> list[Lane]:
        lanes = claim.read_lanes(tx, self.keys)
        return lanes if self._serves is None else [lane for lane in lanes if self._serves(lane)]

    def forget_lanes(self) -> bool:
        """Read the list of lanes again in the next round. False if the next round reads it anyway."""
        known, self._lanes_known = self._lanes_known, False
        return known

    def _awaited_specs(self, request: ClaimRequest) -> list[Spec]:
        """Unclaimed futures that our waiting tasks await, or that those depend on."""
        keys = self.keys

        def read(tx: Tx) -> list[Spec]:
            specs: list[Spec] = []
            level, seen = list(request.awaited), set(request.awaited)
            while level and len(specs) < request.slots and len(seen) <= AWAITED_AT_ONCE:
                below: list[bytes] = []
                raw = tx.get_many([keys.future[future_id] for future_id in level])
                for future_id, state in zip(level, raw, strict=True):
                    row = rows.decode_row(state) if state is not None else None
                    if isinstance(row, rows.Unclaimed) and row.ready_at <= tx.now():
                        if (spec := edges.read_spec(tx, keys, future_id)) is not None:
                            specs.append(spec)
                    elif (
                        isinstance(row, rows.Blocked)
                        and (spec := edges.read_spec(tx, keys, future_id)) is not None
                    ):
                        below += [up for up in spec.inputs if up not in seen]
                seen.update(below)
                level = below
            return specs[: request.slots]

        return self.store.run(read)

    # --- pending writes

    def realize(self, job: FutureJob, done: Completion) -> None:
        """Write a result whose row has changed since the claim.

        Perhaps this node changed it: a commit of unknown outcome may have realized the future (FUT-54).
        """

        def step(tx: Tx, node: Node) -> AnyRow | None:
            row = edges.read(tx, self.keys, job.id)
            if isinstance(row, Realized) and row.result.version == done.result.version:
                return row
            return finish.realize(tx, self.keys, self.cluster, node, done)

        self._add(job, step)

    def write_pending(self, node: Node) -> list[tuple[FutureJob, AnyRow | None]]:
        """Run some pending writes in one transaction.

        Returns each job with the row it has now, None if its claim was over. Writes stay in the queue until
        the commit is known. A write that cannot be carried out at all is dropped, so that it does not stop
        the others: `strays` finds its claim.
        """
        writes = list(self.pending)
        try:
            became = self.store.run(lambda tx: _carry_out(tx, node, writes))
        except StoreError:
            raise
        except TidemillError:
            try:
                became = self.store.run(lambda tx: _carry_out(tx, node, writes[:1]))
            except StoreError:
                raise
            except TidemillError:
                became = [None]
        ended: list[tuple[FutureJob, AnyRow | None]] = []
        for row in became:
            job = self.pending.popleft().job
            if job is not None:
                ended.append((job, row))
        return ended

    def notify_dependents(self) -> None:
        """Unblock the dependents of realized futures, a page at a time. A cursor row covers the rest."""
        waiting, self.unnotified = self.unnotified, []
        if self.store.run(lambda tx: depend.tell(tx, self.keys, waiting)):
            self.unnotified = waiting

    # --- statuses of tasks

    def set_status(self, future_id: bytes, text: str) -> None:
        """Write this status of a task with the next round; only the last one counts."""
        self._statuses[future_id] = text

    def clear_status(self, future_id: bytes) -> None:
        """The task is over, and so is its status."""
        self._statuses[future_id] = None

    def write_statuses(self, now: float) -> None:
        """Write the statuses of tasks, a few times a second."""
        if not self._statuses or now < self._statuses_at:
            return
        self._statuses_at = now + STATUS_EVERY_S
        page = dict(islice(self._statuses.items(), PAGE))

        def write(tx: Tx) -> None:
            for future_id, text in page.items():
                if text is None:
                    tx.clear(self.keys.status[future_id])
                else:
                    tx.set(self.keys.status[future_id], text.encode())

        self.store.run(write)
        for future_id, text in page.items():
            if self._statuses.get(future_id, "") == text:
                del self._statuses[future_id]

    # --- compared with the store

    def is_listed(self, node: Node) -> bool:
        """Does the store agree that our lease is good?"""
        try:
            self.store.run(lambda tx: nodes.check(tx, self.cluster, node))
        except LeaseLost:
            return False
        return True

    def commands(self, node: Node) -> list[inbox.Command]:
        """Take the commands that others have left for this node."""
        return self.store.run(lambda tx: inbox.take(tx, self.keys, node.id), mode="take")

    def reclaim(self, node: Node) -> tuple[int, bool]:
        """Give back a page of the claims that earlier boots at our address hold (FUT-39).

        Returns how many, and whether there are more.
        """
        page = self.store.run(lambda tx: reap.reclaim(tx, self.keys, self.cluster, node))
        return len(page.moved), page.more

    def strays(self, node: Node, known: Container[bytes]) -> tuple[int, bool]:
        """Give back a page of claims in our name that we do not know.

        They are of a lost epoch, or of a commit whose outcome was unknown (FUT-38, FUT-54). Returns how many,
        and whether there are more.
        """

        def step(tx: Tx) -> tuple[int, bool]:
            nodes.check(tx, self.cluster, node)
            owned = tx.range(*self.keys.own.under(node.id))
            ids = [
                future_id for row in owned if isinstance(future_id := self.keys.own.unpack(row.key)[1], bytes)
            ]
            strays = [future_id for future_id in ids if future_id not in known]
            page = strays[:PAGE]
            for future_id, row in zip(page, edges.read_many(tx, self.keys, page), strict=True):
                exists = edges.read_spec(tx, self.keys, future_id) is not None
                if exists and isinstance(row, Claimed) and row.holder == node.id:
                    finish.give_back(tx, self.keys, future_id, row)
                else:
                    tx.clear(self.keys.own[node.id, future_id])
            return len(page), len(strays) > PAGE

        return self.store.run(step)

    def unknown_segments(self, node: Node, names: Sequence[str]) -> list[str]:
        """Those of our segments that no copy record names: others reported them lost and were believed."""
        ids = [_id_in(name) for name in names]

        def read(tx: Tx) -> list[bytes | None]:
            return tx.get_many([self.keys.copy[future_id, node.id] for future_id in ids])

        unknown = []
        for name, raw in zip(names, self.store.run(read) if names else [], strict=True):
            if raw is None or not rows.decode_result(raw).location.name.endswith(name):
                unknown.append(name)
        return unknown

    def next_call(self, actor_id: bytes, ordinal: int) -> int:
        """The ordinal of an actor's first call, from this one on, that has not ended."""

        def read(tx: Tx) -> int:
            following = ordinal
            for call in actors.calls(tx, self.keys, actor_id, ordinal, limit=50):
                if call.row is not None and call.row.state not in ENDED:
                    return call.ordinal
                following = call.ordinal + 1
            return following

        return self.store.run(read)


def _id_in(segment: str) -> bytes:
    """The future whose result a segment holds; empty for a segment that holds something else."""
    try:
        return bytes.fromhex(segment.partition(".")[0])
    except ValueError:
        return b""


def _carry_out(tx: Tx, node: Node, writes: Sequence[PendingWrite]) -> list[AnyRow | None]:
    """Run as many writes as one transaction should have."""
    became: list[AnyRow | None] = []
    for write in writes:
        try:
            became.append(write.step(tx, node))
        except LeaseLost:  # raised before it wrote; the lease of this claim, or of the node and so of all
            became.append(None)
        if tx.writes > PENDING_WRITES or tx.bytes_written > PENDING_BYTES:
            break
    return became


def result_of(job: FutureJob, result: Result, node: Node) -> Completion:
    """A result as the store records it: made under this claim, and kept by this node."""
    where = result.location
    if where.kind in ("segment", "actor"):
        where = msgspec.structs.replace(where, node=node.id, node_epoch=node.epoch)
    return Completion(
        job.claim, job.spec, msgspec.structs.replace(result, version=job.claim.epoch, location=where)
    )
