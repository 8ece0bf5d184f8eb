"""Run the web server: in the foreground for `tidemill ui`, or in a thread of a runner."""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill import web
from tidemill.clock import SYSTEM, Clock
from tidemill.errors import UsageError
from tidemill.store import Store
from tidemill.ui.access import AccessPolicy, read_token

if TYPE_CHECKING:
    from tidemill.objects import Objects
    from tidemill.pipeline.pipeline import Pipeline

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
    web.require_packages(_PACKAGES, "ui", "the page")


def make_server(
    store: Store,
    cluster: str,
    options: PageOptions,
    *,
    load: "Callable[[], Pipeline] | None" = None,
    open_objects: "Callable[[], Objects] | None" = None,
    clock: Clock = SYSTEM,
) -> web.WebServer:
    """Return the server of a cluster's page.

    Args:
        store: the opened store; the caller closes it after the server has ended.
        cluster: the name of the cluster.
        options: the address and the security.
        load: imports the pipeline, for actions.
        open_objects: opens the object storage, to show rows of tables; None to show none.
        clock: the source of time.
    """
    require_packages()
    from tidemill.ui.actions import Actions
    from tidemill.ui.app import Site, create_app
    from tidemill.ui.model.reader import StoreReader

    reader = StoreReader(store, cluster, clock=clock, open_objects=open_objects)
    site = Site(reader, Actions(reader, load), options.policy(clock))
    try:
        listener = web.listen(options.host, options.port)
    except OSError as error:
        raise UsageError(
            f"the page cannot listen on {options.host}:{options.port}: {error.strerror or error}",
            hint="another program may use the port: choose another one with --port",
        ) from None
    try:
        return web.WebServer(create_app(site), listener, tls_cert=options.tls_cert, tls_key=options.tls_key)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the TLS certificate or key cannot be used: {error}",
            hint="check --tls-cert and --tls-key: PEM files that belong together",
        ) from None


@contextlib.contextmanager
def in_background(server: web.WebServer) -> Iterator[None]:
    """Serve the page in a thread until the end of the block."""
    server.start("tidemill-page")
    try:
        yield
    finally:
        server.stop()
