"""The zygote: a process that has imported what children need and does nothing but fork them.

    python -m tidemill.futures.worker.zygote LINE SUPERVISOR

A child that starts as a fork of it is there within milliseconds and shares its memory; a new interpreter
would take a fifth of a second each time, and children are started when somebody waits for them. Forking is
safe here and nowhere else in a worker: the zygote has one thread, no connection and no lock, and imports
nothing that starts threads.

A child is forked twice, so that its parent, the fork in between, is gone at once: the kernel then gives it
to the supervisor (a *subreaper*), who learns of its end like that of any child of its own.
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
"""What tasks and their futures need, imported once instead of in each child. None of it starts threads."""


class Zygote:
    """The supervisor's end. Started when it is made, and again by `hear` when it is found dead.

    Its line can be read when it has something to say: that it is ready, or that it is gone.
    """

    def __init__(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.ready = False
        self._start()

    def _start(self) -> None:
        self.line, theirs = socket.socketpair()
        self.line.settimeout(ANSWER_S)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tidemill.futures.worker.zygote",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what tasks print is for people; standard output is the supervisor's
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> bool:
        """Read its line, which can be read; False when it is dead."""
        try:
            self.ready = bool(self.line.recv(len(READY)))
        except OSError:
            self.ready = False
        return self.ready

    def revive(self) -> None:
        """Start another one."""
        self.close()
        self._start()

    def fork(self, descriptors: tuple[int, ...]) -> int:
        """A new child with these descriptors; its process id. `FutureError` when that is not possible now."""
        if not self.ready:
            raise FutureError("no child process can be started yet", hint="the zygote is being started")
        try:
            socket.send_fds(self.line, [b"!"], list(descriptors))
            answer = self.line.recv(8, socket.MSG_WAITALL)
        except OSError:
            answer = b""
        if len(answer) < 8:
            self.ready = False
            self._process.kill()
            raise FutureError("no child process can be started", hint="see standard error for the reason")
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        """End it; children that it forked are the supervisor's."""
        self.ready = False
        self.line.close()
        self._process.kill()
        self._process.wait()


def main(arguments: list[str]) -> None:
    """Fork children until the supervisor hangs up."""
    line, supervisor = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    prctl(PR_SET_NAME, b"tidemill-zygote")
    die_with_parent(supervisor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in PRELOADED:
        importlib.import_module(name)
    line.sendall(READY)
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
    between = os.getpid()
    pid = os.fork()
    if pid:
        line.sendall(pid.to_bytes(8, "little"))
        os._exit(0)
    try:
        os.setsid()  # its own process group: what a task starts ends with it
        line.close()
        while (parent := os.getppid()) != supervisor:  # until the one in between is gone
            if parent != between:
                return  # and so is the supervisor: somebody else adopted us
            os.sched_yield()
        from tidemill.futures.worker import child

        child.main(descriptors, supervisor)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
