import contextlib
import random
from bisect import bisect_left
from collections.abc import Callable

import pytest

import tidemill.store.memory as memory_module
from tidemill.errors import CommitUnknown, StoreBusy, StoreUnavailable
from tidemill.store import Mode, Store, Swap, Tx, pack
from tidemill.store.memory import MemoryStore, MemoryTx
from tidemill.store.retry import OPERATION_TTL_US, OPERATIONS, Conflict, RetriedCall, Unknown, Unreached
from tidemill.testing.fake_clock import FakeClock
from tidemill.testing.threads import STUCK_S, Interloper


class Instant(FakeClock):
    """A clock that remembers how long it was asked to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        super().sleep(seconds)


class Scripted:
    """Faults by hook: each hook takes what to raise from its own list, None meaning nothing."""

    def __init__(self, **script: list[Exception | None]) -> None:
        self.script = script
        self.visits: list[str] = []
        self.now, self.wall = 5_000_000, 7_000_000
        self.lost_wakeups = 0
        self.meanwhile: Callable[[], object] | None = None

    def _at(self, hook: str) -> None:
        self.visits.append(hook)
        left = self.script.get(hook)
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    def before(self, store: MemoryStore) -> None:
        self._at("before")

    def between(self, store: MemoryStore) -> None:
        if self.meanwhile is not None:
            work, self.meanwhile = self.meanwhile, None
            work()
        self._at("between")

    def after(self, store: MemoryStore) -> None:
        self._at("after")

    def now_us(self) -> int:
        return self.now

    def wall_us(self) -> int:
        return self.wall

    def loses_wakeup(self) -> bool:
        self.lost_wakeups -= 1
        return self.lost_wakeups >= 0


def faulty(**script: list[Exception | None]) -> tuple[MemoryStore, Scripted]:
    faults = Scripted(**script)
    return MemoryStore(clock=Instant(), chance=random.Random(1), faults=faults), faults


def operations(store: MemoryStore) -> list[bytes | None]:
    return [value for key in store._keys if key.startswith(OPERATIONS) for _, value in store._history[key]]


def value_of(store: Store, key: bytes) -> bytes | None:
    return store.run(lambda tx: tx.get(key))


class Attempts:
    """A function that reads, lets another thread pass, and writes; it counts how often it ran."""

    def __init__(self, read: Callable[[Tx], object], meanwhile: Callable[[], object]) -> None:
        self.count = 0
        self._read = read
        self._other = Interloper(meanwhile, within_s=STUCK_S)

    def __call__(self, tx: Tx) -> None:
        self.count += 1
        self._read(tx)
        self._other.steps_in()
        self._other.outcome()
        tx.set(b"written", b"")


# --- STO-3: the weakest reading of the contract, so that what passes here passes on PostgreSQL


READS: dict[str, Callable[[Tx], object]] = {
    "get": lambda tx: tx.get(b"k"),
    "locked get": lambda tx: tx.get(b"k", lock=True),
    "range": lambda tx: tx.range(b"a", b"z"),
    "snapshot": lambda tx: tx.range(b"a", b"z", snapshot=True),
    "swap": lambda tx: tx.swap(b"k", b"never", b""),
    "take": lambda tx: tx.take(b"a", b"z", 9),
}
WRITES: dict[str, Callable[[Tx], object]] = {
    "set": lambda tx: tx.set(b"k", b"2"),
    "clear": lambda tx: tx.clear(b"k"),
    "clear_range": lambda tx: tx.clear_range(b"j", b"l"),
    "add": lambda tx: tx.add(b"k", 1),
    "swap": lambda tx: tx.swap(b"k", b"12345678", b"2"),
    "take": lambda tx: tx.take(b"a", b"z", 1),
}


@pytest.mark.rule("STO-3", "STO-9")
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("read", "writer", "conflicts"),
    [
        ("get", "serial", True),
        ("get", "take", False),
        ("locked get", "serial", True),
        ("locked get", "take", True),
        ("range", "serial", True),
        ("range", "take", False),
        ("snapshot", "serial", False),
        ("snapshot", "take", False),
        ("swap", "serial", True),
        ("swap", "take", True),
        ("take", "serial", True),
        ("take", "take", True),
    ],
)
def test_a_plain_read_conflicts_with_serial_commits_and_a_locked_one_with_all(
    read: str, writer: Mode, conflicts: bool, write: str
) -> None:
    store = MemoryStore()
    store.run(lambda tx: tx.set(b"k", b"12345678"))
    reader = Attempts(READS[read], lambda: store.run(WRITES[write], mode=writer))
    store.run(reader)
    assert reader.count == (2 if conflicts else 1)


LOOKS: dict[str, Callable[[Tx], object]] = {
    "b to d": lambda tx: tx.range(b"b", b"d"),
    "b to y": lambda tx: tx.range(b"b", b"y"),
    "first of b to y": lambda tx: tx.range(b"b", b"y", limit=1),
    "last of b to y": lambda tx: tx.range(b"b", b"y", limit=1, reverse=True),
    "absent": lambda tx: tx.get(b"absent"),
    "blind set of c": lambda tx: tx.set(b"c", b"blind"),
    "add": lambda tx: tx.add(b"n", 1),
    "take of the first": lambda tx: tx.take(b"b", b"z", 1),
}


@pytest.mark.rule("STO-9")
@pytest.mark.parametrize(
    ("look", "written", "conflicts"),
    [
        ("b to d", b"b", True),
        ("b to d", b"a\xff", False),
        ("b to d", b"d", False),
        ("b to y", b"x", True),
        ("first of b to y", b"bb", True),
        ("first of b to y", b"c", True),
        ("first of b to y", b"c\x00", False),
        ("last of b to y", b"x", True),
        ("last of b to y", b"m", True),
        ("last of b to y", b"l", False),
        ("absent", b"absent", True),
        ("absent", b"absent\x00", False),
        ("blind set of c", b"c", False),
        ("add", b"n", False),
        ("take of the first", b"c", True),
        ("take of the first", b"bb", False),  # what lies beside the row it took is not its business
    ],
)
def test_a_transaction_conflicts_with_exactly_what_it_read(
    look: str, written: bytes, conflicts: bool
) -> None:
    store = MemoryStore()
    store.run(lambda tx: tx.set_many([(b"c", b""), (b"m", b"")]))
    reader = Attempts(LOOKS[look], lambda: store.run(lambda tx: tx.set(written, b"87654321")))
    store.run(reader)
    assert reader.count == (2 if conflicts else 1)


def test_a_take_transaction_conflicts_on_what_it_took_or_swapped_and_nothing_else() -> None:
    store = MemoryStore()
    store.run(lambda tx: tx.set_many([(b"q1", b""), (b"q2", b""), (b"other", b"")]))
    aside = Attempts(
        lambda tx: [tx.take(b"q1", b"q2", 1), tx.range(b"a", b"z", snapshot=True)],
        lambda: store.run(lambda tx: [tx.swap(b"other", b"", b"2"), tx.take(b"q2", b"q3", 1)], mode="take"),
    )
    store.run(aside, mode="take")
    assert aside.count == 1
    same = Attempts(
        lambda tx: tx.swap_many([Swap(b"other", b"2", b"3")]),
        lambda: store.run(lambda tx: tx.swap(b"other", b"2", b"4"), mode="take"),
    )
    store.run(same, mode="take")
    assert same.count == 2
    assert value_of(store, b"other") == b"4"


@pytest.mark.rule("STO-1")
def test_a_range_is_read_whole_while_another_thread_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    store.run(lambda tx: tx.set_many([(b"b", b""), (b"c", b""), (b"d", b"")]))
    other = Interloper(lambda: store.run(lambda tx: tx.set(b"a", b"")))

    def interrupted(keys: list[bytes], key: bytes) -> int:
        index = bisect_left(keys, key)
        if key == b"c":
            other.steps_in()  # without the store's lock the rows move between the finding of the two ends
        return index

    monkeypatch.setattr(memory_module, "bisect_left", interrupted)
    assert [row.key for row in store.run(lambda tx: tx.range(b"c", b"z"))] == [b"c", b"d"]
    other.outcome()


# --- what is kept


def test_history_is_dropped_when_no_transaction_can_read_it() -> None:
    store = MemoryStore()
    chance = random.Random(3)
    for _ in range(10_000):
        key = b"k%d" % chance.randrange(20)
        act = chance.randrange(4)
        if act == 0:
            store.run(lambda tx, key=key: tx.clear(key))  # type: ignore[misc]
        elif act == 1:
            store.run(lambda tx, key=key: tx.take(key, key + b"\x00", 1), mode="take")  # type: ignore[misc]
        else:
            store.run(lambda tx, key=key: tx.set(key, b"v"))  # type: ignore[misc]
    rows = store.run(lambda tx: tx.range(b"\x00", b"\xfe"))
    histories = {key: history for key, history in store._history.items() if not key.startswith(OPERATIONS)}
    assert {key: [value for _, value in history] for key, history in histories.items()} == {
        row.key: [row.value] for row in rows
    }
    assert sorted(store._history) == store._keys
    assert store._commits == []
    assert store._open == {}


def test_history_is_kept_for_an_open_transaction_and_dropped_after_it() -> None:
    store = MemoryStore()
    store.run(lambda tx: tx.set_many([(b"k", b"0"), (b"gone", b"0")]))

    def meanwhile() -> None:
        store.run(lambda tx: tx.clear(b"gone"))
        for n in range(50):
            store.run(lambda tx, n=n: tx.set(b"k", b"%d" % n))  # type: ignore[misc]

    other = Interloper(meanwhile, within_s=STUCK_S)

    def fn(tx: Tx) -> list[bytes | None]:
        other.steps_in()
        other.outcome()
        assert len(store._commits) == 51
        return [*tx.get_many([b"k", b"gone"]), *[row.value for row in tx.range(b"a", b"z")]]

    assert store.run(fn) == [b"0", b"0", b"0", b"0"]
    assert store._commits == []
    assert [len(history) for history in store._history.values() if len(history) != 1] == []
    assert b"gone" not in store._history


@pytest.mark.rule("STO-1")
def test_the_end_of_a_transaction_does_not_change_the_snapshot_of_another() -> None:
    """The end of the oldest transaction drops history, but not what a later one still reads."""
    store = MemoryStore()
    with contextlib.ExitStack() as stack:
        stack.enter_context(store._transaction("serial"))
        store.run(lambda tx: tx.set(b"k", b"1"))
        with store._transaction("serial") as later:
            store.run(lambda tx: tx.set(b"k", b"2"))
            stack.close()
            assert later.get(b"k") == b"1"


@pytest.mark.rule("STO-5")
def test_operation_rows_are_kept_for_an_hour_at_least_and_then_removed() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    for n in range(5):
        store.run(lambda tx, n=n: tx.set(b"k", b"%d" % n))  # type: ignore[misc]
    assert len(operations(store)) == 5
    clock.advance(3600)
    store.run(lambda tx: tx.set(b"k", b"after an hour"))
    assert len(operations(store)) == 6
    clock.advance(OPERATION_TTL_US / 1_000_000 - 3600 + 120)
    store.run(lambda tx: tx.set(b"k", b"after the time"))
    assert len(operations(store)) == 2
    assert value_of(store, b"k") == b"after the time"


def test_a_transaction_that_only_reads_leaves_no_operation_row() -> None:
    store = MemoryStore()
    store.run(lambda tx: [tx.get(b"k"), tx.range(b"a", b"z"), tx.take(b"a", b"z", 1), tx.now()])
    assert store._history == {}


# --- STO-5: commits whose outcome is unknown


@pytest.mark.rule("STO-5", "STO-9")
def test_an_unknown_commit_that_took_effect_is_found_and_its_result_returned() -> None:
    store, _ = faulty(after=[Unknown("connection lost")])
    results = iter(["first", "second"])

    def fn(tx: Tx) -> str:
        tx.add(b"n", 1)
        return next(results)

    assert store.run(fn) == "first"
    assert store.run(lambda tx: tx.counter(b"n")) == 1
    assert next(results) == "second", "it was not called again"


@pytest.mark.rule("STO-5")
def test_an_unknown_commit_is_found_in_a_later_minute() -> None:
    """The key of an operation's row begins with the minute of its first attempt."""
    store, faults = faulty(after=[Unknown("connection lost")])
    times = iter([30_000_000, *[90_000_000] * 10])
    faults.now_us = lambda: next(times)  # type: ignore[method-assign]
    store.run(lambda tx: tx.add(b"n", 1))
    assert store.run(lambda tx: tx.counter(b"n")) == 1


