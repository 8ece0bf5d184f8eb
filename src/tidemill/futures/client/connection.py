"""A process's connection to a cluster: what a client stands on.

Outside of tasks it opens the store and is a node of kind "client" (FUT-64): a thread renews its entry in the
node list and looks after its handles. Inside a task it shares what the task's process has opened, and its
handles are those of the worker, whose lease the supervisor renews.
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
from tidemill.futures.protocol import leader_duties
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
    """Store, objects, key and node of one process, and what is built on them.

    Args:
        place: where the cluster is.
        store: opened.
        objects: opened; None where there are none.
        owner: the node under which handles are held.
        values: loads and stores results.
        own: whether the store is ours to close, and the node ours to renew.
        clock: time.
        chance: ids and pauses.
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
        self.blobs = Blobs(store, self.keys, self.signer, objects)
        self.waiting = Completions(store, self.keys, clock)
        self.handles = HandleCounts(store, self.keys, owner, self.waiting, clock)
        self.submissions = SubmissionFactory(self.blobs, self.signer, owner, clock, chance)
        self.submitter = SubmissionWriter(store, self.keys, self.cluster, self.signer)
        self.outcomes = Outcomes(store, self.keys, self.cluster, self.signer, values, clock, chance)
        self.membership = self._joined() if own else None
        self._over = threading.Event()
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tidemill-client", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, place: ClusterAddress, *, clock: Clock = SYSTEM, chance: random.Random | None = None
    ) -> "Connection":
        """Open the store and the objects of a place, and join its node list."""
        chance = chance if chance is not None else random.Random()
        signer = Signer(place.key)  # before the store is made: a place without a key is no place
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(open_store(place.store, clock=clock))
            objects = open_objects(place.objects, clock=clock) if place.objects else None
            values = ResultStorage(signer, objects=objects, fetcher=SegmentFetcher(signer))
            connection = cls(
                place, store, objects, random_id(chance), values, own=True, clock=clock, chance=chance
            )
            stack.pop_all()
        return connection

    @classmethod
    def of_task(cls, site: WorkerSite) -> "Connection":
        """The connection of a task's process: what it has opened, in the name of its worker."""
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

    def _joined(self) -> Membership:
        """In the node list before anything is submitted: a client that is not there has no handles."""
        node = Node(id=self.owner, epoch=0, kind="client", address=socket.gethostname(), slots=0)
        context = ClusterContext(
            store=self.store,
            cluster=self.cluster.cluster,
            clock=self.clock,
            chance=self.chance,
            emit=self._heard,
        )
        membership = Membership(context, node)
        for _ in range(JOIN_TRIES):
            wait_s = membership.tick()
            if membership.state is MemberState.ACTIVE:
                return membership
            self.clock.sleep(wait_s)
        raise StoreUnavailable(f"could not join the node list of {self.place!r}")

    def _heard(self, event: Event) -> None:
        if isinstance(event, NodeJoined) and event.epoch > 1:  # our lease had run out
            self.handles.hold_again()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                wait_s = TICK_S
                if self.membership is not None:
                    wait_s = min(wait_s, self.membership.tick())
                self.handles.tick()
                self.clock.wait(self._over, max(0.01, wait_s))
        except BaseException as error:  # noqa: BLE001 - told by `check`: our entry runs out from now on
            self._broken = error

    def check(self) -> None:
        """Raise what ended the keeping of our entry: every write would be refused, and nobody knew why."""
        if self._broken is not None:
            raise self._broken

    def live_workers(self) -> list[Node]:
        """The workers whose lease runs."""
        live = self.store.run(lambda tx: nodes.alive(nodes.read_all(tx, self.cluster), tx.now()))
        return [node for node in live if node.kind == "worker"]

    def look_after(self, ids: Sequence[bytes]) -> None:
        """Nobody leads: do for those that somebody awaits here what a leader would (FUT-49)."""
        with contextlib.suppress(StoreError):
            for one in ids:
                leader_duties.reap_one(self.store, self.keys, self.cluster, one, ttl_s=DEFAULT_TIMING.ttl_s)

    @property
    def closed(self) -> bool:
        return self._over.is_set()

    def close(self) -> None:
        """Release what was dropped and leave the list; the leader releases what is left. Idempotent."""
        if self.closed:
            return
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self.handles.tick(last=True)
        if self.membership is not None:
            self.membership.leave()
        if self.own:
            self.store.close()
