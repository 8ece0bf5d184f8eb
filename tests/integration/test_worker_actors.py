"""Actors: one process each, calls in order, state in memory, a typed death (FUT-47)."""

from pathlib import Path

import pytest

from tests import worker_tasks as tasks
from tests.integration.worker_stage import client, home, worker
from tests.workers import Look, WorkerProcess, wait
from tidemill.errors import ActorDied
from tidemill.futures.client.client import Client, connect
from tidemill.futures.protocol.rows import Failed
from tidemill.testing.threads import STUCK_S

__all__ = ["client", "home", "worker"]  # fixtures


@pytest.mark.rule("FUT-47", "FUT-42")
def test_calls_of_an_actor_run_in_order_in_one_process_and_share_its_state(
    client: Client, worker: WorkerProcess
) -> None:
    counter = client.actor(tasks.Counter, 100)
    calls = [counter.add(n) for n in range(200)]
    plain = client.map(tasks.add, range(100))
    assert client.gather(calls, timeout=STUCK_S)[-1] == 100 + sum(range(200))
    assert counter.history().result(STUCK_S) == list(range(200))
    assert client.gather(plain, timeout=STUCK_S) == list(range(1, 101))
    assert counter.pid().result(STUCK_S) in worker.children()


@pytest.mark.rule("FUT-47")
def test_a_call_that_raises_leaves_the_actor_alive(client: Client) -> None:
    counter = client.actor(tasks.Counter)
    with pytest.raises(LookupError, match="from the actor"):
        counter.raises().result(STUCK_S)
    assert counter.add(3).result(STUCK_S) == 3


@pytest.mark.rule("FUT-47")
def test_a_call_behind_one_that_was_cancelled_goes_on(client: Client, tmp_path: Path) -> None:
    counter = client.actor(tasks.Counter)
    assert counter.add(1).result(STUCK_S) == 1
    late = client.submit(tasks.waits_for, str(tmp_path), "go")
    held = counter.add(late)  # waits for its argument, and those behind it wait for it
    behind = counter.add(5)
    wait(lambda: bool(tasks.notes(tmp_path)), "its argument is being made")
    assert not behind.done()
    client.cancel(held)
    assert behind.result(STUCK_S) == 6
    (tmp_path / "go").touch()


@pytest.mark.rule("FUT-47", "FUT-60")
def test_an_actor_whose_process_dies_fails_its_calls_and_all_later_ones(client: Client, home: Path) -> None:
    counter = client.actor(tasks.Counter)
    assert counter.add(1).result(STUCK_S) == 1
    dies, behind = counter.die(), [counter.add(n) for n in range(5)]
    for call in (dies, *behind):
        with pytest.raises(ActorDied):
            call.result(STUCK_S)
    with pytest.raises(ActorDied):
        counter.add(1).result(STUCK_S)
    with Look(home) as look:
        row = look.row(behind[0])
        assert isinstance(row, Failed)
        assert row.kind == "actor"


@pytest.mark.rule("FUT-47", "FUT-60")
def test_an_actor_dies_with_its_worker_and_is_not_made_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with connect(home=home) as client, WorkerProcess(home) as second, Look(home) as look:
        with WorkerProcess(home, "--resource", "first") as first:
            first.ready()
            counter = client.actor(tasks.Counter, resources=["first"])
            assert counter.add(1).result(STUCK_S) == 1
            first.kill()
            look.end_lease(first)
        second.ready()
        with pytest.raises(ActorDied):
            counter.add(1).result(STUCK_S)
