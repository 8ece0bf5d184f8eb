"""The ledger of a node: the jobs that the node has claimed, and the outcomes that it has not written yet.

An executor reports how each job ended. The ledger writes many plain results at a time, in the transaction
that also claims the next jobs (`round`). Every other outcome becomes a *pending write*: a failure, a released
or blocked job, or a result of a future whose row has changed since the claim. A pending write is a function
that takes a transaction. One transaction runs several pending writes, up to a limit.
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
from tidemill.futures.protocol.keys import FutureKeys, ids_in
from tidemill.futures.protocol.lanes import Capacity, Lane
from tidemill.futures.protocol.rows import AnyRow, Claimed, Failure, Realized, Result, Spec
from tidemill.futures.protocol.states import ENDED
from tidemill.futures.worker.events import TaskFailed
from tidemill.futures.worker.jobs import ClaimRequest, FutureJob
from tidemill.futures.worker.wire import Loss
from tidemill.store import Store, Tx

PENDING_WRITES = 300
PENDING_BYTES = 300_000
"""A transaction of pending writes ends after `PENDING_WRITES` rows or `PENDING_BYTES` bytes."""

ROUND_RESULTS = 100
ROUND_BYTES = 500_000
"""One round writes at most `ROUND_RESULTS` results and `ROUND_BYTES` bytes."""

AWAITED_AT_ONCE = 200
PAGE = 100
FEW_CLAIMS = 4
STATUS_EVERY_S = 0.3

Step = Callable[[Tx, Node], AnyRow | None]


class PendingWrite(NamedTuple):
    """One write about a job or an actor. `step` checks the claim before it writes."""

    job: FutureJob | None
    step: Step


class Round(NamedTuple):
    """The outcome of one round: what it wrote and what it claimed."""

    written: list[bool]  # for each result, whether it was written
    claims: list[Claim]
    specs: list[bytes | None]  # of the claims, if the round has read them
    starved: bool  # a waiting task needs a future that did not fit


class Ledger:
    """The jobs that a node has claimed, and the pending writes about them. Used by one thread.

    Args:
        store: the opened store.
        cluster: the cluster's name.
        node_id: the node that holds the claims.
        chance: adds jitter to the delays before retries.
        emit: receives the events.
        serves: returns whether this node claims from a lane; by default it claims from all lanes.
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
        self.jobs: dict[bytes, FutureJob] = {}  # every job that this node has claimed
        self.results: list[tuple[FutureJob, Result]] = []  # computed and not written yet
        self.pending: deque[PendingWrite] = deque()
        self.unnotified: list[bytes] = []  # realized futures with dependents that are not all notified
        self._serves = serves
        self._lanes: list[Lane] = []
        self._lanes_known = False
        self._statuses: dict[bytes, str | None] = {}
        self._statuses_at = 0.0

    @property
    def has_writes(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.results or self.pending or self.unnotified)

    @property
    def is_clear(self) -> bool:
        """Whether the node holds no job and has written everything."""
        return not (self.jobs or self.results or self.pending)

    def drop(self) -> None:
        """Forget all jobs and writes: the lease under which they were claimed is over."""
        self.jobs.clear()
        self.results.clear()
        self.pending.clear()
        self.unnotified.clear()

    def forget(self, job: FutureJob) -> None:
        """Remove a job. This does not end its claim in the store."""
        self.jobs.pop(job.id, None)

    # --- how a job ended

    def finished(self, job: FutureJob, result: Result) -> None:
        """Record the result of a job."""
        self.results.append((job, result))

    def failed(self, job: FutureJob, failure: Failure, *, ram_used: int = 0) -> None:
        """Record a failed attempt. A job that stopped because it was cancelled counts as cancelled."""
        if failure.kind == "cancelled":
            if job.ending:
                self.cancelled(job)
                return
            failure = msgspec.structs.replace(failure, kind="exception")  # raised by the task's own code
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
        """Record that a job was cancelled."""
        self._add(job, lambda tx, node: finish.cancelled(tx, self.keys, self.cluster, node, job.claim))

    def relinquish(self, job: FutureJob) -> None:
        """Release a job that was not started, or that this node must not finish."""
        self._add(job, lambda tx, node: finish.relinquish(tx, self.keys, self.cluster, node, [job.claim])[0])

    def block(self, job: FutureJob, upstreams: Sequence[bytes], losses: Sequence[Loss] = ()) -> None:
        """Block a job until these futures are realized. Lost copies are reported first.

        Each loss is a separate write, because hundreds of inputs may be lost with one node.
        """

        def step(tx: Tx, node: Node) -> AnyRow | None:
            if not claim.is_held(edges.read(tx, self.keys, job.id), job.claim):
                return None
            return finish.block(tx, self.keys, self.cluster, node, job.claim, upstreams)

        self.pending.extend(PendingWrite(None, partial(self._report_loss, loss)) for loss in losses)
        self._add(job, step)

    def _report_loss(self, loss: Loss, tx: Tx, node: Node) -> None:
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
        """Record that an actor of this node has died. Its calls fail."""

        def step(tx: Tx, node: Node) -> AnyRow | None:
            nodes.check(tx, self.cluster, node)
            actors.died(tx, self.keys, actor_id, failure)
            return None

        self.pending.append(PendingWrite(None, step))

    def _add(self, job: FutureJob, step: Step) -> None:
        self.pending.append(PendingWrite(job, step))

    # --- rounds

    def next_results(self) -> list[tuple[FutureJob, Result]]:
        """Remove and return as many results as one round may write."""
        size = 0
        for count, (_, result) in enumerate(self.results):
            size += len(result.head) + 1_000
            if count == ROUND_RESULTS or size > ROUND_BYTES:
                portion, self.results = self.results[:count], self.results[count:]
                return portion
        portion, self.results = self.results, []
        return portion

    def round(self, node: Node, completions: Sequence[Completion], request: ClaimRequest | None) -> Round:
        """Write results and claim futures, in one transaction."""
        keys, cluster = self.keys, self.cluster
        lanes = self._lanes if self._lanes_known else None
        awaited = self._awaited_specs(request) if request is not None and request.awaited else []

        # Claiming first saves the store a savepoint. But if a result frees a place under the limit of its
        # queue, the results are written first.
        write_first = any(completion.claim.row.limited for completion in completions)

        def step(tx: Tx) -> tuple[Round, list[Lane]]:
            written = finish.realize_many(tx, keys, cluster, node, completions) if write_first else []
            directory = lanes if lanes is not None else self._read_lanes(tx)
            claims: list[Claim] = []
            free = request.free if request is not None else Capacity()
            if awaited:
                claims = claim.claim_these(tx, keys, cluster, node, awaited, free)
                claimed_ids = {claimed.id for claimed in claims}
                for spec in awaited:
                    free = free.minus(spec.needs) if spec.id in claimed_ids else free
            starved = bool(awaited) and not claims
            left = request.limit - len(claims) if request is not None else 0
            if left > 0:
                claims += claim.claim(tx, keys, cluster, node, directory, free, left)
            specs: list[bytes | None] = []
            if 0 < len(claims) <= FEW_CLAIMS:  # saves a transaction when a client waits for a single future
                specs = list(tx.get_many([keys.spec[claimed.id] for claimed in claims], lock=True))
            if completions and not write_first:
                written = finish.realize_many(tx, keys, cluster, node, completions)
            return Round(written, claims, specs, starved), directory

        outcome, self._lanes = self.store.run(step, mode="take")
        self._lanes_known = True
        self.unnotified += [
            completion.claim.id
            for completion, written in zip(completions, outcome.written, strict=True)
            if written and completion.claim.row.tally.dependents
        ]
        return outcome

    def _read_lanes(self, tx: Tx) -> list[Lane]:
        lanes = claim.read_lanes(tx, self.keys)
        return lanes if self._serves is None else [lane for lane in lanes if self._serves(lane)]

    def forget_lanes(self) -> bool:
        """Read the list of lanes again in the next round. Return False if that was planned anyway."""
        were_known, self._lanes_known = self._lanes_known, False
        return were_known

    def _awaited_specs(self, request: ClaimRequest) -> list[Spec]:
        """Return the specs of unclaimed futures that our waiting tasks need, directly or indirectly."""
        keys = self.keys

        def read(tx: Tx) -> list[Spec]:
            specs: list[Spec] = []
            level, visited = list(request.awaited), set(request.awaited)
            while level and len(specs) < request.slots and len(visited) <= AWAITED_AT_ONCE:
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
                        below += [up for up in spec.inputs if up not in visited]
                visited.update(below)
                level = below
            return specs[: request.slots]

        return self.store.run(read)

    # --- pending writes

    def realize(self, job: FutureJob, completion: Completion) -> None:
        """Write the result of a future whose row has changed since the claim.

        This node itself may have changed the row: if the outcome of an earlier commit is unknown, that commit
        may have realized the future (FUT-54).
        """

        def step(tx: Tx, node: Node) -> AnyRow | None:
            row = edges.read(tx, self.keys, job.id)
            if isinstance(row, Realized) and row.result.version == completion.result.version:
                return row
            return finish.realize(tx, self.keys, self.cluster, node, completion)

        self._add(job, step)

    def write_pending(self, node: Node) -> list[tuple[FutureJob, AnyRow | None]]:
        """Run some pending writes in one transaction.

        Return each job with its new row, or with None if its claim had ended. Writes stay in the queue until
        the commit has succeeded. A write that always fails is dropped, so that it does not block the others;
        `release_unknown_claims` releases the job's claim later.
        """
        writes = list(self.pending)
        try:
            new_rows = self.store.run(lambda tx: _run_writes(tx, node, writes))
        except StoreError:
            raise
        except TidemillError:
            try:
                new_rows = self.store.run(lambda tx: _run_writes(tx, node, writes[:1]))
            except StoreError:
                raise
            except TidemillError:
                new_rows = [None]
        ended: list[tuple[FutureJob, AnyRow | None]] = []
        for row in new_rows:
            job = self.pending.popleft().job
            if job is not None:
                ended.append((job, row))
        return ended

    def notify_dependents(self) -> None:
        """Unblock one page of the futures that depend on realized ones. A cursor row records the progress."""
        future_ids, self.unnotified = self.unnotified, []
        if self.store.run(lambda tx: depend.notify(tx, self.keys, future_ids)):
            self.unnotified = future_ids

    # --- statuses of tasks

    def set_status(self, future_id: bytes, text: str) -> None:
        """Write this status of a task in the next round.

        If it is set several times, only the last status is written.
        """
        self._statuses[future_id] = text

    def clear_status(self, future_id: bytes) -> None:
        """Delete the status of a task that has ended."""
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

    # --- comparison with the store

    def is_listed(self, node: Node) -> bool:
        """Return whether our lease is valid according to the store."""
        try:
            self.store.run(lambda tx: nodes.check(tx, self.cluster, node))
        except LeaseLost:
            return False
        return True

    def commands(self, node: Node) -> list[inbox.Command]:
        """Remove and return the commands that others have sent to this node."""
        return self.store.run(lambda tx: inbox.take(tx, self.keys, node.id), mode="take")

    def reclaim(self, node: Node) -> tuple[int, bool]:
        """Release one page of the claims left by earlier nodes that ran at our address (FUT-39).

        Return how many were released, and whether there are more.
        """
        page = self.store.run(lambda tx: reap.reclaim(tx, self.keys, self.cluster, node))
        return len(page.moved), page.more

    def release_unknown_claims(self, node: Node, jobs: Container[bytes]) -> tuple[int, bool]:
        """Release one page of our claims in the store that belong to none of these jobs.

        They come from a lost lease, or from a commit with unknown outcome (FUT-38, FUT-54). Return how many
        were released, and whether there are more.
        """

        def step(tx: Tx) -> tuple[int, bool]:
            nodes.check(tx, self.cluster, node)
            owned = tx.range(*self.keys.own.under(node.id))
            unknown = [future_id for future_id in ids_in(self.keys.own, owned, 1) if future_id not in jobs]
            page = unknown[:PAGE]
            for future_id, row in zip(page, edges.read_many(tx, self.keys, page), strict=True):
                exists = edges.read_spec(tx, self.keys, future_id) is not None
                if exists and isinstance(row, Claimed) and row.holder == node.id:
                    finish.give_back(tx, self.keys, future_id, row)
                else:
                    tx.clear(self.keys.own[node.id, future_id])
            return len(page), len(unknown) > PAGE

        return self.store.run(step)

    def unknown_segments(self, node: Node, names: Sequence[str]) -> list[str]:
        """Return those of our segments that no row in the store refers to any more."""
        ids = [_id_in(name) for name in names]

        def read(tx: Tx) -> list[bytes | None]:
            return tx.get_many([self.keys.copy[future_id, node.id] for future_id in ids])

        unknown = []
        for name, raw in zip(names, self.store.run(read) if names else [], strict=True):
            if raw is None or not rows.decode_result(raw).location.name.endswith(name):
                unknown.append(name)
        return unknown

    def next_call(self, actor_id: bytes, ordinal: int) -> int:
        """Search an actor's calls from this ordinal on; return the ordinal of the first unfinished one."""

        def read(tx: Tx) -> int:
            following = ordinal
            for call in actors.calls(tx, self.keys, actor_id, ordinal, limit=50):
                if call.row is not None and call.row.state not in ENDED:
                    return call.ordinal
                following = call.ordinal + 1
            return following

        return self.store.run(read)


def _id_in(segment: str) -> bytes:
    """Return the id of the future that a segment belongs to; empty if it belongs to none."""
    try:
        return bytes.fromhex(segment.partition(".")[0])
    except ValueError:
        return b""


def _run_writes(tx: Tx, node: Node, writes: Sequence[PendingWrite]) -> list[AnyRow | None]:
    """Run as many writes as fit into one transaction."""
    new_rows: list[AnyRow | None] = []
    for write in writes:
        try:
            new_rows.append(write.step(tx, node))
        except LeaseLost:  # nothing was written: this claim is over, or the node's lease and so every claim
            new_rows.append(None)
        if tx.writes > PENDING_WRITES or tx.bytes_written > PENDING_BYTES:
            break
    return new_rows


def result_of(job: FutureJob, result: Result, node: Node) -> Completion:
    """Return a result as the store records it: computed under this claim, and stored on this node."""
    where = result.location
    if where.kind in ("segment", "actor"):
        where = msgspec.structs.replace(where, node=node.id, node_epoch=node.epoch)
    return Completion(
        job.claim, job.spec, msgspec.structs.replace(result, version=job.claim.epoch, location=where)
    )
