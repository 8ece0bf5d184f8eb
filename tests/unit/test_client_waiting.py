"""Waiting for many futures: in windows, with few reads, in any order of completion."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.errors import FutureTimeout
from tidemill.futures.client.completions import QUIET_S, WINDOW, Completions, EndedFuture
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
    """A store that counts its reads."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store: Store = open_store("memory://", clock=self.clock)
        self.completions = Completions(self.store, KEYS, self.clock)
        self.read_rows = 0
        real = self.completions.read_keys

        def read_keys(keys: Any) -> list[AnyRow | None]:
            self.read_rows += len(keys)
            return real(keys)

        self.completions.read_keys = read_keys  # type: ignore[method-assign]

    def write(self, future_ids: list[bytes], row: AnyRow) -> None:
        for start in range(0, len(future_ids), 500):
            page = [
                (KEYS.future[future_id], rows.encode(row)) for future_id in future_ids[start : start + 500]
            ]
            self.store.run(lambda tx, page=page: tx.set_many(page))  # type: ignore[misc]


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.store.close()


def test_ended_futures_are_yielded_at_once_and_only_once(stage: Stage) -> None:
    some = ids(3)
    stage.write(some[:2], OVER)
    ended = [future for page in stage.completions.ended([*some, *some]) for future in page]
    assert sorted(ended) == [(some[0], OVER), (some[1], OVER), (some[2], None)]


@pytest.mark.slow
def test_a_hundred_thousand_are_read_about_once_each(stage: Stage) -> None:
    some = ids(100_000)
    stage.write(some, OVER)
    ended = [future.id for page in stage.completions.ended(some) for future in page]
    assert sorted(ended) == some
    assert stage.read_rows <= 1.1 * len(some)


def test_a_few_that_take_long_do_not_hide_the_others(stage: Stage) -> None:
    some = ids(3 * WINDOW)
    stage.write(some, WAITS)
    stage.write(some[2 * WINDOW :], OVER)
    wait = stage.completions.ended(some, timeout_s=30)
    ended = [future.id for _, page in zip(range(1), wait, strict=False) for future in page]
    assert ended
    assert set(ended) <= set(some[2 * WINDOW :])


def test_a_wait_raises_after_its_timeout(stage: Stage) -> None:
    some = ids(2)
    stage.write(some[:1], WAITS)
    stage.write(some[1:], OVER)
    wait = stage.completions.ended(some, timeout_s=7)
    assert next(wait) == [(some[1], OVER)]
    began = stage.clock.monotonic()
    with pytest.raises(FutureTimeout, match="1 of 2 futures did not end within 7 s"):
        next(wait)
    assert 6.9 < stage.clock.monotonic() - began < 8.1
    assert stage.read_rows < 40  # it polls more and more slowly


def test_a_timeout_of_zero_yields_only_futures_that_have_ended(stage: Stage) -> None:
    some = ids(2 * WINDOW)
    stage.write(some, OVER)
    assert sum(len(page) for page in stage.completions.ended(some, timeout_s=0)) == 2 * WINDOW
    stage.write(some[-1:], WAITS)
    wait = stage.completions.ended(some, timeout_s=0)
    assert sum(len(page) for _, page in zip(range(2), wait, strict=False)) == 2 * WINDOW - 1
    with pytest.raises(FutureTimeout, match=r"1 of 1,000 futures"):
        next(wait)


def test_on_quiet_is_called_with_the_oldest_futures_while_nothing_ends(stage: Stage) -> None:
    some = ids(1)
    stage.write(some, WAITS)
    calls: list[list[bytes]] = []
    stage.completions.on_quiet = lambda ids: calls.append(list(ids))
    with pytest.raises(FutureTimeout):
        next(stage.completions.ended(some, timeout_s=4 * QUIET_S))
    assert calls
    assert all(call == some for call in calls)
    assert len(calls) <= 4


def test_a_change_wakes_the_waiting_thread() -> None:
    store = open_store("memory://")
    completions = Completions(store, KEYS, store.clock)
    (future_id,) = ids(1)
    store.run(lambda tx: tx.set(KEYS.future[future_id], rows.encode(WAITS)))
    ended: list[EndedFuture] = []
    thread = threading.Thread(target=lambda: ended.extend(next(completions.ended([future_id], 60))))
    thread.start()
    store.run(lambda tx: tx.set(KEYS.future[future_id], rows.encode(OVER)))
    thread.join(STUCK_S)
    assert ended == [(future_id, OVER)]
    store.close()
