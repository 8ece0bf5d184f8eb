"""Calls through the client on a real worker: arguments, results, batches, waiting, what users expect."""

import functools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidemill
from tests import worker_tasks as tasks
from tests.client_tasks import alone, describe, waits_for_file
from tests.integration.client_stage import client, home, look, worker
from tests.workers import Look, wait
from tidemill import Client, Future
from tidemill.errors import (
    DeadlineExceeded,
    FutureCancelled,
    FutureTimeout,
    FutureUnknown,
    UnsatisfiableError,
    UsageError,
)
from tidemill.futures.protocol.rows import Blocked, Realized, Unclaimed
from tidemill.store import Tx
from tidemill.testing.threads import STUCK_S

__all__ = ["client", "home", "look", "worker"]


def later(seconds_from_epoch: float) -> datetime:
    return datetime.fromtimestamp(seconds_from_epoch, UTC)


@pytest.mark.rule("FUT-19")
def test_arguments_and_keywords_arrive_and_the_result_comes_back(client: Client) -> None:
    future = client.submit(describe, 1, 4, 5, c=6, other=[7, {"x": 8}])
    assert future.result(STUCK_S) == (1, 4, (5,), 6, {"other": [7, {"x": 8}]})
    assert future.done()
    assert future.state == "realized"
    assert future.exception(STUCK_S) is None
    assert future.size_in_bytes > 0


@pytest.mark.rule("FUT-19", "FUT-1")
def test_a_future_anywhere_in_the_arguments_arrives_as_its_result(client: Client, look: Look) -> None:
    first, second = client.submit(tasks.add, 1), client.submit(tasks.add, 2)
    both = client.submit(describe, first, [{"deep": (second, first)}], c=second)
    assert both.result(STUCK_S) == (2, [{"deep": (3, 2)}], (), 3, {})
    assert both.lineage().children[0].name == "tests.worker_tasks.add"


@pytest.mark.rule("FUT-1")
def test_a_submission_is_unclaimed_or_blocked_while_an_input_is_missing(client: Client, look: Look) -> None:
    waits = client.submit(tasks.add, 1, resources=["nowhere"], on_unsatisfiable="wait")
    blocked = client.submit(tasks.add, waits)
    assert waits.state in ("unclaimed", "unsatisfiable")
    assert isinstance(look.row(blocked), Blocked)
    assert "waits" not in repr(blocked)
    assert "blocked" in repr(blocked)
    assert waits.cancel()
    with pytest.raises(FutureCancelled):
        waits.result(STUCK_S)


def test_functions_by_value_take_what_they_use_along(client: Client) -> None:
    factor = 3

    def times(x: int) -> int:
        return factor * helper(x)

    def helper(x: int) -> int:
        return x + 1

    assert client.gather(client.map(times, [1, 2]), timeout=STUCK_S) == [6, 9]
    assert client.submit(functools.partial(describe, key=1), 2).result(STUCK_S) == (2, 2, (), 3, {"key": 1})


@pytest.mark.rule("FUT-56")
def test_map_takes_several_iterables_and_gather_keeps_their_order(client: Client) -> None:
    futures = client.map(tasks.add, range(100), range(0, 200, 2))
    assert client.gather(futures, timeout=STUCK_S) == [3 * x for x in range(100)]
    assert tidemill.gather(*futures[:3]) == [0, 3, 6]
    assert client.gather([]) == []
    assert client.gather(futures[0], futures[0]) == [0, 0]


