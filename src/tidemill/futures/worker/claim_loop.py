"""The claim loop: claims futures for a node, gives them to an executor, and writes their outcomes.

A worker process, the in-process worker of a runner and a simulated worker all use this loop. They differ in
the `Executor`, which runs the jobs in child processes, in threads, or as simulated events.

One thread calls `run_once` repeatedly and waits at most `pause_s` in between. Each round writes results and
pending writes, claims as many futures as the executor has room for, loads them, passes them to the executor,
and handles commands from the node's inbox. Why this is safe:

- Every write checks the claim and the node's lease in the same transaction, so the store refuses the writes
  of a stale node.
- When the node loses its lease, it drops everything that it claimed under that lease (FUT-55), and joins
  again under a higher epoch.
- After it joins, and every half minute, the node releases claims that the store lists under its name but that
  the node does not know (FUT-38). They come from an earlier boot, from a lost lease, or from a commit with
  unknown outcome.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from tidemill import crash
from tidemill.clock import Clock
from tidemill.cluster.nodes import Node
from tidemill.errors import StoreError
from tidemill.futures.protocol import inbox
from tidemill.futures.protocol.claim import LEAST_LEFT_US, Claim
from tidemill.futures.protocol.retries import MOST_REAPS
from tidemill.futures.protocol.states import FutureState
from tidemill.futures.worker.events import ClaimsGivenBack, WorkDropped
from tidemill.futures.worker.isolation import Isolation
from tidemill.futures.worker.jobs import ClaimRequest, FutureJob, JobLoader
from tidemill.futures.worker.ledger import Ledger, result_of
from tidemill.futures.worker.store_session import DEFAULT_PAUSES, Pauses, StoreSession

CLAIM_MARGIN_S = LEAST_LEFT_US / 1_000_000 + 0.1
"""A node claims only if its lease lasts longer than this: what the store requires, plus some latency."""

INBOX_EVERY_S = 0.020


class NodeLease(Protocol):
    """A node's lease on its entry in the node list, as the node itself sees it."""

    @property
    def node(self) -> Node:
        """The node's entry. Every write checks its id and epoch."""
        ...

    def alive(self) -> bool:
        """Return whether the lease is valid by the local clock."""
        ...

    def accepts(self) -> bool:
        """Return whether the node may claim new work."""
        ...

    def left_s(self) -> float:
        """Return the minimum time for which the store will still consider the lease valid."""
        ...


class Executor(ABC):
    """Runs the jobs of a claim loop, and reports to the node's `Ledger` how each job ended.

    The executor sets `room_changed` when a job that did not fit before may fit now. The loop clears
    `room_changed` when it claims.
    """

    room_changed = True
    suspect_reaps = MOST_REAPS // 2  # a future runs alone after this many nodes died with it

    @abstractmethod
    def request(self) -> ClaimRequest | None:
        """Return how much to claim now; None for nothing."""

    @abstractmethod
    def start(self, jobs: Sequence[FutureJob]) -> None:
        """Run these claimed jobs."""

    @abstractmethod
    def interrupt(self, job: FutureJob) -> None:
        """End a cancelled job (FUT-56). `job.ending` is the reason."""

    @abstractmethod
    def drain(self, by: float) -> None:
        """Release jobs that have not started, and at the time `by` also those that have not ended.

        The loop calls this in each round while it drains.
        """

    @abstractmethod
    def drop(self) -> None:
        """End all jobs: the lease is over, and none of their results will be written."""

    def place(self) -> None:
        """Assign waiting jobs to free slots."""

    def settled(self, job: FutureJob, state: FutureState | None) -> None:
        """React to the end of a job's claim.

        `state` is the new state of the job's future; None if the claim had already ended before.
        """

    def recover(self, node: Node) -> int:
        """Release the claims of the node's earlier boots, after it has joined. Return their number."""
        return 0

    def refresh(self) -> None:
        """Do periodic work. The loop calls this about once a second while the store answers."""

    def claimed(self, *, starved: bool, took_s: float) -> None:
        """React to a round, which took `took_s` seconds.

        `starved` is True if there was no room for a future that a waiting task needs.
        """

    def old_results(self, age_s: float) -> list[str]:
        """Return the names of results older than `age_s` that this node stores outside of the store."""
        return []

    def delete_result(self, name: str) -> None:
        """Delete a result that this node stores outside of the store."""


