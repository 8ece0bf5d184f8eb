"""What the client's tests share: a home with a worker of two slots, and a look into its store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers import Look, WorkerProcess
from tidemill import Client, connect


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def worker(home: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(home, slots=2) as worker:
        yield worker.ready()


@pytest.fixture(scope="module")
def client(home: Path, worker: WorkerProcess) -> Iterator[Client]:
    with connect(home=home) as client:
        yield client


@pytest.fixture(scope="module")
def look(home: Path, client: Client) -> Iterator[Look]:
    with Look(home) as look:
        yield look
