"""The SQLite store: group commit, snapshots for readers, the clock, guards and watches.

Threads wait for each other by events and locks; nothing here sleeps.
"""

import random
import signal
import sqlite3
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clocks import JumpingClock
from tests.integration.sqlite_batch import Batch, eventually
from tidemill import crash
from tidemill.errors import (
    LeaseLost,
    StoreBusy,
    StoreCorrupt,
    StoreFormat,
    StoreLocation,
    StoreUnavailable,
    UsageError,
)
from tidemill.store import Tx, Versionstamp, unpack
from tidemill.store.retry import OPERATIONS
from tidemill.store.sqlite import SqliteStore
from tidemill.store.sqlite import location as guard
from tidemill.store.sqlite.file import IDLE_READERS
from tidemill.store.sqlite.header import FORMAT, FORMAT_KEY, PUT
from tidemill.store.sqlite.location import MachineId
from tidemill.testing.fake_clock import FakeClock
from tidemill.testing.threads import STUCK_S, Racer, together

HERE = MachineId("machine-1", "boot-1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(path) as store:
        yield store


def get(store: SqliteStore, key: bytes) -> bytes | None:
    return store.run(lambda tx: tx.get(key))


def put(store: SqliteStore, key: bytes, value: bytes = b"") -> None:
    store.run(lambda tx: tx.set(key, value))


# --- group commit


@pytest.mark.rule("STO-5", "STO-9")
@pytest.mark.parametrize("commit_delay_s", [0, 0.005])
def test_thirty_two_threads_share_a_commit(path: Path, commit_delay_s: float) -> None:
    with SqliteStore(path, commit_delay_s=commit_delay_s) as store:
        Batch(store).run(*[lambda tx, me=me: tx.set(b"%d" % me, b"") for me in range(32)])
        assert store.stats.transactions == 33
        assert store.stats.commits <= 2, "theirs, and that of the one they waited for"


@pytest.mark.rule("STO-5")
def test_concurrent_writes_of_threads_are_all_stored(store: SqliteStore) -> None:
    together(*[lambda me=me: [put(store, b"%d/%d" % (me, n)) for n in range(25)] for me in range(32)])
    assert store.stats.transactions == 32 * 25
    assert store.stats.commits <= 32 * 25
    assert len(store.run(lambda tx: tx.range(b"0", b":"))) == 32 * 25


@pytest.mark.rule("STO-5")
def test_a_function_that_raises_is_rolled_back_alone_and_only_its_caller_gets_the_error(
    store: SqliteStore,
) -> None:
    class Broken(Exception):
        pass

    def breaks_late(tx: Tx) -> None:
        tx.set(b"bad/1", b"")
        assert tx.range(b"bad/", b"bad0")  # has reached SQLite, inside the savepoint
        tx.clear_range(b"good", b"good~")
        tx.set(b"bad/2", b"")
        raise Broken("on purpose")

    put(store, b"good", b"0")
    before = store.stats.commits
    good, bad, better = Batch(store).run(
        lambda tx: tx.set(b"good/1", b""), breaks_late, lambda tx: tx.set(b"good/2", b"")
    )
    with pytest.raises(Broken, match="on purpose") as raised:
        bad.outcome()
    assert any(frame.name == "breaks_late" for frame in traceback.extract_tb(raised.value.__traceback__))
    assert good.outcome() is None
    assert better.outcome() is None
    assert store.stats.commits - before == 2, "the holder's and that of the three"
    keys = [row.key for row in store.run(lambda tx: tx.range(b"a", b"h"))]
    assert keys == [b"good", b"good/1", b"good/2"]


@pytest.mark.rule("STO-5")
@pytest.mark.parametrize("stop", [LeaseLost, KeyboardInterrupt, SystemExit])
def test_the_store_stays_usable_after_any_error_of_a_function(
    store: SqliteStore, stop: type[BaseException]
) -> None:
    def fn(tx: Tx) -> None:
        tx.set(b"k", b"")
        raise stop("enough")

    with pytest.raises(stop):
        store.run(fn)
    [racer] = Batch(store).run(fn)
    with pytest.raises(stop):
        racer.outcome()
    put(store, b"l")
    assert get(store, b"k") is None
    assert get(store, b"l") == b""


@pytest.mark.rule("STO-2")
def test_versioned_rows_of_one_batch_have_different_keys_in_the_order_of_the_calls(
    store: SqliteStore,
) -> None:
    Batch(store).run(*[lambda tx, n=n: tx.set_versioned(b"p", b"%d" % n) for n in range(5)])
    assert [row.value for row in store.run(lambda tx: tx.range(b"p", b"q"))] == [b"0", b"1", b"2", b"3", b"4"]


def test_functions_in_one_batch_see_each_others_writes_in_order(store: SqliteStore) -> None:
    def add(tx: Tx) -> bytes:
        value = b"%d" % (int(tx.get(b"n") or b"0") + 1)
        tx.set(b"n", value)
        return value

    put(store, b"n", b"0")
    store.run(add)
    before = store.stats.commits
    assert [racer.outcome() for racer in Batch(store).run(add, add, add)] == [b"2", b"3", b"4"]
    assert store.stats.commits - before == 2


def test_a_slow_function_does_not_hold_the_next_ones(path: Path) -> None:
    clock = JumpingClock()
    with SqliteStore(path, clock=clock) as store:

        def slow(tx: Tx) -> None:
            clock.skip(0.06)
            tx.set(b"slow", b"")

        before = store.stats.commits
        for racer in Batch(store).run(slow, lambda tx: tx.set(b"a", b""), lambda tx: tx.set(b"b", b"")):
            racer.outcome()
        assert store.stats.commits - before == 3, "the holder, the slow one, the two others"


@pytest.mark.rule("STO-5")
def test_no_caller_gets_a_result_before_the_commit(store: SqliteStore) -> None:
    put(store, b"k", b"old")
    with crash.armed("store.sqlite.before_commit"), pytest.raises(crash.Crashed):
        put(store, b"k", b"new")
    assert get(store, b"k") == b"old"
    with crash.armed("store.sqlite.after_commit"), pytest.raises(crash.Crashed):
        put(store, b"k", b"new")
    assert get(store, b"k") == b"new"
    with crash.armed("store.sqlite.before_commit", visit=2):  # the first is the holder's
        racers = Batch(store).run(lambda tx: tx.set(b"a", b""), lambda tx: tx.set(b"b", b""))
    for racer in racers:
        with pytest.raises(crash.Crashed):
            racer.outcome()
    assert [get(store, key) for key in (b"held", b"a", b"b")] == [b"", None, None]


def test_an_interrupted_caller_abandons_only_its_own_call(store: SqliteStore) -> None:
    assert threading.current_thread() is threading.main_thread()
    put(store, b"k")
    inside, go = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        tx.set(b"held", b"")
        inside.set()
        assert go.wait(STUCK_S)

    def interrupt() -> None:
        eventually(lambda: store._writer._gathering)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    holder = Racer(lambda: store.run(hold))
    holder.start()
    assert inside.wait(STUCK_S)
    Racer(interrupt).start()
    ran: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        store.run(lambda tx: (ran.append(1), tx.set(b"mine", b"")))
    ran.clear()  # it may have been tried on a snapshot before it queued up
    other = Racer(lambda: put(store, b"other"))
    other.start()
    go.set()
    holder.outcome()
    other.outcome()
    put(store, b"last")
    assert ran == []
    assert [get(store, key) for key in (b"held", b"mine", b"other", b"last")] == [b"", None, b"", b""]


def test_a_transaction_in_a_transaction_is_refused_wherever_it_runs(store: SqliteStore) -> None:
    def nested(tx: Tx) -> None:
        tx.get(b"k")
        put(store, b"k")

    def nested_after_write(tx: Tx) -> None:
        tx.set(b"a", b"")
        put(store, b"k")

    for _ in range(2):  # on a snapshot, then by a caller that is alone
        with pytest.raises(UsageError, match="inside a transaction"):
            store.run(nested)
        with pytest.raises(UsageError, match="inside a transaction"):
            store.run(nested_after_write)
    [racer] = Batch(store).run(nested_after_write)
    with pytest.raises(UsageError, match="inside a transaction"):
        racer.outcome()
    with pytest.raises(UsageError, match="inside"):
        store.run(lambda tx: (tx.set(b"a", b""), store.close()))
    assert store.run(lambda tx: tx.range(b"a", b"z")) == [(b"held", b"")]


def test_versions_follow_commits_across_handles(store: SqliteStore, path: Path) -> None:
    with SqliteStore(path) as second:
        for n in range(6):
            [store, second][n % 2].run(
                lambda tx, n=n: [tx.set_versioned(b"v", b"%d/%d" % (n, m)) for m in range(2)]
            )
        rows = store.run(lambda tx: tx.range(b"v", b"w"))
    assert [row.value for row in rows] == [b"%d/%d" % (n, m) for n in range(6) for m in range(2)]
    versions = [unpack(row.key[1:])[0] for row in rows]
    assert versions == sorted(versions)
    assert all(isinstance(version, Versionstamp) for version in versions)


# --- reading


def test_a_function_that_only_reads_needs_no_writer(store: SqliteStore, path: Path) -> None:
    put(store, b"k", b"1")
    commits = store.stats.commits
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    try:
        assert get(store, b"k") == b"1"
        assert store.run(lambda tx: tx.now()) > 0
        assert store.run(lambda tx: tx.take(b"q", b"r", 10), mode="take") == []
        assert store.run(lambda tx: tx.swap(b"k", b"2", b"3")) is False
    finally:
        blocker.close()
    assert store.stats.commits == commits


def test_a_function_that_hides_the_turn_to_writing_still_writes(store: SqliteStore) -> None:
    def fn(tx: Tx) -> str:
        try:
            tx.set(b"k", b"1")
        except BaseException:  # noqa: BLE001  what no function should do
            return "hidden"
        return "written"

    assert store.run(fn) == "written"
    assert get(store, b"k") == b"1"


def test_a_busy_store_is_waited_for_and_then_given_up(path: Path) -> None:
    with SqliteStore(path, patience_s=0.05) as store:
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="locked"):
            put(store, b"k", b"1")
        blocker.close()
        put(store, b"k", b"2")
        assert get(store, b"k") == b"2"