@pytest.mark.rule("STO-5", "STO-9")
def test_an_unknown_commit_that_failed_is_repeated_once() -> None:
    store, _ = faulty(between=[Unknown("connection lost")])
    results = iter(["first", "second"])

    def fn(tx: Tx) -> str:
        tx.add(b"n", 1)
        return next(results)

    assert store.run(fn) == "second"
    assert store.run(lambda tx: tx.counter(b"n")) == 1
    assert set(operations(store)) == {pack((0,)), pack((2,))}, "the lost attempt is fenced"


@pytest.mark.rule("STO-5")
def test_the_result_is_that_of_the_attempt_which_was_committed() -> None:
    store, faults = faulty(after=[Unknown("lost")])
    store.run(lambda tx: tx.set(b"k", b"0"))  # its own fault is over now
    faults.script = {"after": [None, Unknown("lost")]}
    faults.meanwhile = lambda: store.run(lambda tx: tx.set(b"k", b"1"))
    attempts = 0

    def fn(tx: Tx) -> tuple[int, bytes | None]:
        nonlocal attempts
        attempts += 1
        value = tx.get(b"k")
        tx.set(b"seen", value or b"")
        return attempts, value

    assert store.run(fn) == (2, b"1")
    assert value_of(store, b"seen") == b"1"


