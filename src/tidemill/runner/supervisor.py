"""The supervisor of a runner: renews the node's lease and keeps a child running. It runs no user code.

Each child runs under a new epoch of the node. When a child dies, its epoch and all its claims end at once,
and another child starts under the next epoch. If children keep dying soon after their start, the supervisor
waits longer before each restart. When the lease is lost, the supervisor kills the child, and the node joins
again.

SIGTERM and SIGINT drain the runner: the child finishes its running work within the grace period, and ends. A
second signal ends the grace period. If a child ends by itself, the runner ends with the child's exit code. A
child whose Spark has died requests another child. If a signal ends a runner before its work is done, the exit
code is 128 plus the number of the signal.
"""

import contextlib
import os
import random
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill import crash
from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.errors import RunnerDied
from tidemill.events import Emit, Event, ignore
from tidemill.futures.home import ClusterAddress
from tidemill.futures.worker.events import ChildEnded
from tidemill.futures.worker.processes import (
    RestartPause,
    SupervisedProcess,
    describe_exit,
    drained_by_signals,
)
from tidemill.futures.worker.wakeup import LoopWakeup
from tidemill.objects import open_objects
from tidemill.runner.child import INTERRUPTED, MAX_REASON_BYTES, RESTART, Drain, RunnerHello
from tidemill.runner.presence import OwnPresence
from tidemill.runner.slots import slot
from tidemill.runner.stderr_relay import StderrRelay
from tidemill.store import open_store

CHECK_EVERY_S = 0.2
EARLY_S = 10.0
"""If a child dies within this time after its start, this counts as an early death."""

MOST_EARLY = 20
"""The runner ends after this many early deaths in a row. A part that kills its runner is quarantined after
fewer deaths."""

KILL_AFTER_S = 10.0
"""How long after the grace period a child may take to return its claims."""


class RunnerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a runner.

    - names, threads: the resources and threads that its entry in the node list offers. The worker in the
      child decides what to claim.
    - grace_s: how long running futures may take to end when the runner drains.
    - most_pause_s: the longest pause before a restart, after early deaths.
    - finishes: whether the child ends when its work is done. If a signal comes before that, the runner
      reports that it was interrupted.
    """

    names: frozenset[str] = frozenset()
    threads: int = 1
    timing: LeaseTiming = DEFAULT_TIMING
    grace_s: float = 30.0
    most_pause_s: float = 5.0
    finishes: bool = False


class RunnerInterrupted(Event, frozen=True):
    """A signal ended a runner before a child had reported its result."""

    node: str


class ChildStarted(Event, frozen=True):
    """A runner has started its child, under a new epoch."""

    node: str
    epoch: int
    pid: int


def run_runner(
    place: ClusterAddress,
    main: str,
    arguments: Mapping[str, Any],
    options: RunnerOptions,
    *,
    clock: Clock = SYSTEM,
    chance: random.Random | None = None,
    emit: Emit = ignore,
) -> int:
    """Run until the child ends by itself, or a signal drains the runner; return the exit code.

    Call this from the main thread.

    Args:
        place: the cluster.
        main: the function that the child calls, as `module:function`; it gets a `child.ChildContext`.
        arguments: plain data for that function.
        options: the settings.
        clock: the source of time.
        chance: the source of random numbers.
        emit: receives the events.
    """
    chance = chance if chance is not None else random.Random()
    with slot(place, chance) as own_slot, open_store(place.store, clock=clock, chance=chance) as store:
        context = ClusterContext(
            store=store,
            cluster=place.cluster,
            clock=clock,
            chance=chance,
            emit=emit,
            timing=options.timing,
        )
        presence = OwnPresence(
            context,
            own_slot.node_id,
            epoch=own_slot.epoch,
            names=options.names,
            threads=options.threads,
            objects=(lambda: open_objects(place.objects, clock=clock, probe=False))
            if place.objects
            else None,
        )
        supervisor = RunnerSupervisor(place, main, arguments, options, presence, clock, chance, emit)
        with drained_by_signals(supervisor, supervisor.wakeup) as signals:
            presence.start()
            try:
                code = supervisor.run()
                # The child may have received the signal alone, such as Ctrl-C in a group of processes.
                return 128 + (signals[0] if signals else signal.SIGINT) if code == INTERRUPTED else code
            finally:
                supervisor.close()
                presence.close()


class SparkChild(SupervisedProcess):
    """The child process of a runner, in which the Spark session runs."""

    def __init__(self, hello: RunnerHello, *, life: int) -> None:
        super().__init__()
        self.node = hello.node
        self.reason = ""  # why it requested a new process
        self.relay = StderrRelay()
        self._ended, child_end = os.pipe()
        environment = {k: v for k, v in os.environ.items() if k != crash.ENVIRONMENT}
        if point := crash.in_run(life):
            environment[crash.ENVIRONMENT] = point
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.runner.child"],
                stdin=subprocess.PIPE,
                stderr=self.relay.writer,
                pass_fds=[child_end],
                start_new_session=True,
                env=environment,
            )
        finally:
            os.close(child_end)
            self.relay.start()
        self.pid = self.process.pid
        self.send(msgspec.structs.replace(hello, ended=child_end))
        self.pidfd = os.pidfd_open(self.pid)

    def send(self, message: RunnerHello | Drain) -> None:
        """Write a message to the child's standard input. Do nothing if the child is dead."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(msgspec.json.encode(message) + b"\n")
            self.process.stdin.flush()

    def reap(self) -> int | None:
        """Wait until the child ends, and kill the processes that it started.

        Return the exit code that the child reported, or None if it died before that. A child that is killed
        after its report, for example because it takes too long to end, has still done its work.
        """
        os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        self.reap_with(self.process.wait)
        self.relay.close()
        written = os.read(self._ended, 2 * MAX_REASON_BYTES)
        code, _, reason = written.partition(b"\n")
        self.reason = reason.decode(errors="replace")
        os.close(self._ended)
        os.close(self.pidfd)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        return int(code) if code else None


