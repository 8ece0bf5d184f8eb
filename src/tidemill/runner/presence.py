"""The entry of a runner in the node list. Without a valid entry, the store refuses the runner's writes.

In one process (`Pipeline.run()`), a thread of `OwnPresence` renews the runner's entry. The thread also takes
part in the election of the leader, so that a cluster without workers has a leader too. In a child process,
the supervisor renews the entry, and `GivenPresence` reads when the entry expires. So a child whose supervisor
hangs stops by itself. If the child does not stop, the store refuses its writes.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from tidemill.clock import Clock
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import DEFAULT_TIMING, SECOND_US, LeaseTiming
from tidemill.cluster.member import Member
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import MemberState
from tidemill.errors import LeaseLost, StoreError, StoreUnavailable
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.leader_duties import future_duties
from tidemill.futures.worker.claim_loop import NodeLease
from tidemill.futures.worker.janitor import Janitor
from tidemill.objects import Objects
from tidemill.store import Store, Tx

JOIN_TRIES = 10
READ_EVERY_S = 1.0
KIND = "runner"


class Presence(NodeLease, Protocol):
    """A runner's node and its lease."""

    @property
    def timing(self) -> LeaseTiming:
        """The timing of the node's lease, which its other leases use too."""
        ...

    def check(self) -> None:
        """Raise the error that ended the renewal of our entry, if there is one. The entry is then lost."""
        ...


class OwnPresence:
    """The entry of this process, renewed by its own thread.

    Args:
        context: the cluster, its store, clock and timing.
        node_id: the id of our node; it depends on the slot that this process has taken.
        epoch: all epochs of this process are above this number.
        names: the resources that this node offers to futures.
        threads: how many futures run at the same time.
        objects: opens the object storage, where the leader deletes results that are no longer needed.
    """

    def __init__(
        self,
        context: ClusterContext,
        node_id: str,
        *,
        epoch: int = 0,
        names: frozenset[str] = frozenset(),
        threads: int = 1,
        objects: Callable[[], Objects] | None = None,
    ) -> None:
        total = Capacity(named=names).to_node()
        self._futures = FutureKeys(context.cluster)
        self.member = Member(
            context,
            Node(id=node_id, epoch=epoch, kind=KIND, slots=threads, total=total, free=total),
            duties=future_duties(self._futures, context.keys, emit=context.emit, ttl_s=context.timing.ttl_s),
            busy=lambda: not self._released,
        )
        self._objects = objects
        self._janitor: Janitor | None = None
        self.store = context.store
        self.clock = context.clock
        self.timing = context.timing
        self.broken: BaseException | None = None  # the error that ended the thread
        self._released = False
        self._over = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    @property
    def node(self) -> Node:
        return self.member.node

    def alive(self) -> bool:
        return self.broken is None and self.member.membership.alive()

    def accepts(self) -> bool:
        return self.broken is None and self.member.membership.accepts()

    def left_s(self) -> float:
        return self.member.membership.left_s()

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def start(self) -> Node:
        """Join the node list, and start to renew our entry."""
        membership = self.member.membership
        for _ in range(JOIN_TRIES):
            wait_s = membership.tick()
            if membership.state is MemberState.ACTIVE:
                self._thread.start()
                if self._objects is not None:
                    self._janitor = Janitor(self.store, self._futures, self._objects, self._leads, self.clock)
                return self.node
            self.clock.sleep(wait_s)
        raise StoreUnavailable(f"node {self.member.id} could not join its cluster in {JOIN_TRIES} attempts")

    def _leads(self) -> bool:
        return self.member.tenure is not None

    def _run(self) -> None:
        try:
            while not self._over.is_set() and self.member.state is not MemberState.GONE:
                self.clock.wait(self._wake, self.member.tick())
                self._wake.clear()
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            error.add_note("in the thread that renews the lease")
            self.broken = error

    def begin_again(self) -> None:
        """End this epoch and join under the next one. This ends everything that started under this epoch."""
        self.member.membership.begin_again()
        self._wake.set()

    def drain(self) -> None:
        """Mark this node as draining, so that it takes no new work. It stays in the list until `close`."""
        self.member.drain(float("inf"))
        self._wake.set()

    def close(self) -> None:
        """Leave the node list. Idempotent."""
        self._released = True
        self.drain()
        self._join()

    def abandon(self) -> None:
        """End as if killed: the entry stays in the list until it expires."""
        self._over.set()
        self._wake.set()
        self._join()

    def _join(self) -> None:
        if self._janitor is not None:
            self._janitor.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()


class GivenPresence:
    """An entry that the supervisor renews. This process reads it every second. A lost entry stays lost.

    Args:
        store: the store with the node list.
        cluster: the name of the cluster.
        node: our node, under our epoch.
        timing: the timing of the node's lease.
    """

    def __init__(
        self,
        store: Store,
        cluster: str,
        node: Node,
        *,
        clock: Clock,
        timing: LeaseTiming = DEFAULT_TIMING,
    ) -> None:
        self._store = store
        self._keys = ClusterKeys(cluster)
        self._node = node
        self._clock = clock
        self.timing = timing
        self._ends_at = 0.0
        self._lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    @property
    def node(self) -> Node:
        return self._node

    def alive(self) -> bool:
        if not self._lost and self.left_s() <= self.timing.margin_s:
            self._lost = True
        return not self._lost

    def accepts(self) -> bool:
        return self.alive() and not self._node.draining

    def left_s(self) -> float:
        return self._ends_at - self._clock.monotonic()

    def check(self) -> None:
        """Do nothing: the supervisor kills this process when the entry has ended."""

    def start(self) -> Node:
        """Read the entry once, and from then on every second. Raise `LeaseLost` if it has already expired."""
        self.read()
        if not self.alive():
            raise LeaseLost(
                f"node {self._node.id} was removed from its cluster because its lease expired"
                f" (epoch {self._node.epoch})"
            )
        self._thread.start()
        return self._node

    def read(self) -> None:
        """Read the entry now."""

        def entry_and_time(tx: Tx) -> tuple[Node | None, int]:
            return nodes.read(tx, self._keys, self._node.id), tx.now()

        sent_at = self._clock.monotonic()
        try:
            entry, now = self._store.run(entry_and_time)
        except StoreError:
            return  # the entry is valid until it expires
        if entry is None or entry.epoch != self._node.epoch or entry.expires_at <= now:
            self._lost = True
            return
        self._node = entry
        self._ends_at = sent_at + (entry.expires_at - now) / SECOND_US

    def _run(self) -> None:
        while not self._lost and not self._clock.wait(self._over, READ_EVERY_S):
            self.read()

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
