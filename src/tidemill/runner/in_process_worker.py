"""Hands: threads of this process that run the futures of a runner's pipelines.

One thread, the loop, claims and writes, through the same books as a worker's supervisor. A crew of others
runs what was claimed, one turn each, under a guard that interrupts a turn when the lease is over, or when
somebody asked for its end. Futures are claimed only when a thread is free: several runners share them.

A lost lease ends everything that was begun under it (FUT-55): what the turns still make is dropped, and the
claims are given back under the next epoch. Should a result slip through, the store refuses it. Claims that an
earlier life of this node left are ended as a leader would end them, counted as one more death (FUT-49); those
that have seen two are suspects.

A crash point that is hit in a turn or in the loop stands for the death of the process: nothing is written any
more, and whoever waits for these hands is told (`check`).
"""

import random
import threading
from collections.abc import Collection

import msgspec

from tidemill import crash
from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.events import Emit, ignore
from tidemill.futures.protocol import inbox
from tidemill.futures.protocol.finish import Done
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Capacity, Lane, bounds_of
from tidemill.futures.values.signatures import ClusterKey
from tidemill.futures.worker.events import TaskFailed, WorkDropped
from tidemill.futures.worker.jobs import Job, Wish
from tidemill.futures.worker.ledger import Books, Loaded, result_of
from tidemill.futures.worker.store_session import CLAIM_MARGIN_S, Dealings
from tidemill.futures.worker.wire import Broken, Missing
from tidemill.futures.worker.wire import Done as Made
from tidemill.objects import Objects
from tidemill.runner.future_run import Turn, TurnRunner
from tidemill.runner.presence import Presence
from tidemill.runner.suspects import Suspects
from tidemill.runner.worker_threads import Crew, Interrupt
from tidemill.store import Store

LINGER_S = 5.0
"""How long the end waits for turns that were interrupted."""

PLENTY = Capacity(cpu=1e9, ram=2**60)
"""What futures may ask for beside a name: threads are the measure here, and Spark has its own."""


def _leave_alone(tag: str) -> None:
    """For turns that cannot be interrupted."""


