"""Waking a loop that waits for descriptors: from other threads and from signals."""

import contextlib
import socket


class LoopWakeup:
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