def test_readers_leave_few_connections_behind(store: SqliteStore) -> None:
    gate = threading.Barrier(20)
    together(*[lambda: store.run(lambda tx: (tx.get(b"k"), gate.wait(STUCK_S))[0])] * 20)
    assert len(store._file._open) <= IDLE_READERS + 1


# --- time


@pytest.mark.rule("STO-6")
def test_lease_time_continues_after_a_reboot(path: Path) -> None:
    clock = FakeClock(monotonic_s=5_000.0)
    with SqliteStore(path, clock=clock, machine=HERE) as store:
        put(store, b"k")
        clock.advance(10)
        last = store.run(lambda tx: tx.now())
    rebooted = FakeClock(monotonic_s=7.0, wall_s=0.0)  # and the wall clock lost its battery
    with SqliteStore(path, clock=rebooted, machine=MachineId("machine-1", "boot-2")) as store:
        first = store.run(lambda tx: tx.now())
        assert last <= first <= last + 61_000_000
        rebooted.advance(5)
        assert store.run(lambda tx: tx.now()) == first + 5_000_000


@pytest.mark.rule("STO-6")
def test_lease_time_ignores_wall_clocks_and_is_the_same_for_all(path: Path) -> None:
    clock = FakeClock()
    with (
        SqliteStore(path, clock=clock, machine=HERE) as first,
        SqliteStore(path, clock=clock, machine=HERE) as second,
    ):
        before = first.run(lambda tx: tx.now())
        clock.wall_s -= 86_400
        assert first.run(lambda tx: tx.now()) == second.run(lambda tx: tx.now()) == before
        clock.advance(1)
        assert first.run(lambda tx: tx.now()) == second.run(lambda tx: tx.now()) == before + 1_000_000
        assert second.run(lambda tx: (tx.set(b"k", b""), tx.now())[1]) == before + 1_000_000


