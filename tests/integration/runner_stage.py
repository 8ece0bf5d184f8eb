"""What the tests of runners share: a store of each kind, and worker with their presence on it."""

import contextlib
import dataclasses
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import leases, runner_parts
from tests.futures_invariants import scan_invariants
from tests.scopes import scope_of
from tests.workers import wait
from tidemill.clock import SYSTEM
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.cluster.membership import ClusterContext
from tidemill.events import Event
from tidemill.futures.protocol import edges, rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow
from tidemill.futures.values.signatures import ClusterKey
from tidemill.objects import Objects, open_objects
from tidemill.publish.parts import PartDone, PartEnd, PartTask
from tidemill.runner.in_process_worker import InProcessWorker
from tidemill.runner.part_futures import PartFutures, resource_of
from tidemill.runner.presence import OwnPresence, Presence
from tidemill.scope import Scope
from tidemill.store import Store, open_store
from tidemill.testing.threads import STUCK_S

CLUSTER = "default"
KEY = ClusterKey(b"k" * 32)


class Stage:
    """One store, and any number of runners in this process."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.store: Store = open_store(url)
        self.objects: Objects = open_objects(f"file://{folder}/objects", clock=SYSTEM)
        self.keys = FutureKeys(CLUSTER)
        self.cluster = ClusterKeys(CLUSTER)
        self.events: list[Event] = []
        self.interrupted: list[str] = []

    @contextlib.contextmanager
    def presence(
        self,
        node_id: str = "runner-0",
        *,
        leave: bool = True,
        timing: LeaseTiming = DEFAULT_TIMING,
        **named: Any,
    ) -> Iterator[OwnPresence]:
        context = ClusterContext(
            store=self.store,
            cluster=CLUSTER,
            chance=random.Random(),
            emit=self.events.append,
            timing=timing,
        )
        presence = OwnPresence(context, node_id, names=frozenset({resource_of("shop")}), **named)
        presence.start()
        try:
            yield presence
        finally:
            presence.close() if leave else presence.abandon()

    @contextlib.contextmanager
    def worker(
        self, presence: Presence, threads: int = 2, *, names: Sequence[str] = ()
    ) -> Iterator[InProcessWorker]:
        worker = InProcessWorker(
            dataclasses.replace(self.scope(), emit=self.events.append),
            KEY,
            presence,
            names=names or [resource_of("shop")],
            threads=threads,
            interrupt=self.interrupted.append,
        )
        worker.start()
        try:
            yield worker
        finally:
            worker.stop()

    @contextlib.contextmanager
    def runner(self, node_id: str = "runner-0", threads: int = 2, **named: Any) -> Iterator[InProcessWorker]:
        with self.presence(node_id, **named) as presence, self.worker(presence, threads) as worker:
            yield worker

    def parts(self, worker: InProcessWorker | None = None) -> PartFutures:
        check = worker.check if worker is not None else (lambda: None)
        return PartFutures(self.scope(), KEY, runner_parts.make, check=check)

    def scope(self) -> Scope:
        return scope_of(self.store, CLUSTER, objects=self.objects)

    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def wait_notes(self, *lines: str) -> None:
        wait(lambda: set(lines) <= set(self.notes()), f"the notes have {lines}; they are {self.notes()}")

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def row(self, task: PartTask) -> AnyRow | None:
        def read(tx: Any) -> AnyRow | None:
            future = tx.get(self.keys.key[f"part/{task.attempt}/{task.key}"])
            return None if future is None else edges.read(tx, self.keys, future)

        return self.store.run(read)

    def rows_left(self) -> list[tuple[object, ...]]:
        """Every row of the futures room, but the code, the lanes and the node list."""
        spaces = [
            name
            for name in vars(self.keys)
            if name not in ("cluster", "code", "code_state", "lane", "swept", "bell")
        ]
        left: list[tuple[object, ...]] = []
        for name in spaces:
            lo, hi = getattr(self.keys, name).all()
            listed = self.store.run(lambda tx, lo=lo, hi=hi: tx.range(lo, hi))
            left += [(name, *getattr(self.keys, name).unpack(row.key)) for row in listed]
        return left

    def nodes(self) -> list[str]:
        return [node.id for node in self.store.run(lambda tx: nodes.read_all(tx, self.cluster))]

    def close(self) -> None:
        """Every invariant of futures holds in the end, whatever was killed."""
        wrong = self.store.run(lambda tx: scan_invariants(tx, self.keys))
        self.store.close()
        assert wrong == []

    def end_lease(self, node_id: str) -> None:
        """Let a node's lease run out now."""
        leases.end_lease(self.store, self.cluster, node_id)

    def kill_entry(self, node_id: str) -> None:
        """Take a node off the list behind its back: its lease is lost."""
        self.store.run(lambda tx: nodes.leave(tx, self.cluster, nodes.read(tx, self.cluster, node_id)))


class InThread:
    """Parts that are awaited by a thread of their own."""

    def __init__(self, parts: PartFutures, tasks: Sequence[PartTask]) -> None:
        self.ends: list[PartEnd] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(parts, tasks), daemon=True)
        self._thread.start()

    def _run(self, parts: PartFutures, tasks: Sequence[PartTask]) -> None:
        try:
            for end in parts.run(tasks):
                self.ends.append(end)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout_s: float = STUCK_S) -> list[PartEnd]:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.ends


def made(ends: Sequence[PartEnd]) -> list[str]:
    """The parts that were made, in order of their names."""
    assert all(isinstance(end, PartDone) for end in ends), ends
    return sorted(end.task.part for end in ends)


@pytest.fixture(params=["sqlite", "postgres"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """On each kind of store that several processes may share."""
    url = (
        f"sqlite://{tmp_path}/store.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    stage = Stage(url, tmp_path)
    yield stage
    stage.close()


def failure_of(stage: Stage, future_id: bytes) -> rows.Failure | None:
    raw = stage.store.run(lambda tx: tx.get(stage.keys.error[future_id]))
    return None if raw is None else rows.decode_failure(raw)
