"""The zygote: a process that imports everything children need, and then only forks children.

    python -m tidemill.futures.worker.zygote SOCKET SUPERVISOR

A fork of the zygote starts within milliseconds and shares the zygote's memory. A new interpreter would take a
fifth of a second while a caller waits. Forking is safe in the zygote and nowhere else in a worker: the zygote
has one thread, no connections and no locks, and imports nothing that starts threads.

The zygote forks twice, and the intermediate process exits at once. The kernel then makes the supervisor (a
*subreaper*) the parent of the child, so the supervisor is notified when the child ends.
"""

import gc
import importlib
import os
import signal
import socket
import subprocess
import sys

from tidemill.errors import FutureError
from tidemill.futures.worker.processes import PR_SET_CHILD_SUBREAPER, PR_SET_NAME, die_with_parent, prctl

DESCRIPTORS = 4
ANSWER_S = 5.0
READY = b"ready..."

PRELOADED = (
    "tidemill.futures.worker.child",
    "tidemill.futures.values.segment_writer",
    "tidemill.futures.values.flight",
    "tidemill.futures.values.result_storage",
    "tidemill.futures.client.client",
    "tidemill.store.sqlite",
)
"""Modules that tasks need, imported once instead of in each child. None of them starts threads."""


class Zygote:
    """The supervisor's connection to its zygote. The constructor starts the process; `restart` replaces it.

    The socket becomes readable when the zygote is ready, and again when the zygote has ended.
    """

    def __init__(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.ready = False
        self._start()

    def _start(self) -> None:
        self.socket, zygote_socket = socket.socketpair()
        self.socket.settimeout(ANSWER_S)
        with zygote_socket:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tidemill.futures.worker.zygote",
                    str(zygote_socket.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=2,  # output of tasks goes to standard error; standard output is the supervisor's
                pass_fds=(zygote_socket.fileno(),),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_state(self) -> bool:
        """Read the socket, which must be readable.

        Return True if the zygote is ready, False if it has ended.
        """
        try:
            self.ready = bool(self.socket.recv(len(READY)))
        except OSError:
            self.ready = False
        return self.ready

    def restart(self) -> None:
        """Replace the process with a new one."""
        self.close()
        self._start()

    def fork(self, descriptors: tuple[int, ...]) -> int:
        """Start a child with these descriptors and return its process id. Raise `FutureError` on failure."""
        if not self.ready:
            raise FutureError(
                "the helper process that starts tasks is not ready",
                hint="no action is needed: the worker retries",
            )
        try:
            socket.send_fds(self.socket, [b"!"], list(descriptors))
            answer = self.socket.recv(8, socket.MSG_WAITALL)
        except OSError:
            answer = b""
        if len(answer) < 8:
            self.ready = False
            self._process.kill()
            raise FutureError(
                "the helper process failed to start a child process", hint="check the worker's standard error"
            )
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        """End the zygote. Its children continue: they belong to the supervisor."""
        self.ready = False
        self.socket.close()
        self._process.kill()
        self._process.wait()


def main(arguments: list[str]) -> None:
    """Fork children until the supervisor closes its socket."""
    supervisor_socket, supervisor = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    prctl(PR_SET_NAME, b"tidemill-zygote")
    die_with_parent(supervisor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in PRELOADED:
        importlib.import_module(name)
    supervisor_socket.sendall(READY)
    gc.freeze()  # so that the collector does not write to the pages that children share
    while True:
        request, descriptors, _, _ = socket.recv_fds(supervisor_socket, 1, DESCRIPTORS)
        if not request:
            return
        first_fork = os.fork()
        if first_fork == 0:
            _fork_again(supervisor_socket, supervisor, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(first_fork, 0)


def _fork_again(supervisor_socket: socket.socket, supervisor: int, descriptors: list[int]) -> None:
    """Fork the child from the first fork, report its process id, and exit. The child never returns."""
    first_fork = os.getpid()
    pid = os.fork()
    if pid:
        supervisor_socket.sendall(pid.to_bytes(8, "little"))
        os._exit(0)
    try:
        os.setsid()  # a new process group: processes that a task starts end with it
        supervisor_socket.close()
        while (parent := os.getppid()) != supervisor:  # until the first fork has ended
            if parent != first_fork:
                return  # the supervisor has ended too, and another process is our parent
            os.sched_yield()
        from tidemill.futures.worker import child

        child.main(descriptors, supervisor)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
