"""Test watches: they are hints that arrive in time, and nothing depends on them.

A watch may fire without a reason, so the tests expect silence only from a closed one.
"""

import threading
from collections.abc import Callable

import pytest

from tidemill.store import Mode, Store, Tx
from tidemill.store.port import read_counter, write_counter
from tidemill.testing.store_laws.laws import StoreLaws, fill, value_of
from tidemill.testing.threads import STUCK_S, together

WRITES: dict[str, Callable[[Tx], object]] = {
    "set": lambda tx: tx.set(b"k", b"2"),
    "clear": lambda tx: tx.clear(b"k"),
    "add": lambda tx: tx.add(b"k", 1),
    "swap": lambda tx: tx.swap(b"k", write_counter(1), b"2"),
    "take": lambda tx: tx.take(b"a", b"z", 1),
    "set_versioned": lambda tx: tx.set_versioned(b"k", b""),
}


class WatchLaws(StoreLaws):
    """Make the watch, read, then wait."""

    @pytest.mark.rule("STO-8")
    @pytest.mark.parametrize("mode", ["serial", "take"])
    @pytest.mark.parametrize("name", WRITES)
    def test_a_change_between_the_reading_and_the_waiting_is_not_missed(
        self, store: Store, name: str, mode: Mode
    ) -> None:
        fill(store, {b"k": write_counter(1)})
        with store.watch([b"other", b"k"]) as watch:
            value_of(store, b"k")
            store.run(WRITES[name], mode=mode)
            assert watch.wait(STUCK_S)

    @pytest.mark.rule("STO-8")
    def test_waiting_again_sees_the_next_change(self, store: Store) -> None:
        with store.watch([b"k"]) as watch:
            for n in range(5):
                fill(store, {b"k": b"%d" % n})
                assert watch.wait(STUCK_S)
                assert value_of(store, b"k") == b"%d" % n

    @pytest.mark.rule("STO-8")
    def test_who_waits_sees_every_state_through_to_the_last(self, store: Store) -> None:
        last = 15

        def write() -> int:
            for n in range(1, last + 1):
                fill(store, {b"k": write_counter(n)})
            return last

        def follow() -> int:
            with store.watch([b"k"]) as watch:
                while (seen := read_counter(value_of(store, b"k"))) < last:
                    assert watch.wait(STUCK_S), f"still at {seen} when the time was over"
            return seen

        assert together(follow, follow, write) == [last] * 3

    @pytest.mark.rule("STO-8")
    def test_a_change_through_another_handle_is_told_too(self, store: Store) -> None:
        second = self.reopen(store)
        if second is None:
            pytest.skip("a store of one handle")
        with second, store.watch([b"k"]) as watch:
            fill(second, {b"k": b"1"})
            assert watch.wait(STUCK_S)

    @pytest.mark.rule("STO-8")
    def test_who_asked_to_be_called_is_called_for_every_change(self, store: Store) -> None:
        called = threading.Event()
        with store.watch([b"k"]) as watch:
            end = watch.notify(called.set)
            for n in range(3):
                called.clear()
                fill(store, {b"k": b"%d" % n})
                assert called.wait(STUCK_S)
            end()

    @pytest.mark.rule("STO-8")
    def test_a_wait_ends_when_its_time_is_over(self, store: Store) -> None:
        began = store.clock.monotonic()
        with store.watch([b"k"]) as watch:
            answers = [watch.wait(0.02), watch.wait(0), watch.wait(-1)]
        assert all(isinstance(answer, bool) for answer in answers)
        assert store.clock.monotonic() - began < STUCK_S / 2

    @pytest.mark.rule("STO-8")
    def test_a_closed_watch_is_silent_and_closing_twice_is_harmless(self, store: Store) -> None:
        watch = store.watch([b"k"])
        watch.close()
        watch.close()
        fill(store, {b"k": b"1"})
        assert watch.wait(0.02) is False

    def test_what_is_not_committed_changes_nothing_for_who_watches(self, store: Store) -> None:
        with store.watch([b"k"]) as watch:

            def fn(tx: Tx) -> None:
                tx.set(b"k", b"never")
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                store.run(fn)
            watch.wait(0.02)
            assert value_of(store, b"k") is None
            fill(store, {b"k": b"1"})
            assert watch.wait(STUCK_S)
