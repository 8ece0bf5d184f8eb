"""Callbacks of futures that ended: one thread per client, started with the first of them.

Calls are made from that thread, one at a time, so that a slow one delays the others and nothing else. What a
callback raises is shown and changes nothing, as with Python's own futures.
"""

import logging
import threading
from collections.abc import Callable

from tidemill.errors import FutureTimeout, StoreError, UsageError
from tidemill.futures.client.completions import Completions

LOOK_S = 0.05
"""How long at most a new callback waits for its future to be watched along with the others."""

log = logging.getLogger("tidemill.futures")

Call = Callable[[], object]


class Callbacks:
    """Calls functions when futures have ended."""

    def __init__(self, waiting: Completions) -> None:
        self._waiting = waiting
        self._lock = threading.Lock()
        self._calls: dict[bytes, list[Call]] = {}
        self._wanted = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def add(self, future_id: bytes, call: Call) -> None:
        """Call this when the future has ended."""
        with self._lock:
            self._calls.setdefault(future_id, []).append(call)
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidemill-callbacks", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Call nothing more."""
        self._over = True
        self._wanted.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if self._over:
                return
            try:
                self._look()
            except (StoreError, UsageError):  # of a store that does not answer, or was closed
                self._waiting.clock.sleep(LOOK_S)

    def _look(self) -> None:
        """Wait a moment for those that are awaited now; then those that came meanwhile are, too."""
        with self._lock:
            ids = list(self._calls)
            if not ids:
                self._wanted.clear()
                return
        try:
            for ended in self._waiting.ended(ids, LOOK_S):
                for one, _ in ended:
                    with self._lock:
                        calls = self._calls.pop(one, [])
                    for call in calls:
                        _make(call)
                if self._over:
                    return
        except FutureTimeout:
            return


def _make(call: Call) -> None:
    try:
        call()
    except Exception:  # a user's function: shown, and nobody else's trouble
        log.exception("a future's callback raised")
