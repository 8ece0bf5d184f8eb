"""A model of futures: a plain dictionary without rows, indices, pages or transactions.

Consequences for dependents happen here at once (`settle`); in the store they may take several transactions,
so the two are compared when the store's cursors are drained.
"""

from dataclasses import dataclass, field

from tidemill.futures.protocol.results import MOST_REBUILDS
from tidemill.futures.protocol.retries import MOST_CRASHES, MOST_OOMS, MOST_REAPS, MOST_STRANGE
from tidemill.futures.protocol.states import ENDED, FutureState

S = FutureState
BROKEN = {S.FAILED, S.CANCELLED, S.QUARANTINED}


@dataclass
class ExpectedFuture:
    """The expected state of one future."""

    inputs: tuple[bytes, ...]
    max_retries: int
    cpu: float
    reconstruct: bool
    hard: bool
    state: FutureState = S.UNCLAIMED
    why: str = ""  # the kind of a failure
    kind: str = ""  # of its result
    version: int = 0
    cancel: str = ""
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("exception", "crash", "oom", "deserialize", "reap", "lost"), 0)
    )


class Model:
    """The expected state of all futures."""

    def __init__(self) -> None:
        self.futures: dict[bytes, ExpectedFuture] = {}

    def add(self, future_id: bytes, future: ExpectedFuture) -> None:
        self.futures[future_id] = future
        future.state = S.BLOCKED
        self.settle()

    def _broken(self, future: ExpectedFuture) -> bool:
        return any(
            self.futures[upstream].state in BROKEN if upstream in self.futures else True
            for upstream in future.inputs
        )

    def _served(self, future: ExpectedFuture) -> bool:
        return all(
            self.futures[upstream].state is S.REALIZED
            for upstream in future.inputs
            if upstream in self.futures
        )

    def settle(self) -> None:
        """Update every future from its inputs."""
        while any(self._settle(future) for future in self.futures.values()):
            pass

    def _settle(self, future: ExpectedFuture) -> bool:
        before = future.state, future.why
        if future.state in (S.BLOCKED, S.UNCLAIMED, S.UNSATISFIABLE) and self._broken(future):
            future.state, future.why = S.FAILED, "upstream"
        elif future.state is S.FAILED and future.why == "upstream" and not self._broken(future):
            future.state, future.why = S.BLOCKED, ""
        elif future.state is S.BLOCKED and self._served(future):
            future.state = S.UNCLAIMED
        elif future.state is S.UNCLAIMED and not self._served(future):
            future.state = S.BLOCKED
        return (future.state, future.why) != before

    def _again(self, future: ExpectedFuture) -> None:
        future.cancel = ""
        future.state = S.BLOCKED

    def _end_if_marked(self, future: ExpectedFuture) -> bool:
        if future.cancel == "deadline":
            future.state, future.why = S.FAILED, "deadline"
        elif future.cancel:
            future.state = S.CANCELLED
        return bool(future.cancel)

    # --- what happens to a claimed one

    def realize(self, future: ExpectedFuture, kind: str, version: int) -> None:
        future.state, future.kind, future.version, future.cancel = S.REALIZED, kind, version, ""

    def give_back(self, future: ExpectedFuture) -> None:
        if not self._end_if_marked(future):
            self._again(future)

    def reap(self, future: ExpectedFuture) -> None:
        if self._end_if_marked(future):
            return
        if future.hard:
            future.state, future.why = S.FAILED, "actor"
            return
        future.counts["reap"] += 1
        if future.counts["reap"] >= MOST_REAPS:
            future.state = S.QUARANTINED
        else:
            self._again(future)

    def fail(self, future: ExpectedFuture, kind: str) -> None:
        if self._end_if_marked(future):
            return
        future.counts[kind] += 1
        most = {
            "exception": future.max_retries + 1,
            "crash": MOST_CRASHES,
            "oom": MOST_OOMS,
            "deserialize": MOST_STRANGE,
        }[kind]
        if future.counts[kind] < most:
            self._again(future)
        elif kind == "crash":
            future.state = S.QUARANTINED
        else:
            future.state, future.why = S.FAILED, kind

    # --- what happens to others

    def lose(self, future: ExpectedFuture) -> None:
        future.counts["lost"] += 1
        if not future.reconstruct or future.counts["lost"] > MOST_REBUILDS or self._broken(future):
            future.state, future.why = S.FAILED, "lost"
        else:
            self._again(future)

    def cancel(self, future: ExpectedFuture, why: str) -> None:
        if future.state is S.CLAIMED:
            future.cancel = future.cancel or why
        elif future.state not in ENDED:
            future.cancel = why
            self._end_if_marked(future)

    def requeue(self, future: ExpectedFuture) -> bool:
        """False when an input is broken: then it is refused."""
        if self._broken(future):
            return False
        future.counts = dict.fromkeys(future.counts, 0)
        self._again(future)
        return True

    def may_go(self, future_id: bytes) -> bool:
        """May the sweep delete it? Not while a live descendant could need it (FUT-61)."""
        future = self.futures[future_id]
        if future.state not in ENDED:
            return False
        for other in self.futures.values():
            if future_id not in other.inputs or other.state in (S.FAILED, S.CANCELLED):
                continue
            if not (other.state is S.REALIZED and other.kind in ("inline", "object")):
                return False
        return True
