"""What fits where: memory, named resources, the node that holds an input (FUT-23, FUT-42, FUT-52)."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import worker_tasks as tasks
from tests.workers import Look, WorkerProcess, wait
from tidemill.errors import TaskOutOfMemory
from tidemill.futures.client.client import Client, connect
from tidemill.futures.protocol.rows import Failed, Realized
from tidemill.testing.threads import STUCK_S


class Two(NamedTuple):
    """A small worker and a large one, which also has a named resource."""

    small: WorkerProcess
    large: WorkerProcess


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def two(home: Path) -> Iterator[Two]:
    with (
        WorkerProcess(home, "--ram", "150MB", slots=1) as small,
        WorkerProcess(home, "--ram", "400MB", "--resource", "camera", slots=1) as large,
    ):
        yield Two(small.ready(), large.ready())


@pytest.fixture
def client(home: Path, two: Two) -> Iterator[Client]:
    with connect(home=home) as client:
        yield client


@pytest.fixture
def look(home: Path) -> Iterator[Look]:
    with Look(home) as look:
        yield look


@pytest.mark.rule("FUT-52", "FUT-20")
def test_a_task_that_takes_more_than_it_asked_for_is_tried_elsewhere_with_more(
    client: Client, look: Look, two: Two, tmp_path: Path
) -> None:
    size = 160_000_000
    with_room = client.submit(tasks.takes_memory, size, str(tmp_path), 1, ram=100_000_000)
    assert with_room.result(STUCK_S) == size
    row = look.row(with_room)
    assert isinstance(row, Realized)
    assert (row.tally.ooms, row.tally.crashes, row.tally.exceptions) == (1, 0, 0)
    assert row.tally.ram == 200_000_000  # which the small worker has not
    assert len(tasks.notes(tmp_path)) == 2
    assert look.failure(with_room).kind == "oom"


@pytest.mark.rule("FUT-52")
def test_a_task_that_never_has_enough_fails_as_out_of_memory(
    client: Client, look: Look, tmp_path: Path
) -> None:
    future = client.submit(tasks.takes_memory, 500_000_000, str(tmp_path), 9, ram=50_000_000)
    with pytest.raises(TaskOutOfMemory):
        future.result(STUCK_S)
    row = look.row(future)
    assert isinstance(row, Failed)
    assert (row.kind, row.tally.ooms) == ("oom", 3)


@pytest.mark.rule("FUT-23", "FUT-26")
def test_a_named_resource_is_found_on_the_worker_that_has_it(client: Client, two: Two) -> None:
    parents = [client.submit(tasks.whoami, resources=["camera"]) for _ in range(4)]
    assert {parent for _, parent in client.gather(parents, timeout=STUCK_S)} == {two.large.pid}


@pytest.mark.rule("FUT-42", "FUT-43", "FUT-29")
def test_a_task_runs_near_its_input_and_maps_it(client: Client, look: Look, two: Two) -> None:
    made = client.submit(tasks.large, 1_000_000, resources=["camera"])
    wait(made.done, "the input is there")
    row = look.row(made)
    assert isinstance(row, Realized)
    assert (row.result.location.kind, row.result.location.node) == ("segment", two.large.id)
    near = [client.submit(tasks.parent_of, made, near=made) for _ in range(4)]
    assert set(client.gather(near, timeout=STUCK_S)) == {two.large.pid}


@pytest.mark.rule("FUT-36")
def test_free_memory_is_reported_net_of_what_results_take(client: Client, look: Look, two: Two) -> None:
    made = client.submit(tasks.large, 50_000_000, resources=["camera"])
    wait(made.done, "the result is there")

    def free_ram() -> float:
        return next(node.free["ram"] for node in look.nodes() if node.id == two.large.id)

    wait(lambda: free_ram() <= 400 * 1024**2 - 50_000_000, "the beat tells of it")
    del made
    wait(lambda: free_ram() > 400 * 1024**2 - 50_000_000, "the result is deleted with its last handle")
