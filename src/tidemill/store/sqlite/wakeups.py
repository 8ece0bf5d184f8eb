"""Wake other processes that share a SQLite file after a commit, without a server.

A process that watches keys has a `WakeupReceiver`: a datagram socket on this machine, and a file with the
socket's name in the folder `<store>-bells`. A commit sends its number and the checksums of its keys to every
receiver. A wakeup is only a hint: it may be lost (a full buffer, another network namespace). In that case the
process finds the new commit number in the store's header within 200 ms. Nothing depends on a wakeup (STO-8).

The kernel closes the socket when its process dies. The next sender gets an error and removes the file.
"""

import contextlib
import os
import random
import socket
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_NAME = b"\0tidemill-bell-"
_MOST_KEYS = 500
_NO_KEY = 0  # the checksum of an empty key, which does not exist
_MOST_BYTES = 8 + 4 * _MOST_KEYS


def checksum(key: bytes) -> int:
    """Return the checksum that names a key; keys with equal checksums wake each other's watches."""
    return zlib.crc32(key)


class WakeupMessage(NamedTuple):
    """The number of a commit, and the checksums of its keys; None if there were too many keys."""

    commit: int
    sums: frozenset[int] | None


class WakeupReceiver:
    """The socket on which a process receives wakeups."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        folder.mkdir(exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        while True:
            name = f"{os.getpid()}-{chance.getrandbits(64):016x}"
            with contextlib.suppress(OSError):  # the name is taken: another pid namespace, the same seed
                self._socket.bind(_NAME + name.encode())
                break
        self.name = name
        self._path = folder / name
        self._path.touch()

    def receive(self) -> WakeupMessage | None:
        """Wait for a wakeup; return None when the receiver is closed."""
        try:
            raw = self._socket.recv(_MOST_BYTES)
        except OSError:
            return None
        if len(raw) < 8:
            return None
        (commit,) = struct.unpack_from(">Q", raw)
        count = (len(raw) - 8) // 4
        return WakeupMessage(commit, frozenset(struct.unpack_from(f">{count}I", raw, 8)) if count else None)

    def close(self) -> None:
        """Remove the name and end a wait in `receive`."""
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self._socket.getsockname())
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class WakeupSender:
    """Sends wakeups to all receivers in a store's folder except our own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._folder = str(folder)
        self.own: WakeupReceiver | None = None
        self._socket: socket.socket | None = None

    def send(self, commit: int, written: Iterable[set[bytes]]) -> None:
        """Notify every other process of a commit. The thread that made the commit calls this."""
        names = self._listed()
        if not names:
            return
        # A commit without watched keys is sent too: a receiver that misses a number must wake all watches.
        sums = {checksum(key) for keys in written for key in keys} or {_NO_KEY}
        listed = sums if len(sums) <= _MOST_KEYS else ()
        message = struct.pack(f">Q{len(listed)}I", commit, *listed)
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(0)
        for name in names:
            try:
                self._socket.sendto(message, _NAME + name.encode())
            except BlockingIOError:
                continue  # the receiver's buffer is full, so it has a wakeup to read anyway
            except (ConnectionRefusedError, FileNotFoundError):
                (self.folder / name).unlink(missing_ok=True)  # its process is dead
            except OSError:
                continue  # it is being closed (EPIPE); a lost hint does not make the commit fail

    def _listed(self) -> list[str]:
        """Return the names of the other receivers. Listing them costs little compared with the fsync.

        Usually no process has ever listened, and there is no folder. Then `stat` is twice as fast as a
        listing.
        """
        try:
            os.stat(self._folder)  # noqa: PTH116  with a Path, this check would take longer than it saves
            with os.scandir(self._folder) as entries:
                return [entry.name for entry in entries if self.own is None or entry.name != self.own.name]
        except OSError:
            return []

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
