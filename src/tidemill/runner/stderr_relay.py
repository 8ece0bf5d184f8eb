"""Print what a runner's child and its Spark write to standard error, without stack traces that help no user.

The supervisor owns the other end of the pipe. If the supervisor is killed, nothing that its orphans print
reaches the terminal. If a process of Spark dies, those that were connected to it print stack traces about
closed connections. The relay drops these: the supervisor reports the death in one line. It also drops the
frames of Java stack traces, and keeps their first line. `TIDEMILL_DEBUG=1` prints everything.
"""

import os
import re
import selectors
import threading

from tidemill.errors import is_debugging
from tidemill.futures.worker.wakeup import LoopWakeup

CHUNK_BYTES = 65_536
MAX_LINE_BYTES = 65_536
MAX_BLOCK_BYTES = 262_144
MAX_CAUSE_CHARS = 200
IDLE_S = 0.2
"""How long to wait for the end of a line before printing an incomplete line."""

_JAVA_FRAME = re.compile(
    rb"^\s+at [\w$.<>/@-]+\(.*\)\s*$|^\s*\.\.\. \d+ more\s*$|^(\s+Suppressed|Caused by): "
)
_TRACEBACK = b"Traceback (most recent call last):"
_LINKS = (b"During handling of the above exception", b"The above exception was the direct cause")
_HEADERS = (b"PySpark worker failed with exception:", b"PySpark daemon failed to flush the output")
_OF_SPARK = re.compile(rb'File "[^"]*/(pyspark/(daemon|worker|serializers|accumulators|util)\.py|py4j/)')
_CLOSED = re.compile(
    rb"^(BrokenPipeError|Connection\w*Error|EOFError|OSError|(py4j\.protocol\.)?Py4J(Network)?Error)\b"
)
_SERVER_LINE = b"-" * 40  # `socketserver` prints it above and below the exception of a request
_SERVER_HEADER = b"Exception occurred during processing of request from"
_CAUSE = re.compile(rb"(java\.lang\.OutOfMemoryError[^\r\n]*|Fatal Python error: [^\r\n]*)")


class StderrFilter:
    r"""Drops the stack traces of closed connections, and the frames of Java stack traces, from a stream.

    >>> lines = StderrFilter()
    >>> lines.feed(b"java.io.IOException: no space\n\tat java.base/java.io.Files.write(Files.java:1)\n")
    b'java.io.IOException: no space\n'
    """

    def __init__(self) -> None:
        self.cause = ""  # the last line that tells why a process may have died
        self._rest = b""  # a line that has not ended yet
        self._header: list[bytes] = []  # the lines of a server that may announce a traceback
        self._block: list[bytes] = []  # the lines of a Python traceback so far
        self._dropped = False  # the last traceback was dropped

    def feed(self, data: bytes) -> bytes:
        """Add output, and return what to print now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        printed = [self._line(line + b"\n") for line in lines]
        if len(self._rest) > MAX_LINE_BYTES:
            printed.append(self.flush())
        return b"".join(printed)

    def flush_line(self) -> bytes:
        """Return a line that has not ended, such as a prompt or a progress bar."""
        if (
            self._block
            or self._header
            or self._rest[:1] in (b"", b" ", b"\t")
            or _TRACEBACK.startswith(self._rest)
        ):
            return b""
        rest, self._rest = self._rest, b""
        return self._line(rest)

    def flush(self) -> bytes:
        """Return what was held back, such as a line that has not ended."""
        rest, self._rest = self._rest, b""
        return (self._line(rest) if rest else b"") + self._end_block()

    def _line(self, line: bytes) -> bytes:
        if cause := _CAUSE.search(line):
            self.cause = cause[1].decode(errors="replace")[:MAX_CAUSE_CHARS]
        if self._block:
            self._block.append(line)
            inside = line[:1] in (b" ", b"\t", b"\r", b"\n")
            if inside and sum(map(len, self._block)) < MAX_BLOCK_BYTES:
                return b""
            return self._end_block()
        if line.startswith(_TRACEBACK):
            self._block.append(line)
            return b""
        if _JAVA_FRAME.match(line) or line.startswith(_HEADERS):
            return b""
        is_server_line = line.strip() == _SERVER_LINE
        if self._dropped and (not line.strip() or is_server_line or line.startswith(_LINKS)):
            return b""
        self._dropped = False
        if line.startswith(_SERVER_HEADER) if self._header else is_server_line:
            self._header.append(line)
            return b""
        return self._take_header() + line

    def _take_header(self) -> bytes:
        header, self._header = self._header, []
        return b"".join(header)

    def _end_block(self) -> bytes:
        """Return a traceback; nothing if a process of Spark printed it because its connection was closed."""
        header = self._take_header()
        block, self._block = self._block, []
        if not block:
            return header
        self._dropped = bool(_CLOSED.match(block[-1])) and any(map(_OF_SPARK.search, block))
        return b"" if self._dropped else header + b"".join(block)


class StderrRelay:
    """Prints the standard error of one child through a filter. `writer` is the end of the pipe for the child.

    - target: the file descriptor to print to.
    """

    def __init__(self, target: int = 2) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._target = target
        self._filter = StderrFilter()
        self._all = is_debugging()
        self._over = threading.Event()
        self._wakeup = LoopWakeup()
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)

    @property
    def cause(self) -> str:
        """The last line that tells why a process may have died; empty if there is none."""
        return self._filter.cause

    def start(self) -> None:
        """Start to print. Call it when the child has its end of the pipe."""
        os.close(self.writer)
        self._thread.start()

    def close(self) -> None:
        """Print what the child has written, and stop. Processes that outlive the child print nothing more."""
        self._over.set()
        self._wakeup.wake()
        self._thread.join()
        os.close(self._reader)
        self._wakeup.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            selector.register(self._wakeup.reader, selectors.EVENT_READ)
            open_ = True
            while open_:
                if not selector.select(IDLE_S):
                    self._print(self._filter.flush_line())
                over = self._over.is_set()  # before the last read
                open_ = self._copy() and not over
        self._print(self._filter.flush())

    def _copy(self) -> bool:
        """Print what the pipe contains now; return False after its end."""
        while True:
            try:
                data = os.read(self._reader, CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            printed = self._filter.feed(data)
            self._print(data if self._all else printed, raw=True)

    def _print(self, data: bytes, *, raw: bool = False) -> None:
        if self._all and not raw:
            return  # printed already
        while data:
            try:
                data = data[os.write(self._target, data) :]
            except OSError:  # the terminal or the reader is gone; the child must not wait for it
                return
