"""A node's own entry in the node list, kept present (CLU-10)."""

import msgspec

from tidemill.clock import Clock
from tidemill.cluster import nodes
from tidemill.cluster.events import NodeJoined, NodeLeft, NodeLost
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import LeaseTiming
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import MEMBER, MemberEdge, MemberState, step
from tidemill.errors import LeaseLost, StoreError
from tidemill.events import Emit
from tidemill.store import Store


class Membership:
    """Joins, beats, and joins again under a higher epoch when the entry was lost."""

    def __init__(
        self,
        store: Store,
        keys: ClusterKeys,
        node: Node,
        timing: LeaseTiming,
        *,
        clock: Clock,
        emit: Emit,
    ) -> None:
        self.store = store
        self.keys = keys
        self.node = node
        self.clock = clock
        self.emit = emit
        self.timing = timing
        self.state = MemberState.OUT
        self.deadline = 0.0
        self._due = 0.0
        self.leaving = False  # asked to go: takes nothing new; may be set from any thread
        self._again = False  # asked to begin again; may be set from any thread
        self._free = node.free

    def alive(self) -> bool:
        """May we act as this node? By our own clock, which is never later than the store's answer (CLU-4)."""
        return (
            self.state in (MemberState.ACTIVE, MemberState.DRAINING)
            and self.clock.monotonic() < self.deadline
        )

    def accepts(self) -> bool:
        """May this node take anything new? Not when it is out, and not when it was asked to leave."""
        return self.state is MemberState.ACTIVE and not self.leaving and self.alive()

    def left_s(self) -> float:
        """For how long, at least, the store will take this node for alive."""
        return self.deadline + self.timing.margin_s - self.clock.monotonic()

    def tick(self) -> float:
        """Join or beat when it is time; the seconds until then."""
        if self.state in (MemberState.ACTIVE, MemberState.DRAINING) and not self.alive():
            self._lose()
        if self._again:
            self._again = False
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
            return  # joins again on the next tick, at once
        except StoreError:
            self._due = sent + self.timing.retry_s
            if joining:  # we may be listed under that epoch without knowing it, and be cleaned off again
                self.node = msgspec.structs.replace(self.node, epoch=self.node.epoch + 1)
            return  # one failed renewal is not a lost lease (CLU-8)
        self.deadline = self.timing.deadline(sent)
        self._due = sent + self.timing.every_s
        if joining:
            self.state = step(MEMBER, self.state, MemberEdge.JOIN)
            self.emit(NodeJoined(node=self.node.id, epoch=self.node.epoch))

    def _lose(self) -> None:
        self.emit(NodeLost(node=self.node.id, epoch=self.node.epoch))
        self.state = step(MEMBER, self.state, MemberEdge.LOSE)
        self._due = 0.0

    def begin_again(self) -> None:
        """End this epoch: whatever was begun under it is over. The next tick joins under a higher one, in one
        transaction, so that nobody sees the node gone. May be called from any thread.
        """
        self._again = True

    def report(self, free: dict[str, float]) -> None:
        """What is free now; told with the next beat. May be called from any thread."""
        self._free = free

    def drain(self) -> None:
        """Say that this node takes nothing new; told at once. One that is out stays out."""
        self.leaving = True
        if self.state is MemberState.ACTIVE:
            self.state = step(MEMBER, self.state, MemberEdge.DRAIN)
            self.node = msgspec.structs.replace(self.node, draining=True)
            self._due = 0.0

    def leave(self) -> None:
        """Take our entry off the list; if the store does not answer, it runs out by itself."""
        if self.state is MemberState.GONE:
            return
        try:
            self.store.run(lambda tx: nodes.leave(tx, self.keys, self.node))
        except StoreError:
            pass
        finally:
            self.state = step(MEMBER, self.state, MemberEdge.LEAVE)
            self.emit(NodeLeft(node=self.node.id))
