"""Notify watchers of changes that this process or another process made (STO-8).

Commits are numbered in the store's header. A commit of this process fires the watches of its keys. Another
process sends a wakeup (`wakeups`) with its commit number and its keys. If a wakeup is lost, the number in the
header shows that another process committed, and every watch fires. One thread polls the number, but only
while a caller is waiting. The number is also checked when a watch is created and when a wait begins, so a
change in between is not missed.
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
        sender: WakeupSender,
    ) -> None:
        self.clock = clock
        self._chance = chance
        self._sender = sender
        self.check = check  # refuses a process that only inherited the store
        self._look = look
        self._lock = threading.Lock()
        self._by_key: dict[bytes, set[SqliteWatch]] = {}
        self._receiver: WakeupReceiver | None = None
        self._seen = 0  # all commits up to this one have fired their watches
        self._own = 0  # the commit that this process is making now
        self._waiting = 0
        self._pause_s = LOOK_FIRST_S
        self._wanted = threading.Event()  # a wait is running
        self._nudge = threading.Event()  # poll sooner
        self._closed = False
        self._thread: threading.Thread | None = None

    # --- called by the writer

    def begun(self, commit: int) -> None:
        """Note that a transaction began after this commit, so earlier commits of ours are finished."""
        self.failed()
        self.observe(commit)

    def committing(self, commit: int) -> None:
        """Note that this process is about to make this commit, so it does not count as a foreign one."""
        with self._lock:
            self._own = commit

    def failed(self) -> None:
        """Note that the commit failed: another process may use its number."""
        with self._lock:
            self._own = 0

    def committed(self, commit: int, written: list[set[bytes]]) -> None:
        """Fire the watches of a commit; `written` has the keys that each of its functions wrote."""
        with self._lock:
            self._own = 0
            self._seen = max(self._seen, commit)
            if self._by_key:
                for keys in written:
                    for key in keys & self._by_key.keys():
                        for watch in self._by_key[key]:
                            watch.fire()
        self._sender.send(commit, written)

    # --- called by threads that read the number

    def observe(self, commit: int) -> bool:
        """Note the last commit; if another process made it, fire all watches and return True."""
        with self._lock:
            if commit <= self._seen or commit == self._own:
                return False
            self._seen = commit
            for watches in self._by_key.values():
                for watch in watches:
                    watch.fire()
            return True

    def received(self, message: WakeupMessage) -> None:
        """Fire the watches of a wakeup's keys; if a commit before it was missed, fire all watches."""
        with self._lock:
            if message.commit <= self._seen or message.commit == self._own:
                return
            sums = message.sums if message.commit == self._seen + 1 else None
            self._seen = message.commit
            for key, watches in self._by_key.items():
                if sums is None or checksum(key) in sums:
                    for watch in watches:
                        watch.fire()

    def look(self) -> bool:
        """Read the number now. If the store cannot be read, nothing fires: a watch is a hint."""
        try:
            return self.observe(self._look())
        except (StoreError, UsageError):
            return False

    # --- watching

    def add(self, watch: "SqliteWatch") -> None:
        self.check()
        self._listen()
        self.look()  # earlier changes do not fire this watch
        with self._lock:
            for key in watch.keys:
                self._by_key.setdefault(key, set()).add(watch)

    def _listen(self) -> None:
        """Open the receiver when the first watch is added; if the folder is not writable, the store polls."""
        with self._lock:
            if self._receiver is not None or self._closed:
                return
            try:
                receiver = self._receiver = self._sender.own = WakeupReceiver(
                    self._sender.folder, self._chance
                )
            except OSError:
                return
        threading.Thread(
            target=self._receive, args=(receiver,), name="tidemill-store-wakeups", daemon=True
        ).start()

    def _receive(self, receiver: WakeupReceiver) -> None:
        while not self._closed:
            message = receiver.receive()
            if message is None:
                return
            self.received(message)

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
            self._pause_s = LOOK_FIRST_S if self._receiver is None else LOOK_LAST_S
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
                pause_s = LOOK_FIRST_S if changed and self._receiver is None else self._pause_s
                self._pause_s = min(LOOK_LAST_S, pause_s * SLOWER)
            self.clock.wait(self._nudge, pause_s)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._wanted.set()
            self._nudge.set()
            thread, self._thread = self._thread, None
            receiver, self._receiver = self._receiver, None
            for watches in self._by_key.values():
                for watch in watches:
                    watch.fire()
        if receiver is not None:
            receiver.close()
        self._sender.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()


class SqliteWatch(Watch):
    """A watch on keys of a SQLite store."""

    def __init__(self, watches: Watches, keys: frozenset[bytes]) -> None:
        self.keys = keys
        self.event = threading.Event()
        self._watches = watches
        self._call: Callable[[], None] | None = None
        watches.add(self)

    def fire(self) -> None:
        """Fire the watch, because a key may have changed."""
        self.event.set()
        if self._call is not None:
            self._call()

    def notify(self, call: Callable[[], None]) -> Callable[[], None]:
        # The thread that receives the wakeup runs `call`, which saves a thread switch and one check.
        self._call = call

        def end() -> None:
            self._call = None

        return end

    def wait(self, timeout_s: float) -> bool:
        return self._watches.wait(self, timeout_s)

    def close(self) -> None:
        self._watches.remove(self)
