"""Wake other processes that share a SQLite file after a commit, without a server.

A process that watches keys has a `WakeupReceiver`: a datagram socket on this machine, and a file with its
name in the folder `<store>-bells`. A commit sends its number and the checksums of its keys to every receiver.
A wakeup is only a hint: it may be lost (a full buffer, another network namespace). Then the process finds the
new commit number in the store's header within 200 ms. Nothing depends on a wakeup (STO-8).

The kernel closes the socket when its process dies. The next sender gets an error and removes the name.
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
_NOBODY = 0  # the checksum of no bytes at all, and no key is empty
_MOST_BYTES = 8 + 4 * _MOST_KEYS


def checksum(key: bytes) -> int:
    """A key as a bell names it; two keys of one checksum only wake for each other."""
    return zlib.crc32(key)


class WakeupMessage(NamedTuple):
    """What was rung: the commit, and its keys' checksums; None when there were too many to name."""

    commit: int
    sums: frozenset[int] | None


class WakeupReceiver:
    """Where a process hears bells."""

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

    def hear(self) -> WakeupMessage | None:
        """Wait for a bell; None when the ear was closed."""
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
        """Remove the name and end a wait in `hear`."""
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self._socket.getsockname())
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class WakeupSender:
    """Rings at every ear of a store's folder but our own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._folder = str(folder)
        self.own: WakeupReceiver | None = None
        self._socket: socket.socket | None = None

    def ring(self, commit: int, written: Iterable[set[bytes]]) -> None:
        """Tell every other process of a commit. Called after it, by the one thread that commits."""
        names = self._listed()
        if not names:
            return
        # A commit without watched keys is sent too: a receiver that misses a number must wake all watches.
        sums = {checksum(key) for keys in written for key in keys} or {_NOBODY}
        named = sums if len(sums) <= _MOST_KEYS else ()
        message = struct.pack(f">Q{len(named)}I", commit, *named)
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(0)
        for name in names:
            try:
                self._socket.sendto(message, _NAME + name.encode())
            except BlockingIOError:
                continue  # its buffer is full: it has enough to hear
            except (ConnectionRefusedError, FileNotFoundError):
                (self.folder / name).unlink(missing_ok=True)  # its process is dead
            except OSError:
                continue  # it is just being closed (EPIPE); a hint that fails is no failure of the commit

    def _listed(self) -> list[str]:
        """Return the names of the other receivers, listed for each commit: microseconds, compared with its
        fsync.

        Usually no process has ever listened and there is no folder; `stat` is twice as fast then.
        """
        try:
            os.stat(self._folder)  # noqa: PTH116  a Path makes it slower than what it saves
            with os.scandir(self._folder) as entries:
                return [entry.name for entry in entries if self.own is None or entry.name != self.own.name]
        except OSError:
            return []

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
