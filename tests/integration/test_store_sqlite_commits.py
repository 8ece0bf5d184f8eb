"""SQLite commits that fail: looked up, made once, or refused with a typed error; and full disks."""

import os
import resource
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import JumpingClock
from tests.integration.sqlite_batch import Batch
from tidemill.errors import CommitUnknown, StoreFull, StoreUnavailable
from tidemill.store import Tx
from tidemill.store.sqlite import SqliteStore


class HastyClock(JumpingClock):
    """Sleeping skips the time."""

    def sleep(self, seconds: float) -> None:
        self.skip(max(0.0, seconds))


class FailingConnection:
    """A connection on which COMMIT fails, before or after it was done, as a disk may."""

    def __init__(
        self, real: sqlite3.Connection, *, done: bool, code: int = sqlite3.SQLITE_IOERR_FSYNC
    ) -> None:
        self._real = real
        self._done = done
        self._code = code

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement != "COMMIT":
            return self._real.execute(statement, *values)
        if self._done:
            self._real.execute(statement)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = self._code
        raise error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def fail_next_commit(store: SqliteStore, *, done: bool) -> None:
    real = store._writer._connection
    assert real is not None
    store._writer._connection = FailingConnection(real, done=done)  # type: ignore[assignment]


def add(tx: Tx) -> int:
    tx.add(b"n", 1)
    return tx.counter(b"n")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "store.db", clock=HastyClock()) as store:
        store.run(add)
        yield store


@pytest.mark.rule("STO-5")
@pytest.mark.parametrize("done", [True, False], ids=["it was committed", "it was not"])
def test_a_commit_of_unknown_outcome_takes_effect_once(store: SqliteStore, done: bool) -> None:
    fail_next_commit(store, done=done)
    assert store.run(add) == 2
    assert store.stats.unknown == 1
    assert store.run(lambda tx: tx.counter(b"n")) == 2
    assert store.run(add) == 3


@pytest.mark.rule("STO-5")
def test_a_commit_whose_outcome_was_unknown_is_in_the_main_file(store: SqliteStore) -> None:
    """Its log may not have reached the disk, so the store copies it before it returns the result."""
    fail_next_commit(store, done=True)
    assert store.run(add) == 2
    with closing(sqlite3.connect(f"file:{store.path}?immutable=1", uri=True)) as without_log:
        (value,) = without_log.execute("SELECT v FROM kv WHERE k = ?", (b"n",)).fetchone()
    assert int.from_bytes(value, "little") == 2


@pytest.mark.rule("STO-5")
def test_the_very_first_commit_can_be_unknown_too(tmp_path: Path) -> None:
    for done in (True, False):
        with SqliteStore(tmp_path / f"{done}.db", clock=HastyClock()) as store:
            fail_next_commit(store, done=done)
            assert store.run(add) == 1
            assert store.run(lambda tx: tx.counter(b"n")) == 1


@pytest.mark.rule("STO-5")
@pytest.mark.parametrize("done", [True, False], ids=["it was committed", "it was not"])
def test_a_whole_batch_of_unknown_outcome_takes_effect_once(store: SqliteStore, done: bool) -> None:
    def breaks(tx: Tx) -> None:
        tx.add(b"n", 100)
        raise ValueError("on purpose")

    failing: list[FailingConnection] = []
    real_begin = store._writer._begin

    def begin() -> sqlite3.Connection:
        connection = real_begin()
        if store._writer._gathering and not failing:
            failing.append(FailingConnection(connection, done=done))
            return failing[0]  # type: ignore[return-value]
        return connection

    store._writer._begin = begin  # type: ignore[method-assign]
    first, bad, second = Batch(store).run(add, breaks, add)
    assert sorted([first.outcome(), second.outcome()]) == [2, 3]
    with pytest.raises(ValueError, match="on purpose"):
        bad.outcome()
    assert failing
    assert store.stats.unknown == 1
    assert store.run(lambda tx: tx.counter(b"n")) == 3


@contextmanager
def connecting(store: SqliteStore, connect: Callable[..., Any]) -> Iterator[None]:
    """Meanwhile every new connection of the store comes from here."""
    real = store._file.connect
    store._file.connect = lambda **how: connect(real, **how)  # type: ignore[method-assign]
    try:
        yield
    finally:
        store._file.connect = real  # type: ignore[method-assign]