@pytest.mark.rule("STO-5", "STO-9")
@pytest.mark.parametrize("seed", range(8))
def test_every_call_counts_once_no_matter_what_happens_to_its_commits(seed: int) -> None:
    chance = random.Random(seed)

    def some(hook_errors: list[type[Exception]]) -> list[Exception | None]:
        return [
            chance.choice(hook_errors)("by chance") if chance.random() < 0.4 else None for _ in range(400)
        ]

    store, _ = faulty(
        before=some([Unreached, Conflict]),
        between=some([Unknown, Conflict, Unreached]),
        after=some([Unknown]),
    )
    counts = [store.run(_increment) for _ in range(30)]
    assert counts == list(range(1, 31))
    assert store.run(lambda tx: tx.counter(b"n")) == 30


def _increment(tx: Tx) -> int:
    value = tx.counter(b"n") + 1
    tx.add(b"n", 1)
    tx.set_versioned(b"log", b"%d" % value)
    return value


@pytest.mark.rule("STO-5")
def test_a_fence_makes_a_late_commit_fail() -> None:
    store = MemoryStore()
    operation: RetriedCall[None] = RetriedCall(lambda tx: tx.set(b"k", b"late"), "serial", random.Random(1))
    operation.attempt = 1
    with store._transaction("serial") as tx:
        operation.fn(tx)
        operation.key(tx.now())
        assert store._fence(operation) == 0
        assert store._fence(operation) == 0
        with pytest.raises(Conflict):
            store._commit(tx, operation)
    assert value_of(store, b"k") is None
    operation.renew_id()
    with store._transaction("serial") as again:
        assert isinstance(again, MemoryTx)
        operation.fn(again)
        store._commit(again, operation)
    assert store._fence(operation) == 1
    assert value_of(store, b"k") == b"late"


