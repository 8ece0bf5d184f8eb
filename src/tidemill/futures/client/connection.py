"""The connection of a process to a cluster: the store, the objects and the services that a client uses.

Outside of tasks, the connection opens the store and joins the node list as a node of kind "client" (FUT-64).
A thread renews the node's lease and releases dropped handles. Inside a task, the connection uses the store
that the task's process has already opened. The handles then belong to the worker, and the supervisor renews
the worker's lease.
"""

import contextlib
import random
import socket
import threading
from collections.abc import Sequence

from tidemill.clock import SYSTEM, Clock
from tidemill.cluster import nodes
from tidemill.cluster.events import NodeJoined
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import DEFAULT_TIMING
from tidemill.cluster.member import random_id
from tidemill.cluster.membership import ClusterContext, Membership
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import MemberState
from tidemill.errors import StoreError, StoreUnavailable
from tidemill.events import Event
from tidemill.futures.client.completions import Completions
from tidemill.futures.client.handle_counts import HandleCounts
from tidemill.futures.client.outcomes import Outcomes
from tidemill.futures.client.submission import SubmissionFactory, SubmissionWriter
from tidemill.futures.home import ClusterAddress
from tidemill.futures.protocol import drafts, leader_duties
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.values.blobs import Blobs
from tidemill.futures.values.flight import SegmentFetcher
from tidemill.futures.values.result_storage import ResultStorage
from tidemill.futures.values.signatures import ClusterKey, Signer
from tidemill.futures.worker.task_context import WorkerSite
from tidemill.objects import Objects, open_objects
from tidemill.store import Store, open_store

TICK_S = 1.0
JOIN_TRIES = 5


class Connection:
    """The store, objects, key and node of one process, and the services of a client.

    Args:
        place: the address of the cluster.
        store: the opened store.
        objects: the opened object storage; None if there is none.
        owner: the id of the node that holds the handles.
        values: loads and stores results.
        own: whether the store and the node are our own, so that we close the store and renew the lease.
        clock: the source of time.
        chance: the source of random numbers, for ids and delays.
    """

    def __init__(
        self,
        place: ClusterAddress,
        store: Store,
        objects: Objects | None,
        owner: str,
        values: ResultStorage,
        *,
        own: bool,
        clock: Clock = SYSTEM,
        chance: random.Random,
    ) -> None:
        self.place = place
        self.store = store
        self.objects = objects
        self.owner = owner
        self.values = values
        self.own = own
        self.clock = clock
        self.chance = chance
        self.keys = FutureKeys(place.cluster)
        self.cluster = ClusterKeys(place.cluster)
        self.signer = Signer(place.key)
        self.blobs = Blobs(store, self.keys, self.signer, objects, clock)
        self.completions = Completions(store, self.keys, clock)
        self.handles = HandleCounts(store, self.keys, owner, self.completions, clock)
        self.submissions = SubmissionFactory(self.blobs, self.signer, owner, clock, chance)
        self.submission_writer = SubmissionWriter(store, self.keys, self.cluster, self.signer, self.blobs)
        self.outcomes = Outcomes(store, self.keys, self.cluster, self.signer, values, clock, chance)
        self.membership = self._join() if own else None
        self._closed = threading.Event()
        self._error: BaseException | None = None  # the error that ended the thread
        self._thread = threading.Thread(target=self._run, name="tidemill-client", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, place: ClusterAddress, *, clock: Clock = SYSTEM, chance: random.Random | None = None
    ) -> "Connection":
        """Open the store and the objects of a cluster, and join its node list."""
        chance = chance if chance is not None else random.Random()
        signer = Signer(place.key)  # first, because no store must be created without a key
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(open_store(place.store, clock=clock))
            objects = open_objects(place.objects, clock=clock) if place.objects else None
            keys = FutureKeys(place.cluster)
            values = ResultStorage(
                signer,
                objects=objects,
                fetcher=SegmentFetcher(signer),
                announce=lambda name: store.run(lambda tx: drafts.announce(tx, keys, name)),
            )
            connection = cls(
                place, store, objects, random_id(chance), values, own=True, clock=clock, chance=chance
            )
            stack.pop_all()
        return connection

    @classmethod
    def of_task(cls, site: WorkerSite) -> "Connection":
        """Return a connection that uses the store of a task's process. Its node is the worker."""
        hello = site.hello
        place = ClusterAddress(
            store=hello.store, objects=hello.objects, cluster=hello.cluster, key=ClusterKey(hello.secret)
        )
        objects = site.objects if site.has_objects else None
        return cls(
            place,
            site.store,
            objects,
            hello.node,
            site.values,
            own=False,
            clock=site.clock,
            chance=site.chance,
        )

    def _join(self) -> Membership:
        """Join the node list. This comes before any submission: only a listed client can hold handles."""
        node = Node(id=self.owner, epoch=0, kind="client", address=socket.gethostname(), slots=0)
        context = ClusterContext(
            store=self.store,
            cluster=self.cluster.cluster,
            clock=self.clock,
            chance=self.chance,
            emit=self._on_event,
        )
        membership = Membership(context, node)
        for _ in range(JOIN_TRIES):
            wait_s = membership.tick()
            if membership.state is MemberState.ACTIVE:
                return membership
            self.clock.sleep(wait_s)
        raise StoreUnavailable(f"this process could not join the cluster {self.place!r}")

    def _on_event(self, event: Event) -> None:
        if isinstance(event, NodeJoined) and event.epoch > 1:  # our lease had expired
            self.handles.hold_again()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                wait_s = TICK_S
                if self.membership is not None:
                    wait_s = min(wait_s, self.membership.tick())
                self.handles.tick()
                self.clock.wait(self._closed, max(0.01, wait_s))
        except BaseException as error:  # noqa: BLE001 - raised by `check`: nothing renews our lease any more
            self._error = error

    def check(self) -> None:
        """Raise the error that ended the thread that renews our lease, if there is one.

        Without a valid lease, the store refuses our writes.
        """
        if self._error is not None:
            raise self._error

    def live_workers(self) -> list[Node]:
        """Return the workers with a valid lease."""
        live = self.store.run(lambda tx: nodes.alive(nodes.read_all(tx, self.cluster), tx.now()))
        return [node for node in live if node.kind == "worker"]

    def reap(self, ids: Sequence[bytes]) -> None:
        """Perform the leader's duties for these futures, in case there is no leader (FUT-49)."""
        with contextlib.suppress(StoreError):
            for future_id in ids:
                leader_duties.reap_one(
                    self.store, self.keys, self.cluster, future_id, ttl_s=DEFAULT_TIMING.ttl_s
                )

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Release dropped handles and leave the node list. The leader releases the other handles later.

        Idempotent.
        """
        if self.closed:
            return
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self.handles.tick(last=True)
        if self.membership is not None:
            self.membership.leave()
        if self.own:
            self.store.close()