@pytest.mark.rule("STO-6")
def test_nothing_beyond_the_stored_ceiling_is_handed_out(path: Path) -> None:
    clock = FakeClock()
    with SqliteStore(path, clock=clock, machine=HERE) as store:
        for step_s in (1, 40, 400, 40_000):
            clock.advance(step_s)
            now = store.run(lambda tx: tx.now())
            # The power fails here: whoever comes after the reboot must not be earlier.
            rebooted = MachineId("machine-1", f"boot-{step_s}")
            copy = path.with_name(f"{step_s}.db")
            with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
                source.backup(target)
            source.close()
            target.close()
            with SqliteStore(copy, clock=FakeClock(monotonic_s=1.0), machine=rebooted) as later:
                assert later.run(lambda tx: tx.now()) >= now


def test_reading_the_time_writes_once_in_a_while_only(path: Path) -> None:
    clock = FakeClock()
    with SqliteStore(path, clock=clock, machine=HERE) as store:
        for _ in range(600):
            clock.advance(0.5)
            store.run(lambda tx: tx.now())
        assert 2 <= store.stats.commits <= 10


# --- whose file it is


@pytest.mark.rule("STO-9", "CLU-18")
def test_a_second_machine_is_refused_until_it_adopts_the_file(path: Path) -> None:
    other = MachineId("machine-2", "boot-9")
    with SqliteStore(path, machine=HERE) as first:
        put(first, b"k", b"1")
        with pytest.raises(StoreLocation, match="another machine"):
            SqliteStore(path, machine=other)
        with SqliteStore(path, machine=other, adopt=True) as second:
            assert get(second, b"k") == b"1"
            for act in (lambda: put(first, b"k", b"2"), lambda: first.run(lambda tx: tx.now())):
                with pytest.raises(StoreLocation, match="another machine"):
                    act()
            assert get(second, b"k") == b"1"
    with pytest.raises(StoreLocation):
        SqliteStore(path, machine=HERE)
    SqliteStore(path, machine=MachineId("machine-2", "boot-10")).close()


