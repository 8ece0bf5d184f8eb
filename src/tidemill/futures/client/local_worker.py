"""A local worker: a worker process that a client starts on its machine. The worker ends with the client.

A local worker is an ordinary `tidemill worker` process. Its standard input is a pipe that the client holds
open. When the client's process ends for any reason, the pipe is closed and the worker drains.
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
"""How long running tasks may take after the client ends. Unfinished tasks wait for another worker."""
POLL_S = 0.02


class LocalWorker:
    """One worker process with some slots.

    Args:
        place: the cluster.
        slots: how many tasks it runs at once.
        clock: the source of time.
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
            start_new_session=True,  # Ctrl-C in the terminal interrupts only the client
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, store: Store, cluster: ClusterKeys) -> None:
        """Wait until the worker is in the node list. Raise `FutureError` if it ends instead."""
        end = self._clock.monotonic() + START_S
        while not store.run(lambda tx: self._is_listed(tx, cluster)):
            if self._process.poll() is not None:
                raise FutureError(
                    f"the local worker ended with exit code {self._process.returncode} before it was ready",
                    hint="check its output on standard error",
                )
            if self._clock.monotonic() > end:
                raise FutureError(
                    f"the local worker was not ready within {START_S:g} s",
                    hint="check its output on standard error",
                )
            self._clock.sleep(POLL_S)

    def _is_listed(self, tx: Tx, cluster: ClusterKeys) -> bool:
        live = nodes.alive(nodes.read_all(tx, cluster), tx.now())
        return any(node.kind == "worker" and node.address.endswith(f"/{self.pid}") for node in live)

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the worker runs."""
        return self._process.poll()

    def drain(self) -> None:
        """Start to drain the worker. Does not wait."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Drain the worker and wait until it ends. Kill it if that takes too long."""
        self.drain()
        try:
            self._process.wait(END_S)
        except BaseException as error:
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):  # for example KeyboardInterrupt
                raise
