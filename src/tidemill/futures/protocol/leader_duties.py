"""The leader's duties for futures: rounds of a few bounded transactions, fenced by the leader's epoch.

If a round finds more work than it may do, the duty runs again right after the other duties. Claims and
results are correct without these duties. The duties make sure that no future waits forever.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Duty, Tenure
from tidemill.cluster.leases import SECOND_US, TTL_S
from tidemill.events import Emit, Event, ignore
from tidemill.futures.protocol import cancel, code, depend, drafts, edges, reap, results, sweep, unsatisfiable
from tidemill.futures.protocol.events import (
    ActorsDied,
    AssignmentsRerouted,
    ClientReleased,
    CodeDeleted,
    DeadlinesPassed,
    FuturesReaped,
    FuturesSatisfied,
    FuturesStranded,
    FuturesSwept,
)
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.reap import ReapPage
from tidemill.futures.protocol.rows import AnyRow, Blocked
from tidemill.store import Store, Tx

PAGES = 20
"""The maximum number of transactions in a round of pages. More would delay the leader's other duties."""

COLLECT_EVERY_S = 3600.0
"""How often to look for code that no future needs, and for objects that no row refers to."""

BUSY_S = 5.0
"""How long a soft assignment waits for its node before any node may claim it (FUT-60)."""


def future_duties(
    keys: FutureKeys,
    cluster: ClusterKeys,
    *,
    emit: Emit = ignore,
    ttl_s: float = TTL_S,
    keep_s: float = sweep.KEEP_S,
    busy_s: float = BUSY_S,
) -> dict[str, Duty]:
    """Return the leader's duties for futures, for `Member(duties=…)`.

    Args:
        keys: the keys of futures.
        cluster: the keys of nodes.
        emit: receives the events.
        ttl_s: how long the leases of nodes last; the leader looks for dead nodes three times per ttl.
        keep_s: how long ended futures are kept.
        busy_s: how long a soft assignment waits for its node.
    """
    duties = FutureDuties(keys, cluster, emit, ttl_s, int(keep_s * SECOND_US), int(busy_s * SECOND_US))
    return {
        "reap futures": duties.reap,
        "notify dependents": duties.notify,
        "end futures by deadline": duties.end_by_deadline,
        "set aside unsatisfiable futures": duties.strand,
        "release results": duties.release,
        "sweep futures": duties.sweep,
        "delete unused code": duties.collect_code,
        "delete drafts": duties.collect_drafts,
    }


class CodeRound:
    """One round of `FutureDuties.collect_code`: the digests found so far, and where to continue."""

    def __init__(self, began_at: int) -> None:
        self.began_at = began_at
        self.used: set[bytes] = set()
        self.all_read = False
        self.after = b""