@pytest.mark.rule("STO-9")
def test_a_network_file_system_is_refused_before_anything_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = guard.parse_mounts(Path("/proc/self/mountinfo").read_text())
    monkeypatch.setattr(guard, "NETWORK", {guard.filesystem_of(str(path.resolve()), mounts)})
    with pytest.raises(StoreLocation, match="network file system"):
        SqliteStore(path / "folder" / "store.db")
    assert not path.exists()


@pytest.mark.rule("STO-10")
@pytest.mark.parametrize(
    ("number", "kind", "hint"),
    [
        (b"%d" % (FORMAT + 1), StoreFormat, "upgrade"),
        (b"%d" % (FORMAT - 1), StoreFormat, "one release at a time"),
        (b"nonsense", StoreCorrupt, "backup"),
    ],
)
def test_another_format_is_refused_with_a_hint(path: Path, number: bytes, kind: type, hint: str) -> None:
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(PUT, (FORMAT_KEY, number))
    connection.close()
    before = path.read_bytes()
    with pytest.raises(kind) as refused:
        SqliteStore(path)
    assert hint in refused.value.hint
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_not_changed(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StoreFormat, match="not a store"):
        SqliteStore(path)


def test_a_file_that_is_not_sqlite_is_not_changed(path: Path) -> None:
    path.write_bytes(b"dear diary, " * 1000)
    with pytest.raises(StoreCorrupt) as refused:
        SqliteStore(path)
    assert "backup" in refused.value.hint
    assert path.read_bytes() == b"dear diary, " * 1000


def test_damage_is_named_where_it_is_met_and_the_rest_can_be_read(path: Path) -> None:
    with SqliteStore(path) as store:
        for at in range(0, 1000, 100):
            store.run(
                lambda tx, at=at: tx.set_many([(b"k%04d" % n, bytes(500)) for n in range(at, at + 100)])
            )
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with SqliteStore(path) as store:
        with pytest.raises(StoreCorrupt):
            store.run(lambda tx: tx.range(b"k", b"l"))
        with pytest.raises(StoreCorrupt):
            store.run(lambda tx: (tx.set(b"a", b""), tx.range(b"k", b"l")))
        assert get(store, b"a") is None
        assert get(store, b"k0000") == bytes(500)
        put(store, b"a", b"still works")
        assert get(store, b"a") == b"still works"


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "store.db", Path("/proc/tidemill/store.db")):
        with pytest.raises(StoreUnavailable):
            SqliteStore(place)


