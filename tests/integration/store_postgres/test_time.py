"""Lease time is the server's, and never runs backwards."""

import pytest

from tests.integration.store_postgres.stage import contents, execute
from tidemill.clock import SYSTEM, SystemClock, poll
from tidemill.store import Tx
from tidemill.store.port import read_counter
from tidemill.store.postgres import PostgresStore
from tidemill.testing.threads import STUCK_S, together


class Confused(SystemClock):
    """A node whose wall clock is three hours behind."""

    def wall(self) -> float:
        return super().wall() - 3 * 3600


class TestTime:
    @pytest.mark.rule("STO-6")
    def test_the_clock_of_a_client_does_not_matter(self, url: str) -> None:
        with PostgresStore(url) as right, PostgresStore(url, clock=Confused()) as wrong:
            times = [each.run(lambda tx: (tx.now(), tx.wall())) for each in (right, wrong, right)]
        assert times == sorted(times)
        assert times[-1][0] - times[0][0] < 3600 * 1_000_000, "the three hours do not show"
        assert abs(times[1][1] / 1e6 - SYSTEM.wall()) < 600

    @pytest.mark.rule("STO-6")
    def test_lease_time_continues_when_the_servers_clock_is_set_back(self, url: str) -> None:
        hour = 3600 * 1_000_000
        with PostgresStore(url) as store:
            before = store.run(lambda tx: tx.now())
            # As if the clock had been an hour ahead when somebody wrote by it, and was set right since.
            ahead = before + hour
            execute(url, "SELECT setval('tidemill_lease_mark', %s)", ahead)
            first = store.run(lambda tx: tx.now())
            assert first >= ahead
            with PostgresStore(url) as other:
                assert other.run(lambda tx: tx.now()) >= first
                assert poll(
                    lambda: other.run(lambda tx: tx.now()) > first + 20_000,
                    SYSTEM,
                    every_s=0.01,
                    timeout_s=STUCK_S,
                ), "lease time stands still"
            later = store.run(lambda tx: tx.now())
            assert first < later < first + hour
            assert abs(store.run(lambda tx: tx.wall()) / 1e6 - SYSTEM.wall()) < 600

    @pytest.mark.rule("STO-6")
    def test_a_reader_of_a_row_has_a_later_time(self, url: str) -> None:
        def stamp(tx: Tx) -> int:
            time = read_counter(tx.get(b"t"))
            now = tx.now()
            assert now >= time, "an earlier transaction had a later time"
            tx.set(b"t", now.to_bytes(8, "little"))
            return now

        with PostgresStore(url) as first, PostgresStore(url) as second:

            def look(store: PostgresStore) -> list[int]:
                return [store.run(stamp) for _ in range(15)]

            together(*[lambda s=s: look(s) for s in (first, second, first, second)])
            (row,) = execute(url, "SELECT last_value FROM tidemill_lease_mark")
            assert read_counter(contents(first)[b"t"]) <= row[0]  # type: ignore[operator]
