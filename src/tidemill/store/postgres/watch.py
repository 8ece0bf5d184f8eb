"""Notify watchers through PostgreSQL: one thread with one connection sends and receives (STO-8).

A commit notifies its own process directly. Other processes get a NOTIFY, which is never part of the commit:
inside a transaction, NOTIFY takes a lock that all commits of the database wait for. The thread collects the
changed keys and sends them at most once per `PAUSE_S`, or once per `BUSY_PAUSE_S` under constant load. The
payload holds the checksums of the keys, eight digits each, or `*` if there are too many keys.

The thread listens only while there are watches, and ends after `LINGER_S` without work. When its connection
breaks, and again when it has reconnected, the thread wakes all watchers, because a notification may be lost.
Without a connection, or with a connection pooler, which may drop LISTEN, a wait ends after `POLL_S` at the
latest, and the caller checks the store. So a lost notification only costs this delay.

The thread also removes operation rows that have expired.
"""

import random
import select
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain

from tidemill.clock import Clock, backoff
from tidemill.errors import TidemillError
from tidemill.store.port import Watch
from tidemill.store.postgres.connection import (
    BoundStatement,
    ConnectionLost,
    PostgresConnection,
    StatementFailed,
    texts,
)
from tidemill.store.postgres.lease_clock import LeaseClock
from tidemill.store.postgres.schema import plain
from tidemill.store.postgres.statements import Sql, quoted
from tidemill.store.retry import Conflict, Unreached, expired_operations

PAUSE_S = 0.01
BUSY_PAUSE_S, BUSY = 0.03, 4  # with this many commits in one pause, more are expected
POLL_S = 1.0
LINGER_S = 30.0
CLEAN_EVERY_US = 60_000_000

_DIGITS = 8
_KEYS_PER_PAYLOAD = 900  # a payload must have fewer than 8,000 bytes
_MOST_PAYLOADS = 8
EVERYTHING = "*"


checksum = zlib.crc32  # names a key in a notification; keys with equal checksums wake each other's watches


def payloads(touched: Sequence[set[bytes]]) -> list[str]:
    """Return the notifications for the keys of these commits."""
    if sum(map(len, touched)) > _KEYS_PER_PAYLOAD * _MOST_PAYLOADS:
        return [EVERYTHING]
    sums = set(map(checksum, chain.from_iterable(touched)))
    names = struct.pack(f">{len(sums)}I", *sums).hex()
    longest = _DIGITS * _KEYS_PER_PAYLOAD
    return [names[at : at + longest] for at in range(0, len(names), longest)]


def read_payload(payload: str) -> set[int] | None:
    """Return the checksums in a notification; None if it is for all watchers, or cannot be parsed."""
    try:
        raw = bytes.fromhex(payload)
        return set(struct.unpack(f">{len(raw) // 4}I", raw)) or None
    except (ValueError, struct.error):
        return None


