"""The planned work of a simulated cluster, and the tasks that do it.

The plan is in the store, so that any node can start with nothing (CLU-17). A task is a thread of a simulated
node that works on one partition; some tasks need a permit of a semaphore.
"""

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.cluster.history import Mark
from tests.simulation.faults import Swarm
from tests.simulation.scheduler import Next, SimNode, SimulatedThread
from tidemill.cluster import partitions
from tidemill.cluster.keeper import HeldLease
from tidemill.cluster.leases import Busy
from tidemill.errors import CommitUnknown, LeaseLost, StoreError
from tidemill.store import Space, Tx
from tidemill.testing.holdings import HeldPartition, Host

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process
    from tests.simulation.world import World


class PlannedPiece(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a partition: a number of steps, each a fenced write after some time."""

    round: int
    steps: int
    step_s: float
    gate: int = -1  # the number of the semaphore that its steps need; -1: none
    stubborn: bool = False  # does not hand back on request


class Gate(msgspec.Struct, frozen=True, array_like=True):
    """A semaphore that tasks share."""

    name: str
    permits: int


class ClusterPlan(msgspec.Struct, frozen=True, array_like=True):
    """All the work."""

    groups: dict[str, list[str]]  # group -> ids of its partitions
    rounds: int  # how often each partition is created, processed and removed
    gates: list[Gate]
    pieces: dict[str, PlannedPiece]  # "group/id" -> its payload
    queued: int  # rows that go through the queue

    def takes_s(self, swarm: Swarm) -> float:
        """Return the longest time it takes without faults: one after the other, and slowly."""
        steps_s = sum(1.5 * piece.steps * piece.step_s for piece in self.pieces.values())
        between_s = len(self.pieces) * (swarm.every_s + swarm.ttl_s / 5)  # created, taken, removed
        return self.rounds * (steps_s + between_s) + 0.3 * swarm.ttl_s * self.queued

    def piece(self, group: str, part_id: str, round_number: int) -> PlannedPiece:
        return msgspec.structs.replace(self.pieces[f"{group}/{part_id}"], round=round_number)


def draw_plan(chance: random.Random, swarm: Swarm) -> ClusterPlan:
    """Draw the work of one seed: just enough to last through the faults."""
    groups = {
        f"g{number}": [f"p{part}" for part in range(chance.choice((1, 2, 3, 4)))]
        for number in range(chance.choice((1, 1, 2)))
    }
    gates = [Gate(f"s{number}", chance.choice((1, 1, 2))) for number in range(chance.choice((0, 1, 2)))]
    pieces = {
        f"{group}/{part_id}": PlannedPiece(
            round=0,
            steps=chance.choice((1, 2, 4, 8)),
            step_s=swarm.ttl_s * chance.choice((0.03, 0.1, 0.3)),
            gate=chance.randrange(len(gates)) if gates and chance.random() < 0.7 else -1,
            stubborn=chance.random() < 0.15,
        )
        for group, ids in groups.items()
        for part_id in ids
    }
    return ClusterPlan(
        groups=groups,
        rounds=chance.choice((1, 2, 4)),
        gates=gates,
        pieces=pieces,
        queued=chance.choice((0, 6, 20)),
    )


class Holders:
    """Check that nodes never believe to hold more permits than there are."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._held: dict[str, list[tuple[SimNode, HeldLease]]] = {}

    def entered(self, gate: Gate, node: SimNode, new_permit: HeldLease) -> None:
        """Note that a node got a permit."""
        holders = [
            (holder, permit)
            for holder, permit in self._held.get(gate.name, ())
            if holder.running and permit.alive()
        ]
        holders.append((node, new_permit))
        self._held[gate.name] = holders
        believing = sum(permit.alive() for _, permit in holders)
        if believing > gate.permits:
            names = ", ".join(holder.name for holder, _ in holders)
            raise self._world.violated(f"{believing} hold {gate.name}, which has {gate.permits}: {names}")


class SimHost(Host):
    """Starts, stops and aborts tasks; like a real host it only sets flags, and the tasks react later."""

    def __init__(self, process: "Process") -> None:
        self.tasks: dict[tuple[str, str], SimTask] = {}
        self._process = process

    def start(self, held: HeldPartition) -> None:
        key = held.part.group, held.part.id
        old = self.tasks.get(key)
        if old is not None and not old.is_ending:
            raise self._process.world.violated(f"{key} is started, and its last task never ended")
        task = self.tasks[key] = SimTask(self._process, held)
        task.thread = self._process.node.spawn(f"task {held.part.id}", task.step, task.piece.step_s)

    def stop(self, held: HeldPartition) -> None:
        task = self._task(held)
        if task is not None:
            task.stopping = True
            idle = not task.thread.busy and not task.piece.stubborn
            if idle and self._process.node.chance.random() < 0.3:  # some hosts hand back within the call
                self._process.holdings.hand_back(held)
                task.aborted = True
            self._process.node.wake(task.thread)

    def abort(self, held: HeldPartition) -> None:
        task = self._task(held)
        if task is not None:
            task.aborted = True
            self._process.node.wake(task.thread)

    def _task(self, held: HeldPartition) -> "SimTask | None":
        task = self.tasks.get((held.part.group, held.part.id))
        return task if task is not None and task.held is held else None


class SimTask:
    """Works on one partition in steps: acts, writes under its epoch, hands back or completes."""

    thread: SimulatedThread

    def __init__(self, process: "Process", held: HeldPartition) -> None:
        self.held = held
        self.piece = msgspec.msgpack.decode(held.part.payload, type=PlannedPiece)
        self.subject = f"{held.part.group}/{held.part.id}#{self.piece.round}"
        self.stopping = False
        self.aborted = False
        self.ended = False
        self._process = process
        self._world = process.world
        self.permit: HeldLease | None = None
        self._done = 0
        self._over = False  # it has written everything, or gives up: only the end is left
        self._progress = Space(process.keys.cluster, "progress")[self.subject]
        self._part_key = process.part_keys[held.part.group, held.part.id]

    @property
    def is_ending(self) -> bool:
        return self.ended or self.aborted or self._over

    def step(self) -> Next:
        """Run one step of the thread."""
        try:
            return self._step()
        except LeaseLost:
            return self._end()
        except StoreError:
            return self._process.ttl_s * self._process.node.chance.uniform(0.01, 0.1)

    def _step(self) -> Next:
        if self.aborted:
            return self._end()
        if self._over:
            return self._finish()
        outside = self.piece.gate >= 0 and (self.permit is None or not self.permit.alive())
        if self.stopping and not self.piece.stubborn and (outside or self._done + 1 < self.piece.steps):
            self._over = True
            return self._finish()
        if outside:
            busy = self._enter()
            if busy is not None:
                return busy
        self._act()
        self._write()
        if self._done >= self.piece.steps:
            self._over = True
            return self._finish()
        if self._process.node.chance.random() < 0.5:
            self._leave()
        return self.piece.step_s * self._process.node.chance.uniform(0.5, 1.5)

    # --- under the lease

    def _act(self) -> None:
        """Act outside the store: only our own clock says whether we may (CLU-4)."""
        self.held.check()
        self._world.act(self._part_key, self.held.part.epoch)
        if self.permit is not None and self.permit.alive():
            self._world.act(self.permit.key, self.permit.epoch)

    def _write(self) -> None:
        """Write a step under our epoch, and under that of the lock if one is needed."""
        history, part, permit = self._process.history, self.held.part, self.permit
        call, name, steps = history.call(), self._process.node.name, self.piece.steps

        def write(tx: Tx) -> tuple[int, bool]:
            partitions.check(tx, self._process.keys, part)
            if permit is not None:
                permit.fence(tx)
            raw = tx.get(self._progress)
            completed = msgspec.msgpack.decode(raw, type=int) if raw is not None else 0
            if completed == steps:  # the previous holder wrote everything but did not report it
                return completed, False
            if permit is not None:
                history.append(tx, Mark(permit.key, permit.epoch, name, call))
            tx.set(self._progress, msgspec.msgpack.encode(completed + 1))
            history.append(
                tx, Mark(self._part_key, part.epoch, name, call, self.subject, completed + 1, steps)
            )
            return completed + 1, True

        try:
            self._done, wrote = self._world.store.run(write)
        except CommitUnknown:
            self._over = True  # unknown: stop here, and let the next holder read the progress
            self.stopping = True
            raise
        except (StoreError, LeaseLost) as error:
            history.refused(call)
            if isinstance(error, LeaseLost) and permit is not None and self.held.alive():
                self.permit = None  # the lock expired; our lease may not have
                return
            raise
        if wrote:
            history.kept(call)

    # --- the semaphore

    def _enter(self) -> float | None:
        """Get a permit; return the seconds to wait if there is none."""
        gate, semaphore = self._process.gates[self.piece.gate]
        patient = self._process.node.chance.random() < 0.15 and self._world.scheduler.depth == 0
        if patient:  # some wait inside the call
            permit = semaphore.acquire(self._process.ttl_s / 3)
            answer: HeldLease | Busy = permit if permit is not None else Busy(self._process.ttl_s / 10)
        else:
            answer = semaphore.acquire_nowait()
        if isinstance(answer, Busy):
            return min(answer.wait_s, self._process.ttl_s) + self._process.node.chance.uniform(0.0, 0.02)
        self.permit = answer
        self._process.holders.entered(gate, self._process.node, answer)
        if self.aborted:
            return 0.0
        return None

    def _leave(self) -> None:
        permit, self.permit = self.permit, None
        if permit is not None:
            with suppress(StoreError):  # then it expires
                self._process.gates[self.piece.gate][1].release(permit)

    # --- the end

    def _finish(self) -> Next:
        if self._done >= self.piece.steps:
            self._complete()
        else:
            self._process.holdings.hand_back(self.held)
        return self._end()

    def _complete(self) -> None:
        """Commit the last write together with the completion."""
        history, call = self._process.history, self._process.history.call()
        mark = Mark(self._part_key, self.held.part.epoch, self._process.node.name, call)
        try:
            self._process.holdings.complete(self.held, also=lambda tx: history.append(tx, mark))
        except CommitUnknown:
            raise
        except (StoreError, LeaseLost):
            history.refused(call)
            raise
        history.kept(call)

    def _end(self) -> Next:
        self.ended = True
        self._leave()
        if self._process.node.chance.random() < 0.3:
            after_s = self._process.ttl_s * self._process.node.chance.random()
            self._process.node.spawn("straggler", self._straggle, after_s)
        return None

    def _straggle(self) -> Next:
        """Write long after the last check of the deadline: only the fence refuses it (CLU-7)."""
        with suppress(LeaseLost, StoreError):
            self._write()
        return None