class Hands:
    """Runs the futures that ask for one of `names`.

    A node has one pair of hands: claims of the node that they know nothing of, they give back.

    Args:
        store: opened; shared with everybody in this process.
        cluster: its name.
        key: the cluster key: nothing runs that was not signed with it.
        presence: our node.
        names: what the futures ask for; see `part_futures.resource_of`.
        threads: how many turns at once.
        objects: where large arguments and results are.
        tools: what the code of a turn finds with `turns.tools()`.
        interrupt: ends the Spark jobs of a tag; called by the guard, and may raise.
    """

    def __init__(
        self,
        store: Store,
        cluster: str,
        key: ClusterKey,
        presence: Presence,
        *,
        names: Collection[str],
        threads: int,
        objects: Objects | None = None,
        tools: object = None,
        interrupt: Interrupt = _leave_alone,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
        emit: Emit = ignore,
    ) -> None:
        self.store = store
        self.presence = presence
        self.clock = clock
        self.chance = chance if chance is not None else random.Random()
        self.emit = emit
        self.keys, self.cluster = FutureKeys(cluster), ClusterKeys(cluster)
        self._names = frozenset(names)
        self._tools = tools
        self._wake = threading.Event()
        self._books = Books(store, cluster, self.chance, self._serves)
        self._dealings = Dealings(self._books, presence.node.id, clock=clock, chance=self.chance, emit=emit)
        self._crew = Crew(
            TurnRunner(store, objects, cluster, key.secret, presence.node.id, clock=clock),
            threads,
            interrupt=interrupt,
            heard=self._wake.set,
            broke=self._break,
            is_lost=lambda: bool(self._epoch) and not self._stands(),
            lost=self._on_lost,
            clock=clock,
        )
        self._suspects = Suspects(store, self.keys, self.cluster)
        self._thread: threading.Thread | None = None
        self._jobs: dict[bytes, Job] = {}  # all that we hold a claim on
        self._done: list[tuple[Job, Done]] = []
        self._over = threading.Event()
        self._idle = threading.Event()  # drained
        self._drain_by: float | None = None
        self._broken: BaseException | None = None
        self._epoch = 0  # of the node, under which everything here was claimed
        self._lost = False  # the guard has found our lease over, even if it should be renewed meanwhile
        self._lives = 0  # how often we have joined
        self._look = True  # there may be something to claim
        self._rung = True  # somebody said so
        self._mail = True

    def _serves(self, lane: Lane) -> bool:
        return not self._names.isdisjoint(bounds_of(lane.label)[0].named)

    # --- from outside

    def start(self) -> None:
        """Begin to claim."""
        self._thread = threading.Thread(target=self._run, name="hands", daemon=True)
        self._thread.start()
        self._crew.start()

    def check(self) -> None:
        """Raise when these hands have ended: who waits for their work might wait for ever."""
        if self._broken is not None:
            raise self._broken
        if self._over.is_set():
            raise LeaseLost("these hands have ended")

    @property
    def busy(self) -> int:
        """How many turns are in threads now."""
        return len(self._crew)

    def drain(self, grace_s: float = 30.0) -> bool:
        """Take nothing new, let what runs finish within the grace, give the rest back, end (CLU-25).

        Returns when nothing is left to write; False if the store did not answer in time. Idempotent; the
        shortest grace holds. A turn that does not heed its interruption is left behind after some seconds.
        """
        by = self.clock.monotonic() + grace_s
        self._drain_by = by if self._drain_by is None else min(by, self._drain_by)
        self._wake.set()
        if self._thread is None:
            self._idle.set()
        ended = self.clock.wait(self._idle, grace_s + 30.0)
        self._end()
        return ended and self._broken is None

    def stop(self) -> None:
        """Give everything back and end."""
        self.drain(0.0)

    def abandon(self) -> None:
        """End as if killed: nothing is written any more, and what runs is interrupted."""
        self._over.set()
        self._idle.set()
        self._crew.mark_lost()
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._wake.set()
        self._crew.dismiss()
        by = self.clock.monotonic() + LINGER_S
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(LINGER_S)
        self._crew.end(by)

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self._over.set()
        self._idle.set()
        self._wake.set()

    def _on_lost(self) -> None:
        self._lost = True
        self._wake.set()

    # --- the loop

    def _run(self) -> None:
        watches = [
            self.store.watch([self.keys.bell]),
            self.store.watch([self.keys.inbox[self.presence.node.id]]),
        ]
        hush = [watches[0].notify(self._on_bell), watches[1].notify(self._on_mail)]
        try:
            while not self._over.is_set() and not self._idle.is_set():
                self.clock.wait(self._wake, self._pause_s())
                self._wake.clear()
                self._turn()
        except BaseException as error:  # noqa: BLE001 - told by `check`
            self._break(error)
        finally:
            for end in hush:
                end()
            for watch in watches:
                watch.close()

    def _on_bell(self) -> None:
        self._look = self._rung = True
        self._wake.set()

    def _on_mail(self) -> None:
        self._mail = True
        self._wake.set()

    def _pause_s(self) -> float:
        now = self.clock.monotonic()
        if now < self._dealings.retry_at:
            return self._dealings.retry_at - now
        if not self.presence.alive():
            return 0.1
        at = self._dealings.poll_at
        if self._drain_by is not None:
            at = min(at, max(self._drain_by, now + 0.02))
        return max(0.0, at - now)

    def _turn(self) -> None:
        self._hear()
        if self._epoch and (self._lost or not self._stands()):
            self._lose()
        if self._drain_by is not None:
            self._give_back(self._drain_by)
        if self.presence.alive():
            self._settle()
        elif self._drain_by is not None and not self._jobs:
            self._idle.set()

    def _stands(self) -> bool:
        return self.presence.alive() and self.presence.node.epoch == self._epoch

    def _hear(self) -> None:
        """Act upon the turns that have ended."""
        for turn, outcome in self._crew.ended():
            self._look = True  # a thread is free
            self._suspects.clear(turn.job.id)
            if turn.over in ("lost", "drain") or turn.job.id not in self._jobs:
                continue
            match outcome:
                case Made():
                    self._done.append((turn.job, result_of(turn.job, outcome.result, self.presence.node)))
                case Broken():
                    self._fail(turn, outcome)
                case Missing():
                    self._books.block(turn.job, [loss.id for loss in outcome.losses], outcome.losses)

    def _fail(self, turn: Turn, outcome: Broken) -> None:
        job, failure = turn.job, outcome.failure
        if failure.kind == "cancelled":
            if turn.over:
                self._books.cancelled(job)
                return
            failure = msgspec.structs.replace(failure, kind="exception")  # nobody asked: as any other
        self.emit(
            TaskFailed(
                node=self.presence.node.id,
                future=job.id.hex(),
                name=job.spec.name,
                kind=failure.kind,
                message=failure.message[:500],
            )
        )
        self._books.fail(job, failure, ram_used=outcome.ram_used)

    # --- the lease

    def _lose(self) -> None:
        """Our lease is over: stop everything, write nothing (FUT-55)."""
        self._epoch, self._lost = 0, False
        self._crew.mark_lost()
        dropped = len(self._jobs)
        self._jobs.clear()
        self._done.clear()
        self._dealings.unloaded.clear()
        self._books.drop()
        self.emit(WorkDropped(node=self.presence.node.id, tasks=dropped))

    def _joined(self, node: Node) -> None:
        """What is claimed in our name is not ours: of an earlier life, or of a lease that we lost."""
        given = self._suspects.reap(node) if not self._lives else self._dealings.strays(node, ())
        self._dealings.tell_given_back(given)
        self._lives += 1
        self._dealings.audit_later()
        self._epoch = node.epoch

    def _refused(self, stands: bool) -> None:
        """The store refused us: our lease is over, or too little of it was left to claim."""
        if not stands and self._epoch:
            self._lose()
        self._dealings.retry_at = self.clock.monotonic() + 0.05

    # --- the store

    def _settle(self) -> None:
        """Bring the store in step with the turns, and the turns with the store."""
        node = self.presence.node
        self._dealings.settle(node, lambda: self._deal(node), self._refused)

    def _deal(self, node: Node) -> None:
        dealings = self._dealings
        if self._epoch != node.epoch:
            self._joined(node)
        if dealings.is_poll_due():
            self._look = self._mail = True
            if self._suspects:
                self._suspects.look(self._jobs)
        self._round(node)
        if dealings.unloaded:
            self._begin(dealings.load())
        self._run_errands(node)
        if self._mail:
            self._read_mail(node)
        if dealings.is_audit_due():  # claims of ours are the jobs we have (FUT-38)
            dealings.tell_given_back(dealings.strays(node, self._jobs))
            dealings.audit_later()

    def _wish(self) -> Wish | None:
        free = (1 if self._suspects else self._crew.size) - len(self._crew) - len(self._dealings.unloaded)
        if (
            free < 1
            or not self._look
            or self._drain_by is not None
            or not self.presence.accepts()
            or self.presence.left_s() < CLAIM_MARGIN_S
        ):
            return None
        return Wish(free, Capacity(cpu=PLENTY.cpu, ram=PLENTY.ram, named=self._names))

    def _round(self, node: Node) -> None:
        """Write what is done and claim what fits, in one transaction."""
        wish, done, rung = self._wish(), self._done, self._rung
        if wish is None and not done:
            return
        if wish is not None:
            self._look = self._rung = False
        crash.point("runner.round.before")
        try:
            found = self._books.round(node, [item for _, item in done], wish)
        except BaseException:
            self._look = True
            raise
        crash.point("runner.round.after")
        self._done = []
        for (job, item), ok in zip(done, found.made, strict=True):
            if ok:
                self._jobs.pop(job.id, None)
            else:
                self._books.realize(job, item)
        if found.claims:
            self._dealings.claimed(found)
            self._look = True  # perhaps there is more
        elif wish is not None and rung and self._books.forget_lanes():
            self._look = True  # it rang, and there was nothing: perhaps in a lane that is new
            self._wake.set()

    def _begin(self, loaded: Loaded) -> None:
        """Give what was claimed to threads."""
        for job, missing in loaded.unready:
            self._jobs[job.id] = job
            self._books.block(job, missing)
        for job in loaded.jobs:
            self._jobs[job.id] = job
            self._crew.give(Turn(job, self._tools))

    def _run_errands(self, node: Node) -> None:
        while self._books.errands:
            crash.point("runner.errand.before")
            for job, _ in self._books.run_errands(node):
                self._jobs.pop(job.id, None)
            crash.point("runner.errand.after")
        if self._books.telling:
            self._books.tell_dependents()

    def _read_mail(self, node: Node) -> None:
        """Take our commands: somebody asked for the end of a turn (FUT-56)."""
        self._mail = False
        for command in self._books.commands(node):
            if not isinstance(command, inbox.End):
                continue
            for turn in self._crew.turns:
                if turn.job.id == command.id and turn.job.claim.epoch == command.epoch and not turn.over:
                    turn.over = command.why

    # --- leaving

    def _give_back(self, by: float) -> None:
        """Wait for what runs, and at last give it back."""
        if self.clock.monotonic() >= by:
            for turn in self._crew.turns:
                if turn.over not in ("drain", "lost") and turn.job.id in self._jobs:
                    end = self._books.cancelled if turn.over else self._books.relinquish
                    turn.over = "drain"
                    end(turn.job)
        if not self._jobs and not self._done and not self._books.errands and not self._dealings.unloaded:
            self._idle.set()
