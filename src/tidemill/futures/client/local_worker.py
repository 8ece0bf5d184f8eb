"""A worker of this machine that a client starts for itself and ends with itself.

It is an ordinary `tidemill worker` in a process of its own. Its standard input is a pipe that the client
holds: when the client is gone, however it went, the pipe is closed and the worker drains.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from tidemill.clock import Clock
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import FutureError
from tidemill.futures.home import ClusterAddress
from tidemill.futures.values.signatures import ENVIRONMENT, ENVIRONMENT_FILE
from tidemill.store import Store, Tx

START_S, END_S = 60.0, 20.0
GRACE_S = 5.0
"""For running tasks when the client ends; what has not ended by then waits for another worker."""
LOOK_S = 0.02


class LocalWorker:
    """One worker process with some slots.

    Args:
        place: the cluster it works for.
        slots: how many tasks it runs at once.
        clock: for waiting until it is there, and until it is gone.
        options: more options of `tidemill worker`.
    """

    def __init__(self, place: ClusterAddress, slots: int, clock: Clock, options: Sequence[str] = ()) -> None:
        self._clock = clock
        self._place = place
        where = ["--home", place.home] if place.home else ["--store", place.store, "--objects", place.objects]
        environment = {name: value for name, value in os.environ.items() if name != ENVIRONMENT_FILE}
        if not place.home:
            environment[ENVIRONMENT] = place.key.secret.hex()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidemill.cli", "worker"),
                *where,
                *("--cluster", place.cluster),
                *("--slots", str(slots), "--with-parent", "--quiet", "--grace", str(GRACE_S)),
                *options,
            ],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # an interrupt on the terminal is the client's to handle
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, store: Store, cluster: ClusterKeys) -> None:
        """Wait until it is in the node list; an error when it ends instead."""
        end = self._clock.monotonic() + START_S
        while not store.run(lambda tx: self._is_listed(tx, cluster)):
            if self._process.poll() is not None:
                raise FutureError(
                    f"the local worker ended with code {self._process.returncode} before it was ready",
                    hint="see what it wrote to standard error",
                )
            if self._clock.monotonic() > end:
                raise FutureError(f"the local worker was not ready within {START_S:g} s")
            self._clock.sleep(LOOK_S)

    def _is_listed(self, tx: Tx, cluster: ClusterKeys) -> bool:
        live = nodes.alive(nodes.read_all(tx, cluster), tx.now())
        return any(node.kind == "worker" and node.address.endswith(f"/{self.pid}") for node in live)

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Ask it to drain."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Ask it to drain, and wait for that; kill it if it takes too long."""
        self.ask_to_end()
        try:
            self._process.wait(END_S)
        except BaseException as error:
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):  # whoever waits has no more patience
                raise
