"""A child process: runs the tasks its supervisor sends, one after the other.

It is a fork of the zygote. The main thread reads the work line and runs tasks; a thread listens to the
control line (`wire`). What is imported here is imported by the zygote too, which must not
start threads: large libraries are imported when a task needs them.
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
    """Be a child until the supervisor hangs up.

    Args:
        descriptors: work line, control line, page, and a file for what the interpreter says when it dies.
        supervisor: its process id.
    """
    work, control, page, faults = descriptors
    prctl(PR_SET_NAME, b"tidemill-child")
    die_with_parent(supervisor)
    faulthandler.enable(file=faults)
    child = ChildProcess(socket.socket(fileno=work), socket.socket(fileno=control), SharedPage(page))
    os.close(page)
    child.run()
    # Whatever a task has left running here is over: no thread of its, and no exit function, holds us back.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class ChildProcess:
    """The two lines, and the task between them."""

    def __init__(self, work: socket.socket, control: socket.socket, page: SharedPage) -> None:
        self.work = work
        self.control = control
        self.page = page
        self._say_lock = threading.Lock()  # tasks may speak from threads of their own
        self._begin_lock = threading.Lock()
        self._running = 0
        self._recalled: set[int] = set()
        self._cancelled: set[int] = set()
        self._context: TaskContext | None = None

    def say(self, message: Message) -> None:
        data = wire.frame(message)
        with self._say_lock:
            self.work.sendall(data)

    def run(self) -> None:
        """Read work and do it until the line is closed."""
        frames = wire.downs()
        first = wire.receive(self.work, frames)
        if not first:
            return
        hello, *messages = first
        assert isinstance(hello, ChildHello)
        site = WorkerSite(hello)
        runner = TaskRunner(site)
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.say(Ready())
            while True:
                for message in messages:
                    assert isinstance(message, TaskBatch)
                    for task in message.tasks:
                        self._one(runner, site, task)
                messages = wire.receive(self.work, frames)
                if not messages:
                    return

    def _one(self, runner: TaskRunner, site: WorkerSite, task: TaskMessage) -> None:
        number = task.number
        with self._begin_lock:
            if number in self._recalled:
                self._recalled.discard(number)
                runner.learn(task)
                return
            self._running = number
        used = memory.used_bytes() if task.ram else 0
        self.page.begin(number, int(SYSTEM.monotonic() * 1_000_000), used)
        outcome = runner.run(
            task, lambda spec: self._enter(TaskContext(number, task.epoch, spec, site, self.page, self.say))
        )
        self._leave(number)
        self.say(outcome)
        self.page.end()  # after the answer: who dies before it was still executing

    def _enter(self, task: TaskContext) -> TaskContext:
        with self._begin_lock:
            self._context = task
            if task.number in self._cancelled:
                task.tell_cancel()
        task_context.enter(task)
        return task

    def _leave(self, number: int) -> None:
        with self._begin_lock:
            self._context = None
            self._cancelled.discard(number)
        task_context.enter(None)

    # --- the control line

    def _listen(self) -> None:
        frames = wire.orders()
        while True:
            try:
                messages = wire.receive(self.control, frames)
            except OSError:
                messages = []
            if not messages:
                os._exit(1)  # the supervisor is gone: nobody wants the result
            for message in messages:
                match message:
                    case Recall():
                        self._recall(message)
                    case Cancel():
                        self._cancel(message.number)
                    case Resume():
                        if (task := self._context) is not None and task.number == message.number:
                            task.tell_resume()

    def _recall(self, recall: Recall) -> None:
        with self._begin_lock:
            low = max(recall.low, self._running + 1)
            self._recalled.update(range(low, recall.high))
        with contextlib.suppress(OSError):
            self.control.sendall(wire.frame(Recalled(low, recall.high)))

    def _cancel(self, number: int) -> None:
        with self._begin_lock:
            if self._context is not None and self._context.number == number:
                self._context.tell_cancel()
            elif number >= self._running:
                self._cancelled.add(number)