@pytest.mark.rule("STO-5")
def test_an_outcome_that_stays_unknown_is_a_separate_error() -> None:
    store, _ = faulty(between=[Unknown("gone")], before=[None, *[Unreached("gone")] * 10_000])
    with pytest.raises(CommitUnknown, match="is unknown: gone"):
        store.run(lambda tx: tx.set(b"k", b""))


# --- patience


def test_conflicts_that_do_not_end_are_given_up() -> None:
    store, _ = faulty(between=[Conflict("always")] * 10_000)
    with pytest.raises(StoreBusy, match="transactions on memory:// conflicted for 30 s"):
        store.run(lambda tx: tx.set(b"k", b""))
    assert store.conflicts > 10
    clock = store.clock
    assert isinstance(clock, Instant)
    assert 30 <= sum(clock.slept) < 32


def test_a_store_that_is_away_for_a_while_is_waited_for() -> None:
    store, _ = faulty(before=[Unreached("restarting")] * 8)
    store.run(lambda tx: tx.set(b"k", b"1"))
    assert value_of(store, b"k") == b"1"
    gone, _ = faulty(before=[Unreached("no route")] * 10_000)
    with pytest.raises(StoreUnavailable, match="no answer from memory://: no route"):
        gone.run(lambda tx: tx.set(b"k", b""))


# --- time and wake-ups as the faults say


@pytest.mark.rule("STO-6")
def test_lease_time_stops_when_its_source_runs_backwards() -> None:
    store, faults = faulty()
    assert store.run(lambda tx: (tx.now(), tx.wall())) == (5_000_000, 7_000_000)
    faults.now, faults.wall = 4_000_000, 6_000_000
    assert store.run(lambda tx: (tx.now(), tx.wall())) == (5_000_000, 6_000_000)
    faults.now = 5_000_001
    assert store.run(lambda tx: tx.now()) == 5_000_001


@pytest.mark.rule("STO-6")
def test_lease_time_is_not_the_wall_clock() -> None:
    clock = FakeClock(wall_s=1_000.0)
    store = MemoryStore(clock=clock)
    first = store.run(lambda tx: tx.now())
    clock.wall_s = 100.0
    assert store.run(lambda tx: (tx.now(), tx.wall())) == (first, 100_000_000)
    clock.advance(1)
    assert store.run(lambda tx: tx.now()) == first + 1_000_000


@pytest.mark.rule("STO-8")
def test_a_wake_up_may_be_lost_and_the_next_one_is_not() -> None:
    store, faults = faulty()
    faults.lost_wakeups = 1
    with store.watch([b"k"]) as watch:
        store.run(lambda tx: tx.set(b"k", b"1"))
        assert watch.wait(0) is False
        store.run(lambda tx: tx.set(b"k", b"2"))
        assert watch.wait(0) is True
        assert watch.wait(0) is False
        store.run(lambda tx: tx.set(b"other", b""))
        assert watch.wait(0) is False
