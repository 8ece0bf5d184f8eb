"""Isolation: run a future alone on a node, if several nodes died while they had claimed it (FUT-53).

When a node dies, every future that it had claimed counts one more death, because the store does not know
which of them was the cause. A future with many deaths is a *suspect*. A node starts a suspect only after the
node's other jobs have ended, and claims nothing until the suspect has ended. So further deaths count against
this suspect only, and the other futures can finish.
"""

from collections.abc import Sequence

from tidemill.futures.worker.jobs import FutureJob
from tidemill.futures.worker.ledger import Ledger


class Isolation:
    """The suspect of one node, which waits for the node's other jobs or runs alone.

    The suspect does not wait for two kinds of jobs. A job that waits for other futures may be waiting for the
    suspect itself. A call of an actor may be waiting for another call, which this node has not claimed.

    Args:
        ledger: the node's jobs.
        suspect_reaps: a future is a suspect after this many nodes died while they had claimed it.
    """

    def __init__(self, ledger: Ledger, suspect_reaps: int) -> None:
        self._ledger = ledger
        self._suspect_reaps = suspect_reaps
        self._held: FutureJob | None = None  # claimed, but not started yet
        self._running: FutureJob | None = None

    @property
    def is_active(self) -> bool:
        """Whether the node must not claim: it has a suspect, and the suspect is not waiting for futures."""
        job = self._running
        if job is not None and self._ledger.jobs.get(job.id) is not job:
            job = self._running = None
        return self._held is not None or (job is not None and not job.waiting)

    def admit(self, jobs: Sequence[FutureJob]) -> list[FutureJob]:
        """Return which of these new jobs to start now.

        If there is a suspect among them, keep it until it can run alone. Release the other jobs, which may be
        suspects too, so that they can be claimed again. Calls of actors start in any case.
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
        """Forget a suspect that has not started. Return False if this job is not such a suspect."""
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
