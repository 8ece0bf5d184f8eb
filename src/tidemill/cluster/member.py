"""A member of the cluster: one node with its entry, its chance to lead, and the partitions it holds.

`tick` does what is due and says when to call again; there is no other clockwork. `run` calls it from the
calling thread until the member is gone. On one machine the same member leads and follows in one process,
on the embedded store (CLU-18).
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence

from tidemill.clock import SYSTEM, Clock
from tidemill.cluster import nodes
from tidemill.cluster.election import Election
from tidemill.cluster.events import NodesCleaned
from tidemill.cluster.holdings import Holdings, Host
from tidemill.cluster.keeper import Keeper
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Duty, Tenure
from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.cluster.membership import Membership
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import MemberState
from tidemill.events import Emit, ignore
from tidemill.store import Store

CLEAN_PAGE = 50


def random_id(chance: random.Random) -> str:
    """A node's identity, new with every boot."""
    return f"{chance.getrandbits(96):024x}"


class Member:
    """One node of a cluster."""

    def __init__(
        self,
        store: Store,
        cluster: str,
        *,
        node: Node | None = None,
        groups: Sequence[str] = (),
        host: Host | None = None,
        duties: Mapping[str, Duty] | None = None,
        busy: Callable[[], bool] | None = None,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
        emit: Emit = ignore,
        timing: LeaseTiming = DEFAULT_TIMING,
        pause_s: float = 0.2,
    ) -> None:
        self.store = store
        self.keys = ClusterKeys(cluster)
        self.clock = clock
        self.chance = chance if chance is not None else random.Random()
        self.emit = emit
        self.timing = timing
        node = node if node is not None else Node(id=random_id(self.chance), epoch=0)
        self.membership = Membership(store, self.keys, node, timing, clock=clock, emit=emit)
        keeper = Keeper(store, node.id, clock=clock, chance=self.chance, timing=timing)
        all_duties = {"clean node list": self._clean_nodes, **(duties or {})}
        self.election = Election(keeper, self.keys, all_duties, clock=clock, chance=self.chance, emit=emit)
        self.holdings = (
            Holdings(
                store,
                self.keys,
                self.membership,
                groups,
                host,
                clock=clock,
                chance=self.chance,
                emit=emit,
                pause_s=pause_s,
            )
            if host is not None
            else None
        )
        self._busy = busy  # is there work beside the partitions that a drain waits for?
        self._drain_until: float | None = None
        self._draining = False
        self._wake = threading.Event()

    @property
    def id(self) -> str:
        return self.membership.node.id

    @property
    def node(self) -> Node:
        return self.membership.node

    @property
    def state(self) -> MemberState:
        return self.membership.state

    @property
    def tenure(self) -> Tenure | None:
        return self.election.tenure

    def tick(self) -> float:
        """Do what is due; the seconds until the next call makes sense."""
        if self.state is MemberState.GONE:
            return self.timing.ttl_s
        if self._drain_until is not None and not self._draining:
            self._begin_drain()
        wait_s = self.membership.tick()
        if self._drain_until is None:
            wait_s = min(wait_s, self.election.tick())  # first, so that we see what we make as leader
        if self.holdings is not None:
            wait_s = min(wait_s, self.holdings.tick())
        if self._drain_until is not None:
            wait_s = min(wait_s, self._drain_on(self._drain_until))
        return wait_s

    def run(self) -> None:
        """Tick until the member is gone, with a second thread that keeps the deadlines meanwhile."""
        over = threading.Event()
        guard = threading.Thread(target=self._guard, args=(over,), name=f"guard-{self.id[:8]}", daemon=True)
        guard.start()
        try:
            while self.state is not MemberState.GONE:
                self.clock.wait(self._wake, self.tick())
                self._wake.clear()
        finally:
            over.set()
            guard.join()

    def _guard(self, over: threading.Event) -> None:
        while self.holdings is not None and not over.is_set():
            self.clock.wait(over, min(self.holdings.guard(), self.timing.margin_s))

    def wake(self) -> None:
        """Tick now instead of when it was planned; may be called from any thread."""
        self._wake.set()

    # --- leaving

    def drain(self, grace_s: float) -> None:
        """Take nothing new, hand back what has not begun, finish or give back the rest (CLU-25).

        May be called from any thread: the next tick begins it, so that it never crosses a beat on its way.
        """
        if self._drain_until is None:
            self._drain_until = self.clock.monotonic() + grace_s
            self.membership.leaving = True
            self.wake()

    def _begin_drain(self) -> None:
        self._draining = True
        self.membership.drain()
        self.election.resign()  # it does no duties from now on: let somebody lead who does
        if self.holdings is not None:
            self.holdings.stop_all()

    def _drain_on(self, until: float) -> float:
        held = self.holdings is not None and bool(self.holdings.held)
        busy = held or (self._busy is not None and self._busy())
        in_time = self.clock.monotonic() < until and self.state is not MemberState.GONE
        if busy and in_time:
            return min(0.1, until - self.clock.monotonic())
        if held and self.holdings is not None:
            self.holdings.give_up_all()
        self.membership.leave()
        return 0.0

    # --- the leader's own duty

    def _clean_nodes(self, tenure: Tenure) -> float:
        """Drop nodes that have been silent for two ttls, in pages."""
        grace_us = 2 * self.timing.ttl_us
        gone = tenure.run(lambda tx: nodes.clean(tx, self.keys, grace_us, CLEAN_PAGE))
        if gone:
            names = [node.id for node in gone]
            self.emit(NodesCleaned(nodes=names, leader_epoch=tenure.epoch))
        return 0.0 if len(gone) == CLEAN_PAGE else self.timing.ttl_s / 2
