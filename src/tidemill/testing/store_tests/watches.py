"""Test the two clocks and the watches of a store.

`now` is the time of leases and never runs backwards; `wall` is the time for display. A watch is only a
hint: it must fire soon after a change, but no result depends on it. A watch may also fire without a change,
so only for a closed watch do the tests check that it does not fire.
"""

import threading
from collections.abc import Callable

import pytest

from tidemill.clock import poll
from tidemill.store import Mode, Store, Tx
from tidemill.store.port import read_counter, write_counter
from tidemill.testing.store_tests.model import StoreTests, fill, value_of
from tidemill.testing.threads import STUCK_S, together


def _now(tx: Tx) -> int:
    return tx.now()


class TimeTests(StoreTests):
    """Test lease time and wall time."""

    @pytest.mark.rule("STO-6")
    def test_now_never_runs_backwards_for_any_thread(self, store: Store) -> None:
        second = self.reopen(store)
        handles = [store] if second is None else [store, second]
        lock = threading.Lock()
        latest = 0

        def look(me: int) -> None:
            nonlocal latest
            for n in range(20):
                with lock:
                    floor = latest
                now = handles[(me + n) % len(handles)].run(_now, mode="take" if n % 3 else "serial")
                assert now >= floor, "a transaction that began later has an earlier time"
                with lock:
                    latest = max(latest, now)

        try:
            together(*[lambda me=me: look(me) for me in range(3)])
        finally:
            if second is not None:
                second.close()

    @pytest.mark.rule("STO-6")
    def test_now_does_not_run_backwards_within_a_transaction(self, store: Store) -> None:
        def fn(tx: Tx) -> list[int]:
            times = []
            for n in range(5):
                times.append(tx.now())
                tx.set(b"k%d" % n, b"")
                tx.get(b"k%d" % n)
            return times

        times = store.run(fn)
        assert times == sorted(times)
        assert store.run(_now) >= times[-1]

    @pytest.mark.rule("STO-6")
    def test_now_passes_in_microseconds(self, store: Store) -> None:
        began, first = store.clock.monotonic(), store.run(_now)
        assert isinstance(first, int)
        assert poll(lambda: store.run(_now) - first > 50_000, store.clock, every_s=0.01, timeout_s=STUCK_S)
        passed = store.run(_now) - first
        assert passed < 2_000_000 * (store.clock.monotonic() - began) + 1_000_000

    def test_wall_is_the_time_of_day(self, store: Store) -> None:
        wall = store.run(lambda tx: tx.wall())
        assert isinstance(wall, int)
        assert abs(wall / 1_000_000 - store.clock.wall()) < 600


WRITES: dict[str, Callable[[Tx], object]] = {
    "set": lambda tx: tx.set(b"k", b"2"),
    "clear": lambda tx: tx.clear(b"k"),
    "add": lambda tx: tx.add(b"k", 1),
    "swap": lambda tx: tx.swap(b"k", write_counter(1), b"2"),
    "take": lambda tx: tx.take(b"a", b"z", 1),
    "set_versioned": lambda tx: tx.set_versioned(b"k", b""),
}


class WatchTests(StoreTests):
    """Test watches: create a watch, read, then wait for a change."""

    @pytest.mark.rule("STO-8")
    @pytest.mark.parametrize("mode", ["serial", "take"])
    @pytest.mark.parametrize("name", WRITES)
    def test_a_change_between_read_and_wait_is_not_missed(self, store: Store, name: str, mode: Mode) -> None:
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
    def test_a_waiting_reader_reaches_the_last_state(self, store: Store) -> None:
        last = 15

        def write() -> int:
            for n in range(1, last + 1):
                fill(store, {b"k": write_counter(n)})
            return last

        def follow() -> int:
            with store.watch([b"k"]) as watch:
                while (value := read_counter(value_of(store, b"k"))) < last:
                    assert watch.wait(STUCK_S), f"still at {value} when the time was over"
            return value

        assert together(follow, follow, write) == [last] * 3

    @pytest.mark.rule("STO-8")
    def test_a_change_through_another_handle_fires_a_watch(self, store: Store) -> None:
        second = self.reopen(store)
        if second is None:
            pytest.skip("a store of one handle")
        with second, store.watch([b"k"]) as watch:
            fill(second, {b"k": b"1"})
            assert watch.wait(STUCK_S)

    @pytest.mark.rule("STO-8")
    def test_a_callback_is_called_for_every_change(self, store: Store) -> None:
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

    def test_a_write_that_is_not_committed_fires_no_watch(self, store: Store) -> None:
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
