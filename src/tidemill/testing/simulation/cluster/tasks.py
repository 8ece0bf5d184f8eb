"""The host of a simulated node and its tasks: threads that work on partitions, some of them under a lock."""

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from tidemill.cluster import partitions
from tidemill.cluster.holdings import HeldPartition, Host
from tidemill.cluster.keeper import Held
from tidemill.cluster.leases import Busy
from tidemill.errors import CommitUnknown, LeaseLost, StoreError
from tidemill.store import Space, Tx
from tidemill.testing.simulation.cluster.history import Mark
from tidemill.testing.simulation.cluster.plan import PlannedPiece
from tidemill.testing.simulation.scheduler import Next, SimulatedThread

if TYPE_CHECKING:
    from tidemill.testing.simulation.cluster.process import Process


class SimHost(Host):
    """Starts, stops and aborts tasks; like a real one it only tells them, and they act in their own time."""

    def __init__(self, process: "Process") -> None:
        self.tasks: dict[tuple[str, str], SimTask] = {}
        self._process = process

    def start(self, held: HeldPartition) -> None:
        key = held.part.group, held.part.id
        old = self.tasks.get(key)
        if old is not None and not old.told_to_end:
            raise self._process.world.violated(f"{key} is started, and its last task was never told to end")
        task = self.tasks[key] = SimTask(self._process, held)
        task.actor = self._process.node.spawn(f"task {held.part.id}", task.step, task.piece.step_s)

    def stop(self, held: HeldPartition) -> None:
        task = self._task(held)
        if task is not None:
            task.stopping = True
            idle = not task.actor.busy and not task.piece.stubborn
            if idle and self._process.node.chance.random() < 0.3:  # some hosts hand back within the call
                self._process.holdings.hand_back(held)
                task.aborted = True
            self._process.node.wake(task.actor)

    def abort(self, held: HeldPartition) -> None:
        task = self._task(held)
        if task is not None:
            task.aborted = True
            self._process.node.wake(task.actor)

    def _task(self, held: HeldPartition) -> "SimTask | None":
        task = self.tasks.get((held.part.group, held.part.id))
        return task if task is not None and task.held is held else None


class SimTask:
    """Works on one partition step by step: acts, then writes under its epoch, and hands on or completes."""

    actor: SimulatedThread

    def __init__(self, process: "Process", held: HeldPartition) -> None:
        self.held = held
        self.piece = msgspec.msgpack.decode(held.part.payload, type=PlannedPiece)
        self.subject = f"{held.part.group}/{held.part.id}#{self.piece.round}"
        self.stopping = False
        self.aborted = False
        self.ended = False
        self._process = process
        self._world = process.world
        self.permit: Held | None = None
        self._done = 0
        self._over = False  # all its writes are made, or it gives up: only the end is left
        self._progress = Space(process.keys.cluster, "progress")[self.subject]
        self._part_key = process.part_keys[held.part.group, held.part.id]

    @property
    def told_to_end(self) -> bool:
        return self.ended or self.aborted or self._over

    def step(self) -> Next:
        """One step, as its thread takes it."""
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
        """Do something in the world: nothing but our own clock tells us that we may (CLU-4)."""
        self.held.check()
        self._world.act(self._part_key, self.held.part.epoch)
        if self.permit is not None and self.permit.alive():
            self._world.act(self.permit.key, self.permit.epoch)

    def _write(self) -> None:
        """Write a step under our epoch, and under the lock's when we need one."""
        history, part, permit = self._process.history, self.held.part, self.permit
        call, name, steps = history.call(), self._process.node.name, self.piece.steps

        def write(tx: Tx) -> tuple[int, bool]:
            partitions.check(tx, self._process.keys, part)
            if permit is not None:
                permit.fence(tx)
            raw = tx.get(self._progress)
            done = msgspec.msgpack.decode(raw, type=int) if raw is not None else 0
            if done == steps:  # the previous holder wrote everything but did not report it
                return done, False
            if permit is not None:
                history.append(tx, Mark(permit.key, permit.epoch, name, call))
            tx.set(self._progress, msgspec.msgpack.encode(done + 1))
            history.append(tx, Mark(self._part_key, part.epoch, name, call, self.subject, done + 1, steps))
            return done + 1, True

        try:
            self._done, wrote = self._world.store.run(write)
        except CommitUnknown:
            self._over = True  # unknown: stop here, and let the next holder read the progress
            self.stopping = True
            raise
        except (StoreError, LeaseLost) as error:
            history.refused(call)
            if isinstance(error, LeaseLost) and permit is not None and self.held.alive():
                self.permit = None  # the lock's time was over; ours may not be
                return
            raise
        if wrote:
            history.kept(call)

    # --- the gate

    def _enter(self) -> float | None:
        """Get a permit; the seconds to wait when there is none."""
        gate, semaphore = self._process.gates[self.piece.gate]
        patient = self._process.node.chance.random() < 0.15 and self._world.scheduler.depth == 0
        if patient:  # some wait for it inside the call, as a thread would
            held = semaphore.acquire(self._process.ttl_s / 3)
            answer: Held | Busy = held if held is not None else Busy(self._process.ttl_s / 10)
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
            with suppress(StoreError):  # then it runs out by itself
                self._process.gates[self.piece.gate][1].release(permit)

    # --- the end

    def _finish(self) -> Next:
        if self._done >= self.piece.steps:
            self._complete()
        else:
            self._process.holdings.hand_back(self.held)
        return self._end()

    def _complete(self) -> None:
        """The last write commits with the end, or not at all."""
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
        """A thread that passed its check long ago still writes; only the fence stops it (CLU-7)."""
        with suppress(LeaseLost, StoreError):
            self._write()
        return None
