"""The supervisor of a worker node: claims futures and runs them in child processes. It runs no user code.

The main thread runs a loop: it receives messages from the children, checks the children, and calls the claim
loop, which exchanges results and jobs with the store. No other thread changes the jobs. There are two more
threads. One renews the node's lease and performs the leader's duties (`cluster.Member`). The other kills the
children when the lease expires, even if the main thread is waiting for the store.

When the node loses its lease, it ends everything that it started under that lease (FUT-55). It kills the
children, drops their results, and joins again under a higher epoch. If a result is sent too late, the store
refuses it.
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
        store: shared by all threads of the supervisor; each child opens its own.
        hello: the first message to each child; its `node` is the id of this node, new with every start.
        settings: the worker's settings.
        zygote: forks the children; by default, a new one.
        segments: stores results that are too large for a row.
        clock: the source of time.
        chance: the source of random numbers.
        emit: receives the events.
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
        self._leaving = False  # `member.drain` was called
        self._idle = threading.Event()  # drained: nothing is left to write
        self._ended = threading.Event()
        self._member_error: BaseException | None = None  # the error that ended the member's thread

    # --- running

    def run(self) -> None:
        """Run until the worker is drained."""
        member_thread = threading.Thread(target=self._run_member, name="member", daemon=True)
        guard = threading.Thread(target=self._guard, name="guard", daemon=True)
        member_thread.start()
        guard.start()
        work, mail = self.store.watch([self.keys.bell]), self.store.watch([self.keys.inbox[self.member.id]])
        unsubscribe = [work.notify(self._on_work), mail.notify(self._on_mail)]
        self.emit(WorkerStarted(node=self.member.id, pid=os.getpid(), slots=self.settings.slots))
        try:
            while not self._idle.is_set():
                self._turn()
            if self._member_error is not None:
                raise self._member_error
        finally:
            self._idle.set()
            self._ended.set()
            self.pool.close()  # before the node leaves the list and others claim its futures
            self.member.drain(0.0)
            for end in unsubscribe:
                end()
            work.close()
            mail.close()
            member_thread.join(self.settings.timing.every_s + 5.0)
            guard.join(5.0)
            self.pool.wakeup.close()
            self.emit(WorkerEnded(node=self.member.id))

    def _turn(self) -> None:
        pool = self.pool
        pool.keep_children()
        pool.receive(self._pause_s())
        if pool.watchdog.check():
            self.member.membership.report(pool.free().to_node())
        drain_by = self.claims.drain_by
        if drain_by is not None and not self._leaving:
            self._leaving = True
            self.member.drain(max(0.0, drain_by - self.clock.monotonic()) + self.settings.timing.ttl_s)
        self.claims.run_once()
        if self._leaving and self.claims.is_drained and not pool.hosting.actors:
            self._idle.set()

    def _pause_s(self) -> float:
        check_s = self.pool.watchdog.next_check_at - self.clock.monotonic()
        return max(0.0, min(self.claims.pause_s(), check_s))

    def _run_member(self) -> None:
        try:
            self.member.run()
        except BaseException as error:  # noqa: BLE001 - raised again by the loop
            self._member_error = error
        self._idle.set()
        self.pool.wakeup.wake()

    def _on_event(self, event: Event) -> None:
        self.emit(event)
        if isinstance(event, NodeJoined):
            self.pool.wakeup.wake()

    def _guard(self) -> None:
        """Kill the children when the node's lease is over, even while the main thread waits for the store."""
        while not self.clock.wait(self._ended, self.settings.timing.ttl_s / 20):
            if self.claims.ledger.jobs and self.claims.is_lost():
                self.pool.children.kill_all("lost")

    def _on_work(self) -> None:
        self.claims.on_work()
        self.pool.wakeup.wake()

    def _on_mail(self) -> None:
        self.claims.on_mail()
        self.pool.wakeup.wake()

    # --- leaving

    def drain(self) -> None:
        """Claim nothing new, finish running tasks within the grace period, release the rest, leave (CLU-25).

        Idempotent. Any thread and a signal handler may call this.
        """
        if not self.draining:
            self.claims.drain(self.clock.monotonic() + self.settings.grace_s)
            self.pool.wakeup.wake()

    def hurry(self) -> None:
        """Drain without a grace period. If the grace period has already begun, end it."""
        self.claims.drain(self.clock.monotonic())
        self.pool.wakeup.wake()

    @property
    def draining(self) -> bool:
        return self.claims.drain_by is not None
