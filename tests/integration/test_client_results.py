"""Results: put, deleted, copied, owned, and kept as long as somebody has a handle (FUT-31 to FUT-35)."""

import gc
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidemill
from tests import client_tasks
from tests import worker_tasks as tasks
from tests.workers import Look, WorkerProcess, wait
from tidemill import Client, Future
from tidemill.errors import ResultLost, UnsatisfiableError, UsageError
from tidemill.futures.protocol.rows import Location, Realized, Result, decode_result
from tidemill.futures.values.segments import default_root, sweep
from tidemill.testing.threads import STUCK_S

SIZE = 100_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def workers(home: Path) -> Iterator[list[WorkerProcess]]:
    with WorkerProcess(home) as first, WorkerProcess(home) as second:
        yield [first.ready(), second.ready()]


@pytest.fixture(scope="module")
def client(home: Path, workers: list[WorkerProcess]) -> Iterator[Client]:
    with tidemill.connect(home=home) as client:
        yield client


@pytest.fixture(scope="module")
def look(home: Path, client: Client) -> Iterator[Look]:
    with Look(home) as look:
        yield look


def place(look: Look, future: Future[Any]) -> Location:
    row = look.row(future)
    assert isinstance(row, Realized)
    return row.result.location


def copies(look: Look, future: Future[Any]) -> list[Result]:
    stored = look.store.run(lambda tx: tx.range(*look.keys.copy.under(future.id)))
    return [decode_result(row.value) for row in stored]


def segment(location: Location) -> Path:
    return default_root() / location.name


def holders(look: Look, future: Future[Any]) -> set[str]:
    stored = look.store.run(lambda tx: tx.range(*look.keys.hold.all()))
    pairs = [look.keys.hold.unpack(row.key) for row in stored]
    return {str(node) for node, future_id in pairs if future_id == future.id}


# --- put


@pytest.mark.rule("FUT-33")
def test_a_value_is_put_once_and_read_by_many(client: Client, look: Look) -> None:
    table = client.put(np.arange(50_000))
    assert table.state == "realized"
    assert place(look, table).kind == "object"
    sums = client.map(lambda part, table: int(table[part::4].sum()), range(4), [table] * 4)
    assert sum(client.gather(sums, timeout=STUCK_S)) == sum(range(50_000))
    small = client.put({"rate": 0.2})
    assert place(look, small).kind == "inline"
    assert small.result() == {"rate": 0.2}
    assert str(table.lineage()) == f"put [realized] {table.id.hex()}"


@pytest.mark.rule("FUT-33")
def test_a_value_that_was_put_and_is_lost_is_a_clear_error(client: Client, look: Look, home: Path) -> None:
    value = client.put(bytes(SIZE))
    user = client.submit(tasks.length, value)
    assert user.result(STUCK_S) == SIZE
    (home / "objects" / place(look, value).name).unlink()
    with pytest.raises(ResultLost, match="cannot be computed again"):
        value.result(STUCK_S)
    with pytest.raises(ResultLost):
        client.gather(value, timeout=STUCK_S)
    assert user.result(STUCK_S) == SIZE


@pytest.mark.rule("FUT-33", "FUT-31")
def test_a_value_that_a_task_puts_lies_on_two_workers(client: Client, look: Look) -> None:
    handles = client.submit(client_tasks.puts, SIZE, 2).result(STUCK_S)
    for number, handle in enumerate(handles):
        assert handle.result(STUCK_S) == bytes([number]) * SIZE
        assert len({copy.location.node for copy in copies(look, handle)}) == 2
        assert all(segment(copy.location).exists() for copy in copies(look, handle))


# --- delete, clone, own


@pytest.mark.rule("FUT-32")
def test_deleted_results_are_gone_and_computed_again_when_asked_for(
    client: Client, look: Look, tmp_path: Path
) -> None:
    futures = client.map(tasks.large, [SIZE] * 3, [str(tmp_path)] * 3)
    client.gather(futures, timeout=STUCK_S)
    files = [segment(place(look, future)) for future in futures]
    assert all(file.exists() for file in files)
    assert client.delete(futures) == 3
    assert client.delete(futures) == 0
    wait(lambda: not any(file.exists() for file in files), "the segments are gone")
    assert copies(look, futures[0]) == []
    before = len(tasks.notes(tmp_path))
    assert len(futures[0].result(STUCK_S)) == SIZE
    assert len(tasks.notes(tmp_path)) == before + 1
    assert client.submit(tasks.length, futures[1]).result(STUCK_S) == SIZE


@pytest.mark.rule("FUT-31", "FUT-28")
def test_a_result_is_cloned_to_another_worker_and_survives_its_own(
    home: Path, look: Look, client: Client, workers: list[WorkerProcess]
) -> None:
    future = client.submit(tasks.large, SIZE)
    future.result(STUCK_S)
    source = place(look, future)
    (other,) = {worker.id for worker in workers} - {source.node}
    assert client.clone(future, other).result(STUCK_S) is True
    by_node = {copy.location.node: copy for copy in copies(look, future)}
    assert by_node.keys() == {source.node, other}
    assert future.size_in_bytes == by_node[other].size > SIZE
    segment(source).unlink()  # as if that worker had lost it
    assert client.future(future.id).result(STUCK_S) == tasks.large(SIZE)
    assert place(look, future).node == other
    row = look.row(future)
    assert row.tally.rebuilds == 0
    with pytest.raises(UnsatisfiableError):
        client.clone(future, "nobody")


