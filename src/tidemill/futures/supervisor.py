"""The supervisor: a node that claims futures and has child processes run them. It never runs user code.

One thread does everything in turns: hear the children, look after them, settle with the store, give out
work. Two more threads only wait: one renews the node's lease and carries out a leader's duties
(`cluster.Member`), one listens to the store's watch. A third one guards the lease: when its time is over,
the children are killed even if the loop is stuck in the store (FUT-55).
"""

import random
import selectors
import threading
from collections.abc import Callable, Mapping

import msgspec

from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.leader import Duty
from tidemill.cluster.leases import RENEW_EVERY_S, TTL_S
from tidemill.cluster.member import Member, random_id
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, StoreError
from tidemill.events import Emit, ignore
from tidemill.futures import finish
from tidemill.futures.children import Child, Children, End
from tidemill.futures.finish import Done
from tidemill.futures.jobs import Job
from tidemill.futures.lanes import Capacity
from tidemill.futures.ledger import Errand, Ledger, result_of
from tidemill.futures.placement import LONG_S, Placement, settle
from tidemill.futures.rows import Failure
from tidemill.futures.wakeup import Wakeup, Watcher
from tidemill.futures.wire import (
    Broken,
    Hello,
    Missing,
    Ready,
    Recalled,
    Resuming,
    Status,
    Up,
    Waiting,
)
from tidemill.futures.wire import Done as DoneMessage
from tidemill.store import Store, Tx

POLL_S = 1.0
CLAIM_MARGIN_S = 2.6  # of the lease must be left to claim (`claim.LEAST_LEFT_US`)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is set up."""

    slots: int = 1
    total: Capacity = Capacity()
    ttl_s: float = TTL_S
    every_s: float = RENEW_EVERY_S
    grace_s: float = 30.0  # for running tasks when the worker is asked to leave
    cancel_grace_s: float = 5.0  # for a task that was asked to end
    max_waiting: int = 32


