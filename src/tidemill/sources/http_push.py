"""A source of rows that other programs push: `http_push("orders")`."""

import hmac
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec

from tidemill.cluster import leases
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.errors import BadSource
from tidemill.scope import Scope
from tidemill.sources import source_lease
from tidemill.sources.events import PushStarted, PushStopped
from tidemill.sources.keys import SourceKeys
from tidemill.sources.push_body import BODY_BYTES
from tidemill.sources.push_receiver import PushReceiver
from tidemill.sources.push_server import SHORT_TOKEN_HINT, TOKEN_LETTERS, PushEndpoint, PushServer
from tidemill.sources.row_converters import check_types, converter
from tidemill.sources.source import (
    PollResult,
    PushAddress,
    Source,
    SourceContext,
    SourceRuntime,
    SourceStatus,
    SourceTarget,
    acquired,
    source_id,
)
from tidemill.store import Tx
from tidemill.web import is_loopback, require_packages

ENVIRONMENT = "TIDEMILL_PUSH_TOKEN"


@dataclass(frozen=True, kw_only=True, repr=False)
class PushSource(Source):
    """The address at which a node receives rows, and the token that senders must send.

    Args:
        path: the path in the address; if empty, the name of the dataset.
        token: the token; if empty, it is derived from the cluster key.
    """

    fetches: ClassVar[bool] = False

    path: str
    token: str = field(repr=False)
    host: str
    port: int
    public: bool
    tls_cert: str
    tls_key: str
    body_bytes: int

    quarantines: ClassVar[bool] = False

    @property
    def description(self) -> str:
        """The address, without the token."""
        scheme = "https" if self.tls_cert else "http"
        return f"POST {scheme}://{self.host}:{self.port or '*'}/{self.path}"

    def __repr__(self) -> str:
        return f"<PushSource {self.description}>"

    def resolve(self, context: SourceContext) -> "PushSource":
        """Fill in the path and the token.

        The token is the same in all processes that have the cluster key, and does not reveal the key.
        """
        token = self.token
        if not token:
            name = f"push {source_id(context.pipeline, context.label)}".encode()
            token = hmac.digest(context.secret(), name, "sha256").hex()[:40]
        return replace(self, token=token, path=self.path or _default_path(context.label))

    def check(self, target: SourceTarget) -> None:
        check_types(target.dataset)
        require_packages(("uvicorn",), "push", "http_push")

    def open(self, target: SourceTarget, runtime: SourceRuntime) -> "PushArrival":
        return PushArrival(self, target, runtime)

    def status(self, tx: Tx, keys: SourceKeys, source: str) -> SourceStatus:
        receiving = receiving_node(tx, keys, source)
        if receiving is None:
            return SourceStatus(address=PushAddress(token=self.token))
        node, url = receiving
        path = self.path or _default_path(source.partition("/")[2])
        return SourceStatus(address=PushAddress(url=f"{url}/{path}", token=self.token, node=node))


def _default_path(label: str) -> str:
    """Return the path of a source that declares none."""
    return label.replace("#", "-")


def http_push(
    path: str = "",
    *,
    token: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    public: bool = False,
    tls_cert: str = "",
    tls_key: str = "",
    body_bytes: int = BODY_BYTES,
) -> PushSource:
    """Declare a source: rows that other programs send with POST requests.

    One node at a time receives them. A body is JSON lines, a JSON array, a JSON object or an Arrow stream.

    >>> http_push("orders", token="a-random-token-of-yours")
    <PushSource POST http://127.0.0.1:*/orders>

    Args:
        path: the path in the address; the name of the dataset, and of the source, if omitted.
        token: the token that senders must send (`Authorization: Bearer …`). If omitted, it is read from the
            environment variable `TIDEMILL_PUSH_TOKEN`. If that is not set either, it is derived from the
            cluster key, and `Dataset.address()` returns it.
        host: an address of this machine. It must be a loopback address unless `public` is set.
        port: the port to listen on; any free port if omitted. `tidemill status` shows it.
        public: accept requests from other machines. Use TLS: `tls_cert` and `tls_key`, or a proxy in front.
        tls_cert: a file with a certificate (PEM) on every node that may receive.
        tls_key: a file with the certificate's key.
        body_bytes: the maximum size of a body, before and after decompression.
    """
    shown = token if token is not None else os.environ.get(ENVIRONMENT, "")
    if (token is not None or shown) and len(shown) < TOKEN_LETTERS:
        raise BadSource("the token is too short", hint=SHORT_TOKEN_HINT)
    if not shown.isascii() or not shown.isprintable():
        raise BadSource("the token is not printable ASCII", hint="use letters and digits")
    if not public and not is_loopback(host):
        raise BadSource(
            f"{host} is not a loopback address",
            hint="use a loopback address, or set public=True and use TLS: tls_cert= and tls_key=",
        )
    if bool(tls_cert) != bool(tls_key):
        raise BadSource("TLS needs a certificate and its key", hint="set both tls_cert= and tls_key=")
    if not 0 <= port < 65_536:
        raise BadSource(f"invalid port={port}", hint="use a port up to 65535, or 0 for any free port")
    if body_bytes < 1:
        raise BadSource(f"invalid body_bytes={body_bytes}", hint="use a positive number of bytes")
    stripped = path.strip("/")
    if any(letter in stripped for letter in "?#\0"):
        raise BadSource(f"invalid path {path!r:.80}", hint="use a path like /orders, without ? or #")
    return PushSource(
        path=stripped,
        token=shown,
        host=host,
        port=port,
        public=public,
        tls_cert=tls_cert,
        tls_key=tls_key,
        body_bytes=body_bytes,
    )


