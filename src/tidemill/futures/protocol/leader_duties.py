"""The leader's rounds over the futures: each a few bounded transactions, fenced by the leader's epoch.

A round that finds more than it may do at once comes back at once, so that the rounds of the others have
their turn. Nothing here is needed for correctness of what is claimed and realised; it is what makes sure
that nothing waits for ever.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Duty, Tenure
from tidemill.cluster.leases import SECOND_US, TTL_S
from tidemill.events import Emit, Event, ignore
from tidemill.futures.protocol import cancel, depend, edges, reap, results, sweep, unschedulable
from tidemill.futures.protocol.events import (
    ActorsDied,
    AssignmentsRerouted,
    ClientReleased,
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
"""Transactions per round and subject: a round never keeps the leader from its other duties for long."""

BUSY_S = 5.0
"""How long a soft assignment waits for its node before anybody may take it (FUT-60)."""


def future_duties(
    keys: FutureKeys,
    cluster: ClusterKeys,
    *,
    emit: Emit = ignore,
    ttl_s: float = TTL_S,
    keep_s: float = sweep.KEEP_S,
    busy_s: float = BUSY_S,
) -> dict[str, Duty]:
    """What a leader does for futures, for `Member(duties=…)`.

    - ttl_s: of the nodes' leases; dead nodes are looked for three times in it.
    - keep_s: how long ended futures are kept.
    - busy_s: how long a soft assignment waits for its node.
    """
    rounds = Rounds(keys, cluster, emit, ttl_s, int(keep_s * SECOND_US), int(busy_s * SECOND_US))
    return {
        "reap futures": rounds.reap,
        "tell dependents": rounds.tell,
        "end by deadline": rounds.deadlines,
        "set aside what nobody can run": rounds.strand,
        "release results": rounds.release,
        "sweep futures": rounds.sweep,
    }


class Rounds:
    """The duties, with what they remember from one page to the next."""

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
        self._walked: dict[tuple[str, str], bytes] = {}  # where the rounds that were too long stopped

    # --- dead nodes, and busy ones

    def reap(self, tenure: Tenure) -> float:
        """Claims, assignments and actors of nodes that are not there any more."""
        more = False
        for node in tenure.run(partial(reap.troubled, keys=self.keys, cluster=self.cluster)):
            on = self._on(node)
            more |= self._walk(tenure, partial(reap.reap_page, **on), partial(FuturesReaped, node=node))
            more |= self._repeat(tenure, partial(reap.bury_page, **on), partial(ActorsDied, node=node))
            gone = partial(AssignmentsRerouted, node=node, why="gone")
            more |= self._repeat(tenure, partial(reap.reroute_page, **on), gone)
        more |= self._unstick(tenure)
        return 0.0 if more else self.ttl_s / 3

    def _unstick(self, tenure: Tenure) -> bool:
        more = False
        for node in tenure.run(lambda tx: reap.holders(tx, self.keys.assigned)):
            on = self._on(node)
            busy = partial(AssignmentsRerouted, node=node, why="busy")
            more |= self._repeat(tenure, partial(reap.unstick_page, busy_us=self.busy_us, **on), busy)
            small = partial(AssignmentsRerouted, node=node, why="too small")
            self._walk(tenure, partial(reap.misfit_page, **on), small)
        return more

    def _on(self, node: str) -> dict[str, Any]:
        return {"keys": self.keys, "cluster": self.cluster, "node_id": node}

    # --- dependents, deadlines

    def tell(self, tenure: Tenure) -> float:
        """Cursors that whoever made them did not come back to."""
        for _ in range(PAGES):
            if not tenure.run(lambda tx: depend.drain_cursors(tx, self.keys)):
                return self.ttl_s / 10
        return 0.0

    def deadlines(self, tenure: Tenure) -> float:
        """Futures whose time is over."""
        if self._repeat(tenure, partial(cancel.deadline_page, keys=self.keys), DeadlinesPassed):
            return 0.0
        next_s = tenure.run(lambda tx: cancel.until_next(tx, self.keys)) / SECOND_US
        return min(next_s, self.ttl_s / 10)

    # --- what nobody can run

    def strand(self, tenure: Tenure) -> float:
        """Set aside what no live worker can run, and look again at what was."""
        both: dict[str, Any] = {"keys": self.keys, "cluster": self.cluster}
        more = False
        for lane in tenure.run(partial(unschedulable.unsafe, **both)):
            more |= self._walk(tenure, partial(unschedulable.strand_page, lane=lane, **both), FuturesStranded)
        more |= self._walk(tenure, partial(unschedulable.satisfy_page, **both), FuturesSatisfied)
        return 0.0 if more else self.ttl_s / 5

    # --- what nobody wants

    def release(self, tenure: Tenure) -> float:
        """Handles of dead clients, and released results whose dependents have ended."""
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
        """Ended futures that are old enough."""
        for _ in range(PAGES):
            page = tenure.run(lambda tx: sweep.sweep_page(tx, self.keys, self.cluster, self.keep_us))
            if page.deleted:
                self.emit(FuturesSwept(ids=[one.hex() for one in page.deleted]))
            if not page.more:
                tenure.run(lambda tx: sweep.close_lanes(tx, self.keys))
                return min(60.0, self.keep_us / SECOND_US / 10)
        return 0.0

    # --- pages

    def _repeat(self, tenure: Tenure, page: Callable[[Tx], ReapPage], event: Callable[..., Event]) -> bool:
        """Page after page of what removes itself from the range that is read; True when more is left."""
        for _ in range(PAGES):
            done = tenure.run(page)
            self._tell(done.moved, event)
            if not done.more:
                return False
        return True

    def _walk(
        self, tenure: Tenure, page: Callable[..., tuple[ReapPage, bytes]], event: Callable[..., Event]
    ) -> bool:
        """Page after page of a range that stays as it is; True when more is left, for the next round.

        The next round goes on where this one stopped: what stands behind many that cannot be helped has its
        turn as well.
        """
        assert isinstance(page, partial)
        subject = page.func.__name__, str(page.keywords.get("node_id", page.keywords.get("lane", "")))
        after = self._walked.pop(subject, b"")
        for _ in range(PAGES):
            done, after = tenure.run(partial(page, after=after))
            self._tell(done.moved, event)
            if not done.more:
                return False
        self._walked[subject] = after
        return True

    def _tell(self, moved: list[tuple[bytes, AnyRow]], event: Callable[..., Event]) -> None:
        if moved:
            self.emit(event(ids=[future_id.hex() for future_id, _ in moved]))


REACH = 100
"""How many futures a client looks at behind the one it waits for."""


def reap_one(
    store: Store, keys: FutureKeys, cluster: ClusterKeys, future_id: bytes, *, ttl_s: float = TTL_S
) -> AnyRow | None:
    """For a client that waits for one future while there has been no leader for two ttls (FUT-49).

    It goes on where a dead node left the future, or what that waits for, and tells those who wait on the way.
    Returns the future's row as it is then. Does nothing while there is a leader.
    """
    leaderless_us = int(2 * ttl_s * SECOND_US)
    ahead, seen = [future_id], {future_id}
    while ahead and len(seen) <= REACH:
        one = ahead.pop()
        row = store.run(
            partial(reap.reap_one, keys=keys, cluster=cluster, future_id=one, leaderless_us=leaderless_us)
        )
        if isinstance(row, Blocked):
            for upstream in store.run(partial(depend.waited_for, keys=keys, future_id=one)):
                if upstream not in seen:
                    seen.add(upstream)
                    ahead.append(upstream)
    return store.run(lambda tx: edges.read(tx, keys, future_id))
