"""Run the web server: in the foreground for `tidemill ui`, or in a thread of a runner."""

import contextlib
import importlib.util
import logging
import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import MissingDriver, UsageError
from tidemill.store import Store
from tidemill.ui.access import AccessPolicy, read_token

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tidemill.pipeline.pipeline import Pipeline

LOG = logging.getLogger(__name__)
HOST, PORT = "127.0.0.1", 8642
_PACKAGES = ("jinja2", "prometheus_client", "starlette", "uvicorn")


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The address and the security of the page, as the command line sets them."""

    host: str = HOST
    port: int = PORT
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def __post_init__(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UsageError("TLS needs a certificate and its key", hint="pass both --tls-cert and --tls-key")

    def policy(self, clock: Clock) -> AccessPolicy:
        """Return who may read and who may act."""
        return AccessPolicy(
            host=self.host,
            token=read_token(self.token_file) if self.token_file else "",
            clock=clock,
            chance=random.SystemRandom(),
            tls=bool(self.tls_cert),
        )


def require_packages() -> None:
    """Raise `MissingDriver` if the packages of the page are not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDriver(
            f"the page needs packages that are not installed: {', '.join(missing)}",
            hint="run pip install 'tidemill[ui]'",
        )


class PageServer:
    """The server of one page. It listens from the start, and answers once it runs."""

    def __init__(self, app: "Starlette", options: PageOptions) -> None:
        import uvicorn

        self._socket = _listen(options)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            ssl_certfile=options.tls_cert or None,
            ssl_keyfile=options.tls_key or None,
        )
        try:
            config.load()
        except (OSError, ValueError) as error:
            self._socket.close()
            raise UsageError(
                f"the TLS certificate or key cannot be used: {error}",
                hint="check --tls-cert and --tls-key: PEM files that belong together",
            ) from None
        self._server: uvicorn.Server = uvicorn.Server(config)
        host, port = self._socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if options.tls_cert else 'http'}://{shown}:{port}"

    def run(self) -> None:
        """Serve until the process gets SIGINT or SIGTERM, or `stop` is called."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True


def _listen(options: PageOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"the page cannot listen on {options.host}:{options.port}: {error.strerror or error}",
            hint="another program may use the port: choose another one with --port",
        ) from None
    return listener


def make_server(
    store: Store,
    cluster: str,
    options: PageOptions,
    *,
    load: "Callable[[], Pipeline] | None" = None,
    clock: Clock = SYSTEM,
) -> PageServer:
    """Return the server of a cluster's page.

    Args:
        store: the opened store; the caller closes it after the server has ended.
        cluster: the name of the cluster.
        options: the address and the security.
        load: imports the pipeline, for actions.
        clock: the source of time.
    """
    require_packages()
    from tidemill.ui.actions import Actions
    from tidemill.ui.app import Site, create_app
    from tidemill.ui.model.reader import StoreReader

    reader = StoreReader(store, cluster, clock=clock)
    site = Site(reader, Actions(reader, load), options.policy(clock))
    return PageServer(create_app(site), options)


@contextlib.contextmanager
def in_background(server: PageServer) -> Iterator[None]:
    """Serve the page in a thread until the end of the block."""

    def serve() -> None:
        try:
            server.run()
        except Exception:  # a fault of the page must not end its runner
            LOG.exception("the page has stopped")

    thread = threading.Thread(target=serve, name="tidemill-page", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.stop()
        thread.join()
