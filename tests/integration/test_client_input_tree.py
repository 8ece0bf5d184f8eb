"""Calls with more futures among their arguments than one future may have as inputs."""

from pathlib import Path
from typing import Any

import pytest

from tests import worker_tasks as tasks
from tests.integration.client_stage import client, home, look, worker
from tests.leases import end_lease
from tests.workers import Look, WorkerProcess
from tidemill import Client, connect
from tidemill.errors import UpstreamDependencyFailed
from tidemill.futures.client import input_tree
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.submit import MOST_INPUTS
from tidemill.testing.threads import STUCK_S

__all__ = ["client", "home", "look", "worker"]

MANY = MOST_INPUTS + 100


@pytest.fixture
def small_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build deep trees from few futures: a call has up to four inputs, a bundle three."""
    monkeypatch.setattr(input_tree, "MOST_DIRECT", 4)
    monkeypatch.setattr(input_tree, "BUNDLE", 3)


def inputs_of(look: Look, future_id: bytes) -> tuple[bytes, ...]:
    raw = look.store.run(lambda tx: tx.get(look.keys.spec[future_id]))
    assert raw is not None
    return rows.decode_spec(raw).inputs


@pytest.mark.rule("FUT-19")
def test_a_call_with_many_futures_gets_all_results_in_order(client: Client, look: Look) -> None:
    futures = client.map(tasks.add, range(MANY))
    listing = client.submit(tasks.listed, *futures, last=[futures[-1], futures[0]])
    values, more = listing.result(STUCK_S)
    assert list(values) == list(range(1, MANY + 1))
    assert more == {"last": [MANY, 1]}
    inputs = inputs_of(look, listing.id)
    assert len(inputs) == 1 + MANY - input_tree.BUNDLE  # no more are bundled than necessary
    assert inputs_of(look, inputs[0]) == tuple(future.id for future in futures[: input_tree.BUNDLE])


@pytest.mark.usefixtures("small_bundles")
def test_bundles_of_bundles_keep_the_order(client: Client) -> None:
    for count in (5, 12, 13, 60):
        futures = client.map(tasks.add, range(count))
        nested = {"a": futures[::2], "b": tuple(futures[1::2])}
        (values,), _ = client.submit(tasks.listed, nested).result(STUCK_S)
        assert values == {"a": list(range(1, count + 1, 2)), "b": tuple(range(2, count + 1, 2))}


@pytest.mark.usefixtures("small_bundles")
def test_the_calls_of_map_take_many_futures(client: Client) -> None:
    futures = client.map(tasks.add, range(20))
    listings = client.map(tasks.listed, [futures[:10], futures[10:], futures])
    results = client.gather(listings, timeout=STUCK_S)
    assert [list(values[0]) for values, _ in results] == [
        list(range(1, 11)),
        list(range(11, 21)),
        list(range(1, 21)),
    ]


@pytest.mark.rule("FUT-47")
def test_an_actor_takes_as_many_futures_as_any_call(client: Client) -> None:
    actor = client.actor(tasks.Counter)
    futures = client.map(tasks.add, range(MOST_INPUTS))
    assert actor.listed(*futures).result(STUCK_S) == list(range(1, MOST_INPUTS + 1))


@pytest.mark.rule("FUT-46")
@pytest.mark.usefixtures("small_bundles")
def test_a_failed_or_cancelled_input_fails_the_call_as_without_bundles(client: Client) -> None:
    fine = client.map(tasks.add, range(30))
    failed = client.submit(tasks.raises, "the cause of it")
    waits = client.submit(tasks.add, 1, resources=["nowhere"], on_unsatisfiable="wait")
    flat = [client.submit(tasks.add, failed), client.submit(tasks.add, waits)]
    deep = [client.submit(tasks.total, *fine, culprit, *fine) for culprit in (failed, waits)]
    waits.cancel()
    for single, many in zip(flat, deep, strict=True):
        expected, error = single.exception(STUCK_S), many.exception(STUCK_S)
        assert isinstance(error, UpstreamDependencyFailed)
        assert expected is not None
        assert type(error) is type(expected)
        assert type(error.__cause__) is type(expected.__cause__)
        assert str(expected.__cause__) == str(error.__cause__)
        assert many.state == "failed"
    assert {future.result(STUCK_S) for future in fine} == set(range(1, 31))


@pytest.mark.usefixtures("small_bundles")
def test_a_cancelled_call_leaves_its_inputs_alone(client: Client, tmp_path: Path) -> None:
    waits = client.submit(tasks.waits_for, str(tmp_path), "go")
    futures = client.map(tasks.add, range(10))
    call = client.submit(tasks.listed, *futures, waits)
    assert call.cancel()
    (tmp_path / "go").touch()
    assert waits.result(STUCK_S) == "go"
    assert call.state == "cancelled"


@pytest.mark.usefixtures("small_bundles")
def test_a_call_with_a_key_is_submitted_once_with_its_bundles(client: Client) -> None:
    futures = client.map(tasks.add, range(20))
    first = client.submit(tasks.listed, *futures, key="many")
    assert first.result(STUCK_S)
    again = client.submit(tasks.listed, *futures, key="many")
    assert again.id == first.id
    bundles = [node for node in first.lineage() if node.name.endswith("input_tree.collect")]
    assert len({node.id for node in bundles}) == len({node.id for node in again.lineage() if node in bundles})


@pytest.mark.rule("FUT-62")
def test_a_task_that_dies_submits_a_call_with_many_futures_once(client: Client, tmp_path: Path) -> None:
    assert client.submit(tasks.lists_many, str(tmp_path), MANY, retries=3).result(STUCK_S) == list(
        range(1, MANY + 1)
    )
    assert len(set(tasks.notes(tmp_path))) == 1


def test_the_call_outlives_its_client_and_a_worker_that_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with WorkerProcess(home, slots=2) as first:
        first.ready()
        with connect(home=home) as client:
            futures = [client.submit(tasks.large, 200_000, "") for _ in range(3)]
            waits = client.submit(tasks.waits_for, str(tmp_path), "go")
            call = client.submit(tasks.listed, *client.map(tasks.add, range(MANY)), *futures, waits)
            future_id = call.id
            client.gather(futures, timeout=STUCK_S)
        first.kill()
    (tmp_path / "go").touch()
    with Look(home) as look, WorkerProcess(home, slots=2) as second, connect(home=home) as client:
        end_lease(look.store, look.cluster, first.id)
        second.ready()
        values: tuple[Any, ...] = client.future(future_id).result(STUCK_S)[0]
    assert list(values[:MANY]) == list(range(1, MANY + 1))
    assert [len(value) for value in values[MANY:-1]] == [200_000] * 3
    assert values[-1] == "go"
