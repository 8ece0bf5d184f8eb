"""What the worker's tests share: a home with a worker of two slots, a client for each test, and a look into
the store. A module with a worker of another kind has a fixture `worker` of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers import Look, WorkerProcess
from tidemill.futures.client.client import Client, connect


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def worker(home: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(home, slots=2) as worker:
        yield worker.ready()


@pytest.fixture
def client(home: Path, worker: WorkerProcess) -> Iterator[Client]:
    with connect(home=home) as client:
        yield client


@pytest.fixture
def look(home: Path) -> Iterator[Look]:
    with Look(home) as look:
        yield look
