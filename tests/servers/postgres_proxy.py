"""Between a client and PostgreSQL: a wire that can be cut at exactly the COMMIT, or that poses as a pooler.

It reads the protocol far enough to know where a batch of messages ends (Sync) and whether it commits. Losses
are armed for the next batch that does:

    request     the batch never reaches the server; the client's connection is cut
    answer      the server commits; its answer never reaches the client, whose connection is cut
    late        the client's connection is cut, and the batch reaches the server when `deliver` is called
    silence     the batch is swallowed and nothing is ever answered; the connection stays open

Connections through it must not be encrypted (sslmode=disable, gssencmode=disable).
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from io import BufferedReader
from typing import Literal, Self

from tidemill.testing.threads import STUCK_S

Loss = Literal["request", "answer", "late", "silence"]

COMMITS = b"\x00tidemill_commit\x00"  # a Bind of that statement: an empty portal name stands before it
SYNC, READY, KEY_DATA, NOTIFICATION = b"S", b"Z", b"K", b"A"


class PostgresProxy:
    """Forwards connections to one server, and does to them what it is told."""

    def __init__(self, port: int, *, poses_as_pooler: bool = False) -> None:
        self._server = ("127.0.0.1", port)
        self.poses_as_pooler = (
            poses_as_pooler  # the wrong process id, and no notifications, as pgBouncer does
        )
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._losses: list[Loss] = []
        self._wires: list[_Wire] = []
        self._kept: list[tuple[_Wire, bytes]] = []
        self.happened: list[Loss] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        shut(self._listener)
        self.cut()
        for wire, _ in self._kept:
            wire.cut()

    def through(self, url: str) -> str:
        """The URL of a database, led through here."""
        head, _, rest = url.partition("@")
        database = rest.partition("/")[2]
        port = self._listener.getsockname()[1]
        joint = "&" if "?" in database else "?"
        return f"{head}@127.0.0.1:{port}/{database}{joint}sslmode=disable&gssencmode=disable"

    def lose(self, *losses: Loss) -> None:
        """What happens to the next batches that commit, one after the other."""
        with self._lock:
            self._losses += losses

    def cut(self) -> None:
        """Cut every connection."""
        with self._lock:
            wires, self._wires = self._wires, []
        for wire in wires:
            wire.cut()

    def deliver(self) -> None:
        """Let the batches that were kept reach the server, and wait until it has dealt with them."""
        with self._lock:
            kept, self._kept = self._kept, []
        for wire, batch in kept:
            wire.deliver(batch)

    def next_loss(self, batch: bytes) -> Loss | None:
        with self._lock:
            if not self._losses or COMMITS not in batch:
                return None
            loss = self._losses.pop(0)
            self.happened.append(loss)
            return loss

    def keep(self, wire: "_Wire", batch: bytes) -> None:
        with self._lock:
            self._kept.append((wire, batch))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                wire = _Wire(self, client, socket.create_connection(self._server))
                with self._lock:
                    self._wires.append(wire)
                wire.start()


class _Wire:
    def __init__(self, proxy: PostgresProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._muted = False  # answers go nowhere, and when one is complete the connection ends
        self._answered = threading.Event()

    def start(self) -> None:
        for work in (self._requests, self._answers):
            threading.Thread(target=self._guarded, args=(work,), daemon=True).start()

    def cut(self) -> None:
        shut(self._client, self._server)

    def deliver(self, batch: bytes) -> None:
        self._server.sendall(batch)
        assert self._answered.wait(STUCK_S), "the server did not answer what was delivered late"

    def _guarded(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, EOFError):
            work()
        if not (self._muted and work == self._requests):  # what was muted goes on without its client
            self._answered.set()
            self.cut()

    def _requests(self) -> None:
        reader = self._client.makefile("rb")
        length = read_exactly(reader, 4)
        self._server.sendall(length + read_exactly(reader, int.from_bytes(length, "big") - 4))
        batch = b""
        while True:
            kind, message = read_message(reader)
            batch += message
            if kind in (SYNC, b"p", b"X", b"Q"):
                if not self._forward(batch):
                    return
                batch = b""

    def _forward(self, batch: bytes) -> bool:
        loss = self._proxy.next_loss(batch)
        if loss == "late":
            self._muted = True
            self._proxy.keep(self, batch)
            shut(self._client)
            return False
        if loss == "request":
            return False
        if loss == "silence":
            return True
        self._muted = loss == "answer"
        self._server.sendall(batch)
        return True

    def _answers(self) -> None:
        reader = self._server.makefile("rb")
        while True:
            kind, message = read_message(reader)
            if self._muted:
                if kind == READY:
                    return
                continue
            if self._proxy.poses_as_pooler:
                if kind == NOTIFICATION:
                    continue
                if kind == KEY_DATA:
                    message = message[:5] + (7).to_bytes(4, "big") + message[9:]
            self._client.sendall(message)


def read_exactly(reader: BufferedReader, size: int) -> bytes:
    data = reader.read(size)
    if len(data) < size:
        raise EOFError
    return data


def read_message(reader: BufferedReader) -> tuple[bytes, bytes]:
    """One message of the protocol: its kind, and all of its bytes."""
    head = read_exactly(reader, 5)
    return head[:1], head + read_exactly(reader, int.from_bytes(head[1:], "big") - 4)


def shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
