"""A supervisor whose store never rings, goes away, or does not say whether it committed."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests import worker_tasks as tasks
from tests.workers import TTL_S, Look, wait
from tidemill.cluster.leases import LeaseTiming
from tidemill.errors import CommitUnknown, StoreUnavailable
from tidemill.futures.client.client import Client, connect
from tidemill.futures.home import ClusterAddress
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Realized
from tidemill.futures.worker.settings import WorkerSettings
from tidemill.futures.worker.supervisor import WorkerSupervisor
from tidemill.futures.worker.wire import ChildHello
from tidemill.store import Mode, Store, Tx, Watch, open_store
from tidemill.testing.threads import STUCK_S

T = TypeVar("T")


class Silent(Watch):
    """A watch that never fires."""

    def wait(self, timeout_s: float) -> bool:
        threading.Event().wait(timeout_s)
        return False


class Unreliable(Store):
    """A store in front of a real one: `away` answers nothing, `unsure` answers nothing after a commit."""

    def __init__(self, inner: Store) -> None:
        super().__init__()
        self._inner = inner
        self.deaf = False
        self.away = False
        self.unsure = ""  # the next round with "claims" or "written" results is committed and not confirmed

    def run(self, fn: Callable[[Tx], T], *, mode: Mode = "serial") -> T:
        if self.away:
            raise StoreUnavailable("away, by the test")
        value = self._inner.run(fn, mode=mode)
        if self.unsure and "Ledger.round" in fn.__qualname__ and getattr(value[0], self.unsure):  # type: ignore[index]
            self.unsure = ""
            raise CommitUnknown("unsure, by the test")
        return value

    def watch(self, keys: Iterable[bytes]) -> Watch:
        return Silent() if self.deaf else self._inner.watch(keys)

    def close(self) -> None:
        self._inner.close()

    @property
    def url(self) -> str:
        return self._inner.url


@contextmanager
def supervising(store: Unreliable, place: ClusterAddress, *, slots: int = 1) -> Iterator[WorkerSupervisor]:
    hello = ChildHello(place.cluster, place.store, place.objects, place.key.secret, "n" * 24, 0, "", "")
    total = Capacity(cpu=4, ram=10**9)
    settings = WorkerSettings(slots=slots, total=total, timing=LeaseTiming(TTL_S), cancel_grace_s=0.5)
    supervisor = WorkerSupervisor(store, hello, settings)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        store.away = False
        supervisor.hurry()
        thread.join(STUCK_S)
        assert not thread.is_alive()


@pytest.fixture
def place(tmp_path: Path) -> ClusterAddress:
    return ClusterAddress.of_home(tmp_path / "home")


@pytest.fixture
def store(place: ClusterAddress) -> Iterator[Unreliable]:
    with Unreliable(open_store(place.store)) as store:
        yield store


@pytest.fixture
def client(place: ClusterAddress) -> Iterator[Client]:
    with connect(home=place.home) as client:
        yield client


@pytest.fixture
def look(place: ClusterAddress) -> Iterator[Look]:
    with Look(Path(place.home)) as look:
        yield look


@pytest.mark.rule("STO-8")
def test_a_worker_needs_no_wake_up(client: Client, store: Unreliable, place: ClusterAddress) -> None:
    store.deaf = True
    with supervising(store, place, slots=2):
        assert client.gather(client.map(tasks.add, range(50)), timeout=STUCK_S) == list(range(1, 51))
        future = client.submit(tasks.deaf, place.home)
        wait(lambda: bool(tasks.notes(Path(place.home))), "it runs")
        client.cancel(future)
        wait(future.done, "the cancel was found in the inbox")


def test_results_are_kept_while_the_store_is_away(
    client: Client, store: Unreliable, place: ClusterAddress, look: Look, tmp_path: Path
) -> None:
    with supervising(store, place) as supervisor:
        future = client.submit(tasks.waits_for, str(tmp_path), "go")
        wait(lambda: bool(tasks.notes(tmp_path)), "it runs")
        store.away = True
        (tmp_path / "go").touch()
        wait(lambda: len(supervisor.claims.ledger.results) == 1, "its result is here and cannot be written")
        store.away = False
        assert future.result(STUCK_S) == "go"
        assert look.row(future).tally.epoch == 1
        assert tasks.notes(tmp_path) == ["began go", "ended go"]


@pytest.mark.rule("FUT-54", "FUT-38")
def test_a_commit_whose_outcome_is_unknown_has_no_double_effect(
    client: Client, store: Unreliable, place: ClusterAddress, look: Look, tmp_path: Path
) -> None:
    """First a claim that was made but not confirmed: it is found and given back. Then a result: it stays."""
    with supervising(store, place) as supervisor:
        assert client.submit(tasks.add, 1).result(STUCK_S) == 2
        store.unsure = "claims"
        future = client.submit(tasks.waits_for, str(tmp_path), "go")
        wait(lambda: tasks.notes(tmp_path) == ["began go"], "it runs, under a later claim")
        row = look.row(future)
        assert row.tally.epoch > 1
        own = look.store.run(lambda tx: tx.range(*look.keys.own.all()))
        assert (
            [look.keys.own.unpack(entry.key)[1] for entry in own]
            == [future.id]
            == list(supervisor.claims.ledger.jobs)
        )
        store.unsure = "written"
        (tmp_path / "go").touch()
        assert future.result(STUCK_S) == "go"
        wait(lambda: not supervisor.claims.ledger.jobs, "the supervisor knows that it is written")
        made = look.row(future)
        assert isinstance(made, Realized)
        assert made.result.version == row.tally.epoch
        assert tasks.notes(tmp_path) == ["began go", "ended go"]
        assert not look.store.run(lambda tx: tx.range(*look.keys.own.all()))


def test_results_that_are_together_too_large_for_a_transaction_are_written_in_several(
    client: Client, store: Unreliable, place: ClusterAddress
) -> None:
    with supervising(store, place, slots=2):
        client.gather(client.map(tasks.add, range(200)), timeout=STUCK_S)  # short: sent ahead from now on
        futures = client.map(tasks.large, [15_000] * 150)
        assert [len(result) for result in client.gather(futures, timeout=STUCK_S)] == [15_000] * 150
