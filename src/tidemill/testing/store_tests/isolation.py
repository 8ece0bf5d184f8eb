"""Test isolation: how transactions that run at the same time may affect each other.

In each scenario, each of two transactions reads what the other one writes. In any serial order, the second
transaction would see the write of the first. So a backend is not serialisable if neither sees the other's
write.
"""

import random
from collections.abc import Callable
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

import pytest

from tidemill.store import Store, Tx
from tidemill.store.port import read_counter, write_counter
from tidemill.testing.store_tests.model import END, FIRST, StoreTests, contents, fill, value_of
from tidemill.testing.threads import Interloper, together


def _increment(tx: Tx, key: bytes) -> int:
    value = read_counter(tx.get(key)) + 1
    tx.set(key, write_counter(value))
    return value


class IsolationTests(StoreTests):
    """Test that transactions in the mode `serial` are serialisable."""

    @pytest.mark.rule("STO-1")
    def test_an_update_is_not_lost_and_a_retried_function_sees_fresh_data(self, store: Store) -> None:
        other = Interloper(lambda: store.run(lambda tx: _increment(tx, b"n")))
        reads: list[int] = []

        def fn(tx: Tx) -> int:
            before = read_counter(tx.get(b"n"))
            reads.append(before)
            other.steps_in()
            tx.set(b"n", write_counter(before + 1))
            return before + 1

        result = store.run(fn)
        assert {result, other.outcome()} == {1, 2}
        assert read_counter(value_of(store, b"n")) == 2
        assert result == reads[-1] + 1, "the value returned is that of the attempt that was committed"

    @pytest.mark.rule("STO-1")
    def test_many_threads_count_without_losing_one(self, store: Store) -> None:
        def work() -> list[int]:
            return [store.run(lambda tx: _increment(tx, b"n")) for _ in range(8)]

        results = together(*[work] * 4)
        assert sorted(n for each in results for n in each) == list(range(1, 33))

    @pytest.mark.rule("STO-2")
    def test_adds_of_many_threads_all_count(self, store: Store) -> None:
        def work(amount: int) -> None:
            def fn(tx: Tx) -> None:
                tx.add(b"n", amount)
                tx.add(b"m", 1)

            for _ in range(8):
                store.run(fn)

        together(*[lambda amount=amount: work(amount) for amount in (1, 10, 100, -1000)])
        assert store.run(lambda tx: [tx.counter(b"n"), tx.counter(b"m")]) == [8 * (111 - 1000), 32]

    @pytest.mark.rule("STO-1")
    @pytest.mark.parametrize("present", [True, False])
    def test_write_skew_does_not_happen(self, store: Store, present: bool) -> None:
        # Two doctors are on call. Each may leave only if the other stays, so one of them must stay.
        fill(store, {b"a": b"on", b"b": b"on"} if present else {b"x": b""})
        off = b"off" if present else b"away"

        def leave(tx: Tx, doctor: bytes, interlude: Callable[[], None]) -> bool:
            others_left = [value for value in tx.get_many([b"a", b"b"]) if value == off]
            interlude()
            if not others_left:
                tx.set(doctor, off)
            return not others_left

        other = Interloper(lambda: store.run(lambda tx: leave(tx, b"b", lambda: None)))
        left = store.run(lambda tx: leave(tx, b"a", other.steps_in))
        assert {left, other.outcome()} == {True, False}
        assert [value for _, value in contents(store)].count(off) == 1

    @pytest.mark.rule("STO-1")
    @pytest.mark.parametrize("reverse", [False, True])
    def test_a_row_cannot_slip_into_a_range_that_was_read(self, store: Store, reverse: bool) -> None:
        def book(tx: Tx, name: bytes, interlude: Callable[[], None]) -> bool:
            free = not tx.range(b"seat/", b"seat0", reverse=reverse)
            interlude()
            if free:
                tx.set(b"seat/" + name, b"")
            return free

        other = Interloper(lambda: store.run(lambda tx: book(tx, b"b", lambda: None)))
        booked = store.run(lambda tx: book(tx, b"a", other.steps_in))
        assert {booked, other.outcome()} == {True, False}
        assert len(contents(store)) == 1

    @pytest.mark.rule("STO-1")
    @pytest.mark.parametrize(("reverse", "newcomer"), [(False, b"q/1"), (True, b"q/9")])
    def test_a_row_cannot_slip_in_before_the_first_one_that_was_read(
        self, store: Store, reverse: bool, newcomer: bytes
    ) -> None:
        fill(store, {b"q/4": b"", b"q/5": b"", b"q/6": b""})

        def push(tx: Tx) -> bool:
            if tx.get(b"chosen") is not None:
                return False
            tx.set(newcomer, b"")
            return True

        other = Interloper(lambda: store.run(push))

        def choose(tx: Tx) -> bytes:
            (first,) = tx.range(b"q/", b"q0", limit=1, reverse=reverse)
            other.steps_in()
            tx.set(b"chosen", first.key)
            return first.key

        chosen = store.run(choose)
        assert other.outcome() == (chosen == newcomer)

    @pytest.mark.rule("STO-1")
    def test_a_range_that_was_read_cannot_be_cleared_unseen(self, store: Store) -> None:
        fill(store, {b"item/1": b"", b"item/2": b""})

        def sweep(tx: Tx) -> bool:
            if tx.get(b"used") is not None:
                return False
            tx.clear_range(b"item/", b"item0")
            return True

        other = Interloper(lambda: store.run(sweep))

        def use(tx: Tx) -> int:
            count = len(tx.range(b"item/", b"item0"))
            other.steps_in()
            if count:
                tx.set(b"used", b"")
            return count

        used = store.run(use)
        assert (used, other.outcome()) in [(2, False), (0, True)]

    @pytest.mark.rule("STO-1")
    def test_a_counter_that_was_read_cannot_be_added_to_unseen(self, store: Store) -> None:
        fill(store, {b"left": write_counter(1)})

        def grab(tx: Tx) -> bool:
            if tx.get(b"closed") is not None:
                return False
            tx.add(b"left", -1)
            return True

        other = Interloper(lambda: store.run(grab))

        def shut(tx: Tx) -> int:
            left = tx.counter(b"left")
            other.steps_in()
            tx.set(b"closed", b"")
            return left

        assert (store.run(shut), other.outcome()) in [(1, False), (0, True)]

    @pytest.mark.rule("STO-1")
    def test_a_transaction_that_only_reads_sees_one_moment(self, store: Store) -> None:
        fill(store, {b"x": b"old", b"y": b"old"})
        other = Interloper(lambda: fill(store, {b"x": b"new", b"y": b"new"}))

        def fn(tx: Tx) -> tuple[bytes | None, bytes | None, list[bytes]]:
            x = tx.get(b"x")
            other.steps_in()
            return x, tx.get(b"y"), [row.value for row in tx.range(FIRST, END)]

        x, y, both = store.run(fn)
        other.outcome()
        assert (x, y, both) in [(b"old", b"old", [b"old"] * 2), (b"new", b"new", [b"new"] * 2)]

    @pytest.mark.rule("STO-1")
    def test_a_commit_is_seen_by_every_later_transaction(self, store: Store) -> None:
        def work(me: int) -> None:
            for n in range(5):
                store.run(lambda tx, n=n: tx.set(b"k%d" % me, b"%d" % n))  # type: ignore[misc]
                assert value_of(store, b"k%d" % me) == b"%d" % n

        together(*[lambda me=me: work(me) for me in range(3)])

    @pytest.mark.rule("STO-1")
    def test_racing_transactions_have_a_serial_order(self, store: Store) -> None:
        """Each row is a list that only grows, so a read shows which writes came before it."""
        results = together(*[lambda me=me: _appends(store, me) for me in (1, 2, 3)])
        histories = [each for appends in results for each in appends]
        final = {key: _names(value) for key, value in contents(store)}
        assert sorted(n for names in final.values() for n in names) == sorted(h.name for h in histories)
        try:
            TopologicalSorter(_order(histories, final)).prepare()
        except CycleError as cycle:
            pytest.fail(f"no serial order explains these transactions: {cycle.args[1]}")