class ClaimLoop:
    """Claims futures for one node and writes their outcomes.

    Args:
        ledger: the node's claims and pending writes.
        lease: the node's lease.
        executor: runs the jobs.
        clock: the source of time.
        pauses: how long to wait; use shorter pauses if leases are short.
    """

    def __init__(
        self,
        ledger: Ledger,
        lease: NodeLease,
        executor: Executor,
        clock: Clock,
        pauses: Pauses = DEFAULT_PAUSES,
    ) -> None:
        self.ledger = ledger
        self.epoch = 0  # the node's epoch under which all jobs were claimed; 0 for none
        self._lease = lease
        self._executor = executor
        self._clock = clock
        self._session = StoreSession(ledger, clock, pauses)
        self._loader = JobLoader(ledger.store, ledger.keys)
        self._isolation = Isolation(ledger, executor.suspect_reaps)
        # Claims that are not loaded yet, each with its spec if the spec was already read.
        self._unloaded: list[tuple[Claim, bytes | None]] = []
        self._drain_by: float | None = None
        self._lost = False  # the lease has ended, even if the node has a new one now
        self._wakeup = True  # the store has signalled that there is something to claim
        self._full = False  # the last round claimed as much as it could: there may be more
        self._mail = True  # there may be a command
        self._mail_at = 0.0

    # --- called by other threads

    def on_work(self) -> None:
        """Handle a wakeup from the store: there is something to claim."""
        self._wakeup = True

    def on_mail(self) -> None:
        """Handle a wakeup from the store: there is a command."""
        self._mail = True

    def is_lost(self) -> bool:
        """Return whether the lease under which the jobs were claimed is over."""
        return bool(self.epoch) and not (self._lease.alive() and self._lease.node.epoch == self.epoch)

    def mark_lost(self) -> None:
        """Drop everything in the next round, even if the lease is valid again by then."""
        self._lost = True

    def drain(self, by: float) -> None:
        """Claim nothing new; release jobs that have not ended by this monotonic time (CLU-25)."""
        self._drain_by = by

    @property
    def drain_by(self) -> float | None:
        return self._drain_by

    @property
    def is_drained(self) -> bool:
        """Whether the node is draining and has written everything."""
        return self._drain_by is not None and self.ledger.is_clear and not self._unloaded

    # --- called by the thread of the loop

    def run_once(self) -> None:
        """Exchange results and jobs between the executor and the store once."""
        if self._drain_by is not None:
            self._isolation.drain()
            self._executor.drain(self._drain_by)
        if self._lost or self.is_lost():
            self._drop()
        if self._lease.alive():
            node = self._lease.node
            self._session.run(node, lambda: self._exchange(node), self._refused)
            if suspects := self._isolation.release():
                self._executor.start(suspects)
            self._executor.place()
            self._read_mail(node)

    def pause_s(self) -> float:
        """Return how long the thread may wait for its executor before the next round."""
        now = self._clock.monotonic()
        if self._session.rests:
            return self._session.retry_at - now
        if not self._lease.alive():
            return self._session.pauses.lease_s
        if self.ledger.has_writes or self._unloaded:
            return 0.0
        if self._wants_claims and self._request() is not None:
            return 0.0
        next_at = self._session.poll_at
        if self._mail:
            next_at = min(next_at, self._mail_at)
        return max(0.0, next_at - now)

    # --- the lease

    def _drop(self) -> None:
        """Stop all jobs and write nothing, because the lease is over (FUT-55)."""
        self._lost = False
        if not self.epoch:
            return
        self.epoch = 0
        dropped = len(self.ledger.jobs)
        self._executor.drop()
        self._isolation.drop()
        self._unloaded.clear()
        self.ledger.drop()
        self.ledger.emit(WorkDropped(node=self.ledger.node_id, tasks=dropped))

    def _joined(self, node: Node) -> None:
        """Release all claims in our name: they are from before we joined the node list."""
        released = self._executor.recover(node) + self._release_unknown(node, {})
        self._emit_released(released)
        self._session.audited()
        self.epoch = node.epoch

    def _refused(self, listed: bool) -> None:
        """Handle a refusal by the store: our lease is over, or too little of it was left to claim."""
        if not listed:
            self._drop()

    # --- the store

    def _exchange(self, node: Node) -> None:
        if self.epoch != node.epoch:
            self._joined(node)
        if self._session.is_poll_due():
            self._wakeup = self._mail = True
            self._executor.refresh()
        self._round(node)
        if self._unloaded:
            self._load()
        self._write(node)
        if self._session.is_audit_due():
            self._audit(node)

    @property
    def _wants_claims(self) -> bool:
        return self._wakeup or self._full or self._executor.room_changed

    def _request(self) -> ClaimRequest | None:
        """Return how much to claim; None for nothing, such as while the node drains."""
        lease = self._lease
        if self._isolation.is_active:
            return None
        if self._drain_by is not None or not lease.accepts() or lease.left_s() <= CLAIM_MARGIN_S:
            return None
        request = self._executor.request()
        if request is None or request.limit <= len(self._unloaded):
            return None
        return request._replace(limit=request.limit - len(self._unloaded))

    def _round(self, node: Node) -> None:
        """Write results and claim futures that fit, in one transaction."""
        woken = self._wakeup
        request = self._request() if self._wants_claims else None
        if request is None and not self.ledger.results:
            return
        if request is not None:
            self._executor.room_changed = self._wakeup = False
        results = self.ledger.next_results()
        completions = [result_of(job, result, node) for job, result in results]
        began = self._clock.monotonic()
        crash.point("futures.round.before")
        try:
            outcome = self.ledger.round(node, completions, request)
        except BaseException:
            self.ledger.results = results + self.ledger.results
            self._executor.room_changed = True
            raise
        crash.point("futures.round.after")
        for (job, _), completion, written in zip(results, completions, outcome.written, strict=True):
            if written:
                self._settled(job, FutureState.REALIZED)
            else:
                self.ledger.realize(job, completion)
        claims, specs = outcome.claims, outcome.specs
        if request is not None:
            self._full = len(claims) >= request.limit
        self._executor.claimed(starved=outcome.starved, took_s=self._clock.monotonic() - began)
        if claims:
            self._unloaded += zip(claims, specs or [None] * len(claims), strict=True)
        elif woken and self.ledger.forget_lanes():
            self._executor.room_changed = True  # a wakeup, but nothing to claim: there may be a new lane

    def _load(self) -> None:
        """Load the claimed futures. If the store does not answer, keep the claims for the next round."""
        claims = [claim for claim, _ in self._unloaded]
        specs = [spec for _, spec in self._unloaded]
        loaded = self._loader.load(claims, specs if None not in specs else ())
        self._unloaded.clear()
        jobs = self.ledger.jobs
        for job, missing in loaded.blocked:
            jobs[job.id] = job
            self.ledger.block(job, missing)
        for job in loaded.ready:
            jobs[job.id] = job
        self._executor.start(self._isolation.admit(loaded.ready))

    def _write(self, node: Node) -> None:
        while self.ledger.pending:
            crash.point("futures.pending.before")
            for job, row in self.ledger.write_pending(node):
                self._settled(job, row.state if row is not None else None)
            crash.point("futures.pending.after")
        if self.ledger.unnotified:
            self.ledger.notify_dependents()
        self.ledger.write_statuses(self._clock.monotonic())

    def _settled(self, job: FutureJob, state: FutureState | None) -> None:
        self.ledger.forget(job)
        self._executor.settled(job, state)

    # --- comparison with the store

    def _audit(self, node: Node) -> None:
        """Release claims that we do not know (FUT-38), and delete results that the store does not know."""
        self._emit_released(self._release_unknown(node, self.ledger.jobs))
        age_s = self._session.pauses.audit_s
        for name in self.ledger.unknown_segments(node, self._executor.old_results(age_s)):
            self._executor.delete_result(name)
        self._session.audited()

    def _release_unknown(self, node: Node, jobs: Container[bytes]) -> int:
        return all_pages(lambda: self.ledger.release_unknown_claims(node, jobs))

    def _emit_released(self, claims: int) -> None:
        if claims:
            self.ledger.emit(ClaimsGivenBack(node=self.ledger.node_id, claims=claims))

    def _read_mail(self, node: Node) -> None:
        """Handle commands that other processes have sent, such as to end a cancelled job.

        It is safe that this comes last: the transaction that sent a command also changed the rows.
        """
        now = self._clock.monotonic()
        if not self._mail or now < self._mail_at or self._session.rests or node.epoch != self.epoch:
            return
        self._mail = False
        self._mail_at = now + INBOX_EVERY_S
        try:
            commands = self.ledger.commands(node)
        except StoreError as error:
            self._mail = True
            self._session.failed(error)
            return
        for command in commands:
            match command:
                case inbox.EndTask():
                    self._end(command)
                case inbox.FreeSegment():
                    self._executor.delete_result(command.name)

    def _end(self, command: inbox.EndTask) -> None:
        job = self.ledger.jobs.get(command.id)
        if job is not None and job.claim.epoch == command.epoch and not job.ending:
            job.ending = command.why
            if self._isolation.withdraw(job):
                self.ledger.cancelled(job)
            else:
                self._executor.interrupt(job)


def all_pages(page: Callable[[], tuple[int, bool]]) -> int:
    """Call a function that works page by page until there are no more pages. Return the number of items."""
    total, more = page()
    while more:
        count, more = page()
        total += count
    return total
