"""Hands: threads of this process that run the futures of a runner's pipelines.

One thread, the loop, claims and writes, through the same books as a worker's supervisor; others run what was
claimed, one turn each; a last one guards: when the lease is over, or somebody asked for a turn's end, it
interrupts the turn by its tag, again and again until the turn is over, even while the loop is stuck in the
store. Futures are claimed only when a thread is free, so that several runners share them.

A lost lease ends everything that was begun under it (FUT-55): what the turns still make is dropped, and the
claims are given back under the next epoch. Should a result slip through, the store refuses it. Claims that an
earlier life of this node left are ended as a leader would end them, counted as one more death (FUT-49). When
some of them have seen two deaths, one of them may be the reason: then there is one turn at a time until each
was tried, so that the next death counts against one alone.

A crash point that is hit in a turn or in the loop stands for the death of the process: nothing is written any
more, and whoever waits for these hands is told (`check`).
"""

import contextlib
import queue
import random
import threading
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from tidemill import crash
from tidemill.clock import SYSTEM, Clock, backoff
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import CommitUnknown, LeaseLost, StoreError, TidemillError
from tidemill.events import Emit, ignore
from tidemill.futures import edges, inbox, reap
from tidemill.futures.books import Books, Loaded, result_of
from tidemill.futures.claim import Claim
from tidemill.futures.finish import Done
from tidemill.futures.jobs import Job, Wish
from tidemill.futures.keys import FutureKeys
from tidemill.futures.lanes import Capacity, Lane, bounds_of
from tidemill.futures.rows import Unclaimed
from tidemill.futures.signing import ClusterKey
from tidemill.futures.task import Outcome
from tidemill.futures.wire import Broken, Missing
from tidemill.futures.wire import Done as Made
from tidemill.futures.worker_events import ClaimsGivenBack, StoreAway, TaskFailed, WorkDropped
from tidemill.objects import Objects
from tidemill.runner.presence import Presence
from tidemill.runner.turns import Turn, TurnRunner
from tidemill.store import Store

POLL_S = 1.0
AUDIT_S = 30.0
GUARD_S = 0.1
INTERRUPT_EVERY_S = 1.0
SUSPECT, SUSPECTS = 2, 200
LINGER_S = 5.0
"""How long the end waits for turns that were interrupted."""

CLAIM_MARGIN_S = 2.6
"""How much of its lease a node must have left to claim (`claim.LEAST_LEFT_US`, and the way there)."""

PLENTY = Capacity(cpu=1e9, ram=2**60)
"""What futures may ask for beside a name: threads are the measure here, and Spark has its own."""

