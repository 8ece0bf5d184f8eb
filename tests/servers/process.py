"""A server as a child process: started, waited for, and gone when its parent is gone.

Every server of the tests is one child of the process that asked for it. The kernel is told to signal it
when that process ends, however it ends (PR_SET_PDEATHSIG), so that a killed test run leaves nothing behind.
The kernel watches the thread that started the child: start servers from the main thread.
"""

import ctypes
import functools
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tidemill.testing.threads import STUCK_S

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
RARELY_S = 0.25


class ServerUnavailable(Exception):
    """This machine has no such server: a reason to skip, said in the message."""


class ServerFailed(Exception):
    """The server is here and did not start or did not go on: a reason to fail."""


class Server(ABC):
    """A server that runs inside a `with`; one that did not start leaves nothing."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """End it and remove what it left. Harmless when it never started."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _die_with_parent(death_signal: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal)


class Child:
    """One server process with its log."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: int | None = None,
        group: int | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` is a command that runs the rest, such as `Host.prefix`."""
        self.log = log
        self.name = Path(arguments[0]).name
        identity: dict[str, Any] = {}
        if user is not None and prefix:  # only root may use the prefix
            prefix = [*prefix, "setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
            prefix += [f"--pdeathsig={death_signal.name}"]  # the kernel forgets ours when the user changes
        elif user is not None:
            identity = {"user": user, "group": group, "extra_groups": []}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*prefix, *(str(a) for a in arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(env) if env is not None else None,
                cwd=cwd,
                start_new_session=True,  # Ctrl-C is for the tests; they end their servers themselves
                preexec_fn=functools.partial(_die_with_parent, death_signal),  # noqa: PLW1509
                **identity,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def end(self, ending_signal: int = signal.SIGKILL, *, timeout_s: float = STUCK_S) -> None:
        """Signal the process and reap it; SIGKILL when the signal was not enough."""
        if self.running:
            self._process.send_signal(ending_signal)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout_s)

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float = STUCK_S) -> None:
        """Return when `ready`; fail with the end of the log when the process ended or the time is over."""
        if not wait_until(lambda: not self.running or ready(), timeout_s=timeout_s):
            raise ServerFailed(f"{self.name} was not ready after {timeout_s:g} s\n{self.tail()}")
        if not self.running:
            raise ServerFailed(f"{self.name} ended with {self._process.returncode}\n{self.tail()}")

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def wait_until(ready: Callable[[], bool], *, timeout_s: float, every_s: float = 0.02) -> bool:
    """Ask until `ready` or the time is over; True when it became ready.

    The pauses grow from `every_s` to `RARELY_S`: on a busy machine, asking must not cost what others need.
    """
    end, pause_s = time.monotonic() + timeout_s, every_s
    while not ready():
        if time.monotonic() >= end:
            return False
        time.sleep(pause_s)
        pause_s = max(every_s, min(1.2 * pause_s, RARELY_S))
    return True


def started(start: Callable[[], Child], *, tries: int = 5) -> Child:
    """Start until it comes up: between finding a free port and binding it, another process may take it."""
    for left in range(tries - 1, -1, -1):
        try:
            return start()
        except ServerFailed as failure:
            taken = "in use" in str(failure) or "EADDRINUSE" in str(failure)
            if left == 0 or not taken:
                raise
    raise AssertionError("unreachable")


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that are free now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def accepts(port: int) -> bool:
    """True when something listens on the port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
