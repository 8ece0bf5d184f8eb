"""Test `take`, `swap` and the mode `take`."""

import threading
from collections.abc import Callable

import pytest

from tidemill.errors import UsageError
from tidemill.store import Mode, Row, Store, Swap, Tx
from tidemill.store.port import write_counter
from tidemill.testing.store_tests.model import END, FIRST, StoreTests, contents, fill, value_of
from tidemill.testing.threads import Interloper, together

QUEUE = (b"q/", b"q0")


def _queue(count: int) -> dict[bytes, bytes]:
    return {b"q/%03d" % n: b"row %d" % n for n in range(count)}


class Died(BaseException):
    """Raised in a transaction to simulate that the worker dies there."""


class TakeTests(StoreTests):
    """Test `take` and `swap`: if several transactions want the same row, only one gets it."""

    @pytest.mark.rule("STO-2")
    def test_take_removes_and_returns_the_first_rows_of_its_range(self, store: Store) -> None:
        fill(store, {**_queue(4), b"p": b"", b"q0": b""})
        assert store.run(lambda tx: tx.take(*QUEUE, 3), mode="take") == list(
            map(Row._make, _queue(3).items())
        )
        assert [row.key for row in contents(store)] == [b"p", b"q/003", b"q0"]
        assert store.run(lambda tx: tx.take(*QUEUE, 3)) == [Row(b"q/003", b"row 3")]
        assert store.run(lambda tx: tx.take(*QUEUE, 3), mode="take") == []

    @pytest.mark.rule("STO-2")
    @pytest.mark.parametrize("mode", ["take", "serial"])
    def test_a_row_is_never_given_to_two(self, store: Store, mode: Mode) -> None:
        fill(store, _queue(60))

        def work() -> list[Row]:
            rows: list[Row] = []
            while contents(store):  # an empty result may mean that other threads are taking rows now
                rows += store.run(lambda tx: tx.take(*QUEUE, 4), mode=mode)
            return rows

        rows = [each for batch in together(*[work] * 4) for each in batch]
        assert sorted(rows) == list(map(Row._make, _queue(60).items()))

    @pytest.mark.rule("STO-2")
    @pytest.mark.parametrize("other_mode", ["take", "serial"])
    @pytest.mark.parametrize("mode", ["take", "serial"])
    def test_a_take_cannot_be_overtaken(self, store: Store, mode: Mode, other_mode: Mode) -> None:
        fill(store, _queue(3))
        other = Interloper(lambda: store.run(lambda tx: tx.take(*QUEUE, 2), mode=other_mode))

        def fn(tx: Tx) -> list[Row]:
            rows = tx.take(*QUEUE, 2)
            other.steps_in()
            for row in rows:
                tx.set(b"claim/" + row.key[2:], b"mine")
            return rows

        first, second = store.run(fn, mode=mode), other.outcome()
        left = store.run(lambda tx: tx.range(*QUEUE))
        assert sorted([*first, *second, *left]) == list(map(Row._make, _queue(3).items()))
        claims = store.run(lambda tx: tx.range(b"claim/", b"claim0"))
        assert [row.key[6:] for row in claims] == [row.key[2:] for row in first]

    @pytest.mark.rule("STO-4")
    @pytest.mark.parametrize("mode", ["take", "serial"])
    def test_taken_rows_are_returned_when_the_transaction_fails(self, store: Store, mode: Mode) -> None:
        fill(store, _queue(40))
        dead = threading.Semaphore(6)
        claims = {b"claim/%03d" % n: b"row %d" % n for n in range(40)}

        def claim(tx: Tx) -> int:
            rows = tx.take(*QUEUE, 4)
            for row in rows:
                tx.set(b"claim/" + row.key[2:], row.value)
            if rows and dead.acquire(blocking=False):
                raise Died
            return len(rows)

        def work() -> int:
            claimed = 0
            while store.run(lambda tx: tx.range(*QUEUE, limit=1)):
                try:
                    claimed += store.run(claim, mode=mode)
                except Died:
                    continue
            return claimed

        assert sum(together(*[work] * 3)) == 40
        assert dict(contents(store)) == claims

    @pytest.mark.rule("STO-2")
    @pytest.mark.parametrize("mode", ["take", "serial"])
    def test_a_swap_has_one_winner(self, store: Store, mode: Mode) -> None:
        fill(store, {b"owner": b"nobody"})

        def work(me: bytes) -> list[bool]:
            swaps = [Swap(b"owner", b"nobody", me), Swap(b"first", None, me), Swap(b"log/" + me, None, b"")]
            return store.run(lambda tx: tx.swap_many(swaps), mode=mode)

        names = [b"one", b"two", b"three", b"four"]
        answers = together(*[lambda me=me: work(me) for me in names])
        assert sorted(won for won, _, _ in answers) == [False, False, False, True]
        assert sorted(won for _, won, _ in answers) == [False, False, False, True]
        assert all(own for _, _, own in answers), "a swap that fails does not undo other swaps"
        assert value_of(store, b"owner") == names[[won for won, _, _ in answers].index(True)]
        assert value_of(store, b"first") == names[[won for _, won, _ in answers].index(True)]

    @pytest.mark.rule("STO-3")
    @pytest.mark.parametrize("start", [b"1", None])
    def test_a_swap_cannot_be_overtaken(self, store: Store, start: bytes | None) -> None:
        store.run(lambda tx: tx.swap(b"k", None, start))
        other = Interloper(lambda: store.run(lambda tx: tx.swap(b"k", start, b"other"), mode="take"))

        def fn(tx: Tx) -> bool:
            won = tx.swap(b"k", start, b"mine")
            other.steps_in()
            if won:
                tx.set(b"winner", b"mine")
            return won

        first_won = store.run(fn, mode="take")
        assert {first_won, other.outcome()} == {True, False}
        assert value_of(store, b"k") == (b"mine" if first_won else b"other")
        assert (value_of(store, b"winner") is not None) == first_won

    @pytest.mark.rule("STO-3")
    def test_a_plain_read_is_refused_in_take_mode(self, store: Store) -> None:
        fill(store, {b"k": b"1"})
        plain: list[Callable[[Tx], object]] = [
            lambda tx: tx.get(b"k"),
            lambda tx: tx.get_many([b"k"]),
            lambda tx: tx.counter(b"k"),
            lambda tx: tx.range(FIRST, END),
        ]
        for read in plain:

            def fn(tx: Tx, read: Callable[[Tx], object] = read) -> None:
                tx.set(b"k", b"2")
                read(tx)

            with pytest.raises(UsageError, match="transaction in mode 'take' cannot"):
                store.run(fn, mode="take")
        assert value_of(store, b"k") == b"1"

    @pytest.mark.rule("STO-3")
    def test_take_mode_reads_under_a_lock_or_without_protection(self, store: Store) -> None:
        fill(store, {b"k": b"1", b"n": write_counter(3)})

        def fn(tx: Tx) -> tuple[bytes | None, list[bytes | None], int, list[Row]]:
            tx.set(b"m", b"2")
            return (
                tx.get(b"k", lock=True),
                tx.get_many([b"m", b"x"], lock=True),
                tx.counter(b"n", lock=True),
                tx.range(b"k", b"n", snapshot=True),
            )

        rows = [Row(b"k", b"1"), Row(b"m", b"2")]
        assert store.run(fn, mode="take") == (b"1", [b"2", None], 3, rows)

    @pytest.mark.rule("STO-3")
    @pytest.mark.parametrize("start", [b"running", None])
    def test_a_locked_read_sees_what_take_mode_writes(self, store: Store, start: bytes | None) -> None:
        # The serial transaction reads a row that the other one writes. Without the lock, PostgreSQL commits
        # both.
        store.run(lambda tx: tx.swap(b"future", None, start))

        def complete(tx: Tx) -> bool:
            tx.swap(b"future", start, b"done")
            return tx.get(b"parked", lock=True) is not None

        other = Interloper(lambda: store.run(complete, mode="take"))

        def park(tx: Tx) -> bool:
            running = tx.get(b"future", lock=True) == start
            other.steps_in()
            if running:
                tx.set(b"parked", b"")
            return running

        parked = store.run(park)
        saw_the_parked = other.outcome()
        assert parked == saw_the_parked, "a wake-up was lost"

    @pytest.mark.rule("STO-3", "STO-8")
    def test_no_wake_up_is_lost_between_parking_and_completing(self, store: Store) -> None:
        """One thread parks waiters for futures, under the row's lock; the other completes the futures.

        If a future has no waiters, one swap in take mode completes it: this is the fast path. If the swap
        fails, because a waiter was parked, the thread completes the future in a serial transaction and wakes
        the waiter. At the end, no waiter may still be parked.
        """
        futures = [b"%02d" % n for n in range(12)]
        fill(store, {b"future/" + name: b"running" for name in futures})

        def park(tx: Tx, name: bytes) -> bool:
            state = tx.get(b"future/" + name, lock=True)
            if state == b"done":
                return False
            tx.set(b"future/" + name, b"running, awaited")
            tx.set(b"parked/" + name, b"")
            return True

        def complete(name: bytes) -> bool:
            swap = Swap(b"future/" + name, b"running", b"done")
            if store.run(lambda tx: tx.swap(*swap), mode="take"):
                return False

            def wake(tx: Tx) -> bool:
                tx.set(b"future/" + name, b"done")
                tx.clear(b"parked/" + name)
                tx.set(b"woken/" + name, b"")
                return True

            return store.run(wake)

        def parker() -> list[bool]:
            return [store.run(lambda tx, name=name: park(tx, name)) for name in futures]  # type: ignore[misc]

        parked, woken = together(parker, lambda: [complete(name) for name in futures])
        assert parked == woken
        assert store.run(lambda tx: tx.range(b"parked/", b"parked0")) == []

    @pytest.mark.rule("STO-3")
    def test_a_locked_row_cannot_be_taken_unseen(self, store: Store) -> None:
        fill(store, {b"q/1": b"job"})
        other = Interloper(lambda: store.run(lambda tx: tx.take(*QUEUE, 1), mode="take"))

        def cancel(tx: Tx) -> bool:
            exists = tx.get(b"q/1", lock=True) is not None
            other.steps_in()
            if exists:
                tx.clear(b"q/1")
                tx.set(b"cancelled", b"")
            return exists

        cancelled = store.run(cancel)
        assert cancelled == (other.outcome() == [])
        assert (value_of(store, b"cancelled") is not None) == cancelled
        assert value_of(store, b"q/1") is None

    @pytest.mark.rule("STO-3")
    def test_two_take_transactions_over_the_same_rows_in_opposite_order_both_end(self, store: Store) -> None:
        fill(store, {b"a": b"0", b"b": b"0"})

        def fn(tx: Tx, first: bytes, second: bytes, interlude: Callable[[], None]) -> None:
            first_value = tx.get(first, lock=True)
            interlude()
            second_value = tx.get(second, lock=True)
            tx.set(first, (first_value or b"") + b"1")
            tx.set(second, (second_value or b"") + b"1")

        other = Interloper(lambda: store.run(lambda tx: fn(tx, b"b", b"a", lambda: None), mode="take"))
        store.run(lambda tx: fn(tx, b"a", b"b", other.steps_in), mode="take")
        other.outcome()
        assert dict(contents(store)) == {b"a": b"011", b"b": b"011"}

    @pytest.mark.rule("STO-2")
    def test_writes_for_taken_rows_commit_with_them(self, store: Store) -> None:
        fill(store, _queue(2))

        def fn(tx: Tx) -> None:
            for row in tx.take(*QUEUE, 9):
                tx.set(b"claim/" + row.key[2:], row.value)
            tx.add(b"claims", 2)
            tx.set_versioned(b"log", b"claimed two")

        store.run(fn, mode="take")
        rows = contents(store)
        assert [row.value for row in rows] == [b"row 0", b"row 1", write_counter(2), b"claimed two"]