@pytest.mark.rule("STO-5")
def test_a_commit_that_cannot_be_looked_up_is_reported_as_unknown(store: SqliteStore) -> None:
    def refuse(real: Callable[..., Any], **how: Any) -> Any:
        raise StoreUnavailable("the disk is gone")

    fail_next_commit(store, done=True)
    with connecting(store, refuse), pytest.raises(CommitUnknown) as unknown:
        store.run(add)
    assert "before you repeat it" in unknown.value.hint
    assert store.run(lambda tx: tx.counter(b"n")) == 2
    assert store.run(add) == 3


@pytest.mark.rule("STO-5")
def test_a_disk_that_keeps_failing_leaves_the_commit_unknown(store: SqliteStore) -> None:
    def fail(real: Callable[..., Any], **how: Any) -> Any:
        return FailingConnection(real(**how), done=False)

    fail_next_commit(store, done=False)
    with connecting(store, fail), pytest.raises(CommitUnknown, match="failed 4 times"):
        store.run(add)
    store._writer._drop_connection()
    assert store.run(add) == 2


@pytest.mark.rule("STO-5")
def test_a_real_failure_to_write_is_survived(store: SqliteStore) -> None:
    """The kernel refuses to let files grow: what SQLite writes at the commit fails for real."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    longest = max(file.stat().st_size for file in store.path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (longest, hard))
    try:
        with pytest.raises(CommitUnknown, match="disk I/O"):
            store.run(lambda tx: (add(tx), tx.set_many([(b"k%d" % n, bytes(60_000)) for n in range(10)])))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.run(lambda tx: tx.counter(b"n")) == 1
    assert store.run(lambda tx: tx.range(b"k", b"l")) == []
    assert store.run(add) == 2


# --- no space left


def test_a_full_store_refuses_what_does_not_fit_and_nothing_else(store: SqliteStore) -> None:
    connection = store._writer._connection
    assert connection is not None
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 4}")
    large = [(b"k%d" % n, bytes(60_000)) for n in range(2)]
    with pytest.raises(StoreFull) as full:
        store.run(lambda tx: tx.set_many(large))
    assert "committed data is safe" in full.value.hint
    small, refused, another = Batch(store).run(
        add, lambda tx: (tx.set_many(large), tx.range(b"k", b"l")), add
    )
    assert sorted([small.outcome(), another.outcome()]) == [2, 3]
    with pytest.raises(StoreFull):
        refused.outcome()
    assert store.run(lambda tx: tx.range(b"k", b"l")) == []
    connection.execute("PRAGMA max_page_count = 1000000")
    store.run(lambda tx: tx.set_many(large))
    assert len(store.run(lambda tx: tx.range(b"k", b"l"))) == 2


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "tiny"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_loses_nothing(tiny_disk: Path) -> None:
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(200_000))
    count = 0
    with SqliteStore(tiny_disk / "store.db", clock=HastyClock()) as store:
        full = False
        while not full and count < 1000:
            try:
                store.run(lambda tx, n=count: tx.set(b"k%04d" % n, bytes(2000)))
                count += 1
            except StoreFull:
                full = True
        assert full
        assert count > 20
        assert len(store.run(lambda tx: tx.range(b"k", b"l"))) == count
        with pytest.raises(StoreFull):
            store.run(lambda tx: tx.set_many([(b"l%d" % n, bytes(60_000)) for n in range(10)]))
        ballast.unlink()
        store.run(lambda tx: tx.set(b"k%04d" % count, bytes(2000)))
        count += 1
    with SqliteStore(tiny_disk / "store.db") as store:
        rows = store.run(lambda tx: tx.range(b"k", b"l"))
        assert [row.key for row in rows] == [b"k%04d" % n for n in range(count)]


def test_no_store_is_created_on_a_full_disk(tiny_disk: Path) -> None:
    with (tiny_disk / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, 1024 * 1024)
    with pytest.raises(StoreFull):
        SqliteStore(tiny_disk / "store.db")