class PushArrival:
    """A source of pushed rows that is open on one node.

    It receives rows only if the runner keeps running. A run that only catches up does not wait for senders.
    """

    def __init__(self, source: PushSource, target: SourceTarget, runtime: SourceRuntime) -> None:
        self._source = source
        self._target = target
        self._runtime = runtime
        self._lock = threading.Lock()  # the runner may call `close` while a thread is in `poll`
        self._closed = False
        self._host = PushHost(target.id, runtime.scope, runtime.keeper, make=self._server)

    def poll(self) -> PollResult:
        with self._lock:
            if self._runtime.watching() and not self._closed:
                self._host.tick()
        return PollResult()

    def close(self) -> None:
        """Publish and answer the requests that wait, and release the lease."""
        self._closed = True
        with acquired(self._lock) as free:
            if free:
                self._host.close()

    def _server(self, lease: HeldLease) -> PushServer:
        source, dataset = self._source, self._target.dataset
        receiver = PushReceiver(
            self._target, self._runtime.scope, fence=lease.fence, evaluate=self._runtime.evaluate
        )
        server = PushServer(
            {source.path or dataset.name: PushEndpoint(receiver, converter(dataset))},
            token=source.token,
            host=source.host,
            port=source.port,
            public=source.public,
            tls_cert=source.tls_cert,
            tls_key=source.tls_key,
            body_bytes=source.body_bytes,
        )
        receiver.start()
        return server


class PushHost:
    """Lets one node at a time receive pushed rows: the node that holds a lease (CLU-19).

    The runner calls `tick` at intervals. A node without the lease tries to acquire it. The node that holds
    the lease listens, and stops when it loses the lease. The store contains the node's address, so that
    senders can find it. A node that takes over writes its own address.

    Args:
        source: the id of the source.
        scope: the node.
        keeper: renews the lease.
        make: creates a server, but does not start it. The server publishes rows only while the lease is held.
    """

    def __init__(
        self, source: str, scope: Scope, keeper: Keeper, *, make: Callable[[HeldLease], PushServer]
    ) -> None:
        self._source = source
        self._scope = scope
        self._keys = SourceKeys(scope.cluster)
        self._keeper = keeper
        self._make = make
        self._lease: HeldLease | None = None
        self._server: PushServer | None = None

    @property
    def url(self) -> str | None:
        """The address where this node listens; None while it does not listen."""
        return self._server.url if self._server is not None else None

    def tick(self) -> bool:
        """Start to receive pushed rows if no other node does. Return whether this node receives them now."""
        if self._lease is not None and not self._lease.alive():
            self._stop("its lease was lost")
        if self._lease is not None and self._server is not None and not self._server.receives:
            self._release("the receiver stopped")
        if self._lease is None:
            lease = source_lease.acquire(self._keeper, self._keys.push_lease(self._source))
            if lease is None:
                return False
            self._start(lease)
        return self._lease is not None

    def close(self) -> None:
        """Publish and answer the requests that wait, and let another node receive."""
        self._release("it was closed")

    def _release(self, why: str) -> None:
        lease = self._lease
        self._stop(why)
        if lease is not None:
            self._keeper.release(lease)

    def _start(self, lease: HeldLease) -> None:
        try:
            server = self._make(lease)
        except BaseException:
            self._keeper.release(lease)  # another node can try: the port may be in use on this one
            raise

        def write(tx: Tx) -> None:
            lease.fence(tx)
            tx.set(self._keys.address[self._source], msgspec.msgpack.encode((lease.epoch, server.url)))

        self._scope.store.run(write)
        server.start()
        self._lease, self._server = lease, server
        self._scope.emit(PushStarted(source=self._source, url=server.url, epoch=lease.epoch))

    def _stop(self, why: str) -> None:
        server, self._server, self._lease = self._server, None, None
        if server is not None:
            server.close()
            self._scope.emit(PushStopped(source=self._source, url=server.url, why=why))


def receiving_node(tx: Tx, keys: SourceKeys, source: str) -> tuple[str, str] | None:
    """Return which node receives pushed rows now, and its address.

    Return None if no node receives them, or if its address is not stored yet.
    """
    lease, raw = leases.read(tx, keys.push_lease(source)), tx.get(keys.address[source])
    if lease is None or raw is None or lease.expires_at <= tx.now():
        return None
    epoch, url = msgspec.msgpack.decode(raw, type=tuple[int, str])
    return (lease.holder, url) if epoch == lease.epoch else None