@pytest.mark.rule("FUT-31")
def test_a_task_takes_ownership_and_the_other_copies_go(
    client: Client, look: Look, workers: list[WorkerProcess]
) -> None:
    future = client.submit(tasks.large, SIZE)
    future.result(STUCK_S)
    source = place(look, future)
    (other,) = {worker.id for worker in workers} - {source.node}
    taken = client.submit(
        client_tasks.takes, future.id, resources=[f"node:{other}"], ram=future.size_in_bytes
    )
    assert taken.result(STUCK_S) is True
    assert place(look, future).node == other
    assert [copy.location.node for copy in copies(look, future)] == [other]
    wait(lambda: not segment(source).exists(), "the old copy is gone")
    assert future.result(STUCK_S) == tasks.large(SIZE)
    with pytest.raises(UsageError, match="only a worker"):
        client.take_ownership(future)
    assert client.submit(client_tasks.takes, client.put(1).id).result(STUCK_S) is True


# --- who keeps a result


@pytest.mark.rule("FUT-34", "FUT-64")
def test_a_result_goes_with_its_last_handle(client: Client, look: Look) -> None:
    future = client.submit(tasks.large, SIZE)
    future.result(STUCK_S)
    file = segment(place(look, future))
    assert holders(look, future) == {client.id}
    second = client.future(future.id)
    del future
    gc.collect()
    client.handles.tick()
    assert file.exists()
    assert second.result(STUCK_S) == tasks.large(SIZE)
    probe = Future(client, second.id)  # not counted
    client.handles.count([second.id], own=True)
    del second
    gc.collect()
    client.handles.tick()
    assert holders(look, probe) == {client.id}
    client.handles.drop(probe.id)
    client.handles.tick()
    wait(lambda: not file.exists(), "the segment is gone")
    assert place(look, probe).kind == "freed"
    assert holders(look, probe) == set()


@pytest.mark.rule("FUT-34")
def test_dependents_and_pins_keep_a_result_that_nobody_has_a_handle_of(
    client: Client, look: Look, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    pinned, used = (client.submit(tasks.large, SIZE) for _ in range(2))
    held = client.submit(client_tasks.waits_for_file, str(gate))
    user = client.submit(lambda value, _: len(value), used, held)
    client.gather(pinned, used, timeout=STUCK_S)
    client.pin(pinned)
    ids = [pinned.id, used.id]
    files = [segment(place(look, future)) for future in (pinned, used)]
    del pinned, used
    gc.collect()
    client.handles.tick()
    assert all(file.exists() for file in files)
    gate.touch()
    assert user.result(STUCK_S) == SIZE
    wait(lambda: not files[1].exists(), "what was used is collected")
    assert files[0].exists()
    again = client.future(ids[0])
    client.unpin(again)
    assert again.result(STUCK_S) == tasks.large(SIZE)


@pytest.mark.rule("FUT-64")
def test_a_handle_in_another_process_is_counted_there(home: Path, client: Client, look: Look) -> None:
    future = client.submit(tasks.large, SIZE)
    future.result(STUCK_S)
    code = (
        "import pickle, sys\n"
        "future = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "future.client.handles.tick()\n"
        "print(future.client.id, len(future.result()), flush=True)\n"
        "sys.stdin.read()\n"
        "future.client.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, pickle.dumps(future).hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        other, size = process.stdout.readline().split()
        assert int(size) == SIZE
        assert other != client.id
        assert holders(look, future) == {client.id, other}
        process.communicate(timeout=STUCK_S)
    wait(lambda: holders(look, future) == {client.id}, "the leader released what the other held")
    assert future.result() == tasks.large(SIZE)


@pytest.mark.rule("FUT-64")
def test_a_pickled_handle_holds_no_secret_and_is_at_home_in_its_own_process(client: Client) -> None:
    future = client.put("a value")
    stream = pickle.dumps([future, future, client])
    assert client.place.key.secret not in stream
    assert client.place.key.secret.hex().encode() not in stream
    first, second, same = pickle.loads(stream)
    assert same is client
    assert first == second == future
    assert first.client is client
    assert first.result() == "a value"


@pytest.mark.rule("FUT-64")
def test_a_client_whose_lease_ran_out_holds_its_handles_again(client: Client, look: Look) -> None:
    future = client.submit(tasks.large, SIZE)
    future.result(STUCK_S)
    membership = client._link.membership
    assert membership is not None
    look.store.run(lambda tx: tx.clear(look.cluster.node[client.id]))
    membership._due = 0.0
    wait(lambda: client.id in {node.id for node in look.nodes()}, "the client is back")
    client.handles.tick()
    assert client.id in holders(look, future)
    assert future.result(STUCK_S) == tasks.large(SIZE)


def test_results_that_are_not_claimed_by_anybody_leave_nothing_behind(tmp_path: Path) -> None:
    with tidemill.connect(home=tmp_path, workers=1) as client:
        future = client.submit(tasks.large, SIZE)
        future.result(STUCK_S)
        folder = segment(client.row_of(future).result.location).parent  # type: ignore[union-attr]
        assert folder.exists()

    def gone() -> bool:
        """A worker that took too long to end, and was killed, leaves it to whoever is next."""
        sweep(folder.parent)
        return not folder.exists()

    wait(gone, "nothing is left, nor written any more")
    shutil.rmtree(tmp_path)


@pytest.mark.rule("FUT-35")
def test_repartitioning_runs_on_data_larger_than_one_workers_memory() -> None:
    path = Path(__file__).parents[2] / "examples" / "02_repartition.py"
    done = subprocess.run(
        [sys.executable, str(path)], check=False, capture_output=True, text=True, timeout=STUCK_S
    )
    assert done.returncode == 0, done.stderr
    output = done.stdout
    assert "46 MiB in 4 parts by customer, on workers with 32MB each" in output
    assert "every order is in the part of its customer, and none was lost" in output
