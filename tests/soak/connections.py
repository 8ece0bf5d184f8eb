"""A TCP proxy between a node and a server: it cuts connections, refuses new ones and delays bytes."""

import contextlib
import socket
import threading
from typing import Self

from tests.servers.postgres_proxy import shut
from tidemill.clock import SYSTEM

CHUNK = 64 * 1024


class TcpProxy:
    """Forwards connections to a port of the loopback interface.

    The server may restart: a connection that it does not accept is closed, and the client tries again.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.port: int = self._listener.getsockname()[1]
        self.delay_s = 0.0
        self.refusing = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        shut(self._listener)
        self.cut()

    def cut(self) -> int:
        """Cut every connection; return how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            shut(*pair)
        return len(pairs)

    @property
    def open_connections(self) -> int:
        return len(self._pairs)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            if self.refusing:
                raise ConnectionRefusedError
            server = socket.create_connection(self._target, timeout=10)
        except OSError:
            shut(client)
            return
        server.settimeout(None)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (client, server)
        with self._lock:
            self._pairs.append(pair)
        threading.Thread(target=self._forward, args=(server, client, pair), daemon=True).start()
        self._forward(client, server, pair)

    def _forward(
        self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if self.delay_s:
                    SYSTEM.sleep(self.delay_s)
                sink.sendall(data)
        with self._lock:
            if pair in self._pairs:
                self._pairs.remove(pair)
        shut(*pair)
