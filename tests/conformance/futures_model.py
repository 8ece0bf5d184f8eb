"""What futures should be: a plain dictionary that knows nothing of rows, indices, pages or transactions.

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
class Known:
    """One future."""

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
    """All of them."""

    def __init__(self) -> None:
        self.futures: dict[bytes, Known] = {}

    def add(self, future_id: bytes, known: Known) -> None:
        self.futures[future_id] = known
        known.state = S.BLOCKED
        self.settle()

    def _broken(self, known: Known) -> bool:
        return any(self.futures[one].state in BROKEN if one in self.futures else True for one in known.inputs)

    def _served(self, known: Known) -> bool:
        return all(self.futures[one].state is S.REALIZED for one in known.inputs if one in self.futures)

    def settle(self) -> None:
        """Bring every future in step with its inputs."""
        while any(self._settle(known) for known in self.futures.values()):
            pass

    def _settle(self, known: Known) -> bool:
        before = known.state, known.why
        if known.state in (S.BLOCKED, S.UNCLAIMED, S.UNSATISFIABLE) and self._broken(known):
            known.state, known.why = S.FAILED, "upstream"
        elif known.state is S.FAILED and known.why == "upstream" and not self._broken(known):
            known.state, known.why = S.BLOCKED, ""
        elif known.state is S.BLOCKED and self._served(known):
            known.state = S.UNCLAIMED
        elif known.state is S.UNCLAIMED and not self._served(known):
            known.state = S.BLOCKED
        return (known.state, known.why) != before

    def _again(self, known: Known) -> None:
        known.cancel = ""
        known.state = S.BLOCKED

    def _end_if_marked(self, known: Known) -> bool:
        if known.cancel == "deadline":
            known.state, known.why = S.FAILED, "deadline"
        elif known.cancel:
            known.state = S.CANCELLED
        return bool(known.cancel)

    # --- what happens to a claimed one

    def realize(self, known: Known, kind: str, version: int) -> None:
        known.state, known.kind, known.version, known.cancel = S.REALIZED, kind, version, ""

    def give_back(self, known: Known) -> None:
        if not self._end_if_marked(known):
            self._again(known)

    def reap(self, known: Known) -> None:
        if self._end_if_marked(known):
            return
        if known.hard:
            known.state, known.why = S.FAILED, "actor"
            return
        known.counts["reap"] += 1
        if known.counts["reap"] >= MOST_REAPS:
            known.state = S.QUARANTINED
        else:
            self._again(known)

    def fail(self, known: Known, kind: str) -> None:
        if self._end_if_marked(known):
            return
        known.counts[kind] += 1
        most = {
            "exception": known.max_retries + 1,
            "crash": MOST_CRASHES,
            "oom": MOST_OOMS,
            "deserialize": MOST_STRANGE,
        }[kind]
        if known.counts[kind] < most:
            self._again(known)
        elif kind == "crash":
            known.state = S.QUARANTINED
        else:
            known.state, known.why = S.FAILED, kind

    # --- what happens to others

    def lose(self, known: Known) -> None:
        known.counts["lost"] += 1
        if not known.reconstruct or known.counts["lost"] > MOST_REBUILDS or self._broken(known):
            known.state, known.why = S.FAILED, "lost"
        else:
            self._again(known)

    def cancel(self, known: Known, why: str) -> None:
        if known.state is S.CLAIMED:
            known.cancel = known.cancel or why
        elif known.state not in ENDED:
            known.cancel = why
            self._end_if_marked(known)

    def requeue(self, known: Known) -> bool:
        """False when an input is broken: then it is refused."""
        if self._broken(known):
            return False
        known.counts = dict.fromkeys(known.counts, 0)
        self._again(known)
        return True

    def may_go(self, future_id: bytes) -> bool:
        """May the sweep delete it? Not while a live descendant could need it (FUT-61)."""
        known = self.futures[future_id]
        if known.state not in ENDED:
            return False
        for other in self.futures.values():
            if future_id not in other.inputs or other.state in (S.FAILED, S.CANCELLED):
                continue
            if not (other.state is S.REALIZED and other.kind in ("inline", "object")):
                return False
        return True