Interrupt = Callable[[str], None]


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
        interrupt: ends the Spark jobs of a tag; called by a thread of its own, and may raise.
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
        self._interrupt = interrupt
        self._books = Books(store, cluster, self.chance, self._serves)
        self._runner = TurnRunner(store, objects, cluster, key.secret, presence.node.id, clock=clock)
        self._count = threads
        self._threads: list[threading.Thread] = []
        self._work: queue.SimpleQueue[Turn | None] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[tuple[Turn, Outcome]] = queue.SimpleQueue()
        self._turns: dict[int, Turn] = {}  # in threads, whatever became of their claims
        self._jobs: dict[bytes, Job] = {}  # all that we hold a claim on
        self._done: list[tuple[Job, Done]] = []
        self._unloaded: list[tuple[Claim, bytes | None]] = []
        self._wake = threading.Event()
        self._over = threading.Event()
        self._quiet = threading.Event()  # nobody is left to be interrupted
        self._idle = threading.Event()  # drained
        self._drain_by: float | None = None
        self._broken: BaseException | None = None
        self._epoch = 0  # of the node, under which everything here was claimed
        self._lost = False  # the guard has found our lease over, even if it should be renewed meanwhile
        self._lives = 0  # how often we have joined
        self._suspects: set[bytes] = set()  # while there are any, one turn at a time
        self._look = True  # there may be something to claim
        self._rung = True  # somebody said so
        self._mail = True
        self._poll_at = self._audit_at = self._retry_at = 0.0
        self._failures = 0  # of the store, in a row

    def _serves(self, lane: Lane) -> bool:
        return not self._names.isdisjoint(bounds_of(lane.label)[0].named)

    # --- from outside

    def start(self) -> None:
        """Begin to claim."""
        self._threads.append(threading.Thread(target=self._run, name="hands", daemon=True))
        for number in range(self._count):
            self._threads.append(threading.Thread(target=self._serve, name=f"hand-{number}", daemon=True))
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._guard, name="hands-guard", daemon=True).start()

    def check(self) -> None:
        """Raise when these hands have ended: who waits for their work might wait for ever."""
        if self._broken is not None:
            raise self._broken
        if self._over.is_set():
            raise LeaseLost("these hands have ended")

    @property
    def busy(self) -> int:
        """How many turns are in threads now."""
        return len(self._turns)

    def drain(self, grace_s: float = 30.0) -> bool:
        """Take nothing new, let what runs finish within the grace, give the rest back, end (CLU-25).

        Returns when nothing is left to write; False if the store did not answer in time. Idempotent; the
        shortest grace holds. A turn that does not heed its interruption is left behind after some seconds.
        """
        by = self.clock.monotonic() + grace_s
        self._drain_by = by if self._drain_by is None else min(by, self._drain_by)
        self._wake.set()
        if not self._threads:
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
        for turn in list(self._turns.values()):
            turn.over = turn.over or "lost"
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._wake.set()
        for _ in range(self._count):
            self._work.put(None)
        end = self.clock.monotonic() + LINGER_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - self.clock.monotonic()))
        self._quiet.set()

    # --- threads of turns

    def _serve(self) -> None:
        while (turn := self._work.get()) is not None:
            try:
                outcome = self._runner.take(turn)
            except BaseException as error:  # noqa: BLE001 - a crash point: see the top of this file
                self._break(error)
                return
            finally:
                self._turns.pop(id(turn), None)
            self._ends.put((turn, outcome))
            self._wake.set()

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self._over.set()
        self._idle.set()
        self._wake.set()

    # --- the guard

    def _guard(self) -> None:
        """Interrupt turns whose end is wanted, whatever the loop is doing."""
        while not self.clock.wait(self._quiet, GUARD_S):
            now = self.clock.monotonic()
            lost = bool(self._epoch) and not self._stands()
            for turn in list(self._turns.values()):
                if lost and not turn.over:
                    turn.over = "lost"
                if turn.over and now >= turn.interrupted_at + INTERRUPT_EVERY_S:
                    turn.interrupted_at = now
                    with contextlib.suppress(Exception):
                        self._interrupt(turn.tag)
            if lost:
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
        if now < self._retry_at:
            return self._retry_at - now
        if not self.presence.alive():
            return 0.1
        at = self._poll_at
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
        while True:
            try:
                turn, outcome = self._ends.get_nowait()
            except queue.Empty:
                return
            self._look = True  # a thread is free
            self._suspects.discard(turn.job.id)
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
        for turn in list(self._turns.values()):
            turn.over = turn.over or "lost"
        dropped = len(self._jobs)
        self._jobs.clear()
        self._done.clear()
        self._unloaded.clear()
        self._books.drop()
        self.emit(WorkDropped(node=self.presence.node.id, tasks=dropped))

    def _joined(self, node: Node) -> None:
        """What is claimed in our name is not ours: of an earlier life, or of a lease that we lost."""
        given = self._reap(node) if not self._lives else self._strays(node, ())
        if given:
            self.emit(ClaimsGivenBack(node=node.id, claims=given))
        self._lives += 1
        self._audit_at = self.clock.monotonic() + AUDIT_S
        self._epoch = node.epoch

    def _reap(self, node: Node) -> int:
        """An earlier life died with these: counted, so that a future that kills its runners is found out."""
        after, total, more = b"", 0, True
        take = partial(reap.reap_page, keys=self.keys, cluster=self.cluster, node_id=node.id)
        while more:
            page, after = self.store.run(partial(take, after=after))
            total += len(page.moved)
            more = page.more
            self._suspects |= {one for one, row in page.moved if row.tally.reaps >= SUSPECT}
        return total

    def _look_at_suspects(self) -> None:
        """Forget those that ended elsewhere, or that others work on."""
        ids = list(self._suspects)[:SUSPECTS]
        found = self.store.run(lambda tx: edges.read_many(tx, self.keys, ids))
        for one, row in zip(ids, found, strict=True):
            if not isinstance(row, Unclaimed) and one not in self._jobs:
                self._suspects.discard(one)

    def _strays(self, node: Node, known: Collection[bytes]) -> int:
        total, more = self._books.strays(node, known)
        while more:
            some, more = self._books.strays(node, known)
            total += some
        return total

    # --- the store

    def _settle(self) -> None:
        """Bring the store in step with the turns, and the turns with the store."""
        now, node = self.clock.monotonic(), self.presence.node
        if now < self._retry_at:
            return
        try:
            if self._epoch != node.epoch:
                self._joined(node)
            if now >= self._poll_at:
                self._look = self._mail = True
                self._books.forget_lanes()
                if self._suspects:
                    self._look_at_suspects()
                self._poll_at = now + POLL_S * (0.5 + 0.5 * self.chance.random())
            self._round(node)
            if self._unloaded:
                self._load()
            self._run_errands(node)
            if self._mail:
                self._read_mail(node)
            if now >= self._audit_at:
                self._audit(node)
            self._failures = 0
        except LeaseLost:
            self._doubt(node)
        except CommitUnknown as error:
            self._audit_at = 0.0  # there may be claims of ours that we do not know of
            self._store_failed(error)
        except TidemillError as error:
            self._store_failed(error)

    def _store_failed(self, error: TidemillError) -> None:
        self._failures += 1
        pause_s = backoff(self._failures, self.chance, first_s=0.05, most_s=2.0)
        self._retry_at = self.clock.monotonic() + pause_s
        self.emit(StoreAway(node=self.presence.node.id, error=error.message))

    def _doubt(self, node: Node) -> None:
        """The store refused us: our lease is over, or too little of it was left to claim."""
        try:
            stands = self._books.stands(node)
        except StoreError as error:
            self._store_failed(error)
            return
        if not stands and self._epoch:
            self._lose()
        self._retry_at = self.clock.monotonic() + 0.05

    def _wish(self) -> Wish | None:
        free = (1 if self._suspects else self._count) - len(self._turns) - len(self._unloaded)
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
            specs = found.specs or [None] * len(found.claims)
            self._unloaded += zip(found.claims, specs, strict=True)
            self._look = True  # perhaps there is more
        elif wish is not None and rung and self._books.forget_lanes():
            self._look = True  # it rang, and there was nothing: perhaps in a lane that is new
            self._wake.set()

    def _load(self) -> None:
        """Read what the claims need to run, and give them to threads."""
        specs = [raw for _, raw in self._unloaded]
        loaded: Loaded = self._books.load(
            [one for one, _ in self._unloaded], specs if None not in specs else ()
        )
        self._unloaded.clear()
        for job, missing in loaded.unready:
            self._jobs[job.id] = job
            self._books.block(job, missing)
        for job in loaded.jobs:
            self._jobs[job.id] = job
            turn = Turn(job, self._tools)
            self._turns[id(turn)] = turn
            self._work.put(turn)

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
            for turn in list(self._turns.values()):
                if turn.job.id == command.id and turn.job.claim.epoch == command.epoch and not turn.over:
                    turn.over = command.why

    def _audit(self, node: Node) -> None:
        """Claims of ours are the jobs we have (FUT-38)."""
        given = self._strays(node, self._jobs)
        if given:
            self.emit(ClaimsGivenBack(node=node.id, claims=given))
        self._audit_at = self.clock.monotonic() + AUDIT_S

    # --- leaving

    def _give_back(self, by: float) -> None:
        """Wait for what runs, and at last give it back."""
        if self.clock.monotonic() >= by:
            for turn in list(self._turns.values()):
                if turn.over not in ("drain", "lost") and turn.job.id in self._jobs:
                    end = self._books.cancelled if turn.over else self._books.relinquish
                    turn.over = "drain"
                    end(turn.job)
        if not self._jobs and not self._done and not self._books.errands and not self._unloaded:
            self._idle.set()