class Notifier:
    """Notifies watchers, in this process and in others. One per process and store."""

    def __init__(
        self,
        connect: Callable[[], PostgresConnection],
        sql: Sql,
        *,
        clock: Clock,
        lease: LeaseClock,
        chance: random.Random,
    ) -> None:
        self.clock = clock
        self.chance = chance
        self.must_poll = True  # no notification can reach us now
        self._connect = connect
        self._sql = sql
        self._lease = lease
        self._channel = f"tidemill_{checksum(sql.schema.encode()):08x}"
        self._lock = threading.Lock()
        self._watches: dict[int, set[PostgresWatch]] = {}
        self._touched: list[set[bytes]] = []  # keys of commits that were not sent yet
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._signal: tuple[socket.socket, socket.socket] | None = None  # wakes the thread; sender, receiver
        self._link: PostgresConnection | None = None
        self._listening = False
        self._idle = False  # nothing happened for a while
        self._cleaned_at: int | None = None

    # --- called by the store

    def notify(self, keys: set[bytes]) -> None:
        """Notify watchers that a commit changed these keys."""
        woken: set[PostgresWatch] = set()
        with self._lock:
            if self._watches:
                woken = self._watching(set(map(checksum, keys)))
            quiet = not self._touched
            self._touched.append(keys)
        for watch in woken:
            watch.event.set()
        if quiet:
            self._ensure_thread()

    def add(self, watch: "PostgresWatch") -> None:
        with self._lock:
            for each in watch.sums:
                self._watches.setdefault(each, set()).add(watch)
        self._ensure_thread()

    def remove(self, watch: "PostgresWatch") -> None:
        with self._lock:
            for each in watch.sums:
                self._watches.get(each, set()).discard(watch)
                if not self._watches.get(each):
                    self._watches.pop(each, None)

    def close(self) -> None:
        """Send the remaining notifications, then end."""
        with self._lock:
            self._stop.set()
            thread = self._thread
            self._signal_thread()
        if thread is not None:
            thread.join(2.0)
        self._wake(None)

    # --- inside

    def _watching(self, sums: set[int] | None) -> set["PostgresWatch"]:
        """Return the watches of keys with these checksums; None means all. The caller holds the lock."""
        names = self._watches.keys() if sums is None else self._watches.keys() & sums
        return {watch for name in names for watch in self._watches[name]}

    def _wake(self, sums: set[int] | None) -> None:
        with self._lock:
            woken = self._watching(sums)
        for watch in woken:
            watch.event.set()

    def _ensure_thread(self) -> None:
        """Start the thread if needed, and wake it."""
        with self._lock:
            if self._stop.is_set():
                return
            if self._thread is None:
                self._signal = socket.socketpair()
                for end in self._signal:
                    end.settimeout(0)
                self._thread = threading.Thread(target=self._serve, name="tidemill-notifier", daemon=True)
                self._thread.start()
            self._signal_thread()

    def _signal_thread(self) -> None:
        """Wake the thread. The caller holds the lock."""
        if self._signal is not None:
            with suppress(BlockingIOError):  # a full buffer wakes it too
                self._signal[0].send(b"!")

    def _serve(self) -> None:
        failures = 0
        while True:
            try:
                self._serve_once()
                failures = 0
            except (ConnectionLost, StatementFailed, Conflict, Unreached, TidemillError, OSError):
                failures += 1
                self._disconnect()
                self._stop.wait(backoff(failures, self.chance, first_s=0.05, most_s=2.0))
            if self._ends(failures):
                return

    def _serve_once(self) -> None:
        """Connect, listen if there are watches, send, and wait for the next notification or change."""
        if self._link is None:
            self._link = self._connect()
        self._listen(self._link)
        self._send(self._link)
        self._receive(self._link)

    def _listen(self, link: PostgresConnection) -> None:
        with self._lock:
            has_watches = bool(self._watches)
        if has_watches and not self._listening:
            link.exchange([plain(f"LISTEN {quoted(self._channel)}")])
            self._listening = True
            self.must_poll = link.pooled
            self._wake(None)  # a watch from before LISTEN may have missed a change
        elif self._listening and not has_watches:
            link.exchange([plain(f"UNLISTEN {quoted(self._channel)}")])
            self._listening = False
            self.must_poll = True

    def _send(self, link: PostgresConnection) -> None:
        with self._lock:
            touched, self._touched = self._touched, []
        if not touched:
            return
        try:
            notify = BoundStatement(self._sql.notify, (self._channel.encode(), texts(payloads(touched))))
            link.exchange([notify])
        except (ConnectionLost, StatementFailed):
            with self._lock:
                self._touched += touched
            raise
        self._clean(link)
        self._stop.wait(PAUSE_S if len(touched) < BUSY else BUSY_PAUSE_S)

    def _receive(self, link: PostgresConnection) -> None:
        with self._lock:
            busy = bool(self._touched) or self._stop.is_set()
            assert self._signal is not None
            receiver = self._signal[1]
        ready = select.poll()
        ready.register(receiver, select.POLLIN)
        ready.register(link.socket, select.POLLIN)
        self._idle = not ready.poll(0 if busy else LINGER_S * 1000) and not busy
        with suppress(BlockingIOError):
            while receiver.recv(4096):
                pass
        for sender, payload in link.notifications():
            if sender != link.backend_pid:  # our own watches have fired already
                self._wake(read_payload(payload))

    def _ends(self, failures: int) -> bool:
        """Return whether the thread should end now; if so, release what it uses.

        It ends after `close`, when everything was sent or sending failed, and when it has nothing to do.
        """
        with self._lock:
            if self._stop.is_set():
                ends = failures > 0 or not self._touched
            else:
                ends = self._idle and not self._watches and not self._touched
            if ends:
                self._thread = None
                self._drop_link()
                for end in self._signal or ():
                    end.close()
                self._signal = None
            return ends

    def _disconnect(self) -> None:
        with self._lock:
            self._drop_link()
        self._wake(None)  # from here on changes may be missed

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        self._listening, self.must_poll = False, True
        if link is not None:
            link.close()

    def _clean(self, link: PostgresConnection) -> None:
        """Remove expired operation rows, in small batches."""
        now = self._lease.estimate()
        if now is None or (self._cleaned_at is not None and now - self._cleaned_at < CLEAN_EVERY_US):
            return
        self._cleaned_at = now
        lo, hi = expired_operations(now)
        for _ in range(50):
            (result,) = link.exchange([BoundStatement(self._sql.expire, (lo, hi))])
            if result.ntuples < 1000:
                return


class PostgresWatch(Watch):
    """A watch on keys of a PostgreSQL store."""

    def __init__(self, notifier: Notifier, keys: Iterable[bytes]) -> None:
        self.sums = frozenset(checksum(key) for key in keys)
        self.event = threading.Event()
        self._notifier = notifier
        self._closed = False
        notifier.add(self)

    def wait(self, timeout_s: float) -> bool:
        polls = self._notifier.must_poll and not self._closed
        limit_s = (
            min(timeout_s, POLL_S * (0.75 + 0.5 * self._notifier.chance.random())) if polls else timeout_s
        )
        fired = self._notifier.clock.wait(self.event, limit_s)
        self.event.clear()
        return fired or (polls and limit_s < timeout_s)

    def close(self) -> None:
        self._closed = True
        self._notifier.remove(self)
        self.event.clear()
