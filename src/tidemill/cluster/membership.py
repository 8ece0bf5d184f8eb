"""Keep a node's entry in the node list, and renew it (CLU-10).

`ClusterContext` holds what a process needs to take part in a cluster. `Membership` joins the list and renews
the entry. If the entry is lost, the node joins again under a higher epoch.
"""

import random
from dataclasses import dataclass
from functools import cached_property

import msgspec

from tidemill.clock import SYSTEM, Clock, backoff
from tidemill.cluster import nodes
from tidemill.cluster.events import NodeJoined, NodeLeft, NodeLost
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import MEMBER, MemberEdge, MemberState, step
from tidemill.errors import LeaseLost, StoreError
from tidemill.events import Emit, ignore
from tidemill.store import Store


@dataclass(frozen=True, kw_only=True)
class ClusterContext:
    """What a process needs to take part in a cluster.

    Args:
        store: the opened store.
        cluster: the cluster's name; every key in the store begins with it.
        clock: the source of time.
        chance: the source of random numbers.
        emit: where events go.
        timing: how long leases last, and how often they are renewed.
    """

    store: Store
    cluster: str
    clock: Clock = SYSTEM
    chance: random.Random
    emit: Emit = ignore
    timing: LeaseTiming = DEFAULT_TIMING

    @cached_property
    def keys(self) -> ClusterKeys:
        return ClusterKeys(self.cluster)


class Membership:
    """The entry of one node, renewed by `tick`."""

    def __init__(self, context: ClusterContext, node: Node) -> None:
        self.store = context.store
        self.keys = context.keys
        self.node = node
        self.clock = context.clock
        self.emit = context.emit
        self.timing = context.timing
        self._chance = context.chance
        self._refusals = 0  # how often in a row the store refused to renew our entry
        self.state = MemberState.OUT
        self.deadline = 0.0
        self._due = 0.0
        self.leaving = False  # the node takes no new work; may be set from any thread
        self._new_epoch = False  # the next tick joins under a higher epoch; may be set from any thread
        self._free = node.free

    def alive(self) -> bool:
        """Return whether we may act as this node.

        Our own clock decides this. It never allows us to act for longer than the store does (CLU-4).
        """
        return (
            self.state in (MemberState.ACTIVE, MemberState.DRAINING)
            and self.clock.monotonic() < self.deadline
        )

    def accepts(self) -> bool:
        """Return whether this node may take new work: it is in the list and is not leaving."""
        return self.state is MemberState.ACTIVE and not self.leaving and self.alive()

    def left_s(self) -> float:
        """Return how many more seconds, at least, the store will treat this node as alive."""
        return self.deadline + self.timing.margin_s - self.clock.monotonic()

    def tick(self) -> float:
        """Join the list, or renew the entry, when that is due; return the seconds until the next call."""
        if self.state in (MemberState.ACTIVE, MemberState.DRAINING) and not self.alive():
            self._lose()
        if self._new_epoch:
            self._new_epoch = False
            if self.state is MemberState.ACTIVE:
                self._lose()
        if self.state is MemberState.GONE or (self.state is MemberState.OUT and self.leaving):
            return self.timing.every_s
        if self.clock.monotonic() >= self._due:
            self._renew()
        return max(0.0, self._due - self.clock.monotonic())

    def _renew(self) -> None:
        sent = self.clock.monotonic()
        joining = self.state is MemberState.OUT
        act = nodes.join if joining else nodes.beat
        try:
            node = msgspec.structs.replace(self.node, free=self._free)
            self.node = self.store.run(lambda tx: act(tx, self.keys, node, self.timing.ttl_us))
        except LeaseLost:
            self._lose()
            self._refusals += 1
            first_s, most_s = self.timing.retry_s, self.timing.ttl_s
            pause_s = backoff(self._refusals, self._chance, first_s=first_s, most_s=most_s)
            self._due = sent + pause_s  # another node may have removed our entry: do not compete with it
            return
        except StoreError:
            self._due = sent + self.timing.retry_s
            if joining:  # the join may have been committed, and our entry removed again since
                self.node = msgspec.structs.replace(self.node, epoch=self.node.epoch + 1)
            return  # one failed renewal is not a lost lease (CLU-8)
        self.deadline = self.timing.deadline(sent)
        self._due = sent + self.timing.every_s
        if not joining:
            self._refusals = 0
        else:
            self.state = step(MEMBER, self.state, MemberEdge.JOIN)
            self.emit(NodeJoined(node=self.node.id, epoch=self.node.epoch))

    def _lose(self) -> None:
        self.emit(NodeLost(node=self.node.id, epoch=self.node.epoch))
        self.state = step(MEMBER, self.state, MemberEdge.LOSE)
        self._due = 0.0

    def begin_again(self) -> None:
        """End this epoch, and all work that began under it.

        The next tick joins under a higher epoch, in one transaction, so the node never disappears from the
        list. May be called from any thread.
        """
        self._new_epoch = True

    def report(self, free: dict[str, float]) -> None:
        """Set the free resources that the next renewal reports. May be called from any thread."""
        self._free = free

    def drain(self) -> None:
        """Take no new work, and report that at once. A node that is not in the list does not join again."""
        self.leaving = True
        if self.state is MemberState.ACTIVE:
            self.state = step(MEMBER, self.state, MemberEdge.DRAIN)
            self.node = msgspec.structs.replace(self.node, draining=True)
            self._due = 0.0

    def leave(self) -> None:
        """Remove our entry from the list. If the store does not answer, the entry expires."""
        if self.state is MemberState.GONE:
            return
        try:
            self.store.run(lambda tx: nodes.leave(tx, self.keys, self.node))
        except StoreError:
            pass
        finally:
            self.state = step(MEMBER, self.state, MemberEdge.LEAVE)
            self.emit(NodeLeft(node=self.node.id))
