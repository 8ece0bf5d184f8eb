"""Isolation: a future whose nodes died again and again runs alone on its node (FUT-53).

When a node dies, every future that it had claimed counts one more death, because the store does not know
which of them was the cause. A future with many deaths is a *suspect*. A node starts a suspect when its other
jobs have ended, and claims nothing until the suspect has ended. So further deaths count against this suspect
only, and the other futures can finish.
"""

from collections.abc import Sequence

from tidemill.futures.worker.jobs import FutureJob
from tidemill.futures.worker.ledger import Ledger


class Isolation:
    """The suspect of one node, which waits for the node's other jobs or runs alone.

    Two kinds of jobs do not delay a suspect. Jobs that wait for other futures may wait for the suspect. Calls
    of actors may wait for a call that this node has not claimed.

    Args:
        ledger: the node's jobs.
        suspect_reaps: a future is a suspect after this many deaths of its nodes.
    """

    def __init__(self, ledger: Ledger, suspect_reaps: int) -> None:
        self._ledger = ledger
        self._suspect_reaps = suspect_reaps
        self._held: FutureJob | None = None  # claimed, but not started yet
        self._running: FutureJob | None = None

    @property
    def is_active(self) -> bool:
        """Whether the node must claim nothing: it holds a suspect, which does not wait for other futures."""
        job = self._running
        if job is not None and self._ledger.jobs.get(job.id) is not job:
            job = self._running = None
        return self._held is not None or (job is not None and not job.waiting)

    def admit(self, jobs: Sequence[FutureJob]) -> list[FutureJob]:
        """Return which of these new jobs to start now.

        If there is a suspect among them, hold it and release the others, which may be the cause of deaths
        too. The node claims them again when the suspect has ended.
        """
        suspects = [job for job in jobs if job.claim.row.tally.reaps >= self._suspect_reaps]
        if not suspects:
            return list(jobs)
        self._held = suspects[0]
        calls = [job for job in jobs if job.spec.actor and job is not self._held]
        for job in jobs:
            if job is not self._held and job not in calls:
                self._ledger.relinquish(job)
        return calls

    def release(self) -> list[FutureJob]:
        """Return the suspect if it can start now, because the node's other jobs have ended."""
        job = self._held
        if job is None or any(self._delays(other) for other in self._ledger.jobs.values()):
            return []
        self._held, self._running = None, job
        return [job]

    def _delays(self, other: FutureJob) -> bool:
        return other is not self._held and not other.waiting and not other.spec.actor

    def withdraw(self, job: FutureJob) -> bool:
        """Return whether the job is a suspect that has not started; then it will not start."""
        if self._held is not job:
            return False
        self._held = None
        return True

    def drain(self) -> None:
        """Release a suspect that has not started."""
        if self._held is not None:
            self._ledger.relinquish(self._held)
            self._held = None

    def drop(self) -> None:
        """Forget the suspect: its claim is over."""
        self._held = self._running = None
