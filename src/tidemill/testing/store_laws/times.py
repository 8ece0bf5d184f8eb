"""Test the two clocks: `now` for leases, which never runs backwards, and `wall` for people."""

import threading

import pytest

from tidemill.clock import poll
from tidemill.store import Store, Tx
from tidemill.testing.store_laws.laws import StoreLaws
from tidemill.testing.threads import STUCK_S, together


def _now(tx: Tx) -> int:
    return tx.now()


class TimeLaws(StoreLaws):
    """Lease time."""

    @pytest.mark.rule("STO-6")
    def test_now_never_runs_backwards_for_anyone(self, store: Store) -> None:
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

    def test_wall_is_what_people_call_the_time(self, store: Store) -> None:
        wall = store.run(lambda tx: tx.wall())
        assert isinstance(wall, int)
        assert abs(wall / 1_000_000 - store.clock.wall()) < 600
