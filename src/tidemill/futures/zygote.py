"""The zygote: a process that has imported what children need and does nothing but fork them.

    python -m tidemill.futures.zygote LINE SUPERVISOR

A child that starts as a fork of it is there within milliseconds and shares its memory; a new interpreter
would take a fifth of a second each time, and children are started when somebody waits for them. Forking is
safe here and nowhere else in a worker: the zygote has one thread, no connection and no lock, and imports
nothing that starts threads.

A child is forked twice, so that its parent, the fork in between, is gone at once: the kernel then gives it
to the supervisor (a *subreaper*), who learns of its end like that of any child of its own.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys

from tidemill.errors import FutureError

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
DESCRIPTORS = 4
ANSWER_S = 30.0
TRIES = 3

PRELOADED = (
    "tidemill.futures.child",
    "tidemill.futures.drafts",
    "tidemill.futures.flight",
    "tidemill.futures.values",
    "tidemill.futures.client",
    "tidemill.store.sqlite",
)
"""What tasks and their futures need, imported once instead of in each child. None of it starts threads."""


def prctl(option: int, value: int) -> None:
    """Ask something of the kernel for this process (Linux)."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Zygote:
    """The supervisor's end. Started when it is made, and again when it is found dead."""

    def __init__(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._start()

    def _start(self) -> None:
        self._line, theirs = socket.socketpair()
        self._line.settimeout(ANSWER_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.futures.zygote", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what tasks print is for people; standard output is the supervisor's
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, descriptors: tuple[int, ...]) -> int:
        """A new child with these descriptors; its process id."""
        for _ in range(TRIES):
            with contextlib.suppress(OSError):
                socket.send_fds(self._line, [b"!"], list(descriptors))
                answer = self._line.recv(8, socket.MSG_WAITALL)
                if len(answer) == 8:
                    return int.from_bytes(answer, "little")
            self.close()
            self._start()
        raise FutureError("no child process can be started", hint="see standard error for the reason")

    def close(self) -> None:
        """End it; children that it forked are the supervisor's."""
        self._line.close()
        self._process.kill()
        self._process.wait()


def main(arguments: list[str]) -> None:
    """Fork children until the supervisor hangs up."""
    line, supervisor = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it was over before we could ask
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # so that the collector does not write to the pages that children share
    while True:
        word, descriptors, _, _ = socket.recv_fds(line, 1, DESCRIPTORS)
        if not word:
            return
        between = os.fork()
        if between == 0:
            _between(line, supervisor, descriptors)
        for one in descriptors:
            os.close(one)
        os.waitpid(between, 0)


def _between(line: socket.socket, supervisor: int, descriptors: list[int]) -> None:
    """The fork in between: says who the child is, and is gone."""
    pid = os.fork()
    if pid:
        line.sendall(pid.to_bytes(8, "little"))
        os._exit(0)
    try:
        os.setsid()  # its own process group: what a task starts ends with it
        line.close()
        while os.getppid() != supervisor:  # until the one in between is gone
            os.sched_yield()
        from tidemill.futures import child

        child.main(descriptors, supervisor)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
