"""A runner's supervisor: keeps the node's lease, and a child that does the work. It never runs user code.

Each child acts under an epoch of the node that no other child has. When one dies the epoch is ended at once,
so that whatever it had claimed is over, and another child is started under the next; soon, and later each
time when children die young. When the lease is lost the child is killed, and the node joins again.

SIGTERM and SIGINT drain: the child is told, finishes what it can within the grace and ends; a second signal
ends the grace. A child that ends by itself ends the runner, with its exit code.
"""

import contextlib
import os
import random
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tidemill import crash
from tidemill.clock import SYSTEM, Clock, backoff
from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.cluster.nodes import Node
from tidemill.errors import RunnerDied
from tidemill.events import Emit, Event, ignore
from tidemill.futures.home import Place
from tidemill.futures.worker.events import ChildEnded
from tidemill.futures.worker.wakeup import Wakeup
from tidemill.objects import open_objects
from tidemill.runner.child import AGAIN, Drain, Hello
from tidemill.runner.presence import OwnPresence
from tidemill.runner.slots import slot
from tidemill.store import open_store

LOOK_S = 0.2
YOUNG_S = 10.0
MOST_YOUNG = 20
"""So many children in a row that died young end the runner: more than what a part lives through that kills
them."""

KILL_AFTER_S = 10.0
"""How long after the grace a child may take to give back what it has."""


class RunnerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a runner is set up.

    - names, threads: what it offers; for the node list. The child's hands decide.
    - grace_s: for what runs when it is asked to leave.
    - most_pause_s: before another child is started, after several that died young.
    """

    names: frozenset[str] = frozenset()
    threads: int = 1
    timing: LeaseTiming = DEFAULT_TIMING
    grace_s: float = 30.0
    most_pause_s: float = 5.0


class ChildStarted(Event, frozen=True):
    """A runner has started its child, under an epoch of its own."""

    node: str
    epoch: int
    pid: int


def run_runner(
    place: Place,
    main: str,
    arguments: Mapping[str, Any],
    options: RunnerOptions,
    *,
    clock: Clock = SYSTEM,
    chance: random.Random | None = None,
    emit: Emit = ignore,
) -> int:
    """Be a runner until its child has ended by itself, or a signal has drained it; the exit code.

    From the main thread alone.

    Args:
        place: the cluster.
        main: what the child does, as `module:function`; see `child.Seat`.
        arguments: for it; plain data.
        options: how it is set up.
        clock: of everything here.
        chance: of everything here.
        emit: is told what happens.
    """
    chance = chance if chance is not None else random.Random()
    with slot(place, chance) as taken, open_store(place.store, clock=clock, chance=chance) as store:
        presence = OwnPresence(
            store,
            place.cluster,
            taken.node_id,
            epoch=taken.epoch,
            names=options.names,
            threads=options.threads,
            objects=(lambda: open_objects(place.objects, clock=clock, probe=False))
            if place.objects
            else None,
            clock=clock,
            chance=chance,
            emit=emit,
            timing=options.timing,
        )
        supervisor = Supervisor(place, main, arguments, options, presence, clock, chance, emit)
        with _signals(supervisor):
            presence.start()
            try:
                return supervisor.run()
            finally:
                supervisor.close()
                presence.close()


class Child:
    """One child process, in a session of its own, with whatever it starts."""

    def __init__(self, hello: Hello, *, life: int) -> None:
        self.node = hello.node
        self._ended, told = os.pipe()
        environment = {k: v for k, v in os.environ.items() if k != crash.ENVIRONMENT}
        if point := crash.in_life(life):
            environment[crash.ENVIRONMENT] = point
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.runner.child"],
                stdin=subprocess.PIPE,
                pass_fds=[told],
                start_new_session=True,
                env=environment,
            )
        finally:
            os.close(told)
        self.say(msgspec.structs.replace(hello, ended=told))
        self.pidfd = os.pidfd_open(self.process.pid)
        self.killed_for = ""

    def say(self, word: Hello | Drain) -> None:
        """One line on its standard input; one that is dead hears nothing."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(msgspec.json.encode(word) + b"\n")
            self.process.stdin.flush()

    def kill(self, why: str) -> None:
        """With everything that it has started."""
        self.killed_for = self.killed_for or why
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def bury(self) -> int | None:
        """After its end: its exit code if it ended by itself, None if it died. What it started goes too."""
        code = self.process.wait()
        self._kill()
        said = os.read(self._ended, 32)
        os.close(self._ended)
        os.close(self.pidfd)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        return code if said else None


