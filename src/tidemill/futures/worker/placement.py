"""Who runs what: slots, reserved resources and the order in which jobs go to children.

A slot is a child that executes. A task that awaits others gives its slot back and keeps its memory; a child
that was sent several short jobs runs them one by one and reserves the most that any of them asks for. Jobs
are sent ahead only while tasks are short, because a round trip for each would take longer than they do.
"""

from collections import deque
from collections.abc import Iterable

from tidemill.futures.protocol.lanes import Capacity, fits
from tidemill.futures.protocol.rows import Needs
from tidemill.futures.worker.children import WorkerChild
from tidemill.futures.worker.jobs import NOTHING, ClaimRequest, FutureJob

AHEAD_S = 0.005
"""How much work is sent ahead to a child."""

AHEAD_MOST = 64
LONG_S = 0.050
"""A task that takes longer than this keeps nobody waiting behind it."""

CLAIM_MOST = 100


class Placement:
    """The jobs of one supervisor that are not over, and the children they are with."""

    def __init__(self, slots: int, total: Capacity) -> None:
        self.slots = slots
        self.total = total
        self.stored_bytes = 0  # results that lie in this node's memory (FUT-36)
        self.here: deque[FutureJob] = deque()  # claimed, and not with a child
        self.resuming: deque[FutureJob] = deque()
        self.waiting: list[FutureJob] = []  # in the order they began to wait: the innermost is last
        self.typical_s = 0.020  # how long a task takes, by what we saw last; nothing is sent ahead at first
        self.round_s = 0.002  # how long a round in the store takes

    # --- what is free

    def busy(self, children: Iterable[WorkerChild]) -> int:
        """Slots in use."""
        return sum(child.slotted for child in children)

    def free(self, children: Iterable[WorkerChild], *, without: WorkerChild | None = None) -> Capacity:
        """What is not reserved by any child, or by any but one."""
        cpu, ram, gpu = self.total.cpu, self.total.ram - self.stored_bytes, self.total.gpu
        for child in children:
            if child is not without:
                cpu -= child.reserved.cpu
                ram -= child.reserved.ram
                gpu -= child.reserved.gpu
        return Capacity(cpu=cpu, ram=ram, gpu=gpu, named=self.total.named)

    def ahead(self) -> int:
        """How many jobs a child should have behind the one it runs."""
        if self.typical_s > LONG_S / 5:
            return 0
        return min(AHEAD_MOST, int(max(AHEAD_S, 2 * self.round_s) / max(self.typical_s, 1e-5)))

    def request(
        self, children: list[WorkerChild], awaited: tuple[bytes, ...] = (), *, startable: bool = True
    ) -> ClaimRequest | None:
        """What we could take on now; None for nothing.

        Args:
            children: all of them.
            awaited: what waiting tasks of ours await.
            startable: whether a child can be started for a slot that has none.
        """
        idle = self.slots - self.busy(children) - len(self.resuming)
        if not startable:
            idle = min(idle, sum(not (one.jobs or one.actor or one.killed_for) for one in children))
        plain = [child for child in children if child.slotted and not child.actor]
        ahead = self.ahead()
        room = sum(max(0, ahead + 1 - len(child.jobs)) for child in plain) + max(0, idle) * (ahead + 1)
        limit = min(CLAIM_MOST, room - len(self.here))
        if limit <= 0:
            return None
        free = self.free(children)
        if idle <= 0 and plain:  # only behind others: what fits in their stead
            loads = [self.free(children, without=child) for child in plain]
            free = max(loads, key=lambda one: (one.ram, one.cpu))
        return ClaimRequest(limit, free, awaited, max(0, idle))

    def saw(self, took_s: float) -> None:
        """A task took so long."""
        self.typical_s += 0.1 * (took_s - self.typical_s)

    def saw_long(self, took_s: float) -> None:
        """A task takes longer than was thought: send nothing ahead until short ones are seen again."""
        self.typical_s = max(self.typical_s, took_s)

    # --- choosing

    def resume(self, children: list[WorkerChild]) -> None:
        """Give free slots to tasks that want to go on."""
        while self.resuming and self.busy(children) < self.slots:
            job = self.resuming.popleft()
            job.waiting, job.awaits = False, ()
            child = job.child
            assert child is not None
            settle(child)
            child.resume(job.number)

    def fits_now(self, job: FutureJob, children: list[WorkerChild]) -> bool:
        """Is there a slot, and all that the job asks for?"""
        return self.busy(children) < self.slots and (
            job.needs is NOTHING or fits(job.needs, self.free(children))
        )

    def may_call(self, child: WorkerChild, children: list[WorkerChild]) -> bool:
        """May an actor be sent another call?"""
        if child.killed_for or child.recalling:
            return False
        if not child.jobs:
            return self.busy(children) < self.slots
        return child.slotted and len(child.jobs) <= self.ahead()

    def choose(self, job: FutureJob, children: list[WorkerChild]) -> tuple[WorkerChild | None, bool]:
        """The child to give a job to, and whether there is a slot for it, perhaps without a child.

        An idle one while there are slots, else the one that has the least ahead.
        """
        if self.fits_now(job, children):
            idle = [one for one in children if not one.jobs and not one.actor and not one.killed_for]
            return next((one for one in idle if one.ready), idle[0] if idle else None), True
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
        """Take a job off the ones that are with us; False when it is not."""
        if job not in self.here:
            return False
        self.here.remove(job)
        return True

    def drop(self) -> None:
        """Forget all jobs: our claims are over."""
        self.here.clear()
        self.resuming.clear()
        self.waiting.clear()


def settle(child: WorkerChild) -> None:
    """A child's jobs have changed: what it takes of its node is the most that any of them asks for, as they
    run one by one. A waiting task gives its slot and its cpu back, and keeps what it has in memory (FUT-41).
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