def test_folders_are_created_and_the_url_has_the_path(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "a b" / "c?d" / "e#f%20.db") as store:
        put(store, b"k", b"1")
        assert (tmp_path / "a b" / "c?d" / "e#f%20.db").exists()
        assert store.url == f"sqlite://{tmp_path.resolve()}/a b/c?d/e#f%20.db"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_gone_takes_no_commits(path: Path, replaced: bool) -> None:
    with SqliteStore(path) as store:
        put(store, b"k", b"1")
        path.rename(path.with_suffix(".moved"))
        if replaced:
            SqliteStore(path).close()
        for act in (lambda: put(store, b"k", b"2"), lambda: get(store, b"k")):
            with pytest.raises(StoreUnavailable, match="moved"):
                act()
        assert path.exists() is replaced
        if not replaced:
            path.with_suffix(".moved").rename(path)
            assert get(store, b"k") == b"1"


# --- rows of its own


@pytest.mark.rule("STO-5")
def test_operation_rows_are_one_for_each_open_store_and_expire_by_store_time(path: Path) -> None:
    clock = FakeClock()

    def operations() -> int:
        connection = sqlite3.connect(path)
        query = "SELECT count(*) FROM kv WHERE k >= ? AND k < ?"
        count = connection.execute(query, (OPERATIONS, OPERATIONS + b"\xff")).fetchone()[0]
        connection.close()
        return int(count)

    seeded = [SqliteStore(path, clock=clock, machine=HERE, chance=random.Random(7)) for _ in range(3)]
    for store in seeded:
        put(store, b"k", b"1")
        put(store, b"k", b"2")
    assert operations() == 3, "one each, though they drew the same numbers"
    clock.advance(3500)
    put(seeded[0], b"k", b"3")
    assert operations() == 3, "not before an hour has passed"
    clock.advance(2 * 3600)
    put(seeded[0], b"k", b"4")
    assert operations() == 1
    put(seeded[1], b"k", b"5")
    assert operations() == 2
    for store in seeded:
        store.close()


# --- watches


@pytest.mark.rule("STO-8")
def test_a_commit_of_this_process_fires_the_watches_of_its_keys_at_once(store: SqliteStore) -> None:
    put(store, b"a", b"0")
    with store.watch([b"a"]) as touched, store.watch([b"b"]) as other, store.watch([b"log"]) as log:
        put(store, b"a", b"1")
        assert touched.wait(0) is True
        assert touched.wait(0) is False
        assert other.wait(0) is False
        store.run(lambda tx: tx.set_versioned(b"log", b"x"))
        assert log.wait(0) is True
        assert other.wait(0.05) is False, "the thread that looks for other processes knows our own commits"


@pytest.mark.rule("STO-8")
def test_a_commit_through_another_handle_is_noticed_before_and_during_a_wait(
    store: SqliteStore, path: Path
) -> None:
    with SqliteStore(path) as second, store.watch([b"a"]) as watch:
        put(second, b"a", b"1")
        assert watch.wait(0) is True, "what was committed between making and waiting is not missed"
        assert watch.wait(0) is False
        waiting = Racer(lambda: watch.wait(STUCK_S))
        waiting.start()
        eventually(lambda: store._watches._waiting == 1)
        put(second, b"a", b"2")
        assert waiting.outcome() is True


def test_without_waits_no_thread_polls(store: SqliteStore) -> None:
    looks = 0
    real = store._watches._look

    def counted() -> int:
        nonlocal looks
        looks += 1
        return real()

    store._watches._look = counted
    put(store, b"a", b"0")
    with store.watch([b"a"]) as watch:
        assert looks == 1
        assert store._watches._thread is None
        waiting = Racer(lambda: watch.wait(STUCK_S))
        waiting.start()
        eventually(lambda: looks >= 5)
        put(store, b"a", b"1")
        assert waiting.outcome() is True
        assert not store._watches._wanted.is_set(), "the thread rests until somebody waits again"


def test_a_closed_store_is_an_error(path: Path) -> None:
    store = SqliteStore(path)
    put(store, b"k")
    store.close()
    for act in (lambda: put(store, b"k"), lambda: get(store, b"k")):
        with pytest.raises(UsageError, match="closed"):
            act()
    assert not list(path.parent.glob("*-wal")), "the last one out tidies up"
