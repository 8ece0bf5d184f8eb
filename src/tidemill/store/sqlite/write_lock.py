"""Wait for the write lock so that no process starves.

SQLite's own wait sleeps for up to 100 ms at a time, while a busy process releases the lock for a fraction of
a millisecond between two commits, and so would keep the store to itself. Here a waiting process tries about
every millisecond, and shows that it waits by a shared lock on a file next to the store. A process that has
held the lock for a few milliseconds checks that file and lets waiting processes go first for a moment. Both
are only
hints: SQLite's lock decides, and a killed process leaves no hint behind.
"""

import fcntl
import os
import random
import sqlite3
from pathlib import Path

from tidemill.clock import Clock

TURN_S = 0.005  # several commits, on a fast disk: handing over costs about one
GIVE_WAY_S = 0.001
ASK_S = 0.001
ASK_LATER_S = 0.010
LATER_S = 0.5  # who has waited this long is not in a hurry of milliseconds


class WriteLock:
    """The queue for the write lock among the processes of one machine."""

    def __init__(self, path: Path, clock: Clock, chance: random.Random, patience_s: float) -> None:
        self._hint = os.open(f"{path}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._clock = clock
        self._chance = chance
        self._patience_s = patience_s
        self._turn_began = 0.0

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a write transaction; SQLite's busy error when it was not our turn within the patience."""
        since = self._clock.monotonic()
        if since - self._turn_began > TURN_S:
            if self._others_wait():
                self._clock.sleep(GIVE_WAY_S)
            self._turn_began = since
        if self._try(connection):
            return
        self._lock(fcntl.LOCK_SH)
        try:
            while True:
                waited_s = self._clock.monotonic() - since
                self._clock.sleep(
                    (ASK_S if waited_s < LATER_S else ASK_LATER_S) * (0.5 + self._chance.random())
                )
                if self._try(connection, last=waited_s > self._patience_s):
                    self._turn_began = self._clock.monotonic()
                    return
        finally:
            self._lock(fcntl.LOCK_UN)

    def _try(self, connection: sqlite3.Connection, *, last: bool = False) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if last or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    def _others_wait(self) -> bool:
        if not self._lock(fcntl.LOCK_EX):
            return True
        self._lock(fcntl.LOCK_UN)
        return False

    def _lock(self, how: int) -> bool:
        try:
            fcntl.flock(self._hint, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self._hint)
