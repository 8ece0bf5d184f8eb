"""What goes wrong is a typed error at the right place, and nothing is stuck (FUT-46, FUT-50)."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

import tidemill
from tests import worker_tasks as tasks
from tests.integration.client_stage import client, home, look, worker
from tests.workers import Look, wait
from tidemill import Client
from tidemill.errors import (
    ActorDied,
    BadSignature,
    CannotSerialize,
    ClusterKeyMissing,
    CodeNotLoadable,
    FutureCancelled,
    FutureError,
    FutureFailed,
    TaskCrashed,
    UpstreamDependencyFailed,
    UsageError,
)
from tidemill.futures.protocol import edges, rows, submit
from tidemill.futures.protocol.rows import Blob, Realized, Spec
from tidemill.store import Tx
from tidemill.testing.threads import STUCK_S

__all__ = ["client", "home", "look", "worker"]


class Ticket(Exception):
    """Pickles well, and cannot be unpickled: its __init__ wants more than its args."""

    def __init__(self, number: int, price: int) -> None:
        super().__init__(f"ticket {number}")
        self.price = price


@pytest.mark.rule("FUT-50")
def test_the_original_exception_is_raised_with_the_remote_traceback(client: Client) -> None:
    future = client.submit(tasks.raises, "where is it?")
    with pytest.raises(LookupError, match=r"where is it\?") as caught:
        future.result(STUCK_S)
    (note,) = caught.value.__notes__
    assert "remote traceback" in note
    assert "worker_tasks.py" in note
    assert isinstance(future.exception(), LookupError)
    assert future.state == "failed"
    with pytest.raises(LookupError):  # again, and not one traceback upon the other
        future.result()


@pytest.mark.rule("FUT-50")
def test_an_exception_that_cannot_be_loaded_is_told_in_words(client: Client) -> None:
    def fails() -> None:
        raise Ticket(7, price=3)

    with pytest.raises(FutureFailed, match="ticket 7") as caught:
        client.submit(fails).result(STUCK_S)
    assert caught.value.failure.kind == "exception"
    assert "Ticket" in caught.value.failure.type
    assert "in fails" in "".join(caught.value.__notes__)


@pytest.mark.rule("FUT-50")
def test_an_exception_that_would_end_the_asking_process_is_wrapped(client: Client) -> None:
    with pytest.raises(FutureFailed, match="SystemExit: 3") as caught:
        client.submit(tasks.leaves).result(STUCK_S)
    assert isinstance(caught.value.__cause__, SystemExit)


@pytest.mark.rule("FUT-46")
def test_a_failed_input_fails_what_hangs_on_it_with_the_chain_of_causes(client: Client) -> None:
    first = client.submit(tasks.raises, "the root of it")
    second = client.submit(tasks.add, first)
    third = client.submit(tasks.add, [second], 1)
    with pytest.raises(UpstreamDependencyFailed, match="the root of it") as caught:
        third.result(STUCK_S)
    assert [name.partition(" ")[0] for name in caught.value.chain] == [
        "tests.worker_tasks.add",
        "tests.worker_tasks.raises",
    ]
    assert first.id.hex() in caught.value.chain[-1]
    assert isinstance(caught.value.__cause__, LookupError)
    late = client.submit(tasks.add, third)  # its input has failed long ago
    with pytest.raises(UpstreamDependencyFailed, match="the root of it"):
        late.result(STUCK_S)
    text = str(late.lineage())
    assert text.count("[failed]") == 4
    assert "LookupError: the root of it" in text


@pytest.mark.rule("FUT-46", "FUT-56")
def test_what_hangs_on_a_cancelled_future_fails(client: Client) -> None:
    first = client.submit(tasks.add, 1, resources=["nowhere"], on_unsatisfiable="wait")
    second = client.submit(tasks.add, first)
    assert client.cancel(first) is True
    assert first.cancel() is False
    with pytest.raises(FutureCancelled):
        first.result(STUCK_S)
    with pytest.raises(UpstreamDependencyFailed, match="cancelled"):
        second.result(STUCK_S)


@pytest.mark.rule("FUT-56")
def test_a_running_task_is_told_of_its_cancellation(client: Client, look: Look, tmp_path: Path) -> None:
    future = client.submit(tasks.listens, str(tmp_path))
    look.wait_claimed(future)
    assert future.cancel() is True
    with pytest.raises(FutureCancelled):
        future.result(STUCK_S)
    assert isinstance(future.exception(), FutureCancelled)


@pytest.mark.rule("FUT-19", "FUT-50")
def test_the_last_exception_stays_on_record_after_a_success(
    client: Client, look: Look, tmp_path: Path
) -> None:
    future = client.submit(tasks.fails_until, str(tmp_path), 1, retries=1)
    assert future.result(STUCK_S) == "done"
    row = look.row(future)
    assert isinstance(row, Realized)
    assert row.tally.exceptions == 1
    assert look.failure(future).message == "not yet"


def test_gather_raises_the_first_failure_or_gives_the_errors_in_their_place(client: Client) -> None:
    futures = [client.submit(tasks.add, 1), client.submit(tasks.raises, "x"), client.submit(tasks.add, 2)]
    with pytest.raises(LookupError):
        client.gather(futures, timeout=STUCK_S)
    first, error, second = client.gather(futures, timeout=STUCK_S, return_exceptions=True)
    assert (first, type(error), second) == (2, LookupError, 3)


# --- bad input


def test_a_function_that_cannot_be_pickled_says_what_is_to_blame(client: Client) -> None:
    lock = threading.Lock()

    def guarded() -> None:
        with lock:
            pass

    with pytest.raises(CannotSerialize, match="lock"):
        client.submit(guarded)
    with pytest.raises(CannotSerialize, match="lock"):
        client.map(lambda x: lock, [1])


def test_an_argument_that_cannot_be_pickled_is_named(client: Client) -> None:
    with pytest.raises(CannotSerialize, match="argument 2"):
        client.submit(tasks.add, 1, threading.Lock())
    with pytest.raises(CannotSerialize, match="argument 'y'"):
        client.submit(tasks.add, 1, y=[{"deep": threading.Event()}])
    with pytest.raises(CannotSerialize):
        client.put(sys._getframe())


def test_a_result_that_cannot_be_pickled_is_a_typed_error(client: Client) -> None:
    with pytest.raises(CannotSerialize, match="the result of"):
        client.submit(tasks.returns_a_lock).result(STUCK_S)


@pytest.mark.parametrize("args", [(), (1, 2, 3), "xyzt"])
def test_arguments_that_the_function_does_not_accept_are_refused_at_submit(client: Client, args: Any) -> None:
    with pytest.raises(UsageError, match=r"add\(x: int, y: int = 1\) -> int does not accept"):
        client.submit(tasks.add, *args)
    with pytest.raises(UsageError, match="unexpected keyword argument 'z'"):
        client.submit(tasks.add, 1, z=2)
    with pytest.raises(UsageError, match="does not accept"):
        client.map(tasks.add, [1], [2], [3])


@pytest.mark.parametrize("function", [None, 3, "print", tasks])
def test_values_that_are_not_functions_are_refused(client: Client, function: Any) -> None:
    with pytest.raises(UsageError, match="not a function"):
        client.submit(function)
    with pytest.raises(UsageError, match="not a function"):
        client.map(function, [1])


def test_map_expects_iterables(client: Client) -> None:
    with pytest.raises(UsageError, match="got int"):
        client.map(tasks.add, 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least one iterable"):
        client.map(tasks.add)
    assert client.map(tasks.add, []) == []


def test_values_that_are_not_futures_are_refused(client: Client) -> None:
    for ask in (client.gather, client.delete, client.pin):
        with pytest.raises(UsageError, match="expected a future, got int"):
            ask([client.put(1), 3])


@pytest.mark.rule("FUT-22")
def test_a_module_that_the_worker_has_not_is_a_typed_error(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_at_home.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_at_home  # type: ignore[import-not-found]

    future = client.submit(only_at_home.answer)
    with pytest.raises(CodeNotLoadable, match="only_at_home") as caught:
        future.result(STUCK_S)
    assert caught.value.module == "only_at_home"


@pytest.mark.rule("FUT-59")
def test_a_forged_submission_never_runs_and_fails_with_its_reason(
    client: Client, look: Look, tmp_path: Path
) -> None:
    genuine = client.submit(tasks.note, str(tmp_path), "genuine")
    assert genuine.result(STUCK_S) == 1

    def forge(tx: Tx) -> bytes:
        spec = edges.must_read_spec(tx, look.keys, genuine.id)
        forged = msgspec.structs.replace(spec, id=b"\xff" * 16, args=Blob(b"other arguments"))
        return submit.submit(tx, look.keys, [forged])[0]

    forged = client.future(look.store.run(forge))
    with pytest.raises(BadSignature):
        forged.result(STUCK_S)
    assert tasks.notes(tmp_path) == ["genuine"]


@pytest.mark.rule("FUT-59")
def test_a_forged_result_is_not_unpickled(client: Client, look: Look) -> None:
    future = client.submit(tasks.add, 1)
    future.result(STUCK_S)

    def forge(tx: Tx) -> None:
        row = edges.read(tx, look.keys, future.id)
        assert isinstance(row, Realized)
        result = msgspec.structs.replace(row.result, head=row.result.head + b"more")
        tx.set(look.keys.future[future.id], rows.encode(msgspec.structs.replace(row, result=result)))

    look.store.run(forge)
    with pytest.raises(BadSignature):
        client.future(future.id).result(STUCK_S)


@pytest.mark.rule("FUT-53")
def test_a_poisonous_task_is_quarantined_and_says_so(client: Client, tmp_path: Path) -> None:
    future = client.submit(tasks.ends_at_once, 3)
    with pytest.raises(TaskCrashed, match="is quarantined") as caught:
        future.result(STUCK_S)
    assert future.state == "quarantined"
    assert caught.value.failure.kind == "crash"
    assert client.submit(tasks.add, 1).result(STUCK_S) == 2


@pytest.mark.rule("FUT-47")
def test_an_actor_is_called_in_order_and_its_death_is_told(client: Client) -> None:
    counter = client.actor(tasks.Counter, 10).ready(STUCK_S)
    added = [counter.add(1) for _ in range(20)]
    assert client.gather(added, timeout=STUCK_S) == list(range(11, 31))
    assert counter.add.submit(2, deadline=60).result(STUCK_S) == 32
    assert client.submit(_calls, counter).result(STUCK_S) == 33
    with pytest.raises(UsageError, match="Counter has no method 'subtract'"):
        counter.subtract(1)
    assert "alive" in repr(counter)
    counter.die().exception(STUCK_S)
    with pytest.raises(ActorDied):
        counter.add(1).result(STUCK_S)


def _calls(counter: Any) -> int:
    """A handle of an actor stays one when it is passed on."""
    value: int = counter.add(1).result()
    return value


# --- places


def test_a_client_that_is_closed_says_so(tmp_path: Path) -> None:
    client = tidemill.connect(home=tmp_path)
    future = client.put(1)
    client.close()
    client.close()
    for ask in (
        future.result,
        lambda: future.state,
        lambda: client.put(2),
        lambda: client.submit(tasks.add, 1),
    ):
        with pytest.raises(UsageError, match="closed"):
            ask()
    assert "unknown" in repr(future)
    assert "closed" in repr(client)


def test_a_cluster_needs_either_a_home_or_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMILL_CLUSTER_KEY", raising=False)
    monkeypatch.delenv("TIDEMILL_CLUSTER_KEY_FILE", raising=False)
    with pytest.raises(UsageError, match="needs either home= or store="):
        tidemill.connect()
    with pytest.raises(UsageError, match="needs either home= or store="):
        tidemill.connect(home=tmp_path, store="memory://")
    with pytest.raises(UsageError, match="cannot be used together"):
        tidemill.connect(home=tmp_path, objects="memory://")
    with pytest.raises(UsageError, match="not a folder"):
        tidemill.connect(home=__file__)
    with pytest.raises(ClusterKeyMissing):
        tidemill.connect(store=str(tmp_path / "store.db"))
    with pytest.raises(UsageError, match="workers=-1"):
        tidemill.connect(home=tmp_path, workers=-1)
    with pytest.raises(UsageError, match="invalid cluster name"):
        tidemill.connect(home=tmp_path, cluster="")


def test_a_store_with_its_key_in_the_environment_is_a_place_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_CLUSTER_KEY", "ab" * 32)
    where = {"store": str(tmp_path / "store.db"), "objects": str(tmp_path / "objects"), "cluster": "other"}
    with tidemill.connect(**where, workers=1) as client:  # type: ignore[arg-type]
        assert client.submit(tasks.length, bytes(100_000)).result(STUCK_S) == 100_000
    monkeypatch.setenv("TIDEMILL_CLUSTER_KEY", "cd" * 32)
    with tidemill.connect(**where) as other:  # type: ignore[arg-type]
        stored = _only(other, "length")
        with pytest.raises(BadSignature):
            other.future(stored).result(STUCK_S)


def _only(client: Client, name: str) -> bytes:
    """The id of the one future of this name."""
    keys = client._link.keys
    stored = client._link.store.run(lambda tx: tx.range(*keys.spec.all()))
    specs: list[Spec] = [rows.decode_spec(row.value) for row in stored]
    (spec,) = (spec for spec in specs if name in spec.name)
    return spec.id


def test_a_wait_fails_when_the_local_worker_has_died(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tidemill.futures.client.completions.QUIET_S", 0.1)
    with tidemill.connect(home=tmp_path, workers=1) as client:
        client._workers[0]._process.kill()
        wait(lambda: client._workers[0].exit_code is not None, "the worker is dead")
        look = Look(tmp_path)
        for node in look.nodes():
            if node.kind == "worker":
                look.store.run(lambda tx, node=node: tx.clear(look.cluster.node[node.id]))  # type: ignore[misc]
        look.store.close()
        with pytest.raises(FutureError, match=r"local worker ended with exit code -9"):
            client.submit(tasks.add, 1).result(STUCK_S)


def test_a_local_worker_ends_with_its_client_however_that_ends(tmp_path: Path) -> None:
    code = (
        "import sys, tidemill\n"
        "client = tidemill.connect(home=sys.argv[1], workers=1)\n"
        "print(client._workers[0].pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        worker = psutil.Process(int(process.stdout.readline()))
        process.kill()
    worker.wait(STUCK_S)
    assert not worker.is_running()
