"""The child process of a worker: runs the tasks that its supervisor sends, one at a time.

The child is a fork of the zygote. Its main thread reads the work socket and runs tasks; another thread reads
the control socket (`wire`). The zygote imports this module, and the zygote must not start threads. Large
libraries may start threads, so this module imports them only when a task needs them.
"""

import contextlib
import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Sequence

from tidemill.clock import SYSTEM
from tidemill.futures.worker import memory, task_context, wire
from tidemill.futures.worker.processes import PR_SET_NAME, die_with_parent, prctl
from tidemill.futures.worker.task import TaskRunner
from tidemill.futures.worker.task_context import TaskContext, WorkerSite
from tidemill.futures.worker.wire import (
    Cancel,
    ChildHello,
    Message,
    Ready,
    Recall,
    Recalled,
    Resume,
    SharedPage,
    TaskBatch,
    TaskMessage,
)


def main(descriptors: Sequence[int], supervisor: int) -> None:
    """Run tasks until the supervisor closes its sockets.

    Args:
        descriptors: work socket, control socket, shared page, and a file for the traceback of a crash.
        supervisor: the supervisor's process id.
    """
    work, control, page, faults = descriptors
    prctl(PR_SET_NAME, b"tidemill-child")
    die_with_parent(supervisor)
    faulthandler.enable(file=faults)
    child = ChildProcess(socket.socket(fileno=work), socket.socket(fileno=control), SharedPage(page))
    os.close(page)
    child.run()
    # Exit at once: do not wait for threads that tasks have started, and run no exit handlers.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class ChildProcess:
    """Receives tasks and control messages, runs the tasks and sends their outcomes."""

    def __init__(self, work: socket.socket, control: socket.socket, page: SharedPage) -> None:
        self.work = work
        self.control = control
        self.page = page
        self._send_lock = threading.Lock()  # threads of a task may send too
        self._begin_lock = threading.Lock()
        self._running = 0
        self._recalled: set[int] = set()
        self._cancelled: set[int] = set()
        self._context: TaskContext | None = None

    def send(self, message: Message) -> None:
        data = wire.frame(message)
        with self._send_lock:
            self.work.sendall(data)

    def run(self) -> None:
        """Receive and run tasks until the work socket is closed."""
        frames = wire.work_frames()
        first = wire.receive(self.work, frames)
        if not first:
            return
        hello, *messages = first
        assert isinstance(hello, ChildHello)
        site = WorkerSite(hello)
        runner = TaskRunner(site)
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send(Ready())
            while True:
                for message in messages:
                    assert isinstance(message, TaskBatch)
                    for task in message.tasks:
                        self._run_task(runner, site, task)
                messages = wire.receive(self.work, frames)
                if not messages:
                    return

    def _run_task(self, runner: TaskRunner, site: WorkerSite, task: TaskMessage) -> None:
        number = task.number
        with self._begin_lock:
            if number in self._recalled:
                self._recalled.discard(number)
                runner.keep_code(task)
                return
            self._running = number
        used = memory.used_bytes() if task.ram else 0
        self.page.begin(number, int(SYSTEM.monotonic() * 1_000_000), used)
        outcome = runner.run(
            task, lambda spec: self._enter(TaskContext(number, task.epoch, spec, site, self.page, self.send))
        )
        self._leave(number)
        self.send(outcome)
        self.page.end()  # only now: if the child dies before this, it counts as still running the task

    def _enter(self, task: TaskContext) -> TaskContext:
        with self._begin_lock:
            self._context = task
            if task.number in self._cancelled:
                task.set_cancelled()
        task_context.enter(task)
        return task

    def _leave(self, number: int) -> None:
        with self._begin_lock:
            self._context = None
            self._cancelled.discard(number)
        task_context.enter(None)

    # --- the control socket

    def _listen(self) -> None:
        frames = wire.control_frames()
        while True:
            try:
                messages = wire.receive(self.control, frames)
            except OSError:
                messages = []
            if not messages:
                os._exit(1)  # the supervisor has ended, so the result cannot be delivered
            for message in messages:
                match message:
                    case Recall():
                        self._recall(message)
                    case Cancel():
                        self._cancel(message.number)
                    case Resume():
                        if (task := self._context) is not None and task.number == message.number:
                            task.set_resumed()

    def _recall(self, recall: Recall) -> None:
        with self._begin_lock:
            low = max(recall.low, self._running + 1)
            self._recalled.update(range(low, recall.high))
        with contextlib.suppress(OSError):
            self.control.sendall(wire.frame(Recalled(low, recall.high)))

    def _cancel(self, number: int) -> None:
        with self._begin_lock:
            if self._context is not None and self._context.number == number:
                self._context.set_cancelled()
            elif number >= self._running:
                self._cancelled.add(number)
