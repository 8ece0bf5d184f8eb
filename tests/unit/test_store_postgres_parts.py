"""The parts of the PostgreSQL store that need no server: lease time, notifications, bytes, verdicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer

from tests.clocks import JumpingClock
from tidemill.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from tidemill.store.postgres.connection import (
    ConnectionLost,
    StatementFailed,
    byte_strings,
    integers,
    number,
    texts,
)
from tidemill.store.postgres.lease_clock import STEP_US, TICK_US, LeaseClock, Time
from tidemill.store.postgres.pool import verdict
from tidemill.store.postgres.statements import Sql, lock_id
from tidemill.store.postgres.watch import EVERYTHING, checksum, payloads, read_payload
from tidemill.store.retry import Conflict, Unreached

SECOND = 1_000_000


class TestLeaseClock:
    @pytest.mark.rule("STO-6")
    @given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))))
    def test_lease_time_never_runs_backwards_with_the_servers_clock(
        self, looks: list[tuple[int, int, int]]
    ) -> None:
        clock = LeaseClock(JumpingClock())
        times = [clock.read(*look) for look in looks]
        assert [time.now for time in times] == sorted(time.now for time in times)
        assert all(
            time.now >= max(wall + offset, mark)
            for time, (wall, mark, offset) in zip(times, looks, strict=True)
        )
        assert [time.wall for time in times] == [wall for wall, _, _ in looks]

    def test_the_mark_is_raised_to_the_next_tick_only_when_needed(self) -> None:
        assert Time(now=TICK_US + 1, wall=0, mark=TICK_US).reached == 2 * TICK_US
        assert Time(now=TICK_US, wall=0, mark=TICK_US).reached is None
        assert Time(now=3 * TICK_US, wall=0, mark=0).reached == 3 * TICK_US

    def test_a_step_back_is_noticed_once_and_a_small_one_is_waited_out(self) -> None:
        clock = LeaseClock(JumpingClock())
        clock.read(100 * SECOND, 0, 0)
        assert clock.step_back() is None
        clock.read(100 * SECOND - STEP_US, 0, 0)
        assert clock.step_back() is None
        clock.read(50 * SECOND, 0, 0)
        assert clock.step_back() == 100 * SECOND
        assert clock.step_back() is None
        clock.read(50 * SECOND, 100 * SECOND, 50 * SECOND)  # the offset was raised
        assert clock.step_back() is None

    def test_an_estimate_continues_with_our_own_clock(self) -> None:
        clock = JumpingClock()
        lease_clock = LeaseClock(clock)
        assert lease_clock.estimate() is None
        lease_clock.read(100 * SECOND, 0, 0)
        clock.skip(7200)
        estimate = lease_clock.estimate()
        assert estimate is not None
        assert abs(estimate - 7300 * SECOND) < 10 * SECOND


class TestNotifications:
    @given(st.lists(st.sets(st.binary(min_size=1, max_size=20), max_size=30), max_size=20))
    def test_notifications_carry_the_touched_keys(self, commits: list[set[bytes]]) -> None:
        received = [read_payload(payload) for payload in payloads(commits)]
        assert set().union(*[each for each in received if each]) == {
            checksum(key) for keys in commits for key in keys
        }

    def test_a_payload_is_never_too_long_and_too_many_keys_are_everything(self) -> None:
        some = payloads([{b"%d" % n for n in range(3_000)}])
        assert len(some) > 1
        assert all(len(payload) < 8_000 for payload in some)
        assert payloads([{b"%d" % n for n in range(m, m + 1_000)} for m in range(0, 8_000, 1_000)]) == [
            EVERYTHING
        ]

    @pytest.mark.parametrize("payload", [EVERYTHING, "", "what is this", "12345"])
    def test_an_unknown_notification_wakes_all_watches(self, payload: str) -> None:
        assert read_payload(payload) is None


class TestBinaryForms:
    @given(st.lists(st.binary(max_size=30), min_size=1))
    def test_arrays_of_bytes_are_psycopgs(self, values: list[bytes]) -> None:
        assert byte_strings(values) == _dumped(values)

    @given(st.lists(st.integers(2**40, 2**63 - 1), min_size=1))
    def test_arrays_of_integers_are_psycopgs(self, values: list[int]) -> None:
        assert integers(values) == _dumped(values)

    def test_arrays_may_be_empty(self) -> None:
        assert byte_strings([]) == bytes(8) + (17).to_bytes(4, "big")
        assert texts(["ä"])[-2:] == "ä".encode()

    def test_numbers_are_signed(self) -> None:
        assert number((-5).to_bytes(8, "big", signed=True)) == -5


def _dumped(values: list[bytes] | list[int]) -> bytes:
    dumper = Transformer(None).get_dumper(values, PyFormat.BINARY)
    return bytes(dumper.dump(values) or b"")


class TestVerdicts:
    @pytest.mark.parametrize(
        ("sqlstate", "meaning"),
        [
            ("40001", Conflict),
            ("40P01", Conflict),
            ("55P03", Conflict),
            ("57014", Conflict),
            ("23505", Conflict),
            ("53100", StoreFull),
            ("53300", Unreached),
            ("57P03", Unreached),
            ("08006", Unreached),
            ("25006", Unreached),
            ("26000", Unreached),
            ("42501", StoreUnavailable),
            ("42P01", StoreCorrupt),
            ("XX001", StoreCorrupt),
            ("22012", StoreError),
        ],
    )
    def test_each_sqlstate_has_one_meaning(self, sqlstate: str, meaning: type[Exception]) -> None:
        error = verdict(StatementFailed("words", sqlstate=sqlstate))
        assert type(error) is meaning
        assert sqlstate in str(error), "the SQLSTATE goes on, the driver's exception does not"

    def test_a_lost_connection_is_an_absence(self) -> None:
        assert isinstance(verdict(ConnectionLost("gone", sent=True)), Unreached)


class TestSql:
    def test_every_statement_has_a_unique_name(self) -> None:
        statements = Sql("mill").prepared
        assert len({statement.name for statement in statements}) == len(statements) > 20
        assert all(b"@" not in statement.text for statement in statements)
        assert any(b'"mill".tidemill_kv' in statement.text for statement in statements)

    def test_lock_ids_tell_words_apart(self) -> None:
        assert lock_id("a", "bc") != lock_id("ab", "c")
        assert -(2**63) <= lock_id("x", b"y") < 2**63
