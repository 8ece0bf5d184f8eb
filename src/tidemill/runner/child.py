"""The child process of a runner: it has the Spark session and runs user code.

The supervisor writes to the child's standard input: first a `RunnerHello`, later `Drain`. If this pipe
closes, the supervisor is dead, and the child exits too. The node gets a new epoch for each child. When that
epoch ends, the store refuses the child's writes and the supervisor kills the child. The child calls `main`, a
function named as `module:function`, with a `ChildContext`. The return value is the exit code.

Before it ends, the child writes its exit code and a reason to a pipe. If a child ends without writing to this
pipe, it has died, even if its exit code is 0. The reason says why the child requests a new process, such as
the end of Spark's Java process.
"""

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from tidemill import crash
from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.cluster.nodes import Node
from tidemill.errors import (
    UNEXPECTED,
    LeaseLost,
    SparkDied,
    TidemillError,
    UsageError,
    describe_unexpected,
    is_debugging,
)
from tidemill.futures.home import ClusterAddress
from tidemill.futures.values.signatures import ClusterKey
from tidemill.futures.worker.processes import PR_SET_NAME, PR_SET_PDEATHSIG, prctl
from tidemill.runner.presence import GivenPresence
from tidemill.spark.java_process import end_java, java_end_after
from tidemill.store import Store, open_store
from tidemill.views.spark.memory import keep_memory

RESTART = 75
"""The exit code that requests a new process, for example because the Spark session is lost."""

INTERRUPTED = 76
"""The exit code of a child that was drained before it had finished. After a signal, `run_runner` returns
128 plus the number of the signal instead."""

MOST_HELLO_BYTES = 16_000_000
MAX_REASON_BYTES = 2_000


