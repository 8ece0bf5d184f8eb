"""Actors that live on this node: each in a child process of its own, its calls in order (FUT-47).

Calls are claimed like other futures and then wait here for their turn: the order of their ordinals. When the
next one is not here it may have ended elsewhere (cancelled, failed by a deadline), which the store tells; or
it is blocked by an input, and then those behind it wait.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.futures.worker.children import WorkerChild
    from tidemill.futures.worker.jobs import FutureJob

LOOK_EVERY_S = 0.1
"""How often the store is asked whether the call we wait for has ended."""


class HostedActor:
    """One actor of this node."""

    def __init__(self, actor_id: bytes, child: "WorkerChild") -> None:
        self.id = actor_id
        self.child = child
        self.next = 1  # the ordinal of the next call
        self.pending: dict[int, FutureJob] = {}
        self.holding = 0  # a call that may be tried again: nothing overtakes it
        self.look_at = 0.0

    def add(self, job: "FutureJob") -> None:
        """A call that was claimed."""
        self.pending[job.spec.ordinal] = job

    def ready(self) -> "FutureJob | None":
        """The next call, if it is here and nothing holds it back."""
        if self.holding:
            return None
        late = min(self.pending, default=self.next)
        return self.pending.get(min(late, self.next))

    def begin(self, job: "FutureJob") -> None:
        """The call is sent to the actor."""
        del self.pending[job.spec.ordinal]
        self.next = max(self.next, job.spec.ordinal + 1)
        if job.spec.max_retries:
            self.holding = job.spec.ordinal

    def ended(self, job: "FutureJob", *, again: bool) -> None:
        """A call's attempt is over; `again` when the same call comes back."""
        if self.holding == job.spec.ordinal:
            self.holding = 0
        if again:
            self.next = min(self.next, job.spec.ordinal)

    @property
    def stuck(self) -> bool:
        """Calls are here, but not the next one."""
        return bool(self.pending) and not self.holding and self.ready() is None


class HostedActors:
    """All actors of this node."""

    def __init__(self) -> None:
        self.actors: dict[bytes, HostedActor] = {}

    def of(self, child: "WorkerChild") -> HostedActor | None:
        return self.actors.get(child.actor) if child.actor else None

    def host(self, actor_id: bytes, child: "WorkerChild") -> None:
        """A child is going to be this actor."""
        self.actors[actor_id] = HostedActor(actor_id, child)

    def remove(self, actor_id: bytes) -> "list[FutureJob]":
        """The actor is gone; the calls that waited for it."""
        actor = self.actors.pop(actor_id, None)
        return list(actor.pending.values()) if actor is not None else []

    def withdraw(self, job: "FutureJob") -> bool:
        """Take a call off those that wait for their turn; False when it is not among them."""
        actor = self.actors.get(job.spec.actor)
        if actor is None or actor.pending.get(job.spec.ordinal) is not job:
            return False
        del actor.pending[job.spec.ordinal]
        return True
