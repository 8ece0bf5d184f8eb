"""Workers as real processes, for tests: started, listened to, killed, paused, asked to stop."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import psutil
import pytest

from tests import leases
from tests.servers.process import wait_until
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.client.future import Future
from tidemill.futures.home import ClusterAddress
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Claimed, Failure
from tidemill.store import open_store
from tidemill.testing.threads import STUCK_S

TTL_S = 4.0  # how often nodes renew and look after each other; their leases last longer, see `tests.leases`

Told = dict[str, Any]


class WorkerProcess:
    """One `tidemill worker`, and the events it has told so far.

    Args:
        home: the folder of the cluster; with `environment`, only for the log.
        environment: names the store and the objects of a cluster that has no home.
        prefix: a command that runs the rest, such as `Host.prefix`.
    """

    def __init__(
        self,
        home: Path,
        *arguments: str,
        slots: int = 1,
        with_parent: bool = True,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.told: list[Told] = []
        command = [sys.executable, "-m", "tests.patient_cli", "worker", "--json"]
        command += [] if environment else ["--home", str(home)]
        command += ["--slots", str(slots), "--ttl", str(TTL_S), *arguments]
        home.mkdir(exist_ok=True)
        fd, log = tempfile.mkstemp(prefix="worker-", suffix=".err", dir=home)
        self._log = Path(log)
        with os.fdopen(fd, "wb") as errors:
            self.process = subprocess.Popen(
                [*prefix, *command, *(["--with-parent"] if with_parent else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.told.append(msgspec.json.decode(line))

    # --- looking

    @property
    def id(self) -> str:
        return str(self.wait_for("WorkerStarted")["node"])

    @property
    def pid(self) -> int:
        return self.process.pid

    def events(self, kind: str) -> list[Told]:
        return [event for event in list(self.told) if event.get("type") == kind]

    def wait_for(self, kind: str, count: int = 1) -> Told:
        """Wait until it told something (so often); the last of them."""
        wait(
            lambda: len(self.events(kind)) >= count or not self._reader.is_alive(),
            f"a worker told {kind}\n{self}",
        )
        assert len(self.events(kind)) >= count, f"the worker ended before it told {kind}\n{self}"
        return self.events(kind)[count - 1]

    def children(self, name: str = "tidemill-child") -> list[int]:
        """The process ids of its children, or of its zygote."""
        ids = []
        for child in psutil.Process(self.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == name:
                    ids.append(child.pid)
        return ids

    def __str__(self) -> str:
        lines = [msgspec.json.encode(event).decode() for event in self.told[-15:]]
        return "\n".join([*lines, *self._log.read_text(errors="replace").splitlines()[-25:]])

    # --- acting

    def ready(self) -> "WorkerProcess":
        self.wait_for("NodeJoined")
        return self

    def signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(STUCK_S)

    def drain(self) -> int:
        """SIGTERM, and wait for its end; its exit code."""
        self.signal(signal.SIGTERM)
        code = self.process.wait(STUCK_S)
        self._reader.join(STUCK_S)
        return code

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.process.poll() is None:
            print(self)  # noqa: T201 - shown with the failure
        self.signal(signal.SIGCONT)
        self.kill()
        self._reader.join(STUCK_S)
        if self.process.stdin is not None:
            self.process.stdin.close()


def wait(ready: Callable[[], bool], what: str, timeout_s: float = STUCK_S) -> None:
    """Wait for a condition, or fail with what it was."""
    if not wait_until(ready, timeout_s=timeout_s):
        pytest.fail(f"it took more than {timeout_s:g} s until {what}")


class Look:
    """The tests' own look into a cluster's store, and their hand in it."""

    def __init__(self, home: Path) -> None:
        place = ClusterAddress.of_home(home)
        self.store = open_store(place.store)
        self.keys = FutureKeys(place.cluster)
        self.cluster = ClusterKeys(place.cluster)

    def row(self, future: Future[Any]) -> AnyRow:
        """A future's row as it is now."""
        raw = self.store.run(lambda tx: tx.get(self.keys.future[future.id]))
        assert raw is not None
        return rows.decode_row(raw)

    def failure(self, future: Future[Any]) -> Failure:
        """The latest failure on record."""
        raw = self.store.run(lambda tx: tx.get(self.keys.error[future.id]))
        assert raw is not None
        return rows.decode_failure(raw)

    def wait_claimed(self, future: Future[Any]) -> Claimed:
        """Wait until somebody works on it."""
        wait(lambda: isinstance(self.row(future), Claimed), "the future was claimed")
        row = self.row(future)
        assert isinstance(row, Claimed)
        return row

    def nodes(self) -> list[Node]:
        return self.store.run(lambda tx: nodes.read_all(tx, self.cluster))

    def stop(self, worker: WorkerProcess) -> None:
        """Stop a worker (SIGSTOP) while it does not write to the store."""
        leases.stop_process(self.store, worker.pid)

    def end_lease(self, worker: WorkerProcess, *, missing_ok: bool = False) -> None:
        """Let the lease of a worker that was killed or stopped run out now."""
        leases.end_lease(self.store, self.cluster, worker.id, missing_ok=missing_ok)

    def end_leases_except(self, alive: Collection[WorkerProcess]) -> None:
        """Let the leases of all other workers run out now, even of those that never said who they are.

        A worker that is killed right after it joined may not have told of it. Then its lease, and its office
        if it leads, would last for ten minutes.
        """
        ids = {worker.id for worker in alive}
        for node in self.nodes():
            if node.kind == "worker" and node.id not in ids:
                leases.end_lease(self.store, self.cluster, node.id, missing_ok=True)

    def __enter__(self) -> "Look":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.store.close()