class RunnerHello(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a child."""

    main: str
    arguments: dict[str, Any]
    store: str
    objects: str
    cluster: str
    home: str
    secret: bytes  # the cluster key; not in the environment, which other processes can read
    node: Node
    parent: int
    ended: int  # the descriptor of the pipe to which the child writes its exit code
    timing: LeaseTiming = DEFAULT_TIMING
    grace_s: float = 30.0
    path: list[str] = []  # the module search path


class Drain(msgspec.Struct, frozen=True):
    """Tell the child to start nothing new, and to end within this many seconds."""

    grace_s: float


class ChildContext:
    """The context that the main function of a child receives.

    - place, store: the cluster's address and its open store.
    - presence: the node, under this child's own epoch; the supervisor renews the node's lease.
    - arguments: plain data for the function, from the supervisor.
    - draining: set when the function should end. `left_s` tells how much time it still has.
    """

    def __init__(self, hello: RunnerHello, store: Store, clock: Clock = SYSTEM) -> None:
        self.place = ClusterAddress(
            store=hello.store,
            objects=hello.objects,
            cluster=hello.cluster,
            home=hello.home,
            key=ClusterKey(hello.secret),
        )
        self.store = store
        self.presence = GivenPresence(store, hello.cluster, hello.node, clock=clock, timing=hello.timing)
        self.arguments = hello.arguments
        self.grace_s = hello.grace_s
        self.draining = threading.Event()
        self._clock = clock
        self._drain_by: float | None = None

    def drain(self, grace_s: float) -> None:
        """Ask the main function to end. A later call can only shorten the grace period."""
        drain_by = self._clock.monotonic() + grace_s
        self._drain_by = drain_by if self._drain_by is None else min(drain_by, self._drain_by)
        self.grace_s = grace_s
        self.draining.set()

    def left_s(self) -> float:
        """Return how many seconds of the grace period are left."""
        return self.grace_s if self._drain_by is None else max(0.0, self._drain_by - self._clock.monotonic())


Main = Callable[[ChildContext], int | None]


def main() -> int:
    """Run as a child; return the exit code."""
    keep_memory()  # must come before the first thread
    prctl(PR_SET_NAME, b"tidemill-runner")
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):  # the supervisor handles these, and sends `Drain`
        signal.signal(number, signal.SIG_IGN)
    crash.arm_from_environment()
    messages = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # processes that user code starts must not read our messages
    os.close(null)
    line, rest = _first_line(messages)
    hello = msgspec.json.decode(line, type=RunnerHello)
    if os.getppid() != hello.parent:
        return RESTART  # the supervisor died before `prctl` above
    sys.path[:] = hello.path or sys.path
    silence_py4j()
    threading.excepthook = partial(_thread_ended, hello.ended)
    code, reason = 1, ""
    try:
        with open_store(hello.store) as store:
            context = ChildContext(hello, store)
            threading.Thread(
                target=_listen, args=(messages, rest, context), name="messages", daemon=True
            ).start()
            context.presence.start()
            try:
                code = find_main(hello.main)(context) or 0
            finally:
                context.presence.close()
    except LeaseLost:
        code, reason = RESTART, "the node lost its lease"
    except SparkDied as error:
        code, reason = RESTART, str(error)
    except SystemExit as error:  # user code called sys.exit(): a new child would only repeat it
        code = error.code if isinstance(error.code, int) else 1
    except TidemillError as error:
        if reason := java_end_after(error):  # while the pipeline was planned
            code = RESTART
        else:
            code = error.exit_code
            _print(f"error: {error}\n")
    except Exception as error:  # noqa: BLE001 - printed, with its own exit code
        if reason := java_end_after(error):
            code = RESTART
        else:
            code = UNEXPECTED
            _print(traceback.format_exc() if is_debugging() else f"error: {describe_unexpected(error)}\n")
    _report_end(hello.ended, code, reason)
    if code != RESTART:  # after a lost lease, Spark may run jobs that must end at once
        end_java()
    return code


def silence_py4j() -> None:
    """Drop what py4j logs when a connection to Java is closed, unless debugging.

    The caller gets the error too, and the supervisor reports the end of Java. Some messages go to py4j's own
    logger, others to the root logger.
    """
    if not is_debugging():
        logging.getLogger("py4j").propagate = False
        logging.getLogger().addFilter(lambda record: "/py4j/" not in record.pathname)


def _report_end(pipe: int, code: int, reason: str = "") -> None:
    """Report the exit code to the supervisor."""
    with contextlib.suppress(OSError):
        os.write(pipe, b"%d\n" % code + reason.encode(errors="replace")[:MAX_REASON_BYTES])


def _thread_ended(pipe: int, args: threading.ExceptHookArgs) -> None:
    """End this process if an error ended a thread of Tidemill: others may wait for it forever.

    A thread that user code started ends alone.
    """
    error = args.exc_value
    if error is None or args.exc_type is SystemExit:
        return
    name = args.thread.name if args.thread is not None else "?"
    text = f"the thread {name!r} ended: {describe_unexpected(error)}"
    modules = {frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)}
    if any(module.startswith("tidemill.") for module in modules):
        _report_end(pipe, RESTART, text)
        os._exit(RESTART)
    _print(f"warning: {text}\n")


def _print(text: str) -> None:
    """Print to standard error. Ignore a closed pipe, so that the supervisor still gets the exit code."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def find_main(name: str) -> Main:
    """Import the function that is named `module:function`."""
    module, _, attribute = name.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot import {name!r}: {error}", hint="use the form module:function") from error
    if not callable(loaded):
        raise UsageError(f"{name!r} is not a function", hint="use the form module:function")
    return loaded  # type: ignore[no-any-return] # checked to be callable


def _first_line(fd: int) -> tuple[bytes, bytes]:
    data = b""
    while b"\n" not in data and len(data) < MOST_HELLO_BYTES:
        piece = os.read(fd, 65_536)
        if not piece:
            os._exit(RESTART)  # the supervisor is dead
        data += piece
    line, _, rest = data.partition(b"\n")
    return line, rest


def _listen(fd: int, rest: bytes, context: ChildContext) -> None:
    """Process the supervisor's messages. When the supervisor dies, kill this process group."""
    while True:
        *lines, rest = rest.split(b"\n")
        for line in lines:
            context.drain(msgspec.json.decode(line, type=Drain).grace_s)
        try:
            piece = os.read(fd, 4096)
        except OSError:
            piece = b""
        if not piece:
            os.killpg(0, signal.SIGKILL)  # this process, the JVM and the Python workers
        rest += piece


if __name__ == "__main__":
    sys.exit(main())