@pytest.mark.rule("FUT-56")
def test_as_completed_gives_each_future_once_when_it_has_ended(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = client.submit(waits_for_file, str(gate))
    quick = client.map(tasks.add, range(5))
    seen: list[Future[Any]] = []
    for future in client.as_completed([slow, *quick], timeout=STUCK_S):
        seen.append(future)
        if len(seen) == 5:
            assert slow not in seen
            gate.touch()
    assert seen[-1] == slow
    assert len(set(seen)) == 6
    assert list(tidemill.as_completed([])) == []


@pytest.mark.rule("FUT-56")
def test_a_wait_has_its_timeout_and_the_future_goes_on(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    future = client.submit(waits_for_file, str(gate))
    with pytest.raises(FutureTimeout, match=r"within 0\.02 s"):
        future.result(0.02)
    with pytest.raises(TimeoutError):
        client.gather(future, timeout=0)
    with pytest.raises(FutureTimeout):
        list(client.as_completed(future, timeout=timedelta(milliseconds=1)))
    with pytest.raises(UsageError, match="timeout='1' is not valid"):
        future.result("1")  # type: ignore[arg-type]
    assert not future.done()
    gate.touch()
    assert future.result(STUCK_S) == str(gate)


@pytest.mark.rule("FUT-56", "FUT-64")
def test_a_map_of_ten_thousand_takes_fewer_than_a_hundred_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tidemill.connect(home=tmp_path) as client:
        runs = _counted(client, monkeypatch)
        futures = client.map(tasks.add, range(10_000))
        assert runs.count("enter_page") < 50
        assert len({future.id for future in futures}) == 10_000
        assert [future.id for future in futures[:100]] == sorted(future.id for future in futures[:100])
        assert len(client.handles) == 10_000
        del futures
        client.handles.tick()
        assert len(client.handles) == 0


@pytest.mark.rule("FUT-56")
def test_submissions_of_many_threads_share_transactions(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(tasks.add, 0).result(STUCK_S)
    runs = _counted(client, monkeypatch)
    results: list[int] = []
    writer = client._link.submission_writer
    write_page = writer._write_page
    first_page = threading.Lock()

    def write_late(page: list[Any]) -> list[bytes]:
        if first_page.acquire(blocking=False):
            wait(lambda: len(page) + len(writer._queue) == 16, "all threads wait for a page")
        return write_page(page)

    monkeypatch.setattr(writer, "_write_page", write_late)

    def submit_ten(first: int) -> None:
        futures = [client.submit(tasks.add, first * 10 + n, 0) for n in range(10)]
        results.extend(client.gather(futures, timeout=STUCK_S))

    threads = [threading.Thread(target=submit_ten, args=(first,)) for first in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(160))
    assert runs.count("enter_page") < 160 - 10, "at least the first fifteen of the others came together"


def _counted(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The transactions of a client from here on, by the name of their function."""
    runs: list[str] = []
    store = client._link.store
    real = store.run

    def run(fn: Callable[[Tx], Any], **options: Any) -> Any:
        runs.append(getattr(fn, "__name__", "?"))
        return real(fn, **options)

    monkeypatch.setattr(store, "run", run)
    return runs


@pytest.mark.rule("FUT-56")
def test_of_submissions_with_one_key_the_first_one_counts(client: Client, tmp_path: Path) -> None:
    once = [client.submit(tasks.note, str(tmp_path), "ran", key="only once") for _ in range(5)]
    assert client.gather(once, timeout=STUCK_S) == [1] * 5
    assert len(set(once)) == 1
    first = client.map(tasks.note, [str(tmp_path)] * 3, "abc", key="a map")
    again = client.map(tasks.note, [str(tmp_path)] * 3, "xyz", key="a map")
    client.gather([*first, *again], timeout=STUCK_S)
    assert first == again
    assert sorted(tasks.notes(tmp_path)) == ["a", "b", "c", "ran"]


@pytest.mark.rule("FUT-56")
def test_a_higher_priority_goes_first(tmp_path: Path) -> None:
    with tidemill.connect(home=tmp_path / "home") as client:
        names = {"low": -5, "plain": 0, "high": 5}
        futures = [
            client.submit(tasks.note, str(tmp_path), name, priority=priority)
            for name, priority in names.items()
        ]
        client.start_worker(1)
        client.gather(futures, timeout=STUCK_S)
    assert tasks.notes(tmp_path) == ["high", "plain", "low"]


@pytest.mark.rule("FUT-56")
@pytest.mark.parametrize("deadline", [0.01, timedelta(milliseconds=10), later(1_000_000_000)])
def test_what_waits_beyond_its_deadline_fails(client: Client, deadline: Any) -> None:
    future = client.submit(tasks.add, 1, deadline=deadline, resources=["nowhere"], on_unsatisfiable="wait")
    with pytest.raises(DeadlineExceeded, match="deadline passed"):
        future.result(STUCK_S)


@pytest.mark.rule("FUT-27")
def test_what_no_live_worker_can_run_is_refused_at_submit(client: Client, look: Look) -> None:
    with pytest.raises(UnsatisfiableError, match=r"needs cpu 1e\+06, camera, but the only live worker"):
        client.submit(tasks.add, 1, cpu=1_000_000, resources="camera")
    with pytest.raises(UnsatisfiableError, match="needs ram 100 TiB"):
        client.map(tasks.add, [1, 2], ram="100TB")
    assert client.submit(tasks.add, 1, cpu=1, ram="1MB").result(STUCK_S) == 2


@pytest.mark.rule("FUT-27")
def test_what_nobody_can_run_may_wait_for_a_grace_or_for_a_worker_that_can(
    client: Client, look: Look, tmp_path: Path
) -> None:
    # more that wait than the leader looks at in one round: the one behind them has its turn
    client.map(tasks.add, range(2_500), resources=["telescope"], on_unsatisfiable="wait")
    patient = client.submit(tasks.add, 1, resources=["telescope"], on_unsatisfiable="wait")
    hasty = client.submit(tasks.add, 1, resources=["microscope"], on_unsatisfiable=0.01)
    with pytest.raises(UnsatisfiableError) as caught:
        hasty.result(STUCK_S)
    assert caught.value.failure.kind == "unsatisfiable"
    assert not patient.done()
    client.start_worker(1, cpu=1, ram="100MB", resources=["telescope"])
    assert patient.result(STUCK_S) == 2


@pytest.mark.rule("FUT-57")
def test_a_limited_queue_runs_so_many_at_once_and_loses_nothing(client: Client, tmp_path: Path) -> None:
    client.limit("narrow", running=1)
    futures = client.map(alone, [str(tmp_path)] * 20, queue="narrow")
    assert client.gather(futures, timeout=STUCK_S) == [1] * 20
    client.limit("narrow")
    assert client.submit(tasks.add, 1, queue="narrow").result(STUCK_S) == 2


@pytest.mark.rule("FUT-21", "FUT-29")
def test_code_arguments_and_results_may_be_larger_than_the_stores_values(client: Client, look: Look) -> None:
    table = np.arange(300_000)

    def looks_up(index: np.ndarray, more: bytes) -> np.ndarray:
        return table[index] + len(more)

    index = np.arange(0, 300_000, 3)
    future = client.submit(looks_up, index, bytes(1_000_000))
    assert np.array_equal(future.result(STUCK_S), index + 1_000_000)
    row = look.row(future)
    assert isinstance(row, Realized)
    assert row.result.location.kind == "segment"
    assert future.size_in_bytes > index.nbytes
    durable = client.submit(np.arange, 100_000, durable=True)
    assert durable.result(STUCK_S).sum() == sum(range(100_000))
    assert _kind(look, durable) == "object"


def _kind(look: Look, future: Future[Any]) -> str:
    row = look.row(future)
    assert isinstance(row, Realized)
    return row.result.location.kind


@pytest.mark.rule("FUT-56")
def test_callbacks_are_called_with_the_ended_future_and_may_raise(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = tmp_path / "gate"
    ended: list[Future[Any]] = []
    heard = threading.Event()

    def note_end(future: Future[Any]) -> None:
        ended.append(future)
        if len(ended) == 3:
            heard.set()

    def breaks(future: Future[Any]) -> None:
        raise LookupError("a callback's own trouble")

    slow = client.submit(waits_for_file, str(gate))
    failing = client.submit(tasks.raises, "x")
    for future in (slow, failing):
        future.add_done_callback(breaks)
        future.add_done_callback(note_end)
    failing.exception(STUCK_S)
    failing.add_done_callback(note_end)
    gate.touch()
    assert heard.wait(STUCK_S)
    assert sorted(future.id for future in ended) == sorted([slow.id, failing.id, failing.id])
    assert "a callback's own trouble" in caplog.text
    with pytest.raises(UsageError, match="is not callable"):
        slow.add_done_callback("print")  # type: ignore[arg-type]


@pytest.mark.rule("FUT-14")
def test_a_future_keeps_its_id_when_its_result_is_computed_again(client: Client, tmp_path: Path) -> None:
    future = client.submit(tasks.note, str(tmp_path), "computed")
    assert future.result(STUCK_S) == 1
    before = future.id
    assert client.delete(future) == 1
    assert future.result(STUCK_S) == 2
    assert future.id == before
    assert client.future(before.hex()).result(STUCK_S) == 2


def test_a_future_that_nobody_knows_is_an_error_wherever_it_is_asked_for(client: Client) -> None:
    stranger = client.future("00" * 16)
    for ask in (
        stranger.result,
        lambda: stranger.state,
        stranger.cancel,
        lambda: client.submit(tasks.add, stranger),
    ):
        with pytest.raises(FutureUnknown):
            ask()
    assert isinstance(stranger.exception(), FutureUnknown)
    assert repr(stranger) == f"<Future ? {'00' * 16} gone>"
    with pytest.raises(UsageError, match="invalid future id"):
        client.future("some future")


def test_handles_are_values_shown_with_name_and_state(client: Client) -> None:
    future = client.submit(tasks.add, 1)
    future.result(STUCK_S)
    assert repr(future) == f"<Future tests.worker_tasks.add {future.id.hex()} realized>"
    shown = future._repr_html_()
    assert "tests.worker_tasks.add" in shown
    assert "realized" in shown
    lambda_shown = client.submit(lambda: 1)._repr_html_()
    assert "&lt;lambda&gt;" in lambda_shown
    assert future == client.future(future.id)
    assert {future: 1}[client.future(future.id)] == 1


def test_a_busy_worker_keeps_what_waits_in_the_pool(client: Client, look: Look, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    busy = client.map(waits_for_file, [str(gate)] * 3)
    waits = client.submit(tasks.add, 1, resources=["nowhere"], on_unsatisfiable="wait")
    wait(lambda: [future.state for future in busy].count("claimed") >= 2, "two are claimed")
    assert isinstance(look.row(waits), Unclaimed) or waits.state == "unsatisfiable"
    gate.touch()
    client.gather(busy, timeout=STUCK_S)