class Supervisor:
    """One runner; see `run_runner`."""

    def __init__(
        self,
        place: Place,
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
        self.wakeup = Wakeup()
        self.drain_by: float | None = None
        self._told = False
        self._young = 0  # children in a row that died young
        self._epoch = -1  # of the last child
        self._lives = 0
        self._child: Child | None = None

    def run(self) -> int:
        """Start children until one ends by itself, or we drain; the exit code."""
        while True:
            node = self._node()
            if node is None:
                return 0
            began = self.clock.monotonic()
            child = self._start(node)
            self._tend(child)
            self._child = None
            code = child.bury()
            if code is not None and code != AGAIN:
                return code
            if self.drain_by is not None:
                return 0
            self._died(child, code, self.clock.monotonic() - began)

    # --- one child

    def _node(self) -> Node | None:
        """Our node under an epoch that no child has had; None when we are to leave before there is one."""
        while self.drain_by is None:
            if self.presence.broken is not None:
                raise self.presence.broken
            if self.presence.accepts() and self.presence.node.epoch != self._epoch:
                return self.presence.node
            self._wait(LOOK_S / 10)
        return None

    def _start(self, node: Node) -> Child:
        place = self.place
        hello = Hello(
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
        child = self._child = Child(hello, life=self._lives)
        self._lives += 1
        self._epoch = node.epoch
        self._told = False
        self.emit(ChildStarted(node=node.id, epoch=node.epoch, pid=child.process.pid))
        return child

    def _tend(self, child: Child) -> None:
        """Until it has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(child.pidfd, selectors.EVENT_READ)
            selector.register(self.wakeup.reader, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(LOOK_S)}
                if child.pidfd in ready:
                    return
                self.wakeup.hush()
                if not self.presence.alive() or self.presence.node.epoch != child.node.epoch:
                    child.kill("lost")
                if self.drain_by is not None:
                    self._drain(child, self.drain_by)

    def _drain(self, child: Child, by: float) -> None:
        now = self.clock.monotonic()
        if not self._told:
            self._told = True
            self.presence.drain()
            child.say(Drain(max(0.0, by - now)))
        if now > by + KILL_AFTER_S:
            child.kill("drain")

    def _died(self, child: Child, code: int | None, lived_s: float) -> None:
        """End its epoch, and wait a little if such things happen often."""
        kind = child.killed_for or ("again" if code == AGAIN else "crash")
        message = f"the child ended with {child.process.returncode} after {lived_s:.1f} s"
        self.emit(ChildEnded(node=child.node.id, pid=child.process.pid, kind=kind, message=message))
        if self.presence.node.epoch == child.node.epoch:
            self.presence.begin_again()
        if child.killed_for:
            return
        self._young = self._young + 1 if lived_s < YOUNG_S else 0
        if self._young >= MOST_YOUNG:
            raise RunnerDied(f"{self._young} times in a row {message}")
        if self._young:
            self._wait(backoff(self._young, self.chance, first_s=0.1, most_s=self.options.most_pause_s))

    def _wait(self, timeout_s: float) -> None:
        """So long, or until we are asked to leave."""
        end = self.clock.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.wakeup.reader, selectors.EVENT_READ)
            while self.drain_by is None and (left := end - self.clock.monotonic()) > 0:
                selector.select(left)
                self.wakeup.hush()

    # --- leaving

    def drain(self) -> None:
        """Leave within the grace; a second time, at once. May be called by a signal's handler."""
        now = self.clock.monotonic()
        self.drain_by = now + self.options.grace_s if self.drain_by is None else now
        self._told = False
        self.wakeup.ring()

    def close(self) -> None:
        """End what is left, if this ends by an error."""
        if self._child is not None:
            self._child.kill("close")
            self._child.bury()
        self.wakeup.close()


@contextlib.contextmanager
def _signals(supervisor: Supervisor) -> Iterator[None]:
    before = {
        number: signal.signal(number, lambda *_: supervisor.drain())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
