"""Waiting for many futures: in windows, with few reads, and in whatever order they end."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.errors import FutureTimeout
from tidemill.futures.client.completions import LOOK_AFTER_S, WINDOW, Completions
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Cancelled, Unclaimed
from tidemill.store import Store, open_store
from tidemill.testing import FakeClock
from tidemill.testing.threads import STUCK_S

KEYS = FutureKeys("c")
WAITS, OVER = Unclaimed(ready_at=0), Cancelled(at=1)


def ids(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(1, count + 1)]


class Stage:
    """A store whose reads are counted."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store: Store = open_store("memory://", clock=self.clock)
        self.waiting = Completions(self.store, KEYS, self.clock)
        self.read_rows = 0
        real = self.waiting.read_keys

        def read_keys(keys: Any) -> list[AnyRow | None]:
            self.read_rows += len(keys)
            return real(keys)

        self.waiting.read_keys = read_keys  # type: ignore[method-assign]

    def write(self, some: list[bytes], row: AnyRow) -> None:
        for start in range(0, len(some), 500):
            page = some[start : start + 500]
            self.store.run(
                lambda tx, page=page: tx.set_many([(KEYS.future[one], rows.encode(row)) for one in page])  # type: ignore[misc]
            )


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.store.close()


def test_those_that_have_ended_are_given_at_once_and_once(stage: Stage) -> None:
    some = ids(3)
    stage.write(some[:2], OVER)
    given = [one for page in stage.waiting.ended([*some, *some]) for one in page]
    assert sorted(given) == [(some[0], OVER), (some[1], OVER), (some[2], None)]


@pytest.mark.slow
def test_a_hundred_thousand_are_read_about_once_each(stage: Stage) -> None:
    some = ids(100_000)
    stage.write(some, OVER)
    given = [one.id for page in stage.waiting.ended(some) for one in page]
    assert sorted(given) == some
    assert stage.read_rows <= 1.1 * len(some)


def test_a_few_that_take_long_do_not_hide_the_others(stage: Stage) -> None:
    some = ids(3 * WINDOW)
    stage.write(some, WAITS)
    stage.write(some[2 * WINDOW :], OVER)
    wait = stage.waiting.ended(some, timeout_s=30)
    given = [one.id for _, page in zip(range(1), wait, strict=False) for one in page]
    assert given
    assert set(given) <= set(some[2 * WINDOW :])


def test_the_time_is_over_when_it_is(stage: Stage) -> None:
    some = ids(2)
    stage.write(some[:1], WAITS)
    stage.write(some[1:], OVER)
    wait = stage.waiting.ended(some, timeout_s=7)
    assert next(wait) == [(some[1], OVER)]
    began = stage.clock.monotonic()
    with pytest.raises(FutureTimeout, match="1 of 2 futures have not ended within 7 s"):
        next(wait)
    assert 6.9 < stage.clock.monotonic() - began < 8.1
    assert stage.read_rows < 40  # it polls more and more slowly


def test_a_timeout_of_nothing_gives_what_has_ended_and_no_more(stage: Stage) -> None:
    some = ids(2 * WINDOW)
    stage.write(some, OVER)
    assert sum(len(page) for page in stage.waiting.ended(some, timeout_s=0)) == 2 * WINDOW
    stage.write(some[-1:], WAITS)
    wait = stage.waiting.ended(some, timeout_s=0)
    assert sum(len(page) for _, page in zip(range(2), wait, strict=False)) == 2 * WINDOW - 1
    with pytest.raises(FutureTimeout, match=r"1 of 1,000 futures"):
        next(wait)


def test_while_nothing_ends_somebody_is_asked_to_look_after_the_oldest(stage: Stage) -> None:
    some = ids(1)
    stage.write(some, WAITS)
    told: list[list[bytes]] = []
    stage.waiting.look_after = lambda ids: told.append(list(ids))
    with pytest.raises(FutureTimeout):
        next(stage.waiting.ended(some, timeout_s=4 * LOOK_AFTER_S))
    assert told
    assert all(one == some for one in told)
    assert len(told) <= 4


def test_a_change_wakes_whoever_waits() -> None:
    store = open_store("memory://")
    waiting = Completions(store, KEYS, store.clock)
    (one,) = ids(1)
    store.run(lambda tx: tx.set(KEYS.future[one], rows.encode(WAITS)))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(next(waiting.ended([one], 60))))
    thread.start()
    store.run(lambda tx: tx.set(KEYS.future[one], rows.encode(OVER)))
    thread.join(STUCK_S)
    assert found == [(one, OVER)]
    store.close()
