"""Wake a loop that waits for file descriptors, from other threads and from signal handlers."""

import contextlib
import socket


class LoopWakeup:
    """A socket pair. `reader` is readable if `wake` was called since the last `clear`."""

    def __init__(self) -> None:
        self.reader, self.writer = socket.socketpair()
        self.reader.settimeout(0.0)
        self.writer.settimeout(0.0)
        self._awake = False

    def wake(self) -> None:
        """Wake the loop. Any thread may call this."""
        if not self._awake:
            self._awake = True
            with contextlib.suppress(BlockingIOError, OSError):
                self.writer.send(b"!")

    def clear(self) -> None:
        """Reset the wakeup. The loop calls this before it looks for work."""
        with contextlib.suppress(BlockingIOError):
            while self.reader.recv(4096):
                pass
        self._awake = False  # last: the loop looks for work after this, so it misses no earlier call

    def close(self) -> None:
        self.reader.close()
        self.writer.close()
