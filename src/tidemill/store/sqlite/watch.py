"""Notify watchers of changes, made by this process or by others (STO-8).

Commits are numbered in the store's header. A commit of this process fires the watches of its keys. Another
process sends a wakeup (`wakeups`) with its commit number and its keys. If a wakeup is lost, the number in the
header shows that another process committed, and every watch fires. One thread polls the number, only while a
wait is running. The number is also checked when a watch is created and when a wait begins, so a change in
between is not missed.
"""

import random
import threading
from collections.abc import Callable

from tidemill.clock import Clock
from tidemill.errors import StoreError, UsageError
from tidemill.store.port import Watch
from tidemill.store.sqlite.wakeups import WakeupMessage, WakeupReceiver, WakeupSender, checksum

LOOK_FIRST_S = 0.020
LOOK_LAST_S = 0.200
SLOWER = 1.3


class Watches:
    """The watches of one store. `look` returns the number of the store's last commit."""

    def __init__(
        self,
        look: Callable[[], int],
        check: Callable[[], None],
        clock: Clock,
        chance: random.Random,
        bells: WakeupSender,
    ) -> None:
        self.clock = clock
        self._chance = chance
        self._bells = bells
        self.check = check  # refuses a process that only inherited the store
        self._look = look
        self._lock = threading.Lock()
        self._by_key: dict[bytes, set[SqliteWatch]] = {}
        self._ear: WakeupReceiver | None = None
        self._seen = 0  # every commit up to this one has fired what it had to
        self._own = 0  # the commit this process is making right now
        self._waiting = 0
        self._pause_s = LOOK_FIRST_S
        self._wanted = threading.Event()  # a wait is running
        self._nudge = threading.Event()  # look sooner
        self._closed = False
        self._thread: threading.Thread | None = None

    # --- told by the writer

    def begun(self, commit: int) -> None:
        """Note that a transaction began after this commit, so earlier commits of ours are finished."""
        self.failed()
        self.observe(commit)

    def committing(self, commit: int) -> None:
        """Note that this process is about to commit this number, so that it is not taken for another's."""
        with self._lock:
            self._own = commit

    def failed(self) -> None:
        """The commit was not made: its number may become another process's."""
        with self._lock:
            self._own = 0

    def committed(self, commit: int, written: list[set[bytes]]) -> None:
        """The commit was made; `written` are the keys that each of its functions wrote."""
        with self._lock:
            self._own = 0
            self._seen = max(self._seen, commit)
            if self._by_key:
                for keys in written:
                    for key in keys & self._by_key.keys():
                        for watch in self._by_key[key]:
                            watch.fire()
        self._bells.ring(commit, written)

    # --- called by threads that read the number

    def observe(self, commit: int) -> bool:
        """The number of the last commit is this; True when another process has committed since."""
        with self._lock:
            if commit <= self._seen or commit == self._own:
                return False
            self._seen = commit
            for watches in self._by_key.values():
                for watch in watches:
                    watch.fire()
            return True

    def heard(self, bell: WakeupMessage) -> None:
        """Another process rang: its keys are fired, or all of them when it is not the very next commit."""
        with self._lock:
            if bell.commit <= self._seen or bell.commit == self._own:
                return
            named = bell.sums if bell.commit == self._seen + 1 else None
            self._seen = bell.commit
            for key, watches in self._by_key.items():
                if named is None or checksum(key) in named:
                    for watch in watches:
                        watch.fire()

    def look(self) -> bool:
        """Look now. A store that cannot be read, or is closed, fires nothing: a watch is a hint."""
        try:
            return self.observe(self._look())
        except (StoreError, UsageError):
            return False

    # --- watching

    def add(self, watch: "SqliteWatch") -> None:
        self.check()
        self._listen()
        self.look()  # what happened before is not this watch's business
        with self._lock:
            for key in watch.keys:
                self._by_key.setdefault(key, set()).add(watch)

    def _listen(self) -> None:
        """Have an ear from the first watch on; a folder that cannot be written leaves us to look."""
        with self._lock:
            if self._ear is not None or self._closed:
                return
            try:
                ear = self._ear = self._bells.own = WakeupReceiver(self._bells.folder, self._chance)
            except OSError:
                return
        threading.Thread(target=self._hear, args=(ear,), name="tidemill-store-ear", daemon=True).start()

    def _hear(self, ear: WakeupReceiver) -> None:
        while not self._closed:
            bell = ear.hear()
            if bell is None:
                return
            self.heard(bell)

    def remove(self, watch: "SqliteWatch") -> None:
        self.check()
        with self._lock:
            for key in watch.keys:
                watches = self._by_key.get(key)
                if watches is not None:
                    watches.discard(watch)
                    if not watches:
                        del self._by_key[key]

    def wait(self, watch: "SqliteWatch", timeout_s: float) -> bool:
        self.check()
        if not watch.event.is_set() and not self._closed:
            self._enter()
            try:
                self.look()
                self.clock.wait(watch.event, timeout_s)
            finally:
                self._leave()
        fired = watch.event.is_set() or self._closed  # the caller reads the store
        watch.event.clear()
        return fired

    def _enter(self) -> None:
        with self._lock:
            self._waiting += 1
            self._pause_s = LOOK_FIRST_S if self._ear is None else LOOK_LAST_S
            self._wanted.set()
            self._nudge.set()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._poll, name="tidemill-store-watch", daemon=True)
                self._thread.start()

    def _leave(self) -> None:
        with self._lock:
            self._waiting -= 1
            if not self._waiting and not self._closed:
                self._wanted.clear()

    def _poll(self) -> None:
        while True:
            self._wanted.wait()
            if self._closed:
                return
            self._nudge.clear()
            changed = self.look()
            with self._lock:
                pause_s = LOOK_FIRST_S if changed and self._ear is None else self._pause_s
                self._pause_s = min(LOOK_LAST_S, pause_s * SLOWER)
            self.clock.wait(self._nudge, pause_s)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._wanted.set()
            self._nudge.set()
            thread, self._thread = self._thread, None
            ear, self._ear = self._ear, None
            for watches in self._by_key.values():
                for watch in watches:
                    watch.fire()
        if ear is not None:
            ear.close()
        self._bells.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()


class SqliteWatch(Watch):
    """A watch on some keys of a SQLite store."""

    def __init__(self, watches: Watches, keys: frozenset[bytes]) -> None:
        self.keys = keys
        self.event = threading.Event()
        self._watches = watches
        self._call: Callable[[], None] | None = None
        watches.add(self)

    def fire(self) -> None:
        """A key may have changed."""
        self.event.set()
        if self._call is not None:
            self._call()

    def notify(self, call: Callable[[], None]) -> Callable[[], None]:
        # Called by the thread that receives the wakeup, which saves a thread switch and one check.
        self._call = call

        def end() -> None:
            self._call = None

        return end

    def wait(self, timeout_s: float) -> bool:
        return self._watches.wait(self, timeout_s)

    def close(self) -> None:
        self._watches.remove(self)
