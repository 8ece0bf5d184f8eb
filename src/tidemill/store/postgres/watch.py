"""Notify watchers through PostgreSQL: one thread with one connection sends and receives (STO-8).

A commit notifies its own process directly. Other processes get a NOTIFY, which is never part of the commit:
inside a transaction it takes a lock that all commits of the database wait for. The thread collects the
changed keys and sends them, at most once in `PAUSE_S`, or in `BUSY_PAUSE_S` under constant load. The payload
is the checksums of the keys, eight digits each, or `*` if there are too many.

The thread listens only while there are watches, and ends after `LINGER_S` without work. When its connection
breaks, and again when it is back, it wakes all watchers, because a notification may be lost. Without it, and
with a connection pooler, which may drop LISTEN, a wait ends after `POLL_S` at the latest, and the caller
checks the store. A lost notification costs this delay and nothing else.

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
BUSY_PAUSE_S, BUSY = 0.03, 4  # after so many commits in one pause there are more coming
POLL_S = 1.0
LINGER_S = 30.0
CLEAN_EVERY_US = 60_000_000

_DIGITS = 8
_KEYS_PER_PAYLOAD = 900  # a payload has less than 8,000 bytes
_MOST_PAYLOADS = 8
EVERYTHING = "*"


checksum = zlib.crc32  # what a key is called in a notification; keys of one name wake each other's watchers


def payloads(touched: Sequence[set[bytes]]) -> list[str]:
    """The notifications for the keys of these commits."""
    if sum(map(len, touched)) > _KEYS_PER_PAYLOAD * _MOST_PAYLOADS:
        return [EVERYTHING]
    sums = set(map(checksum, chain.from_iterable(touched)))
    names = struct.pack(f">{len(sums)}I", *sums).hex()
    longest = _DIGITS * _KEYS_PER_PAYLOAD
    return [names[at : at + longest] for at in range(0, len(names), longest)]


def read_payload(payload: str) -> set[int] | None:
    """Return the keys of a notification; None if it is for all watchers, or cannot be parsed."""
    try:
        raw = bytes.fromhex(payload)
        return set(struct.unpack(f">{len(raw) // 4}I", raw)) or None
    except (ValueError, struct.error):
        return None


class Notifier:
    """Notify watchers, in this process and in others. One per process and store."""

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
        self.deaf = True  # no notification can reach us, as far as we know
        self._connect = connect
        self._sql = sql
        self._lease = lease
        self._channel = f"tidemill_{checksum(sql.schema.encode()):08x}"
        self._lock = threading.Lock()
        self._watches: dict[int, set[PostgresWatch]] = {}
        self._touched: list[set[bytes]] = []  # by commits that were not told yet
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._button: tuple[socket.socket, socket.socket] | None = (
            None  # pressed at one end, felt at the other
        )
        self._link: PostgresConnection | None = None
        self._listening = False
        self._idle = False  # there was nothing to do for a while
        self._cleaned_at: int | None = None

    # --- what the store calls

    def ring(self, keys: set[bytes]) -> None:
        """These keys were changed by a commit."""
        woken: set[PostgresWatch] = set()
        with self._lock:
            if self._watches:
                woken = self._watching(set(map(checksum, keys)))
            quiet = not self._touched
            self._touched.append(keys)
        for watch in woken:
            watch.event.set()
        if quiet:
            self._attend()

    def add(self, watch: "PostgresWatch") -> None:
        with self._lock:
            for each in watch.sums:
                self._watches.setdefault(each, set()).add(watch)
        self._attend()

    def remove(self, watch: "PostgresWatch") -> None:
        with self._lock:
            for each in watch.sums:
                self._watches.get(each, set()).discard(watch)
                if not self._watches.get(each):
                    self._watches.pop(each, None)

    def close(self) -> None:
        """Tell others what is left to tell, then end."""
        with self._lock:
            self._stop.set()
            thread = self._thread
            self._press()
        if thread is not None:
            thread.join(2.0)
        self._wake(None)

    # --- inside

    def _watching(self, sums: set[int] | None) -> set["PostgresWatch"]:
        """Return the watches of these keys, or all watches; call it under the lock."""
        names = self._watches.keys() if sums is None else self._watches.keys() & sums
        return {watch for name in names for watch in self._watches[name]}

    def _wake(self, sums: set[int] | None) -> None:
        with self._lock:
            woken = self._watching(sums)
        for watch in woken:
            watch.event.set()

    def _attend(self) -> None:
        """See to it that the thread runs, and looks."""
        with self._lock:
            if self._stop.is_set():
                return
            if self._thread is None:
                self._button = socket.socketpair()
                for end in self._button:
                    end.settimeout(0)
                self._thread = threading.Thread(target=self._serve, name="tidemill-bell", daemon=True)
                self._thread.start()
            self._press()

    def _press(self) -> None:
        """Under the lock: make the thread look."""
        if self._button is not None:
            with suppress(BlockingIOError):  # full is as good as pressed
                self._button[0].send(b"!")

    def _serve(self) -> None:
        failures = 0
        while True:
            try:
                self._turn()
                failures = 0
            except (ConnectionLost, StatementFailed, Conflict, Unreached, TidemillError, OSError):
                failures += 1
                self._hang_up()
                self._stop.wait(backoff(failures, self.chance, first_s=0.05, most_s=2.0))
            if self._ends(failures):
                return

    def _turn(self) -> None:
        """Connect, listen if there are watches, send, and wait for the next notification or change."""
        if self._link is None:
            self._link = self._connect()
        self._listen(self._link)
        self._tell(self._link)
        self._hear(self._link)

    def _listen(self, link: PostgresConnection) -> None:
        with self._lock:
            wanted = bool(self._watches)
        if wanted and not self._listening:
            link.exchange([plain(f"LISTEN {quoted(self._channel)}")])
            self._listening = True
            self.deaf = link.pooled
            self._wake(None)  # who began to watch before we listened may have missed something
        elif self._listening and not wanted:
            link.exchange([plain(f"UNLISTEN {quoted(self._channel)}")])
            self._listening = False
            self.deaf = True

    def _tell(self, link: PostgresConnection) -> None:
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

    def _hear(self, link: PostgresConnection) -> None:
        with self._lock:
            busy = bool(self._touched) or self._stop.is_set()
            assert self._button is not None
            felt = self._button[1]
        ready = select.poll()
        ready.register(felt, select.POLLIN)
        ready.register(link.socket, select.POLLIN)
        self._idle = not ready.poll(0 if busy else LINGER_S * 1000) and not busy
        with suppress(BlockingIOError):
            while felt.recv(4096):
                pass
        for teller, payload in link.notifications():
            if teller != link.backend_pid:  # our own process was told at once
                self._wake(read_payload(payload))

    def _ends(self, failures: int) -> bool:
        """The thread ends when it was told to and has told the rest, or when it is not needed."""
        with self._lock:
            if self._stop.is_set():
                ends = failures > 0 or not self._touched
            else:
                ends = self._idle and not self._watches and not self._touched
            if ends:
                self._thread = None
                self._hang_up_link()
                for end in self._button or ():
                    end.close()
                self._button = None
            return ends

    def _hang_up(self) -> None:
        with self._lock:
            self._hang_up_link()
        self._wake(None)  # something may be missed from here on

    def _hang_up_link(self) -> None:
        link, self._link = self._link, None
        self._listening, self.deaf = False, True
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
    """A watch on some keys."""

    def __init__(self, bell: Notifier, keys: Iterable[bytes]) -> None:
        self.sums = frozenset(checksum(key) for key in keys)
        self.event = threading.Event()
        self._bell = bell
        self._closed = False
        bell.add(self)

    def wait(self, timeout_s: float) -> bool:
        polls = self._bell.deaf and not self._closed
        limit_s = min(timeout_s, POLL_S * (0.75 + 0.5 * self._bell.chance.random())) if polls else timeout_s
        fired = self._bell.clock.wait(self.event, limit_s)
        self.event.clear()
        return fired or (polls and limit_s < timeout_s)

    def close(self) -> None:
        self._closed = True
        self._bell.remove(self)
        self.event.clear()
