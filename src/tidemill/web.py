"""Run an ASGI application on one address. The page and the push sources use this server.

uvicorn does the work. It is an optional dependency, so this module imports it when a server is made.
"""

import importlib.util
import ipaddress
import socket
import threading
from typing import Any

from tidemill.errors import MissingDriver

App = Any
"""An ASGI application."""

SHUTDOWN_S = 2
"""How long a stopping server waits for its last answers."""


def require_packages(names: tuple[str, ...], extra: str, what: str) -> None:
    """Raise `MissingDriver` if one of the packages is not installed.

    Args:
        names: the packages.
        extra: the extra of Tidemill that installs them.
        what: what needs them, at the start of the message.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDriver(
            f"{what} needs packages that are not installed: {', '.join(missing)}",
            hint=f"run pip install 'tidemill[{extra}]'",
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, backlog: int = 128) -> socket.socket:
    """Return a socket that listens on an address; raise `OSError` if that is impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets that name TCP. With it, an answer takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


class WebServer:
    """The server of one application. It listens from the start, and answers once it runs.

    Raises `OSError` or `ValueError` if the certificate or the key cannot be used.

    Args:
        app: the application.
        listener: a socket that listens; the server closes it.
        tls_cert: a file with a certificate, for TLS.
        tls_key: a file with the certificate's key.
        protocol: the class that parses HTTP on a connection; uvicorn's own if omitted.
    """

    def __init__(
        self,
        app: App,
        listener: socket.socket,
        *,
        tls_cert: str = "",
        tls_key: str = "",
        protocol: Any = "h11",
    ) -> None:
        import uvicorn

        self._listener = listener
        self._thread: threading.Thread | None = None
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=protocol,
            ws="none",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=SHUTDOWN_S,
            ssl_certfile=tls_cert or None,
            ssl_keyfile=tls_key or None,
        )
        try:
            config.load()
        except (OSError, ValueError):
            listener.close()
            raise
        self._server = uvicorn.Server(config)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls_cert else 'http'}://{shown}:{port}"

    def run(self) -> None:
        """Serve until the process gets SIGINT or SIGTERM, or `stop` is called."""
        self._server.run(sockets=[self._listener])

    def start(self, name: str) -> None:
        """Serve in a thread with this name."""
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer the requests that are being processed, and stop. Wait for the thread that `start` made."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        else:
            self._listener.close()
