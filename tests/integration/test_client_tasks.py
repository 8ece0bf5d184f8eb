"""The client inside a task: its children, its waiting, its values (FUT-41, FUT-62)."""

from pathlib import Path

import pytest

import tidemill
from tests import client_tasks
from tests import worker_tasks as tasks
from tests.integration.client_stage import client, home, look, worker
from tests.workers import Look
from tidemill import Client
from tidemill.errors import FutureTimeout
from tidemill.futures.protocol import edges
from tidemill.testing.threads import STUCK_S

__all__ = ["client", "home", "look", "worker"]


@pytest.mark.rule("FUT-62")
def test_a_parent_that_is_tried_again_does_not_submit_its_children_twice(
    client: Client, look: Look, tmp_path: Path
) -> None:
    parent = client.submit(client_tasks.fails_after_submitting, str(tmp_path), retries=1)
    assert len(parent.result(STUCK_S)) == 3
    notes = tasks.notes(tmp_path)
    assert sorted(line for line in notes if line.startswith("child")) == ["child 0", "child 1", "child 2"]
    puts = [line for line in notes if line.startswith("put")]
    assert len(puts) == 2
    assert len(set(puts)) == 1
    specs = look.store.run(lambda tx: [edges.must_read_spec(tx, look.keys, parent.id)])
    assert specs[0].max_retries == 1


@pytest.mark.rule("FUT-62")
def test_children_know_their_parent_and_have_a_key_of_its(client: Client, look: Look) -> None:
    parent = client.submit(client_tasks.submits_for, ["a", "b"])
    children = parent.result(STUCK_S)
    assert client.gather(children, timeout=STUCK_S) == ["A", "B"]
    for number, child in enumerate(children, 1):
        spec = look.store.run(lambda tx, child=child: edges.must_read_spec(tx, look.keys, child.id))  # type: ignore[misc]
        assert spec.parent == parent.id
        assert spec.key.startswith(f"{parent.id.hex()}.{number}.")


def test_a_client_in_a_closure_is_the_tasks_own(client: Client) -> None:
    def sum_of_squares(n: int) -> int:
        return sum(client.gather(client.map(lambda x: x * x, range(n))))

    assert client.submit(sum_of_squares, 50).result(STUCK_S) == sum(x * x for x in range(50))


def test_a_handle_in_a_closure_stays_a_handle(client: Client) -> None:
    future = client.submit(tasks.add, 41)

    def asks() -> tuple[str, int]:
        return type(future).__name__, future.result()

    assert client.submit(asks).result(STUCK_S) == ("Future", 42)


def test_a_task_with_little_memory_may_use_its_client(client: Client) -> None:
    def asks() -> int:
        here = tidemill.connect()
        return here.submit(tasks.add, here.put(1)).result()

    assert client.gather([client.submit(asks, ram="1MB") for _ in range(4)], timeout=STUCK_S) == [2] * 4


def test_threads_of_a_task_submit_and_wait_too(client: Client) -> None:
    assert client.submit(client_tasks.many_threads, 8).result(STUCK_S) == sum(n * n for n in range(8))


def test_a_task_may_close_its_client_and_connect_again(client: Client, home: Path) -> None:
    where = str(home)

    def twice() -> list[int]:
        results = []
        for n in range(2):
            with tidemill.connect(home=where) as here:
                results.append(here.submit(tasks.add, n).result())
        return results

    assert client.submit(twice).result(STUCK_S) == [1, 2]


@pytest.mark.rule("FUT-41")
def test_a_wait_inside_a_task_has_its_timeout_as_well(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def impatient() -> str:
        here = tidemill.connect()
        slow = here.submit(client_tasks.waits_for_file, str(gate))
        try:
            slow.result(timeout=0.05)
        except FutureTimeout:
            gate.touch()
            return slow.result()
        return "too quick"

    assert client.submit(impatient).result(STUCK_S) == str(gate)


@pytest.mark.rule("FUT-41", "FUT-56")
def test_a_task_gathers_many_of_its_own_and_sees_the_first_failure(client: Client) -> None:
    def many() -> tuple[int, str, int]:
        here = tidemill.connect()
        total = sum(here.gather(here.map(tasks.add, range(400))))
        futures = [*here.map(tasks.add, range(10)), here.submit(tasks.raises, "inside")]
        try:
            here.gather(futures)
        except LookupError as error:
            why = str(error)
        return total, why, len(list(here.as_completed(futures)))

    assert client.submit(many).result(STUCK_S) == (sum(range(1, 401)), "inside", 11)
