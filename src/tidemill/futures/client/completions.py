"""Completions: wait until futures end, and call callbacks when they do.

The waiting thread watches only a window of the futures: the oldest 500 that have not ended. It reads the
window in one read-only transaction, and then fills it up with the next futures. So even in a wait for 100,000
futures, each read covers at most 500 rows. A handle that no thread waits for costs nothing. After a wakeup,
the thread reads immediately if the window is small. If the window is large, the thread waits a moment first,
so that one read finds many ended futures. The thread also polls, in case a wakeup is lost (STO-8).

Rejected: one thread that waits on behalf of all others. That thread would have to pass each wakeup on to the
waiting thread, and switching between two threads costs more than the read. A watch cannot be extended to more
futures, so every new wait would have to interrupt the thread.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tidemill.clock import Clock
from tidemill.errors import FutureTimeout, StoreError, UsageError
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow
from tidemill.futures.protocol.states import ENDED
from tidemill.store import Store, Tx, Watch

WINDOW = 500
FIRST_POLL_S, LAST_POLL_S, SLOWER = 0.05, 1.0, 1.5
NARROW = 50
FIRST_GATHER_S, LAST_GATHER_S = 0.003, 0.05
"""How long to wait after a wakeup before a window of more than `NARROW` futures is read."""

QUIET_S, QUIET_SHOWN = 5.0, 3
"""If no future ends for `QUIET_S` seconds, `on_quiet` is called with at most `QUIET_SHOWN` futures."""

CALLBACK_WAIT_S = 0.05
"""How long it may take until the thread watches the future of a new callback."""

log = logging.getLogger("tidemill.futures")

Callback = Callable[[], object]


class EndedFuture(NamedTuple):
    """A future that has ended. `row` is None if the future never existed or was deleted."""

    id: bytes
    row: AnyRow | None


class Completions:
    """Waits for futures of one cluster.

    Args:
        store: the store.
        keys: the keys of futures.
        clock: the source of time.
    """

    def __init__(
        self,
        store: Store,
        keys: FutureKeys,
        clock: Clock,
    ) -> None:
        self.store = store
        self.keys = keys
        self.clock = clock
        self.on_quiet: Callable[[Sequence[bytes]], None] = _ignore
        """Called with some of the futures while none ends (FUT-49). If it raises an error, the wait ends."""

    def read(self, ids: Sequence[bytes]) -> list[AnyRow | None]:
        """Read the state rows of futures."""
        return self.read_keys([self.keys.future[future_id] for future_id in ids])

    def read_keys(self, keys: Sequence[bytes]) -> list[AnyRow | None]:
        """Read state rows by their keys."""

        def read_rows(tx: Tx) -> list[bytes | None]:
            return tx.get_many(keys)

        return [None if raw is None else rows.decode_row(raw) for raw in self.store.run(read_rows)]

    def ended(self, ids: Iterable[bytes], timeout_s: float | None = None) -> Iterator[list[EndedFuture]]:
        """Yield the futures as they end. Raise `FutureTimeout` after `timeout_s`.

        Every future is yielded once. The caller may abandon the iterator at any time.
        """
        return iter(_Wait(self, dict.fromkeys(ids), timeout_s))


class _Wait:
    """One wait: the outstanding futures, and the window of futures that the thread watches."""

    def __init__(
        self, completions: Completions, outstanding: dict[bytes, None], timeout_s: float | None
    ) -> None:
        self._completions = completions
        self._clock = completions.clock
        self._outstanding = outstanding
        self._total = len(outstanding)
        self._timeout_s = timeout_s
        self._read_at = self._quiet_since = self._clock.monotonic()
        self._end_at = None if timeout_s is None else self._read_at + timeout_s
        self._window: dict[bytes, bytes] = {}  # ids and their keys
        self._watch: Watch | None = None
        self._poll_s = FIRST_POLL_S
        self._per_s = 0.0  # how many futures per second ended lately

    def __iter__(self) -> Iterator[list[EndedFuture]]:
        try:
            while self._outstanding:
                self._move_window()
                ended = self._read_window()
                if ended:
                    yield ended
                if self._window and self._end_at is not None and self._clock.monotonic() >= self._end_at:
                    raise FutureTimeout(self._timeout_message())
                if not ended:
                    self._wait()
                elif len(ended) < len(self._window):
                    self._gather()
        finally:
            if self._watch is not None:
                self._watch.close()

    def _move_window(self) -> None:
        """Refill the window when it is half empty. Watch it before reading it, to miss no change."""
        size = min(WINDOW, len(self._outstanding))
        if self._watch is not None and len(self._window) >= min(size, WINDOW // 2):
            return
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        space = self._completions.keys.future
        oldest = itertools.islice(self._outstanding, size)
        self._window = {future_id: space[future_id] for future_id in oldest}
        self._watch = self._completions.store.watch(self._window.values())

    def _read_window(self) -> list[EndedFuture]:
        ended = []
        current = self._completions.read_keys(list(self._window.values()))
        for future_id, row in zip(list(self._window), current, strict=True):
            if row is None or row.state in ENDED:
                ended.append(EndedFuture(future_id, row))
                del self._window[future_id], self._outstanding[future_id]
        now = self._clock.monotonic()
        if ended:
            self._per_s = len(ended) / max(1e-3, now - self._read_at)
            self._poll_s = FIRST_POLL_S
            self._quiet_since = now
        elif now - self._quiet_since > QUIET_S:
            self._quiet_since = now
            self._completions.on_quiet(list(itertools.islice(self._window, QUIET_SHOWN)))
        self._read_at = now
        return ended

    def _wait(self) -> None:
        """Wait for a change in the window, or until it is time to poll this window or the next one."""
        assert self._watch is not None
        poll_s = self._poll_s
        if self._end_at is not None:
            poll_s = min(poll_s, max(0.0, self._end_at - self._clock.monotonic()))
        if self._watch.wait(poll_s):
            self._gather()
            return
        self._poll_s = min(LAST_POLL_S, self._poll_s * SLOWER)
        if len(self._outstanding) > len(self._window):  # these take long: others may have ended
            for future_id in self._window:
                del self._outstanding[future_id]
                self._outstanding[future_id] = None
            self._window.clear()

    def _gather(self) -> None:
        """Pause so that more futures end before the window is read again.

        The pause lasts until about half a window of futures has probably ended, but it is short compared with
        the rest of the wait.
        """
        if len(self._window) <= NARROW:
            return
        pause_s = FIRST_GATHER_S
        if self._per_s:
            pause_s = min(LAST_GATHER_S, min(WINDOW // 2, len(self._outstanding) / 8) / self._per_s)
        self._clock.sleep(pause_s)

    def _timeout_message(self) -> str:
        oldest = next(iter(self._outstanding))
        if self._total == 1:
            return f"future {oldest.hex()} did not end within {self._timeout_s:.3g} s"
        left = len(self._outstanding)
        return f"{left:,} of {self._total:,} futures did not end within {self._timeout_s:.3g} s"


def _ignore(ids: Sequence[bytes]) -> None:
    """Do nothing."""


class Callbacks:
    """Calls functions when futures end, from one thread that starts with the first callback.

    Callbacks run one at a time, so a slow callback delays the other callbacks, but nothing else. An error of
    a callback is logged and has no other effect, as with Python's own futures.
    """

    def __init__(self, completions: Completions) -> None:
        self._completions = completions
        self._lock = threading.Lock()
        self._callbacks: dict[bytes, list[Callback]] = {}
        self._added = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, future_id: bytes, callback: Callback) -> None:
        """Call a function when the future has ended."""
        with self._lock:
            self._callbacks.setdefault(future_id, []).append(callback)
            self._added.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidemill-callbacks", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop the thread. After this, no callback is called."""
        self._closed = True
        self._added.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._added.wait()
            if self._closed:
                return
            try:
                self._wait_briefly()
            except (StoreError, UsageError):  # the store does not answer, or is closed
                self._completions.clock.sleep(CALLBACK_WAIT_S)

    def _wait_briefly(self) -> None:
        """Wait a moment for the current futures. Futures that are added in this time join the next wait."""
        with self._lock:
            ids = list(self._callbacks)
            if not ids:
                self._added.clear()
                return
        try:
            for ended in self._completions.ended(ids, CALLBACK_WAIT_S):
                for future_id, _ in ended:
                    with self._lock:
                        callbacks = self._callbacks.pop(future_id, [])
                    for callback in callbacks:
                        _call(callback)
                if self._closed:
                    return
        except FutureTimeout:
            return


def _call(callback: Callback) -> None:
    try:
        callback()
    except Exception:  # an error of the user's function must not affect others
        log.exception("a future's callback raised")
