"""Events that wait in memory until a thread has passed them on."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tidemill.clock import Clock

FLUSH_S = 1.0
MOST_WAITING = 5_000
T = TypeVar("T")


class WaitingEvents(Generic[T]):
    """Passes events on in order, in batches, from `start` until `close`. Any thread may add events.

    If they cannot be passed on, they wait. If too many wait, the oldest are dropped.

    Args:
        name: the name of the thread.
        batch: how many events are passed on at once.
        pass_on: takes a batch, and how many events wait with it; returns False if it must be repeated.
        clock: the source of time.
        then: called by the thread each time that no event waits any more.
    """

    def __init__(
        self,
        name: str,
        batch: int,
        pass_on: Callable[[list[T], int], bool],
        clock: Clock,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self._batch = batch
        self._pass_on = pass_on
        self._clock = clock
        self._then = then
        self._waiting: deque[T] = deque(maxlen=MOST_WAITING)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def add(self, events: Iterable[T], *, soon: bool = False) -> None:
        """Add events; `soon`: pass them on now, instead of within a second."""
        with self._lock:
            self._waiting.extend(events)
            if soon or len(self._waiting) >= self._batch > 1:
                self._wake.set()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Pass on the waiting events, if possible, and end."""
        self._ends = True
        self._wake.set()
        self._thread.join()

    def flush(self) -> bool:
        """Pass on the waiting events; return False if it must be repeated."""
        while True:
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]
                waiting = len(batch) + len(self._waiting)
            if not batch:
                return True
            if not self._pass_on(batch, waiting):
                with self._lock:
                    room = MOST_WAITING - len(self._waiting)
                    self._waiting.extendleft(reversed(batch[-room:] if room else []))
                return False

    def _run(self) -> None:
        while not self._ends:
            self._clock.wait(self._wake, FLUSH_S)
            self._wake.clear()
            if self.flush():
                self._then()
        self.flush()