class RunnerSupervisor:
    """Supervises the child process of one runner; see `run_runner`."""

    def __init__(
        self,
        place: ClusterAddress,
        main: str,
        arguments: Mapping[str, Any],
        options: RunnerOptions,
        presence: OwnPresence,
        clock: Clock,
        chance: random.Random,
        emit: Emit,
    ) -> None:
        self.place = place
        self.main = main
        self.arguments = dict(arguments)
        self.options = options
        self.presence = presence
        self.clock = clock
        self.chance = chance
        self.emit = emit
        self.wakeup = LoopWakeup()
        self.drain_by: float | None = None
        self._drain_sent = False
        self._pause = RestartPause(clock, chance, most_s=options.most_pause_s)
        self._epoch = -1  # the epoch of the last child
        self._starts = 0
        self._child: SparkChild | None = None

    def run(self) -> int:
        """Start children until one of them ends by itself, or the runner drains. Return the exit code."""
        while True:
            node = self._node()
            if node is None:
                return self._drained()
            started_at = self.clock.monotonic()
            child = self._start(node)
            self._watch(child)
            self._child = None
            code = child.reap()
            if code is not None and code != RESTART:
                return code
            if self.drain_by is not None:
                return self._drained()
            self._died(child, code, self.clock.monotonic() - started_at)

    def _drained(self) -> int:
        """Return the exit code of a drained runner whose child reported no result."""
        if not self.options.finishes:
            return 0
        self.emit(RunnerInterrupted(node=self.presence.node.id))
        return INTERRUPTED

    # --- one child

    def _node(self) -> Node | None:
        """Wait until our node has a new epoch, and return the node; None if the runner drains first."""
        while self.drain_by is None:
            if self.presence.broken is not None:
                raise self.presence.broken
            if self.presence.accepts() and self.presence.node.epoch != self._epoch:
                return self.presence.node
            self._wait(CHECK_EVERY_S / 10)
        return None

    def _start(self, node: Node) -> SparkChild:
        place = self.place
        hello = RunnerHello(
            main=self.main,
            arguments=self.arguments,
            store=place.store,
            objects=place.objects,
            cluster=place.cluster,
            home=place.home,
            secret=place.key.secret,
            node=node,
            parent=os.getpid(),
            ended=-1,
            timing=self.options.timing,
            grace_s=self.options.grace_s,
            path=sys.path,
        )
        child = self._child = SparkChild(hello, life=self._starts)
        self._starts += 1
        self._epoch = node.epoch
        self._drain_sent = False
        self.emit(ChildStarted(node=node.id, epoch=node.epoch, pid=child.pid))
        return child

    def _watch(self, child: SparkChild) -> None:
        """Wait until the child has ended. Kill the child when the node's lease is lost."""
        with selectors.DefaultSelector() as selector:
            selector.register(child.pidfd, selectors.EVENT_READ)
            selector.register(self.wakeup.reader, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(CHECK_EVERY_S)}
                if child.pidfd in ready:
                    return
                self.wakeup.clear()
                if not self.presence.alive() or self.presence.node.epoch != child.node.epoch:
                    child.kill("lost")
                if self.drain_by is not None:
                    self._drain(child, self.drain_by)

    def _drain(self, child: SparkChild, deadline: float) -> None:
        now = self.clock.monotonic()
        if not self._drain_sent:
            self._drain_sent = True
            self.presence.drain()
            child.send(Drain(max(0.0, deadline - now)))
        if now > deadline + KILL_AFTER_S:
            child.kill("drain")

    def _died(self, child: SparkChild, code: int | None, lived_s: float) -> None:
        """End the epoch of a child that died, and pause if children keep dying early."""
        kind = child.killed_for or ("again" if code == RESTART else "crash")
        how = child.reason or f"the process {child.pid} ended: {describe_exit(child.process.returncode)}"
        cause = f" ({child.relay.cause})" if child.relay.cause else ""
        message = f"{how}{cause}, {lived_s:.1f} s after its start"
        self.emit(ChildEnded(node=child.node.id, pid=child.pid, kind=kind, message=message))
        if self.presence.node.epoch == child.node.epoch:
            self.presence.begin_again()
        if child.killed_for:
            return
        if lived_s >= EARLY_S:
            self._pause.succeeded()
            return
        self._pause.failed()
        if self._pause.failures >= MOST_EARLY:
            raise RunnerDied(
                f"{self._pause.failures} child processes in a row ended less than {EARLY_S:.0f} s after they"
                f" started. The last: {message}"
            )
        self._wait(self._pause.left_s)

    def _wait(self, timeout_s: float) -> None:
        """Wait this long, or until the runner drains."""
        end = self.clock.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.wakeup.reader, selectors.EVENT_READ)
            while self.drain_by is None and (left := end - self.clock.monotonic()) > 0:
                selector.select(left)
                self.wakeup.clear()

    # --- draining

    @property
    def draining(self) -> bool:
        return self.drain_by is not None

    def drain(self) -> None:
        """Drain the runner within the grace period. Idempotent; a signal handler may call this."""
        if not self.draining:
            self._leave_by(self.clock.monotonic() + self.options.grace_s)

    def hurry(self) -> None:
        """Drain the runner without a grace period, or end the grace period now."""
        self._leave_by(self.clock.monotonic())

    def _leave_by(self, deadline: float) -> None:
        self.drain_by = deadline
        self._drain_sent = False
        self.wakeup.wake()

    def close(self) -> None:
        """Kill the child if it still runs after an error."""
        if self._child is not None:
            self._child.kill("close")
            self._child.reap()
        self.wakeup.close()
