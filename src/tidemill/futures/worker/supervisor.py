"""The supervisor: a worker node that claims futures and runs them in child processes. It runs no user code.

The main thread does everything in turns: receive messages of the children, check on them, and let the claim
loop exchange results and jobs with the store. No other thread touches jobs and children. Two more threads
only watch: one renews the node's lease and carries out a leader's duties (`cluster.Member`). The other kills
the children when the lease is over, even if the main thread is stuck in the store.

A lost lease ends everything that was begun under it (FUT-55): the children are killed, their results are
dropped, and the node joins again under a higher epoch. If a result slips through, the store refuses it.
"""

import os
import random
import threading

from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.events import NodeJoined
from tidemill.cluster.member import Member
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.events import Emit, Event, ignore
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.leader_duties import future_duties
from tidemill.futures.values.segments import Segments
from tidemill.futures.worker.child_pool import ChildPool
from tidemill.futures.worker.claim_loop import ClaimLoop
from tidemill.futures.worker.events import WorkerEnded, WorkerStarted
from tidemill.futures.worker.ledger import Ledger
from tidemill.futures.worker.settings import WorkerSettings
from tidemill.futures.worker.wire import ChildHello
from tidemill.futures.worker.zygote import Zygote
from tidemill.store import Store


class WorkerSupervisor:
    """One worker node.

    Args:
        store: shared by all threads here; children open their own.
        hello: what children are told first; its `node` is our identity, new with every start.
        settings: of the worker.
        zygote: forks the children; made here unless it is given.
        segments: where results are kept that are too large for a row.
        clock: the source of time.
        chance: the source of random numbers.
        emit: where events go.
    """

    def __init__(
        self,
        store: Store,
        hello: ChildHello,
        settings: WorkerSettings,
        *,
        zygote: Zygote | None = None,
        segments: Segments | None = None,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
        emit: Emit = ignore,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.emit = emit
        self.keys = FutureKeys(hello.cluster)
        chance = chance if chance is not None else random.Random()
        context = ClusterContext(
            store=store,
            cluster=hello.cluster,
            clock=clock,
            chance=chance,
            emit=self._on_event,
            timing=settings.timing,
        )
        self.member = Member(
            context,
            Node(
                id=hello.node,
                epoch=0,
                kind="worker",
                address=settings.address,
                slots=settings.slots,
                total=settings.total.to_node(),
                free=settings.total.to_node(),
            ),
            duties=future_duties(self.keys, context.keys, emit=emit, ttl_s=settings.timing.ttl_s),
            busy=lambda: not self._idle.is_set(),
        )
        ledger = Ledger(store, hello.cluster, hello.node, chance, emit=emit)
        self.pool = ChildPool(
            hello, settings, ledger, segments, zygote if zygote is not None else Zygote(), clock
        )
        self.claims = ClaimLoop(ledger, self.member.membership, self.pool, clock)
        self._leaving = False  # the member knows that we drain
        self._idle = threading.Event()  # drained: nothing is left to write
        self._ended = threading.Event()
        self._broken: BaseException | None = None  # what ended the member's thread

    # --- running

    def run(self) -> None:
        """Work until drained."""
        beats = threading.Thread(target=self._beat, name="member", daemon=True)
        guard = threading.Thread(target=self._guard, name="guard", daemon=True)
        beats.start()
        guard.start()
        work, mail = self.store.watch([self.keys.bell]), self.store.watch([self.keys.inbox[self.member.id]])
        unsubscribe = [work.notify(self._on_work), mail.notify(self._on_mail)]
        self.emit(WorkerStarted(node=self.member.id, pid=os.getpid(), slots=self.settings.slots))
        try:
            while not self._idle.is_set():
                self._turn()
            if self._broken is not None:
                raise self._broken
        finally:
            self._idle.set()
            self._ended.set()
            self.pool.close()  # before the node leaves the list, and others claim what it held
            self.member.drain(0.0)
            for end in unsubscribe:
                end()
            work.close()
            mail.close()
            beats.join(self.settings.timing.every_s + 5.0)
            guard.join(5.0)
            self.pool.wakeup.close()
            self.emit(WorkerEnded(node=self.member.id))

    def _turn(self) -> None:
        pool = self.pool
        pool.keep_children()
        pool.receive(self._pause_s())
        if pool.watchdog.look():
            self.member.membership.report(pool.free().to_node())
        drain_by = self.claims.drain_by
        if drain_by is not None and not self._leaving:
            self._leaving = True
            self.member.drain(max(0.0, drain_by - self.clock.monotonic()) + self.settings.timing.ttl_s)
        self.claims.turn()
        if self._leaving and self.claims.is_drained and not pool.hosting.actors:
            self._idle.set()

    def _pause_s(self) -> float:
        look_s = self.pool.watchdog.look_at - self.clock.monotonic()
        return max(0.0, min(self.claims.pause_s(), look_s))

    def _beat(self) -> None:
        try:
            self.member.run()
        except BaseException as error:  # noqa: BLE001 - raised again by the loop
            self._broken = error
        self._idle.set()
        self.pool.wakeup.ring()

    def _on_event(self, event: Event) -> None:
        self.emit(event)
        if isinstance(event, NodeJoined):
            self.pool.wakeup.ring()

    def _guard(self) -> None:
        """Kill what runs when our lease is over, even while the main thread waits for the store."""
        while not self.clock.wait(self._ended, self.settings.timing.ttl_s / 20):
            if self.claims.ledger.jobs and self.claims.is_lost():
                self.pool.children.kill_all("lost")

    def _on_work(self) -> None:
        self.claims.on_work()
        self.pool.wakeup.ring()

    def _on_mail(self) -> None:
        self.claims.on_mail()
        self.pool.wakeup.ring()

    # --- leaving

    def drain(self) -> None:
        """Take nothing new, finish what runs within the grace, give the rest back, leave (CLU-25).

        Idempotent. Any thread and a signal handler may call this.
        """
        if not self.draining:
            self.claims.drain(self.clock.monotonic() + self.settings.grace_s)
            self.pool.wakeup.ring()

    def hurry(self) -> None:
        """Leave without a grace, or end it."""
        self.claims.drain(self.clock.monotonic())
        self.pool.wakeup.ring()

    @property
    def draining(self) -> bool:
        return self.claims.drain_by is not None