class FutureDuties:
    """The duties, and where each of them continues in its next round."""

    def __init__(
        self,
        keys: FutureKeys,
        cluster: ClusterKeys,
        emit: Emit,
        ttl_s: float,
        keep_us: int,
        busy_us: int,
    ) -> None:
        self.keys = keys
        self.cluster = cluster
        self.emit = emit
        self.ttl_s = ttl_s
        self.keep_us = keep_us
        self.busy_us = busy_us
        self._loose = b""
        self._code_round: CodeRound | None = None
        self._adopted_code: bytes | None = b""  # where adopting code of earlier releases stopped; None at end
        self._drafts = b""
        self._positions: dict[tuple[str, str], bytes] = {}  # where unfinished rounds stopped

    # --- dead and busy nodes

    def reap(self, tenure: Tenure) -> float:
        """Release the claims, assignments and actors of dead nodes."""
        more = False
        for node in tenure.run(partial(reap.nodes_to_reap, keys=self.keys, cluster=self.cluster)):
            args = self._args(node)
            more |= self._walk(tenure, partial(reap.reap_page, **args), partial(FuturesReaped, node=node))
            actors_died = partial(ActorsDied, node=node)
            more |= self._repeat(tenure, partial(reap.reap_actors_page, **args), actors_died)
            rerouted = partial(AssignmentsRerouted, node=node, why="gone")
            more |= self._repeat(tenure, partial(reap.reroute_page, **args), rerouted)
        more |= self._reroute_from_live_nodes(tenure)
        return 0.0 if more else self.ttl_s / 3

    def _reroute_from_live_nodes(self, tenure: Tenure) -> bool:
        more = False
        for node in tenure.run(lambda tx: reap.holders(tx, self.keys.assigned)):
            args = self._args(node)
            busy = partial(AssignmentsRerouted, node=node, why="busy")
            more |= self._repeat(tenure, partial(reap.release_late_page, busy_us=self.busy_us, **args), busy)
            small = partial(AssignmentsRerouted, node=node, why="too small")
            self._walk(tenure, partial(reap.reroute_misfits_page, **args), small)
        return more

    def _args(self, node: str) -> dict[str, Any]:
        return {"keys": self.keys, "cluster": self.cluster, "node_id": node}

    # --- dependents and deadlines

    def notify(self, tenure: Tenure) -> float:
        """Notify dependents that other processes have not notified yet: those after a cursor."""
        for _ in range(PAGES):
            if not tenure.run(lambda tx: depend.notify_pending(tx, self.keys)):
                return self.ttl_s / 10
        return 0.0

    def end_by_deadline(self, tenure: Tenure) -> float:
        """End futures whose deadline has passed."""
        if self._repeat(tenure, partial(cancel.deadline_page, keys=self.keys), DeadlinesPassed):
            return 0.0
        next_s = tenure.run(lambda tx: cancel.until_next(tx, self.keys)) / SECOND_US
        return min(next_s, self.ttl_s / 10)

    # --- unsatisfiable futures

    def strand(self, tenure: Tenure) -> float:
        """Set aside futures that no live worker can run, and check futures set aside earlier."""
        args: dict[str, Any] = {"keys": self.keys, "cluster": self.cluster}
        more = False
        for lane in tenure.run(partial(unsatisfiable.lanes_to_check, **args)):
            more |= self._walk(tenure, partial(unsatisfiable.strand_page, lane=lane, **args), FuturesStranded)
        more |= self._walk(tenure, partial(unsatisfiable.satisfy_page, **args), FuturesSatisfied)
        return 0.0 if more else self.ttl_s / 5

    # --- results and rows that are not needed

    def release(self, tenure: Tenure) -> float:
        """Release the handles of dead clients, and delete released results that no dependent needs."""
        more = False
        for client in tenure.run(self._dead_clients):
            page = partial(results.release_client, keys=self.keys, client=client)
            released = tenure.run(page)
            more |= released == results.RELEASE_PAGE
            self.emit(ClientReleased(client=client, handles=released))
        for _ in range(PAGES):
            self._loose = tenure.run(partial(sweep.collect_page, keys=self.keys, after=self._loose))
            if not self._loose:
                break
        return 0.0 if more else self.ttl_s / 3

    def _dead_clients(self, tx: Tx) -> list[str]:
        alive = {node.id for node in nodes.alive(nodes.read_all(tx, self.cluster), tx.now())}
        return [client for client in reap.holders(tx, self.keys.hold) if client not in alive]

    def sweep(self, tenure: Tenure) -> float:
        """Delete old ended futures."""
        for _ in range(PAGES):
            page = tenure.run(lambda tx: sweep.sweep_page(tx, self.keys, self.cluster, self.keep_us))
            if page.deleted:
                self.emit(FuturesSwept(ids=[future_id.hex() for future_id in page.deleted]))
            if not page.more:
                tenure.run(lambda tx: sweep.close_lanes(tx, self.keys))
                return min(60.0, self.keep_us / SECOND_US / 10)
        return 0.0

    def collect_code(self, tenure: Tenure) -> float:
        """Delete the code that no future needs any more, in rounds (see `code`)."""
        current = self._code_round or CodeRound(tenure.run(lambda tx: tx.now()))
        self._code_round = current
        for _ in range(PAGES):
            if self._adopted_code is not None:
                adopt = partial(code.adopt_page, keys=self.keys, after=self._adopted_code)
                self._adopted_code = tenure.run(adopt) or None
            elif not current.all_read:
                used, after = tenure.run(partial(code.used_page, keys=self.keys, after=current.after))
                current.used |= used
                current.after, current.all_read = after, not after
            else:
                collect = partial(code.collect_page, used=current.used, began_at=current.began_at)
                deleted, current.after = tenure.run(partial(collect, keys=self.keys, after=current.after))
                if deleted:
                    self.emit(CodeDeleted(functions=deleted))
                if not current.after:
                    self._code_round = None
                    return COLLECT_EVERY_S
        return 0.0

    def collect_drafts(self, tenure: Tenure) -> float:
        """Delete objects that were written a day ago, and that no row refers to."""
        for _ in range(PAGES):
            page = partial(drafts.collect_page, keys=self.keys, keep_us=self.keep_us, after=self._drafts)
            _, self._drafts = tenure.run(page)
            if not self._drafts:
                return min(COLLECT_EVERY_S, self.keep_us / SECOND_US / 10)
        return 0.0

    # --- pages

    def _repeat(self, tenure: Tenure, page: Callable[[Tx], ReapPage], event: Callable[..., Event]) -> bool:
        """Run page after page; each removes the rows that it handles. Return True if there are more rows."""
        for _ in range(PAGES):
            outcome = tenure.run(page)
            self._emit(outcome.moved, event)
            if not outcome.more:
                return False
        return True

    def _walk(
        self, tenure: Tenure, page: Callable[..., tuple[ReapPage, bytes]], event: Callable[..., Event]
    ) -> bool:
        """Run page after page over a range. Return True if the next round has more rows to visit.

        The pages need not remove the rows that they visit. The next round continues where this one stopped,
        so the rounds reach the end of the range even if many rows stay.
        """
        assert isinstance(page, partial)
        subject = page.func.__name__, str(page.keywords.get("node_id", page.keywords.get("lane", "")))
        after = self._positions.pop(subject, b"")
        for _ in range(PAGES):
            outcome, after = tenure.run(partial(page, after=after))
            self._emit(outcome.moved, event)
            if not outcome.more:
                return False
        self._positions[subject] = after
        return True

    def _emit(self, moved: list[tuple[bytes, AnyRow]], event: Callable[..., Event]) -> None:
        if moved:
            self.emit(event(ids=[future_id.hex() for future_id, _ in moved]))


REACH = 100
"""How many direct and indirect inputs of a future a client checks while it waits for the future."""


def reap_one(
    store: Store, keys: FutureKeys, cluster: ClusterKeys, future_id: bytes, *, ttl_s: float = TTL_S
) -> AnyRow | None:
    """Do the leader's work for a future that a client waits for, after two ttls without a leader (FUT-49).

    Release the claims of dead nodes on the future and its inputs, and notify dependents. Return the future's
    row after that. Do nothing while there is a leader.
    """
    leaderless_us = int(2 * ttl_s * SECOND_US)
    stack, visited = [future_id], {future_id}
    while stack and len(visited) <= REACH:
        args: dict[str, Any] = {"keys": keys, "future_id": stack.pop()}
        row = store.run(partial(reap.reap_one, cluster=cluster, leaderless_us=leaderless_us, **args))
        if isinstance(row, Blocked):
            for upstream in store.run(partial(depend.waited_for, **args)):
                if upstream not in visited:
                    visited.add(upstream)
                    stack.append(upstream)
    return store.run(lambda tx: edges.read(tx, keys, future_id))
