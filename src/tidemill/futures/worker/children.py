"""Child processes, as their supervisor sees them: started, given work, asked, killed, and judged when dead.

A child is a fork of the zygote and not of us: threads, connections and locks of the supervisor are not its
business. It leads a process group of its own, so that what a task has started ends with it, and it ends when
the supervisor does.

Nothing here waits: what a child cannot take at once is kept until its line can be written again.
"""

import contextlib
import os
import random
import selectors
import signal
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from tidemill.clock import Clock
from tidemill.futures.protocol.rows import Needs
from tidemill.futures.worker import memory, wire
from tidemill.futures.worker.processes import RestartPause, SupervisedProcess
from tidemill.futures.worker.wire import (
    Cancel,
    ChildHello,
    Message,
    Recall,
    Resume,
    SharedPage,
    TaskBatch,
    TaskMessage,
    Up,
)
from tidemill.futures.worker.zygote import Zygote

if TYPE_CHECKING:
    from tidemill.futures.worker.jobs import FutureJob

FAULT_BYTES = 16_000
LINGER_S = 0.5


class ChildExit(msgspec.Struct, frozen=True):
    """How a child ended, and what it was doing."""

    kind: str  # "crash" | "oom", or why we killed it
    message: str
    evidence: str  # what the interpreter wrote when it died
    running: int  # the number of the task it was executing; 0 for none
    code: int = 0  # negative for a signal
    ram_used: int = 0  # bytes, when it was killed for them


