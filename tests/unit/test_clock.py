import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.clock import SYSTEM, Clock, SystemClock, backoff, poll
from tidemill.testing.fake_clock import FakeClock


def test_the_system_clock_is_a_clock() -> None:
    clock: Clock = SYSTEM
    assert isinstance(clock, SystemClock)
    times = [clock.monotonic() for _ in range(100)]
    assert times == sorted(times)


def test_monotonic_time_counts_the_time_a_machine_was_asleep() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SYSTEM.monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_wall_time_is_the_time_of_day() -> None:
    before = time.time()  # noqa: TID251 - the very clock it must be
    assert before <= SYSTEM.wall() <= time.time()  # noqa: TID251


@pytest.mark.parametrize("seconds", [0, -1, -1e9])
def test_sleeping_for_no_time_or_less_returns_at_once(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    SYSTEM.sleep(seconds)
    assert slept == []


def test_sleeping_takes_the_time_it_says() -> None:
    before = SYSTEM.monotonic()
    SYSTEM.sleep(0.01)
    assert SYSTEM.monotonic() - before >= 0.01


def test_waiting_for_an_event_returns_whether_it_was_set() -> None:
    event = threading.Event()
    assert SYSTEM.wait(event, -1) is False
    assert SYSTEM.wait(event, 0.001) is False
    event.set()
    assert SYSTEM.wait(event, 0) is True
    assert SYSTEM.wait(event, 60) is True


@given(st.integers(1, 10_000), st.integers(0, 2**32), st.floats(0.001, 1), st.floats(1, 60))
def test_a_pause_is_between_half_of_its_step_and_all_of_it(
    attempt: int, seed: int, first_s: float, most_s: float
) -> None:
    pause = backoff(attempt, random.Random(seed), first_s=first_s, most_s=most_s)
    step = min(most_s, first_s * 2.0 ** min(attempt - 1, 1000))
    assert step / 2 <= pause <= step


def test_pauses_double_up_to_the_most() -> None:
    class Highest(random.Random):
        def random(self) -> float:
            return 1.0

    pauses = [backoff(attempt, Highest(), first_s=0.5, most_s=10) for attempt in range(1, 8)]
    assert pauses == [0.5, 1, 2, 4, 8, 10, 10]


def test_two_that_collided_do_not_pause_alike() -> None:
    chance = random.Random(1)
    assert len({backoff(5, chance) for _ in range(100)}) == 100
    assert backoff(5, random.Random(7)) == backoff(5, random.Random(7))


def test_a_poll_checks_before_it_waits() -> None:
    clock = FakeClock(monotonic_s=100)
    assert poll(lambda: True, clock, every_s=1, timeout_s=0)
    assert clock.monotonic() == 100


def test_a_poll_ends_as_soon_as_it_is_ready() -> None:
    clock = FakeClock(monotonic_s=100)
    assert poll(lambda: clock.monotonic() >= 103, clock, every_s=1, timeout_s=60)
    assert clock.monotonic() == 103


@pytest.mark.parametrize("every_s", [0.3, 1, 100])
def test_a_poll_checks_once_more_when_the_time_is_over(every_s: float) -> None:
    clock = FakeClock(monotonic_s=100)
    times: list[float] = []

    def ready() -> bool:
        times.append(clock.monotonic())
        return False

    assert not poll(ready, clock, every_s=every_s, timeout_s=2)
    assert times[0] == 100
    assert times[-1] == clock.monotonic() == pytest.approx(102)
