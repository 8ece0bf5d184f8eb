"""The child processes of a supervisor: start them, exchange messages with them, kill and reap them.

A child is a fork of the zygote, not of the supervisor, so it inherits no threads, connections or locks of the
supervisor. A child leads its own process group, so processes that a task starts end with the child. A child
ends when the supervisor ends.

Sending and receiving never block. Bytes that a child's socket does not accept at once are kept until the
socket is writable again.
"""

import contextlib
import os
import random
import selectors
import signal
import socket
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidemill.clock import Clock
from tidemill.futures.protocol.rows import Needs
from tidemill.futures.worker import memory, wire
from tidemill.futures.worker.processes import RestartPause, SupervisedProcess, describe_exit
from tidemill.futures.worker.wire import (
    Cancel,
    ChildHello,
    ChildMessage,
    Message,
    Recall,
    Resume,
    SharedPage,
    TaskBatch,
    TaskMessage,
)
from tidemill.futures.worker.zygote import Zygote

if TYPE_CHECKING:
    from tidemill.futures.worker.jobs import FutureJob

FAULT_BYTES = 16_000
LINGER_S = 0.5


class ChildExit(msgspec.Struct, frozen=True):
    """How a child ended, and which task it was running."""

    kind: str  # "crash" | "oom", or why the supervisor killed it
    message: str
    evidence: str  # the traceback that the interpreter wrote when it crashed
    running: int  # the number of the running task; 0 for none
    code: int = 0  # the exit code; negative for a signal
    ram_used: int = 0  # in bytes, if the child was killed for using too much memory


class WorkerChild(SupervisedProcess):
    """One child process, with its two sockets, its shared page and its jobs."""

    def __init__(self, zygote: Zygote, hello: ChildHello, *, actor: bytes = b"") -> None:
        super().__init__()
        self.actor = actor  # the actor that this child hosts; such a child runs nothing else
        self.jobs: dict[int, FutureJob] = {}  # sent and not ended, in the order they were sent
        self.ready = False
        self.sent_code: set[bytes] = set()  # digests of the code that was sent to it
        self.slotted = False  # it uses a slot
        self.reserved = Needs()  # how much of the node's capacity it reserves
        self.base = Needs()  # what it still reserves while it runs nothing: an actor keeps its memory
        self.recalling = False  # a recall was sent and has not been answered
        self.idle_since = 0.0
        self.ram_used = 0
        self._next = 1
        self._lingered = False  # it did not end soon after its socket was closed
        self._oom_kills = memory.kills()
        self._work_frames = wire.child_frames()
        self._control_frames = wire.child_frames()
        self._unsent = bytearray()
        self.work, child_work = socket.socketpair()
        self.control, child_control = socket.socketpair()
        page = SharedPage.make()
        self._faults = os.memfd_create("tidemill-faults")
        try:
            descriptors = (child_work.fileno(), child_control.fileno(), page, self._faults)
            self.page = SharedPage(page)
            self.pid = zygote.fork(descriptors)
        finally:
            child_work.close()
            child_control.close()
            os.close(page)
        self.work.settimeout(0.0)
        self.control.settimeout(0.0)
        self.send(hello)

    # --- to the child

    def assign(self, job: "FutureJob") -> None:
        """Add a job to the child's jobs. `send_jobs` sends it."""
        job.child, job.number = self, self._next
        self.jobs[self._next] = job
        self._next += 1

    def send_jobs(self, jobs: Iterable["FutureJob"]) -> None:
        """Send assigned jobs to the child."""
        tasks: list[TaskMessage] = []
        for job in jobs:
            digest = job.spec.code
            code = b"" if digest in self.sent_code else job.code
            self.sent_code.add(digest)
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
        """Send a message on the work socket."""
        self._unsent += wire.frame(message)
        self.flush()

    def flush(self) -> bool:
        """Write as much as the work socket accepts. Return True if no unsent bytes remain."""
        while self._unsent:
            try:
                written = self.work.send(self._unsent)
            except BlockingIOError:
                return False
            except OSError:  # the child is dead; `receive` reports it
                self._unsent.clear()
                return True
            del self._unsent[:written]
        return True

    def recall(self) -> None:
        """Recall the jobs that the child has not started."""
        low = max(self.page.running + 1, next(iter(self.jobs), 0))
        self.recalling = True
        self._send_control(Recall(low, self._next))

    def cancel(self, number: int) -> None:
        self._send_control(Cancel(number))

    def resume(self, number: int) -> None:
        self._send_control(Resume(number))

    def _send_control(self, message: Message) -> None:
        # Messages are small and the child always reads them, so the buffer is full only if the child is
        # stopped or dead.
        with contextlib.suppress(OSError):
            self.control.send(wire.frame(message))

    # --- from the child

    def receive(self) -> tuple[list[ChildMessage], bool]:
        """Return the messages on both sockets, and whether the child has closed its work socket."""
        messages, closed = self._read(self.work, self._work_frames)
        answers, _ = self._read(self.control, self._control_frames)
        return messages + answers, closed

    def _read(
        self, sock: socket.socket, frames: wire.Frames[ChildMessage]
    ) -> tuple[list[ChildMessage], bool]:
        messages: list[ChildMessage] = []
        while True:
            try:
                data = sock.recv(wire.RECEIVE_BYTES)
            except BlockingIOError:
                return messages, False
            except OSError:
                return messages, True
            if not data:
                return messages, True
            messages += frames.feed(data)
            if len(data) < wire.RECEIVE_BYTES // 2:
                return messages, False

    # --- its exit

    def reap(self, clock: Clock) -> ChildExit:
        """Wait until the child has exited, after it has closed its socket. Return how it ended.

        Also kill the processes that its tasks have started.
        """
        running = self.page.running
        code = self._wait(clock)
        evidence = os.pread(self._faults, FAULT_BYTES, 0).decode(errors="replace")
        child_exit = self._describe_exit(code, evidence, running)
        self.close()
        return child_exit

    def _wait(self, clock: Clock) -> int:
        """Wait for the exit code, in the form that `subprocess` uses: negative for a signal."""
        give_up = clock.monotonic() + LINGER_S
        while True:
            late = clock.monotonic() > give_up
            try:
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    _, status = self.reap_with(partial(os.waitpid, self.pid, 0))
                    return os.waitstatus_to_exitcode(status)
            except ChildProcessError:  # just forked: we are not its parent yet
                if late:
                    self.kill_process()
                    return -signal.SIGKILL
            if late and not self._lingered:
                # A task has closed the socket, or another process has killed the child and the kernel has not
                # removed it yet. Both are crashes, not decisions of the supervisor: record no reason.
                self._lingered = True
                self.kill_process()
            clock.sleep(0.001)

    def _describe_exit(self, code: int, evidence: str, running: int) -> ChildExit:
        if self.killed_for:
            message = f"killed by its supervisor: {self.killed_for}"
            if self.ram_used:
                message = f"killed by its supervisor: it used {self.ram_used:,} bytes of memory"
            return ChildExit(self.killed_for, message, evidence, running, code, self.ram_used)
        if -code == signal.SIGKILL and memory.kills() > self._oom_kills:
            message = "the kernel killed the process because memory ran out"
            return ChildExit("oom", message, evidence, running, code)
        message = f"the process ended: {describe_exit(code)}"
        if self._lingered:
            message += f"; it was still there {LINGER_S:g} s after it had closed its socket"
        return ChildExit("crash", message, evidence, running, code)

    def close(self) -> None:
        """Close the sockets. A child that is still running notices this and exits."""
        self.work.close()
        self.control.close()
        self.page.close()
        with contextlib.suppress(OSError):
            os.close(self._faults)