class WorkerChild(SupervisedProcess):
    """One child process with its two sockets, its page and the jobs it has been sent."""

    def __init__(self, zygote: Zygote, hello: ChildHello, *, actor: bytes = b"") -> None:
        super().__init__()
        self.actor = actor  # a child that is one actor does nothing else
        self.jobs: dict[int, FutureJob] = {}  # sent and not ended, in the order they were sent
        self.ready = False
        self.known: set[bytes] = set()  # digests of code it has been sent
        self.slotted = False  # it uses a slot
        self.reserved = Needs()  # what it takes of the node
        self.base = Needs()  # what it takes of it while it runs nothing: an actor keeps its memory
        self.recalling = False  # it was asked to give jobs back, and has not answered
        self.idle_since = 0.0
        self.ram_used = 0
        self._next = 1
        self._oom_kills = memory.kills()
        self._frames = wire.ups()
        self._orders = wire.ups()
        self._unsent = bytearray()
        self.work, theirs = socket.socketpair()
        self.control, their_control = socket.socketpair()
        page = SharedPage.make()
        self._faults = os.memfd_create("tidemill-faults")
        try:
            passed = (theirs.fileno(), their_control.fileno(), page, self._faults)
            self.page = SharedPage(page)
            self.pid = zygote.fork(passed)
        finally:
            theirs.close()
            their_control.close()
            os.close(page)
        self.work.settimeout(0.0)
        self.control.settimeout(0.0)
        self.send(hello)

    # --- down

    def take(self, job: "FutureJob") -> None:
        """Put a job behind those it has; it is sent with `give`."""
        job.child, job.number = self, self._next
        self.jobs[self._next] = job
        self._next += 1

    def give(self, jobs: Iterable["FutureJob"]) -> None:
        """Send jobs that it took."""
        tasks: list[TaskMessage] = []
        for job in jobs:
            digest = job.spec.code
            code = b"" if digest in self.known else job.code
            self.known.add(digest)
            tasks.append(
                TaskMessage(
                    number=job.number,
                    epoch=job.claim.epoch,
                    spec=job.spec_raw,
                    inputs=job.inputs,
                    code=code,
                    ram=job.needs.ram,
                )
            )
        self.send(TaskBatch(tasks))

    def send(self, message: Message) -> None:
        """Say something on the work line."""
        self._unsent += wire.frame(message)
        self.flush()

    def flush(self) -> bool:
        """Write what the line takes; True when nothing is left."""
        while self._unsent:
            try:
                written = self.work.send(self._unsent)
            except BlockingIOError:
                return False
            except OSError:  # it is dead; whoever reads its line will find out
                self._unsent.clear()
                return True
            del self._unsent[:written]
        return True

    def recall(self) -> None:
        """Ask it not to begin what it has not begun."""
        low = max(self.page.running + 1, next(iter(self.jobs), 0))
        self.recalling = True
        self._order(Recall(low, self._next))

    def cancel(self, number: int) -> None:
        self._order(Cancel(number))

    def resume(self, number: int) -> None:
        self._order(Resume(number))

    def _order(self, message: Message) -> None:
        # A few bytes on a line that is always read: it is full only when the child is stopped or dead.
        with contextlib.suppress(OSError):
            self.control.send(wire.frame(message))

    # --- up

    def receive(self) -> tuple[list[Up], bool]:
        """What it has said on both lines, and whether it is gone."""
        said, gone = self._read(self.work, self._frames)
        answers, _ = self._read(self.control, self._orders)
        return said + answers, gone

    def _read(self, line: socket.socket, frames: wire.Frames[Up]) -> tuple[list[Up], bool]:
        found: list[Up] = []
        while True:
            try:
                data = line.recv(wire.RECEIVE_BYTES)
            except BlockingIOError:
                return found, False
            except OSError:
                return found, True
            if not data:
                return found, True
            found += frames.feed(data)
            if len(data) < wire.RECEIVE_BYTES // 2:
                return found, False

    # --- the end

    def bury(self, clock: Clock) -> ChildExit:
        """Its line is closed: end what is left of it, and say how it ended."""
        running = self.page.running
        code = self._wait(clock)
        self.kill_group()  # what its tasks have started
        evidence = os.pread(self._faults, FAULT_BYTES, 0).decode(errors="replace")
        end = self._judge(code, evidence, running)
        self.close()
        return end

    def _wait(self, clock: Clock) -> int:
        """Its exit code, as `subprocess` gives it: negative for a signal."""
        give_up = clock.monotonic() + LINGER_S
        while True:
            late = clock.monotonic() > give_up
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    return os.waitstatus_to_exitcode(status)
            except ChildProcessError:  # just forked, and not given to us yet
                if late:
                    return -signal.SIGKILL
            if late:  # it closed its line and lives on
                self.kill("it closed its line")
            clock.sleep(0.001)

    def _judge(self, code: int, evidence: str, running: int) -> ChildExit:
        if self.killed_for:
            message = f"ended by its supervisor: {self.killed_for}"
            if self.ram_used:
                message = f"ended by its supervisor: it took {self.ram_used:,} bytes"
            return ChildExit(self.killed_for, message, evidence, running, code, self.ram_used)
        if code >= 0:
            return ChildExit("crash", f"the process ended with exit code {code}", evidence, running, code)
        if -code == signal.SIGKILL and memory.kills() > self._oom_kills:
            message = "the kernel killed the process for want of memory"
            return ChildExit("oom", message, evidence, running, code)
        return ChildExit("crash", f"the process ended by {_signal_name(-code)}", evidence, running, code)

    def close(self) -> None:
        """Let go of its lines; a child that still runs ends by itself."""
        self.work.close()
        self.control.close()
        self.page.close()
        with contextlib.suppress(OSError):
            os.close(self._faults)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class WorkerChildren:
    """All child processes of one supervisor, and the selector that waits for their words."""

    def __init__(
        self, selector: selectors.BaseSelector, zygote: Zygote, clock: Clock, chance: random.Random
    ) -> None:
        self._selector = selector
        self._clock = clock
        self.zygote = zygote
        self._zygote_pause = RestartPause(clock, chance, most_s=5.0)
        self._zygote_dead = False
        self.all: list[WorkerChild] = []
        selector.register(zygote.line, selectors.EVENT_READ, zygote)

    def start(self, hello: ChildHello, *, actor: bytes = b"") -> WorkerChild:
        """Start a process."""
        child = WorkerChild(self.zygote, hello, actor=actor)
        self.all.append(child)
        self._selector.register(child.work, selectors.EVENT_READ, child)
        self._selector.register(child.control, selectors.EVENT_READ, child)
        return child

    def hear_zygote(self) -> None:
        """It is ready, or it is dead and another one is started: at once, if it had been ready."""
        was_ready = self.zygote.ready
        if self.zygote.hear():
            self._zygote_pause.succeeded()
            return
        self._selector.unregister(self.zygote.line)
        self._zygote_dead = True
        if not was_ready:
            self._zygote_pause.failed()
        self.revive_zygote()

    def revive_zygote(self) -> None:
        """Start a new zygote when the old one is dead and it is time to."""
        if self._zygote_dead and not self._zygote_pause.left_s:
            self._zygote_dead = False
            self.zygote.revive()
            self._selector.register(self.zygote.line, selectors.EVENT_READ, self.zygote)

    def watch_writes(self, child: WorkerChild) -> None:
        """Have the selector say when a line can be written again, as long as something is unsent."""
        events = selectors.EVENT_READ if child.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
        if self._selector.get_key(child.work).events != events:
            self._selector.modify(child.work, events, child)

    def bury(self, child: WorkerChild) -> ChildExit:
        """Take a dead child off the list; how it ended."""
        self._selector.unregister(child.work)
        self._selector.unregister(child.control)
        self.all.remove(child)
        return child.bury(self._clock)

    def reap_orphans(self) -> None:
        """Processes that tasks started and left behind are ours when they end (see `zygote`)."""
        ours = {child.pid for child in self.all} | {self.zygote.pid}
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid in ours:
                    return
                os.waitpid(found.si_pid, 0)

    def kill_all(self, why: str) -> None:
        """End every child at once; may be called from any thread."""
        for child in list(self.all):
            child.kill(why)

    def close(self) -> None:
        """End them all, and the zygote."""
        self.kill_all("the worker ends")
        for child in list(self.all):
            self.bury(child)
        self.zygote.close()