class Append(NamedTuple):
    """One transaction: the name that it appended to a row, and the rows that it had read."""

    name: int
    reads: dict[bytes, list[int]]


def _names(value: bytes | None) -> list[int]:
    return [int(word) for word in (value or b"").split()]


def _appends(store: Store, me: int) -> list[Append]:
    keys = [b"a", b"b", b"c"]
    chance = random.Random(me)
    appends = []
    for name in range(me * 100, me * 100 + 8):
        target, read = chance.choice(keys), chance.choice([keys, chance.sample(keys, 2)])
        fn = partial(_append, name=name, target=target, read=read, ranged=len(read) == len(keys))
        appends.append(Append(name, store.run(fn)))
    return appends


def _append(tx: Tx, name: int, target: bytes, read: list[bytes], ranged: bool) -> dict[bytes, list[int]]:
    rows = dict(tx.range(FIRST, END)) if ranged else dict(zip(read, tx.get_many(read), strict=True))
    value = rows.get(target) if target in read else tx.get(target)
    tx.set(target, b"%s %d" % (value or b"", name))
    return {key: _names(rows.get(key)) for key in read}


def _order(histories: list[Append], final: dict[bytes, list[int]]) -> dict[int, set[int]]:
    """Return, for each transaction, those that must come before it.

    An append comes before its readers, and a reader comes before the next append.
    """
    before: dict[int, set[int]] = {append.name: set() for append in histories}
    for names in final.values():
        for earlier, later in pairwise(names):
            before[later].add(earlier)
    for name, reads in histories:
        for key, read in reads.items():
            written = final.get(key, [])
            assert written[: len(read)] == read
            if read:
                before[name].add(read[-1])
            if len(read) < len(written) and written[len(read)] != name:
                before[written[len(read)]].add(name)
    return before
