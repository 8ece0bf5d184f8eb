"""Placement: decide which child runs which job, based on slots and reserved resources.

A child that runs a task uses a slot. A task that waits for other futures frees its slot and keeps its memory.
A child can hold several short jobs. It runs them one by one and reserves the most that any of them needs. The
supervisor sends jobs ahead to a child only while tasks are short, because a round trip takes longer than a
short task.
"""

from collections import deque
from collections.abc import Iterable

from tidemill.futures.protocol.lanes import Capacity, fits
from tidemill.futures.protocol.rows import Needs
from tidemill.futures.worker.children import WorkerChild
from tidemill.futures.worker.jobs import NOTHING, ClaimRequest, FutureJob

AHEAD_S = 0.005
"""How much work to send ahead to a child, in seconds."""

AHEAD_MOST = 64
LONG_S = 0.050
"""A task that runs longer than this is long: jobs that wait for it in the same child are recalled."""

CLAIM_MOST = 100


class Placement:
    """The unfinished jobs of one supervisor, and the rules that assign them to children."""

    def __init__(self, slots: int, total: Capacity) -> None:
        self.slots = slots
        self.total = total
        self.stored_bytes = 0  # results in this node's memory (FUT-36)
        self.queued: deque[FutureJob] = deque()  # claimed, but not sent to a child
        self.resuming: deque[FutureJob] = deque()
        self.waiting: list[FutureJob] = []  # in the order they began to wait: the innermost is last
        self.typical_s = 0.020  # moving average of task durations; at first, too long to send jobs ahead
        self.round_s = 0.002  # moving average of the duration of a round of the claim loop

    # --- free capacity

    def busy(self, children: Iterable[WorkerChild]) -> int:
        """Return how many slots are in use."""
        return sum(child.slotted for child in children)

    def free(self, children: Iterable[WorkerChild], *, without: WorkerChild | None = None) -> Capacity:
        """Return the capacity that no child has reserved; the reservation of `without` counts as free."""
        cpu, ram, gpu = self.total.cpu, self.total.ram - self.stored_bytes, self.total.gpu
        for child in children:
            if child is not without:
                cpu -= child.reserved.cpu
                ram -= child.reserved.ram
                gpu -= child.reserved.gpu
        return Capacity(cpu=cpu, ram=ram, gpu=gpu, named=self.total.named)

    def ahead(self) -> int:
        """Return how many jobs to send to a child in addition to the one it runs."""
        if self.typical_s > LONG_S / 5:
            return 0
        return min(AHEAD_MOST, int(max(AHEAD_S, 2 * self.round_s) / max(self.typical_s, 1e-5)))

    def request(
        self, children: list[WorkerChild], awaited: tuple[bytes, ...] = (), *, startable: bool = True
    ) -> ClaimRequest | None:
        """Return how much the node can claim now; None for nothing.

        Args:
            children: all children of the node.
            awaited: the futures that waiting tasks of this node need.
            startable: whether a child can be started for a slot that has none.
        """
        idle = self.slots - self.busy(children) - len(self.resuming)
        if not startable:
            idle = min(idle, sum(not (child.jobs or child.actor or child.killed_for) for child in children))
        plain = [child for child in children if child.slotted and not child.actor]
        ahead = self.ahead()
        room = sum(max(0, ahead + 1 - len(child.jobs)) for child in plain) + max(0, idle) * (ahead + 1)
        limit = min(CLAIM_MOST, room - len(self.queued))
        if limit <= 0:
            return None
        free = self.free(children)
        if idle <= 0 and plain:  # no free slot: claim jobs that can run on a child after its current one
            capacities = [self.free(children, without=child) for child in plain]
            free = max(capacities, key=lambda capacity: (capacity.ram, capacity.cpu))
        return ClaimRequest(limit, free, awaited, max(0, idle))

    def record_duration(self, took_s: float) -> None:
        """Update the typical duration after a task has finished."""
        self.typical_s += 0.1 * (took_s - self.typical_s)

    def record_long(self, took_s: float) -> None:
        """Record that a task takes longer than expected: send nothing ahead until short tasks finish."""
        self.typical_s = max(self.typical_s, took_s)

    # --- choosing

    def resume(self, children: list[WorkerChild]) -> None:
        """Give free slots to tasks that want to resume."""
        while self.resuming and self.busy(children) < self.slots:
            job = self.resuming.popleft()
            job.waiting, job.awaits = False, ()
            child = job.child
            assert child is not None
            update_reservation(child)
            child.resume(job.number)

    def fits_now(self, job: FutureJob, children: list[WorkerChild]) -> bool:
        """Return whether there is a free slot and enough capacity for the job."""
        return self.busy(children) < self.slots and (
            job.needs is NOTHING or fits(job.needs, self.free(children))
        )

    def may_call(self, child: WorkerChild, children: list[WorkerChild]) -> bool:
        """Return whether an actor can be sent another call."""
        if child.killed_for or child.recalling:
            return False
        if not child.jobs:
            return self.busy(children) < self.slots
        return child.slotted and len(child.jobs) <= self.ahead()

    def choose(self, job: FutureJob, children: list[WorkerChild]) -> tuple[WorkerChild | None, bool]:
        """Return the child for a job, or None, and whether there is a free slot.

        If there is a free slot, choose an idle child; None if no child is idle. Otherwise choose the child
        with the fewest jobs, if that child may get another job.
        """
        if self.fits_now(job, children):
            idle = [child for child in children if not (child.jobs or child.actor or child.killed_for)]
            return next((child for child in idle if child.ready), idle[0] if idle else None), True
        ahead = self.ahead()
        best: WorkerChild | None = None
        for child in children if ahead else ():
            if (
                child.slotted
                and not (child.actor or child.killed_for or child.recalling)
                and len(child.jobs) <= ahead
                and (best is None or len(child.jobs) < len(best.jobs))
                and (job.needs is NOTHING or fits(job.needs, self.free(children, without=child)))
            ):
                best = child
        return best, False

    def remove(self, job: FutureJob) -> bool:
        """Remove a job from the queue. Return False if it is not in the queue."""
        if job not in self.queued:
            return False
        self.queued.remove(job)
        return True

    def drop(self) -> None:
        """Forget all jobs: the claims have ended."""
        self.queued.clear()
        self.resuming.clear()
        self.waiting.clear()


def update_reservation(child: WorkerChild) -> None:
    """Recompute what a child reserves, after its jobs have changed.

    It reserves the most that any of its jobs needs, because they run one by one. A waiting task frees its
    slot and its cpu, and keeps its memory (FUT-41).
    """
    waiting = False
    cpu, ram, gpu = 0.0, child.base.ram, child.base.gpu
    for job in child.jobs.values():
        waiting = waiting or job.waiting
        needs = job.needs
        if needs is not NOTHING:
            cpu, ram, gpu = max(cpu, needs.cpu), max(ram, needs.ram), max(gpu, needs.gpu)
    child.slotted = bool(child.jobs) and not waiting
    child.reserved = Needs(0.0 if waiting else cpu, ram, gpu) if cpu or ram or gpu else NOTHING