class Supervisor:
    """One worker node."""

    def __init__(
        self,
        store: Store,
        hello: Hello,
        settings: Settings,
        *,
        duties: Mapping[str, Duty] | None = None,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
        emit: Emit = ignore,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.chance = chance if chance is not None else random.Random()
        self.emit = emit
        self.ledger = Ledger(store, hello.cluster, self.chance)
        self.placement = Placement(settings.slots, settings.total)
        self.hello = hello
        node = Node(
            id=hello.node or random_id(self.chance),
            epoch=0,
            kind="worker",
            address=hello.address,
            slots=settings.slots,
            total=settings.total.to_node(),
            free=settings.total.to_node(),
        )
        self.member = Member(
            store,
            hello.cluster,
            node=node,
            duties=duties,
            clock=clock,
            chance=self.chance,
            emit=emit,
            ttl_s=settings.ttl_s,
            every_s=settings.every_s,
        )
        self.selector = selectors.DefaultSelector()
        self.children = Children(self.selector)
        self.wakeup = Wakeup()
        self.selector.register(self.wakeup.reader, selectors.EVENT_READ)
        self.jobs: dict[bytes, Job] = {}
        self.done: list[tuple[Job, Done]] = []
        self._epoch = 0
        self._heard = True  # something may be there to claim
        self._poll_at = 0.0
        self._more = False  # the last claim was as large as it could be
        self._store_retry_at = 0.0
        self._leaving = False
        self._over = threading.Event()

    # --- running

    def run(self) -> None:
        """Work until drained."""
        beats = threading.Thread(target=self.member.run, name="member", daemon=True)
        beats.start()
        keys = self.ledger.keys
        watcher = Watcher(self.store, [keys.bell, keys.inbox[self.member.id]], self._on_bell)
        try:
            for _ in range(self.settings.slots):
                self._start_child()
            while not self._over.is_set():
                self._hear(watcher)
                self._look_after()
                self._settle()
                self._place()
        finally:
            self.children.kill_all("the worker ends")
            watcher.close()
            self.member.drain(0.0)
            beats.join(5.0)

    def stop(self) -> None:
        self._over.set()
        self.wakeup.ring()

    def _on_bell(self) -> None:
        self._heard = True
        self.wakeup.ring()

    def _start_child(self) -> Child:
        return self.children.start(self.hello)

    # --- hearing

    def _hear(self, watcher: Watcher) -> None:
        timeout_s = self._pause_s()
        if timeout_s > 0:
            watcher.arm()
        said: dict[int, Child] = {}
        for key, mask in self.selector.select(timeout_s):
            child = key.data
            if child is None:
                self.wakeup.hush()
            else:
                if mask & selectors.EVENT_WRITE:
                    self.children.watch_writes(child)
                said[child.pid] = child
        for child in said.values():
            messages, gone = child.receive()
            for message in messages:
                self._on(child, message)
            if gone:
                self._on_end(child, self.children.bury(child))

    def _pause_s(self) -> float:
        if self.done or self.ledger.errands or (self._heard and self._could_take()):
            return 0.0
        return max(0.0, min(0.5, self._poll_at - self.clock.monotonic()))

    def _could_take(self) -> bool:
        return self.placement.wish(self.children.all, ()) is not None

    def _on(self, child: Child, message: Up) -> None:
        match message:
            case DoneMessage():
                job = child.jobs.pop(message.number)
                settle(child)
                self.placement.saw(message.took_us / 1e6)
                self.done.append((job, result_of(job, message.result)))
            case Broken():
                job = child.jobs.pop(message.number)
                settle(child)
                self._fail(job, message.failure)
            case Missing():
                job = child.jobs.pop(message.number)
                settle(child)
            case Ready():
                child.ready = True
            case Waiting():
                pass
            case Resuming():
                pass
            case Recalled():
                pass
            case Status():
                pass

    def _on_end(self, child: Child, end: End) -> None:
        jobs = dict(child.jobs)
        child.jobs.clear()
        settle(child)
        for number, job in jobs.items():
            job.child, job.number = None, 0
            if number != end.running:
                self.placement.here.appendleft(job)
            else:
                self._fail(job, Failure(kind=end.kind, message=end.message, traceback=end.evidence))
        self._start_child()

    # --- errands

    def _fail(self, job: Job, failure: Failure) -> None:
        jitter = self.chance.random()
        ledger = self.ledger

        def step(tx: Tx, node: Node) -> object:
            return finish.fail(tx, ledger.keys, ledger.cluster, node, job.claim, failure, jitter=jitter)

        ledger.errands.append(Errand(job, step))

    # --- looking after children

    def _look_after(self) -> None:
        now = self.clock.monotonic()
        if now >= self._poll_at:
            self._heard = True
            self.ledger.forget_lanes()
            self._poll_at = now + POLL_S * (0.5 + 0.5 * self.chance.random())

    # --- the store

    def _settle(self) -> None:
        if not self.member.membership.alive() or self.clock.monotonic() < self._store_retry_at:
            return
        node = self.member.node
        try:
            self._round(node)
            while self.ledger.errands:
                for job, _ in self.ledger.run_errands(node):
                    self.jobs.pop(job.id, None)
            if self.ledger.telling:
                self.ledger.tell_dependents()
        except StoreError:
            self._store_retry_at = self.clock.monotonic() + 0.1

    def _round(self, node: Node) -> None:
        wish = None
        if self.done or self._heard or self._more:
            wish = self.placement.wish(self.children.all, ())
            self._heard = False
        if not self.done and wish is None:
            return
        done, self.done = self.done, []
        began = self.clock.monotonic()
        made, claims = self.ledger.round(node, [item for _, item in done], wish)
        for (job, item), ok in zip(done, made, strict=True):
            if ok:
                self.jobs.pop(job.id, None)
            else:
                self._realize(job, item)
        self._more = wish is not None and len(claims) >= wish.limit
        if claims:
            loaded = self.ledger.load(claims)
            for job in loaded.jobs:
                self.jobs[job.id] = job
            self.placement.here.extend(loaded.jobs)
        self.placement.round_s += 0.1 * (self.clock.monotonic() - began - self.placement.round_s)

    def _realize(self, job: Job, item: Done) -> None:
        ledger = self.ledger
        ledger.errands.append(
            Errand(job, lambda tx, node: finish.realize(tx, ledger.keys, ledger.cluster, node, item))
        )

    # --- giving out work

    def _place(self) -> None:
        here = self.placement.here
        batches: dict[int, tuple[Child, list[Job]]] = {}
        while here:
            child = self.placement.choose(here[0], self.children.all)
            if child is None:
                break
            job = here.popleft()
            child.take(job)
            settle(child)
            batches.setdefault(child.pid, (child, []))[1].append(job)
        for child, jobs in batches.values():
            child.give(jobs)
            self.children.watch_writes(child)


__all__ = ["Callable", "LeaseLost", "LONG_S", "Settings", "Supervisor"]
