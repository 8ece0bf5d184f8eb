"""The supervisor: a node that claims futures and has child processes run them. It never runs user code.

One thread does everything in turns: hear the children, look after them, settle with the store, give out
work. Nothing else touches jobs and children. Two more threads only wait: one renews the node's lease and
carries out a leader's duties (`cluster.Member`), and one guards the lease: when its time is over the
children are killed even if the loop is stuck in the store.

A lost lease ends everything that was begun under it (FUT-55): the children are killed, what they made is
dropped, and the node joins again under a higher epoch. Should a result slip through, the store refuses it.
"""

import os
import random
import threading

from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.events import NodeJoined
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.member import Member
from tidemill.cluster.nodes import Node
from tidemill.errors import StoreError
from tidemill.events import Emit, Event, ignore
from tidemill.futures.protocol import inbox
from tidemill.futures.protocol.finish import Done
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.leader_duties import future_duties
from tidemill.futures.protocol.rows import Failure
from tidemill.futures.values.segments import Segments
from tidemill.futures.worker.child_pool import Floor
from tidemill.futures.worker.events import (
    WorkDropped,
    WorkerEnded,
    WorkerStarted,
)
from tidemill.futures.worker.jobs import Job
from tidemill.futures.worker.ledger import Books
from tidemill.futures.worker.settings import Settings
from tidemill.futures.worker.store_session import AUDIT_S, CLAIM_MARGIN_S, Dealings
from tidemill.futures.worker.wakeup import Wakeup
from tidemill.futures.worker.wire import Hello
from tidemill.futures.worker.zygote import Zygote
from tidemill.store import Store

INBOX_S = 0.020
ROUND_RESULTS = 100
ROUND_BYTES = 500_000
"""How many results one round writes at most, and of what size: a transaction has its limits."""


