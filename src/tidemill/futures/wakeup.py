"""Waking a loop that waits for descriptors: from other threads, from signals, and by the store's watch."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable

from tidemill.store import Store


class Wakeup:
    """One byte on a socket pair: readable when somebody called `ring` since the last `hush`."""

    def __init__(self) -> None:
        self.reader, self.writer = socket.socketpair()
        self.reader.settimeout(0.0)
        self.writer.settimeout(0.0)
        self._rung = False

    def ring(self) -> None:
        """Wake the loop; may be called from any thread."""
        if not self._rung:
            self._rung = True
            with contextlib.suppress(BlockingIOError, OSError):
                self.writer.send(b"!")

    def hush(self) -> None:
        """Called by the loop before it looks at what there is to do."""
        with contextlib.suppress(BlockingIOError):
            while self.reader.recv(4096):
                pass
        self._rung = False  # last: who rings before this is seen by the look that follows

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


class Watcher:
    """A thread that waits on a store's watch for a loop.

    It waits only while the loop has nothing to do (`arm`): one that is busy looks by itself anyway, and a
    thread that is woken for every commit of others would take its time.
    """

    def __init__(self, store: Store, keys: Iterable[bytes], heard: Callable[[], None]) -> None:
        self._store = store
        self._keys = list(keys)
        self._heard = heard
        self._armed = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """Tell of the next change, or of one that happened since the last."""
        self._armed.set()

    def _run(self) -> None:
        with self._store.watch(self._keys) as watch:
            while not self._over:
                self._armed.wait()
                if self._over:
                    return
                if watch.wait(0.5):
                    self._armed.clear()
                    self._heard()

    def close(self) -> None:
        self._over = True
        self._armed.set()
        self._thread.join(2.0)