class WorkerChildren:
    """All child processes of one supervisor and their zygote, registered with the supervisor's selector."""

    def __init__(
        self, selector: selectors.BaseSelector, zygote: Zygote, clock: Clock, chance: random.Random
    ) -> None:
        self._selector = selector
        self._clock = clock
        self.zygote = zygote
        self._zygote_pause = RestartPause(clock, chance, most_s=5.0)
        self._zygote_dead = False
        self.all: list[WorkerChild] = []
        selector.register(zygote.socket, selectors.EVENT_READ, zygote)

    def start(self, hello: ChildHello, *, actor: bytes = b"") -> WorkerChild:
        """Start a child process."""
        child = WorkerChild(self.zygote, hello, actor=actor)
        self.all.append(child)
        self._selector.register(child.work, selectors.EVENT_READ, child)
        self._selector.register(child.control, selectors.EVENT_READ, child)
        return child

    def read_zygote(self) -> None:
        """Read the state of the zygote.

        Restart it if it has ended: at once if it was ready before, else after a delay.
        """
        was_ready = self.zygote.ready
        if self.zygote.read_state():
            self._zygote_pause.succeeded()
            return
        self._selector.unregister(self.zygote.socket)
        self._zygote_dead = True
        if not was_ready:
            self._zygote_pause.failed()
        self.restart_zygote()

    def restart_zygote(self) -> None:
        """Start a new zygote if the old one has ended and the restart delay is over."""
        if self._zygote_dead and not self._zygote_pause.left_s:
            self._zygote_dead = False
            self.zygote.restart()
            self._selector.register(self.zygote.socket, selectors.EVENT_READ, self.zygote)

    def watch_writes(self, child: WorkerChild) -> None:
        """Send unsent bytes. If some remain, let the selector report when the socket is writable again."""
        events = selectors.EVENT_READ if child.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
        if self._selector.get_key(child.work).events != events:
            self._selector.modify(child.work, events, child)

    def reap(self, child: WorkerChild) -> ChildExit:
        """Remove a dead child and return how it ended."""
        self._selector.unregister(child.work)
        self._selector.unregister(child.control)
        self.all.remove(child)
        return child.reap(self._clock)

    def reap_orphans(self) -> None:
        """Reap processes that tasks have started and that have ended.

        The supervisor became their parent when the child that started them ended (see `zygote`).
        """
        supervised = {child.pid for child in self.all} | {self.zygote.pid}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in supervised:
                    return
                os.waitpid(ended.si_pid, 0)

    def kill_all(self, why: str) -> None:
        """Kill every child. Any thread may call this."""
        for child in list(self.all):
            child.kill(why)

    def close(self) -> None:
        """Kill all children and the zygote."""
        self.kill_all("the worker ends")
        for child in list(self.all):
            self.reap(child)
        self.zygote.close()