class Supervisor:
    """One worker node.

    Args:
        store: shared by all threads here; children open their own.
        hello: what children are told; its `node` is our identity, new with every start.
        settings: see there.
        zygote: makes children; started here unless it was before.
        segments: where results are kept that are too large for a row.
    """

    def __init__(
        self,
        store: Store,
        hello: Hello,
        settings: Settings,
        *,
        zygote: Zygote | None = None,
        segments: Segments | None = None,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
        emit: Emit = ignore,
    ) -> None:
        self.store = store
        self.settings = settings
        self.segments = segments
        self.clock = clock
        self.chance = chance if chance is not None else random.Random()
        self.emit = emit
        self.keys, cluster = FutureKeys(hello.cluster), ClusterKeys(hello.cluster)
        self.member = Member(
            store,
            hello.cluster,
            node=Node(
                id=hello.node,
                epoch=0,
                kind="worker",
                address=settings.address,
                slots=settings.slots,
                total=settings.total.to_node(),
                free=settings.total.to_node(),
            ),
            duties=future_duties(self.keys, cluster, emit=emit, ttl_s=settings.ttl_s),
            busy=lambda: not self._idle.is_set(),
            clock=clock,
            chance=self.chance,
            emit=self._tell,
            ttl_s=settings.ttl_s,
            every_s=settings.every_s,
        )
        self.wakeup = Wakeup()
        self.books = Books(store, hello.cluster, self.chance)
        self._dealings = Dealings(self.books, hello.node, clock=clock, chance=self.chance, emit=emit)
        self.floor = Floor(
            hello,
            settings,
            self.books,
            segments,
            zygote if zygote is not None else Zygote(),
            self.wakeup,
            clock=clock,
            chance=self.chance,
            emit=emit,
        )
        self._drain_by: float | None = None
        self._drain_told = False
        self._idle = threading.Event()  # drained: nothing is left to write
        self._ended = threading.Event()
        self._broken: BaseException | None = None  # what ended the member's thread
        self._epoch = 0  # of the node, under which everything here was claimed
        self._rung = True  # somebody said that there is something to claim
        self._mail = True  # there may be a command
        self._hungry = False  # the last claim was as large as it could be
        self._inbox_at = 0.0

    # --- running

    def run(self) -> None:
        """Work until drained."""
        beats = threading.Thread(target=self._beat, name="member", daemon=True)
        guard = threading.Thread(target=self._guard, name="guard", daemon=True)
        beats.start()
        guard.start()
        bell, mail = self.store.watch([self.keys.bell]), self.store.watch([self.keys.inbox[self.member.id]])
        hush = [bell.notify(self._on_bell), mail.notify(self._on_mail)]
        self.emit(WorkerStarted(node=self.member.id, pid=os.getpid(), slots=self.settings.slots))
        try:
            while not self._idle.is_set():
                self._turn()
            if self._broken is not None:
                raise self._broken
        finally:
            self._idle.set()
            self._ended.set()
            self.floor.close()
            self.member.drain(0.0)
            for end in hush:
                end()
            bell.close()
            mail.close()
            beats.join(self.settings.every_s + 5.0)
            guard.join(5.0)
            self.wakeup.close()
            self.emit(WorkerEnded(node=self.member.id))

    def _turn(self) -> None:
        """One turn of the loop."""
        floor = self.floor
        floor.keep_children()
        floor.hear(self._pause_s(), self.member.node)
        if floor.care.look():
            self.member.membership.report(floor.free().to_node())
        if self._drain_by is not None:
            self._drain(self._drain_by)
        if self._check_lease():
            self._settle()
            floor.place()
            self._read_mail()

    def _beat(self) -> None:
        try:
            self.member.run()
        except BaseException as error:  # noqa: BLE001 - raised again by the loop
            self._broken = error
        self._idle.set()
        self.wakeup.ring()

    def _tell(self, event: Event) -> None:
        self.emit(event)
        if isinstance(event, NodeJoined):
            self.wakeup.ring()

    def _guard(self) -> None:
        """Kill what runs when our lease's time is over, whatever the loop is doing."""
        while not self.clock.wait(self._ended, self.settings.ttl_s / 20):
            if self._epoch and self.floor.jobs and not self.member.membership.alive():
                self.floor.children.kill_all("lost")

    def _on_bell(self) -> None:
        self._rung = True
        self.wakeup.ring()

    def _on_mail(self) -> None:
        self._mail = True
        self.wakeup.ring()

    def _pause_s(self) -> float:
        """How long to wait for children when nothing else is to do."""
        now = self.clock.monotonic()
        if now < self._dealings.retry_at:
            return min(self._dealings.retry_at - now, 0.1)
        if not self.member.membership.alive():
            return 0.1
        if self.floor.done or self.books.errands or self.books.telling or self._dealings.unloaded:
            return 0.0
        if (self._rung or self._hungry or self.floor.heard) and self._could_take():
            return 0.0
        at = min(self._dealings.poll_at, self.floor.care.look_at)
        if self._mail:
            at = min(at, self._inbox_at)
        return max(0.0, at - now)

    # --- leaving

    def drain(self) -> None:
        """Take nothing new, finish what runs within the grace, give the rest back, leave (CLU-25).

        May be called from any thread and by a signal's handler.
        """
        if self._drain_by is None:
            self._drain_by = self.clock.monotonic() + self.settings.grace_s
            self.wakeup.ring()

    def hurry(self) -> None:
        """Leave without the grace, or end it."""
        self._drain_by = self.clock.monotonic()
        self.wakeup.ring()

    @property
    def draining(self) -> bool:
        return self._drain_by is not None

    def _drain(self, by: float) -> None:
        now = self.clock.monotonic()
        if not self._drain_told:
            self._drain_told = True
            self.member.drain(max(0.0, by - now) + self.settings.ttl_s)
        self.floor.care.drain(now, by)
        if self.floor.jobs or self.floor.done or self.books.errands or self._dealings.unloaded:
            return
        for actor_id in list(self.floor.hosting.actors):  # actors die with their node
            failure = Failure(kind="actor", type="ActorDied", message="the actor's worker has left")
            self.books.actor_died(actor_id, failure)
            self.floor.hosting.remove(actor_id)
        if not self.books.errands:
            self._idle.set()

    # --- the lease

    def _check_lease(self) -> bool:
        """May we act as this node? Drops everything when the lease under which it was begun is over."""
        alive = self.member.membership.alive()
        if self._epoch and (not alive or self.member.node.epoch != self._epoch):
            self._lose()
        return alive

    def _lose(self) -> None:
        """Our lease is over: stop everything, write nothing (FUT-55)."""
        self._epoch = 0
        self._dealings.unloaded.clear()
        self.books.drop()
        self.emit(WorkDropped(node=self.member.id, tasks=self.floor.drop()))

    def _joined(self, node: Node) -> None:
        """We are in the list, for the first time or again: what is claimed in our name is not ours."""
        dealings = self._dealings
        given = dealings.all_of(lambda: self.books.reclaim(node)) if self.settings.address else 0
        dealings.tell_given_back(given + dealings.strays(node, ()))
        dealings.audit_later()
        self._epoch = self.floor.node_epoch = node.epoch

    def _audit(self, node: Node) -> None:
        """Claims of ours are the jobs we have (FUT-38), and segments are results that somebody knows of."""
        self._dealings.tell_given_back(self._dealings.strays(node, self.floor.jobs))
        if self.segments is not None:
            for name in self.books.unknown_segments(node, self.floor.old_segments(AUDIT_S)):
                self.segments.delete(name)
        self._dealings.audit_later()

    def _refused(self, stands: bool) -> None:
        """The store refused us: our lease is over, or too little of it was left to claim."""
        if not stands:
            self._lose()
            self.member.wake()

    # --- the store

    def _settle(self) -> None:
        """Bring the store in step with the floor, and the floor with the store."""
        node = self.member.node
        self._dealings.settle(node, lambda: self._deal(node), self._refused)

    def _deal(self, node: Node) -> None:
        dealings = self._dealings
        if self._epoch != node.epoch:
            self._joined(node)
        if dealings.is_poll_due():
            self.floor.heard = self._mail = True
        self._round(node)
        if dealings.unloaded:
            self.floor.add(dealings.load())
        self._run_errands(node)
        if dealings.is_audit_due():
            self._audit(node)

    def _may_claim(self) -> bool:
        membership = self.member.membership
        left_s = membership.deadline + self.settings.ttl_s / 5 - self.clock.monotonic()
        return self._drain_by is None and membership.accepts() and left_s > CLAIM_MARGIN_S

    def _could_take(self) -> bool:
        return self._may_claim() and self.floor.wish() is not None

    def _round(self, node: Node) -> None:
        """Write what is done and claim what fits, in one transaction."""
        floor, rung = self.floor, self._rung
        wish = None
        if (rung or self._hungry or floor.heard) and self._may_claim():
            wish = floor.wish(floor.care.awaited())
        if wish is None and not floor.done:
            return
        if wish is not None:
            floor.heard = self._rung = False
        done = self._portion()
        began = self.clock.monotonic()
        try:
            found = self.books.round(node, [item for _, item in done], wish)
        except BaseException:
            floor.done = done + floor.done
            floor.heard = True
            raise
        for (job, item), ok in zip(done, found.made, strict=True):
            if ok:
                floor.realized(job)
            else:
                self.books.realize(job, item)
        self._hungry = wish is not None and len(found.claims) >= wish.limit
        floor.care.starved(found.starved)
        if found.claims:
            self._dealings.claimed(found)
        elif rung and self.books.forget_lanes():
            floor.heard = True  # it rang, and there was nothing: perhaps in a lane that is new
        floor.placement.round_s += 0.1 * (self.clock.monotonic() - began - floor.placement.round_s)

    def _portion(self) -> list[tuple[Job, Done]]:
        """As much of what is done as one transaction takes."""
        floor, size = self.floor, 0
        if len(floor.done) <= ROUND_RESULTS // 4 and all(
            len(item.result.head) < 4_000 for _, item in floor.done
        ):
            done, floor.done = floor.done, []
            return done
        for count, (_, item) in enumerate(floor.done):
            size += len(item.result.head) + 1_000
            if count == ROUND_RESULTS or size > ROUND_BYTES:
                done, floor.done = floor.done[:count], floor.done[count:]
                return done
        done, floor.done = floor.done, []
        return done

    def _run_errands(self, node: Node) -> None:
        while self.books.errands:
            for job, row in self.books.run_errands(node):
                self.floor.written(job, row)
        if self.books.telling:
            self.books.tell_dependents()
        self.books.tell_statuses(self.clock.monotonic())

    def _read_mail(self) -> None:
        """Take our commands, after work was given out: they only hurry what rows say, and somebody waits."""
        now = self.clock.monotonic()
        node = self.member.node
        if not self._mail or now < max(self._inbox_at, self._dealings.retry_at) or node.epoch != self._epoch:
            return
        self._mail = False
        self._inbox_at = now + INBOX_S
        try:
            commands = self.books.commands(node)
        except StoreError as error:
            self._mail = True
            self._dealings.failed(error)
            return
        for command in commands:
            match command:
                case inbox.End():
                    self.floor.care.end(command)
                case inbox.Free():
                    if self.segments is not None:
                        self.segments.delete(command.name)
