"""A runner's presence: its entry in the node list, under which everything it does is fenced.

In one process (`Pipeline.run()`) the runner keeps its entry itself: `OwnPresence` renews it from a thread,
and leads when it is elected, so that a cluster of runners alone has somebody who reaps. In a child process
the supervisor keeps the entry, and `GivenPresence` reads until when it is good: a child whose supervisor
hangs stops by itself, and one that does not is refused by the store.
"""

import random
import threading
from collections.abc import Callable
from typing import Protocol

from tidemill.clock import Clock
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import DEFAULT_TIMING, SECOND_US, LeaseTiming
from tidemill.cluster.member import Member
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import MemberState
from tidemill.errors import LeaseLost, StoreError, StoreUnavailable
from tidemill.events import Emit, ignore
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.leader_duties import future_duties
from tidemill.futures.worker.janitor import Janitor
from tidemill.objects import Objects
from tidemill.store import Store, Tx

JOIN_TRIES = 10
READ_EVERY_S = 1.0
KIND = "runner"


class Presence(Protocol):
    """What hands and the loop know of their node."""

    @property
    def node(self) -> Node:
        """As whom we act: its id and epoch are the fence of every write."""
        ...

    def alive(self) -> bool:
        """May we act as this node, by our own clock?"""
        ...

    def accepts(self) -> bool:
        """May we take anything new?"""
        ...

    def left_s(self) -> float:
        """For how long the store will take us for alive, at least."""
        ...

    def check(self) -> None:
        """Raise what ended the keeping of our entry: who waited for it to be good again would for ever."""
        ...


class OwnPresence:
    """The entry of this process, kept by a thread of its own.

    Args:
        store: where the node list is.
        cluster: its name.
        node_id: ours; the same one in every life of a slot, else random.
        epoch: below which no epoch of ours may be; a slot's lives count up.
        names: what futures may ask for here.
        threads: how many of them run at once.
        objects: opens the object storage: as long as we lead, what nobody needs is deleted there.
    """

    def __init__(
        self,
        store: Store,
        cluster: str,
        node_id: str,
        *,
        epoch: int = 0,
        names: frozenset[str] = frozenset(),
        threads: int = 1,
        objects: Callable[[], Objects] | None = None,
        clock: Clock,
        chance: random.Random,
        emit: Emit = ignore,
        timing: LeaseTiming = DEFAULT_TIMING,
    ) -> None:
        total = Capacity(named=names).to_node()
        keys, self._futures = ClusterKeys(cluster), FutureKeys(cluster)
        self.member = Member(
            store,
            cluster,
            node=Node(id=node_id, epoch=epoch, kind=KIND, slots=threads, total=total, free=total),
            duties=future_duties(self._futures, keys, emit=emit, ttl_s=timing.ttl_s),
            busy=lambda: not self._released,
            clock=clock,
            chance=chance,
            emit=emit,
            timing=timing,
        )
        self._objects = objects
        self._janitor: Janitor | None = None
        self.store = store
        self.clock = clock
        self.broken: BaseException | None = None  # what ended the thread
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
        """Join the list, and stay there."""
        membership = self.member.membership
        for _ in range(JOIN_TRIES):
            wait_s = membership.tick()
            if membership.state is MemberState.ACTIVE:
                self._thread.start()
                if self._objects is not None:
                    self._janitor = Janitor(self.store, self._futures, self._objects, self._leads, self.clock)
                return self.node
            self.clock.sleep(wait_s)
        raise StoreUnavailable(f"{self.member.id} could not join the node list of its cluster")

    def _leads(self) -> bool:
        return self.member.tenure is not None

    def _run(self) -> None:
        try:
            while not self._over.is_set() and self.member.state is not MemberState.GONE:
                self.clock.wait(self._wake, self.member.tick())
                self._wake.clear()
        except BaseException as error:  # noqa: BLE001 - whoever asks whether we are alive is told
            self.broken = error

    def begin_again(self) -> None:
        """End this epoch and join under the next one: whatever was begun under this one is over."""
        self.member.membership.begin_again()
        self._wake.set()

    def drain(self) -> None:
        """Say that this node takes nothing new; it stays in the list until `close`."""
        self.member.drain(float("inf"))
        self._wake.set()

    def close(self) -> None:
        """Leave the list. Idempotent."""
        self._released = True
        self.drain()
        self._join()

    def abandon(self) -> None:
        """End as if killed: the entry stays, and runs out."""
        self._over.set()
        self._wake.set()
        self._join()

    def _join(self) -> None:
        if self._janitor is not None:
            self._janitor.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()


class GivenPresence:
    """An entry that somebody else keeps: read every second. Once it is lost it stays lost.

    Args:
        store: where the node list is.
        cluster: its name.
        node: as whom we act; another epoch of it is somebody else.
        timing: of its lease.
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
        self._timing = timing
        self._ends_at = 0.0
        self._lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    @property
    def node(self) -> Node:
        return self._node

    def alive(self) -> bool:
        if not self._lost and self.left_s() <= self._timing.margin_s:
            self._lost = True
        return not self._lost

    def accepts(self) -> bool:
        return self.alive() and not self._node.draining

    def left_s(self) -> float:
        return self._ends_at - self._clock.monotonic()

    def check(self) -> None:
        """Whoever keeps it ends this process when the entry is over."""

    def start(self) -> Node:
        """Look for the first time, and go on looking; `LeaseLost` when the entry is over already."""
        self.look()
        if not self.alive():
            raise LeaseLost(f"node {self._node.id} is no longer in the list under epoch {self._node.epoch}")
        self._thread.start()
        return self._node

    def look(self) -> None:
        """Read the entry now."""

        def read(tx: Tx) -> tuple[Node | None, int]:
            return nodes.read(tx, self._keys, self._node.id), tx.now()

        sent = self._clock.monotonic()
        try:
            found, now = self._store.run(read)
        except StoreError:
            return  # good until its time is over
        if found is None or found.epoch != self._node.epoch or found.expires_at <= now:
            self._lost = True
            return
        self._node = found
        self._ends_at = sent + (found.expires_at - now) / SECOND_US

    def _run(self) -> None:
        while not self._lost and not self._clock.wait(self._over, READ_EVERY_S):
            self.look()

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
