"""A member of the cluster: one node, which has an entry in the node list and can become the leader.

`tick` does the work that is due and returns the seconds until the next call. `run` calls `tick` in the
calling thread until the member has left the cluster. On a single machine with the embedded store, one process
is both the leader and the worker (CLU-18).
"""

import random
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from tidemill.cluster import nodes
from tidemill.cluster.events import NodesCleaned
from tidemill.cluster.keeper import Keeper
from tidemill.cluster.leader import Duty, Election, Tenure
from tidemill.cluster.membership import ClusterContext, Membership
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import MemberState

CLEAN_PAGE = 50


def random_id(chance: random.Random) -> str:
    """Return a new node id; each start of a node uses a new one."""
    return f"{chance.getrandbits(96):024x}"


class LeasedWork(Protocol):
    """Work with separate leases, such as partitions. The member renews them together with its entry."""

    def tick(self) -> float:
        """Renew the leases that are due and take new work; return the seconds until the next call."""
        ...

    def guard(self) -> float:
        """Abort work that is past its deadline; return the seconds until the next deadline.

        May be called from another thread.
        """
        ...

    def busy(self) -> bool:
        """Return whether this node still holds work."""
        ...

    def stop_all(self) -> None:
        """Finish or hand back all held work, because the member is draining."""

    def give_up_all(self) -> None:
        """Hand back all work that is still held, because the grace period of the drain is over."""


class Member:
    """One node of a cluster.

    Args:
        context: the cluster, its store, clock and timing.
        node: our entry; if omitted, an entry with a new id.
        duties: what this node does while it is the leader, by name.
        busy: returns whether a drain must wait for other work of this process.
    """

    def __init__(
        self,
        context: ClusterContext,
        node: Node | None = None,
        *,
        duties: Mapping[str, Duty] | None = None,
        busy: Callable[[], bool] | None = None,
    ) -> None:
        self.store = context.store
        self.keys = context.keys
        self.clock = context.clock
        self.emit = context.emit
        self.timing = context.timing
        node = node if node is not None else Node(id=random_id(context.chance), epoch=0)
        self.membership = Membership(context, node)
        keeper = Keeper(
            context.store, node.id, clock=context.clock, chance=context.chance, timing=context.timing
        )
        all_duties = {"clean node list": self._clean_nodes, **(duties or {})}
        self.election = Election(keeper, self.keys, all_duties, emit=context.emit)
        self.work: LeasedWork | None = None  # set before the first tick
        self._busy = busy
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
        """Do the work that is due; return the seconds until the next call."""
        if self.state is MemberState.GONE:
            return self.timing.ttl_s
        if self._drain_until is not None and not self._draining:
            self._begin_drain()
        wait_s = self.membership.tick()
        if self._drain_until is None:
            wait_s = min(wait_s, self.election.tick())  # first, because duties may create work
        if self.work is not None:
            wait_s = min(wait_s, self.work.tick())
        if self._drain_until is not None:
            wait_s = min(wait_s, self._continue_drain(self._drain_until))
        return wait_s

    def run(self) -> None:
        """Tick until the member has left the cluster. A second thread checks the deadlines of leases."""
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
        while self.work is not None and not over.is_set():
            self.clock.wait(over, min(self.work.guard(), self.timing.margin_s))

    def wake(self) -> None:
        """Tick now instead of at the planned time; may be called from any thread."""
        self._wake.set()

    # --- leaving

    def drain(self, grace_s: float) -> None:
        """Take no new work, hand back work that has not begun, and finish or hand back the rest (CLU-25).

        May be called from any thread. The next tick begins the drain, so it never overlaps with a renewal.
        """
        if self._drain_until is None:
            self._drain_until = self.clock.monotonic() + grace_s
            self.membership.leaving = True
            self.wake()

    def _begin_drain(self) -> None:
        self._draining = True
        self.membership.drain()
        self.election.resign()  # this node does no duties from now on, so another node must lead
        if self.work is not None:
            self.work.stop_all()

    def _continue_drain(self, until: float) -> float:
        holds = self.work is not None and self.work.busy()
        busy = holds or (self._busy is not None and self._busy())
        in_time = self.clock.monotonic() < until and self.state is not MemberState.GONE
        if busy and in_time:
            return min(0.1, until - self.clock.monotonic())
        if holds and self.work is not None:
            self.work.give_up_all()
        self.membership.leave()
        return 0.0

    # --- a duty of every leader

    def _clean_nodes(self, tenure: Tenure) -> float:
        """Remove a page of nodes whose leases expired at least two ttls ago."""
        grace_us = 2 * self.timing.ttl_us
        removed = tenure.run(lambda tx: nodes.clean(tx, self.keys, grace_us, CLEAN_PAGE))
        if removed:
            names = [node.id for node in removed]
            self.emit(NodesCleaned(nodes=names, leader_epoch=tenure.epoch))
        return 0.0 if len(removed) == CLEAN_PAGE else self.timing.ttl_s / 2
