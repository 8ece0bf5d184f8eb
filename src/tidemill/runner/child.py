"""A runner's child: the process that holds the Spark session and runs user code.

It is told who it is by the first line of its standard input, and learns there, too, that it should drain, or
that its supervisor is gone, with which it dies. It acts under the node's epoch that its supervisor has given
it: when that is over it has nothing to say any more, and is killed. What it does is `main`, a function found
by its name, `module:function`, that is given a `Seat`; what that returns is the exit code.

The last thing it says, on a pipe of its own, is that it has ended by itself: one that ends without that word
has died, however orderly its exit code may look.
"""

import contextlib
import importlib
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from tidemill import crash
from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, TidemillError, UsageError
from tidemill.futures.home import Place
from tidemill.futures.values.signatures import ClusterKey
from tidemill.futures.worker.processes import PR_SET_NAME, PR_SET_PDEATHSIG, prctl
from tidemill.runner.presence import GivenPresence
from tidemill.store import Store, open_store
from tidemill.views.spark.malloc import keep_memory

AGAIN = 75
"""The exit code of a main that wants to be started again in a new process: its Spark session is lost, say."""

MOST_HELLO_BYTES = 16_000_000


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first word to a child."""

    main: str
    arguments: dict[str, Any]
    store: str
    objects: str
    cluster: str
    home: str
    secret: bytes  # the cluster key; here and not in the environment, where others could read it
    node: Node
    parent: int
    ended: int  # the descriptor on which it says that it has ended by itself
    timing: LeaseTiming = DEFAULT_TIMING
    grace_s: float = 30.0
    path: list[str] = []  # where modules are found


class Drain(msgspec.Struct, frozen=True):
    """Take nothing new, and end within so many seconds."""

    grace_s: float


class Seat:
    """What a main has to work with.

    - place, store: of the cluster; the store is open.
    - presence: the node, kept by the supervisor; its epoch is that of this child alone.
    - arguments: what the supervisor was given for it.
    - draining: set when it should end, within `grace_s` from then.
    """

    def __init__(self, hello: Hello, store: Store, clock: Clock = SYSTEM) -> None:
        self.place = Place(
            store=hello.store,
            objects=hello.objects,
            cluster=hello.cluster,
            home=hello.home,
            key=ClusterKey(hello.secret),
        )
        self.store = store
        self.clock = clock
        self.chance = random.Random()
        self.presence = GivenPresence(store, hello.cluster, hello.node, clock=clock, timing=hello.timing)
        self.arguments = hello.arguments
        self.grace_s = hello.grace_s
        self.draining = threading.Event()

    def drain(self, grace_s: float) -> None:
        """Ask the main to end."""
        self.grace_s = grace_s
        self.draining.set()


Main = Callable[[Seat], int | None]


def main() -> int:
    """Be a child."""
    keep_memory()  # before there are threads
    prctl(PR_SET_NAME, b"tidemill-runner")
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):  # the supervisor hears these, and tells us
        signal.signal(number, signal.SIG_IGN)
    crash.arm_from_environment()
    words = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # what user code starts must not read what is meant for us
    os.close(nothing)
    line, rest = _first_line(words)
    hello = msgspec.json.decode(line, type=Hello)
    if os.getppid() != hello.parent:
        return AGAIN  # it died before we could ask to die with it
    sys.path[:] = hello.path or sys.path
    code = 1
    try:
        with open_store(hello.store) as store:
            seat = Seat(hello, store)
            threading.Thread(target=_listen, args=(words, rest, seat), name="words", daemon=True).start()
            seat.presence.start()
            try:
                code = found(hello.main)(seat) or 0
            finally:
                seat.presence.close()
    except LeaseLost:
        code = AGAIN
    except TidemillError as error:
        sys.stderr.write(f"{error}\n")
    except Exception:  # noqa: BLE001 - said, and told by the exit code
        traceback.print_exc()
    with contextlib.suppress(OSError):
        os.write(hello.ended, b"%d\n" % code)
    return code


def found(name: str) -> Main:
    """The main of a name, `module:function`."""
    module, _, attribute = name.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"there is no {name!r}: {error}", hint="name it as module:function") from error
    if not callable(loaded):
        raise UsageError(f"{name!r} is no function", hint="name it as module:function")
    return loaded  # type: ignore[no-any-return] # callable, as far as anybody can know


def _first_line(fd: int) -> tuple[bytes, bytes]:
    data = b""
    while b"\n" not in data and len(data) < MOST_HELLO_BYTES:
        piece = os.read(fd, 65_536)
        if not piece:
            os._exit(AGAIN)  # nobody is there
        data += piece
    line, _, rest = data.partition(b"\n")
    return line, rest


def _listen(fd: int, rest: bytes, seat: Seat) -> None:
    """Hear the supervisor until it is gone, and die with it."""
    while True:
        *lines, rest = rest.split(b"\n")
        for line in lines:
            seat.drain(msgspec.json.decode(line, type=Drain).grace_s)
        try:
            piece = os.read(fd, 4096)
        except OSError:
            piece = b""
        if not piece:
            os.killpg(0, signal.SIGKILL)  # with the Java process and Python workers
        rest += piece


if __name__ == "__main__":
    sys.exit(main())
