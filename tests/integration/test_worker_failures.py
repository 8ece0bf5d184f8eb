"""Failures told apart, each with its count and its end, by real tasks in real processes."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests import worker_tasks as tasks
from tests.integration.worker_stage import client, home, look, worker
from tests.workers import Look, WorkerProcess, wait
from tidemill.errors import (
    BadSignature,
    CannotSerialize,
    CodeNotLoadable,
    FutureFailed,
    TaskCrashed,
)
from tidemill.futures.client.client import Client, connect
from tidemill.futures.client.future import Future
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.rows import Failed, Quarantined, Realized
from tidemill.store import Tx
from tidemill.testing.threads import STUCK_S

__all__ = ["client", "home", "look", "worker"]  # fixtures


@pytest.mark.rule("FUT-40")
def test_user_code_runs_in_a_child_of_the_supervisor(client: Client, worker: WorkerProcess) -> None:
    child, parent = client.submit(tasks.whoami).result(STUCK_S)
    assert parent == worker.pid
    assert child in worker.children()


@pytest.mark.rule("FUT-4", "FUT-19", "FUT-50")
def test_an_exception_is_tried_again_after_a_pause_and_stays_on_record(
    client: Client, look: Look, tmp_path: Path
) -> None:
    future = client.submit(tasks.fails_until, str(tmp_path), 2, retries=3)
    assert future.result(STUCK_S) == "done"
    row = look.row(future)
    assert isinstance(row, Realized)
    assert (row.tally.exceptions, row.tally.crashes, row.tally.ooms) == (2, 0, 0)
    kept = look.failure(future)
    assert kept.kind == "exception"
    assert "not yet" in kept.message


@pytest.mark.rule("FUT-5", "FUT-50")
def test_without_retries_the_original_exception_is_raised_with_the_remote_traceback(
    client: Client, look: Look
) -> None:
    future = client.submit(tasks.raises, "lost keys")
    with pytest.raises(LookupError, match="lost keys") as caught:
        future.result(STUCK_S)
    assert "in raises" in "\n".join(caught.value.__notes__)
    row = look.row(future)
    assert isinstance(row, Failed)
    assert row.kind == "exception"


def test_a_task_that_calls_exit_fails_and_its_process_lives(client: Client, worker: WorkerProcess) -> None:
    client.submit(tasks.whoami).result(STUCK_S)
    before = set(worker.children())
    with pytest.raises(FutureFailed, match="SystemExit"):
        client.submit(tasks.leaves).result(STUCK_S)
    assert set(worker.children()) == before


class Poison(NamedTuple):
    """Tasks that end their process; submitted together, because each is tried three times with pauses."""

    folder: Path
    killed: Future[None]
    native: Future[None]
    exits: Future[None]


@pytest.fixture(scope="module")
def poison(home: Path, worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poison]:
    folder = tmp_path_factory.mktemp("poison")
    with connect(home=home) as client:
        yield Poison(
            folder,
            client.submit(tasks.kills_itself, str(folder), int(signal.SIGKILL), retries=10),
            client.submit(tasks.crashes_in_c),
            client.submit(tasks.ends_at_once, 7),
        )


@pytest.mark.rule("FUT-20", "FUT-53")
def test_three_crashes_quarantine_a_task_while_the_others_finish(
    client: Client, look: Look, poison: Poison
) -> None:
    others = client.map(tasks.add, range(300))
    assert client.gather(others, timeout=STUCK_S) == list(range(1, 301))
    with pytest.raises(TaskCrashed, match="SIGKILL"):
        poison.killed.result(STUCK_S)
    row = look.row(poison.killed)
    assert isinstance(row, Quarantined)
    assert (row.tally.crashes, row.tally.exceptions) == (3, 0)
    assert tasks.notes(poison.folder) == ["killed"] * 3
    assert all(look.row(future).tally.crashes == 0 for future in others)


@pytest.mark.rule("FUT-53")
def test_a_crash_in_native_code_leaves_its_traceback_as_evidence(look: Look, poison: Poison) -> None:
    with pytest.raises(TaskCrashed, match="SIGSEGV"):
        poison.native.result(STUCK_S)
    assert "crashes_in_c" in look.failure(poison.native).traceback


@pytest.mark.rule("FUT-20")
def test_a_process_that_ends_by_itself_is_a_crash_with_its_exit_code(poison: Poison) -> None:
    with pytest.raises(TaskCrashed, match="exit code 7"):
        poison.exits.result(STUCK_S)


def test_a_result_that_cannot_be_pickled_is_a_typed_failure(client: Client) -> None:
    with pytest.raises(CannotSerialize, match="lock"):
        client.submit(tasks.returns_a_lock).result(STUCK_S)


@pytest.mark.rule("FUT-22")
def test_code_that_the_worker_cannot_load_is_tried_once_more_and_fails(
    client: Client, look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    future = client.submit(only_here.f, retries=5)
    with pytest.raises(CodeNotLoadable, match="only_here"):
        future.result(STUCK_S)
    row = look.row(future)
    assert isinstance(row, Failed)
    assert (row.tally.strange, row.tally.exceptions) == (2, 0)
    monkeypatch.delitem(sys.modules, "only_here")


@pytest.mark.rule("FUT-59")
def test_a_forged_spec_never_runs(client: Client, look: Look, tmp_path: Path) -> None:
    """Somebody who can write to the store, and has not the key, changes what a future calls."""
    client.limit("forged", running=1)
    blocker = client.submit(tasks.waits_for, str(tmp_path), "go", queue="forged")
    wait(lambda: bool(tasks.notes(tmp_path)), "the first one runs")
    victim = client.submit(tasks.note, str(tmp_path), "innocent", queue="forged")
    evil = client.submit(tasks.note, str(tmp_path), "evil", queue="forged")
    client.cancel(evil)
    keys = look.keys

    def forge(tx: Tx) -> None:
        spec = rows.decode_spec(tx.get(keys.spec[victim.id]) or b"")
        other = rows.decode_spec(tx.get(keys.spec[evil.id]) or b"")
        tx.set(keys.spec[victim.id], rows.encode(msgspec.structs.replace(spec, args=other.args)))

    look.store.run(forge)
    (tmp_path / "go").touch()
    assert blocker.result(STUCK_S) == "go"
    with pytest.raises(BadSignature):
        victim.result(STUCK_S)
    assert tasks.notes(tmp_path) == ["began go", "ended go"]
