"""Hosted actors: the actors of a worker, and the order in which each runs its calls (FUT-47).

Each actor has a separate child process. A worker claims calls like other futures. The calls then wait here
for their turn, in the order of their ordinals. The next call may be missing for two reasons. It may have
ended without being claimed, because it was cancelled or its deadline passed; the worker reads that from the
store. Or it still waits for an input; then later calls wait too.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.futures.worker.children import WorkerChild
    from tidemill.futures.worker.jobs import FutureJob


class HostedActor:
    """One actor of this node."""

    def __init__(self, actor_id: bytes, child: "WorkerChild") -> None:
        self.id = actor_id
        self.child = child
        self.next = 1  # the ordinal of the next call
        self.pending: dict[int, FutureJob] = {}
        self.holding = 0  # the ordinal of a running call that may be retried: later calls wait for it

    def add(self, job: "FutureJob") -> None:
        """Add a claimed call."""
        self.pending[job.spec.ordinal] = job

    def ready(self) -> "FutureJob | None":
        """Return the next call if it can be sent."""
        if self.holding:
            return None
        late = min(self.pending, default=self.next)
        return self.pending.get(min(late, self.next))

    def begin(self, job: "FutureJob") -> None:
        """Record that a call is sent to the actor."""
        del self.pending[job.spec.ordinal]
        self.next = max(self.next, job.spec.ordinal + 1)
        if job.spec.max_retries:
            self.holding = job.spec.ordinal

    def ended(self, job: "FutureJob", *, again: bool) -> None:
        """Record that an attempt of a call has ended. If `again` is set, the call will be claimed again."""
        if self.holding == job.spec.ordinal:
            self.holding = 0
        if again:
            self.next = min(self.next, job.spec.ordinal)

    @property
    def stuck(self) -> bool:
        """Whether calls wait, but the next one is missing."""
        return bool(self.pending) and not self.holding and self.ready() is None


class HostedActors:
    """All actors of this node."""

    def __init__(self) -> None:
        self.actors: dict[bytes, HostedActor] = {}

    def of(self, child: "WorkerChild") -> HostedActor | None:
        return self.actors.get(child.actor) if child.actor else None

    def host(self, actor_id: bytes, child: "WorkerChild") -> None:
        """Add an actor that a child process will host."""
        self.actors[actor_id] = HostedActor(actor_id, child)

    def remove(self, actor_id: bytes) -> "list[FutureJob]":
        """Remove a dead actor. Return the calls that waited for it."""
        actor = self.actors.pop(actor_id, None)
        return list(actor.pending.values()) if actor is not None else []

    def withdraw(self, job: "FutureJob") -> bool:
        """Remove a waiting call. Return False if it is not waiting."""
        actor = self.actors.get(job.spec.actor)
        if actor is None or actor.pending.get(job.spec.ordinal) is not job:
            return False
        del actor.pending[job.spec.ordinal]
        return True
