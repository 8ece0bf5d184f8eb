"""Transfer segments between hosts, with an Arrow Flight server in each supervisor, and a client (FUT-29).

A fetch consists of two calls. `hello` sends a nonce of the client. The answer is a nonce of the server, and a
MAC of both nonces, computed with the cluster key. Then `do_get` sends a signed request (a Flight ticket): the
segment's name, both nonces, and a MAC of all three. The key itself is never sent, and a server nonce is valid
for one request. So an eavesdropper cannot impersonate either side. The stream ends with the server's MAC of
the digest of all bytes, so a truncated, changed or forged stream is an error and never a result.

Connections between hosts are encrypted. Without a certificate, the server listens only on the loopback
address, and the client uses unencrypted connections only to that address. Memory is bounded on both sides:
the server sends slices of the mapped file, and the client writes each slice to its destination. A fetch ends
with an error if more bytes arrive than expected.

This module imports pyarrow only when it serves or fetches, because most processes do neither.
"""

import contextlib
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tidemill.errors import BadSignature, CopyCorrupt, CopyGone, FetchFailed, FetchRefused, UsageError
from tidemill.futures.protocol.rows import Location
from tidemill.futures.values.signatures import Signer
from tidemill.web import is_loopback

CHUNK_BYTES = 1 << 20
NONCE_BYTES = 32
LEAST_BYTES_PER_S = 5_000_000
"""A transfer of n bytes fails if it takes longer than `patience_s` plus n divided by this number."""

_MOST_NONCES = 4_096
_MOST_STREAMS = 64
_GONE, _BUSY = b"copy-gone", b"busy"
_PLAIN, _TLS = "grpc+tcp", "grpc+tls"
_OPTIONS = [("grpc.enable_http_proxy", 0)]  # nodes connect directly, even if the environment sets a proxy


class TlsCertificate(NamedTuple):
    """Files in PEM format: the certificate chain, and its private key."""

    chain: Path
    key: Path


class _Ticket(msgspec.Struct, frozen=True, array_like=True):
    name: str
    client: bytes  # nonce
    server: bytes  # nonce
    proof: bytes


_ticket = msgspec.msgpack.Decoder(_Ticket)
_encode = msgspec.msgpack.Encoder().encode


def _address(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class SegmentServer:
    """Serves the segments of a supervisor, in its own threads, until `close`.

    Args:
        map_segment: returns a view of the segment with a given name, or raises `CopyGone`.
        signer: signs with the cluster key.
        host: the address to listen on; without a certificate, it must be a loopback address.
        port: the port to listen on; 0 for any free port.
        certificate: for connections from other hosts.
        advertise: the host name that other hosts use, if it is not `host`.
    """

    def __init__(
        self,
        map_segment: Callable[[str], memoryview],
        signer: Signer,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: TlsCertificate | None = None,
        advertise: str = "",
    ) -> None:
        if certificate is None and not is_loopback(host):
            raise UsageError(
                f"results can be served on {host} only with TLS: the host is not a loopback address",
                hint="use --certificate, or listen on 127.0.0.1",
            )
        scheme = _PLAIN if certificate is None else _TLS
        self._server = _serve(
            _Authenticator(map_segment, signer), _address(scheme, host, port), _certificates(certificate)
        )
        self.address = _address(scheme, advertise or host, self._server.port)

    def close(self) -> None:
        """Stop the server after the current transfers have ended."""
        self._server.shutdown()

    def __enter__(self) -> "SegmentServer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _certificates(certificate: TlsCertificate | None) -> list[tuple[bytes, bytes]] | None:
    if certificate is None:
        return None
    try:
        return [(certificate.chain.read_bytes(), certificate.key.read_bytes())]
    except OSError as error:
        raise UsageError(
            f"the certificate cannot be read: {error}", hint="use two files in PEM format: chain and key"
        ) from None


class _Authenticator:
    """Issues nonces and checks tickets. It does not depend on Flight."""

    def __init__(self, map_segment: Callable[[str], memoryview], signer: Signer) -> None:
        self.map_segment = map_segment
        self.signer = signer
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self._nonces: OrderedDict[bytes, bytes] = OrderedDict()  # server's -> client's
        self._lock = threading.Lock()
        self._chance = random.SystemRandom()

    def hello(self, client: bytes) -> bytes:
        """Return a nonce for one ticket, and the proof that we have the key."""
        if len(client) != NONCE_BYTES:
            raise BadSignature(f"the nonce has {len(client)} bytes instead of {NONCE_BYTES}")
        server = self._chance.randbytes(NONCE_BYTES)
        with self._lock:
            self._nonces[server] = client
            if len(self._nonces) > _MOST_NONCES:
                self._nonces.popitem(last=False)
        return server + self.signer.sign("flight-hello", client, server)

    def admit(self, raw: bytes) -> _Ticket:
        """Return the ticket. Raise `BadSignature` if its sender lacks the key or our nonce."""
        try:
            ticket = _ticket.decode(raw)
        except msgspec.DecodeError:
            raise BadSignature("the request cannot be decoded") from None
        with self._lock:
            expected = self._nonces.pop(ticket.server, None)
        if expected is None or expected != ticket.client:
            raise BadSignature("the request was used before, or is too old")
        self.signer.check("flight-get", ticket.proof, ticket.client, ticket.server, ticket.name.encode())
        return ticket

    def proof(self, ticket: _Ticket, digest: bytes, total: int) -> bytes:
        return self.signer.sign("flight-body", *_body_parts(ticket, digest, total))


def _body_parts(ticket: _Ticket, digest: bytes, total: int) -> tuple[bytes, ...]:
    return ticket.client, ticket.server, ticket.name.encode(), total.to_bytes(8, "big"), digest


def _serve(
    authenticator: _Authenticator, location: str, certificates: list[tuple[bytes, bytes]] | None
) -> Any:
    import pyarrow as pa
    from pyarrow import flight

    schema = pa.schema([("bytes", pa.uint8())])

    def batch(buffer: Any, at: int, size: int) -> Any:
        column = pa.Array.from_buffers(pa.uint8(), size, [None, buffer.slice(at, size)])
        return pa.record_batch([column], schema=schema)

    def stream(ticket: _Ticket, view: memoryview) -> Iterator[Any]:
        # The `finally` runs when the stream ends or is dropped, and frees its slot.
        try:
            buffer, digest = pa.py_buffer(view), blake2b(digest_size=32)
            for at in range(0, len(view), CHUNK_BYTES):
                size = min(CHUNK_BYTES, len(view) - at)
                digest.update(view[at : at + size])
                yield batch(buffer, at, size), None
            yield batch(buffer, 0, 0), authenticator.proof(ticket, digest.digest(), len(view))
        finally:
            authenticator.streams.release()

    class Flight(flight.FlightServerBase):  # type: ignore[misc] # pyarrow has no types
        def do_action(self, context: Any, action: Any) -> list[bytes]:
            if action.type != "hello":
                raise flight.FlightServerError("unknown action")
            try:
                return [authenticator.hello(action.body.to_pybytes())]
            except BadSignature as error:
                raise flight.FlightUnauthenticatedError(error.message) from None

        def do_get(self, context: Any, raw: Any) -> Any:
            try:
                ticket = authenticator.admit(raw.ticket)
                view = authenticator.map_segment(ticket.name)
            except BadSignature as error:
                raise flight.FlightUnauthenticatedError(error.message) from None
            except CopyGone as error:
                raise flight.FlightServerError(error.message, extra_info=_GONE) from None
            if not authenticator.streams.acquire(blocking=False):
                raise flight.FlightUnavailableError("too many transfers at once", extra_info=_BUSY)
            return flight.GeneratorStream(schema, _Started(stream(ticket, view)))

    try:
        return Flight(location, tls_certificates=certificates)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(
            f"results cannot be served at {location}: {_short(error)}",
            hint="check that the port is free and the certificate is in PEM format",
        ) from None


class _Started:
    """A generator that has been started, so that its `finally` runs even if no item is ever requested."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._first: Any = next(items)

    def __iter__(self) -> "_Started":
        return self

    def __next__(self) -> Any:
        if (first := self._first) is not None:
            self._first = None
            return first
        return next(self._items)


class SegmentFetcher:
    """Fetches segments from other nodes over one connection per node. Safe to share between threads.

    Args:
        signer: signs with the cluster key.
        roots: a file with certificates to trust (PEM), if the system's certificates are not enough.
        patience_s: how long a node may take to answer.
    """

    def __init__(self, signer: Signer, *, roots: Path | None = None, patience_s: float = 10.0) -> None:
        self._signer = signer
        self._roots = roots
        self._patience_s = patience_s
        self._clients: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._chance = random.SystemRandom()

    def fetch(self, location: Location, size: int, write: Callable[[memoryview], None]) -> None:
        """Pass the bytes of a segment to `write`, piece by piece. Return when all have arrived unchanged.

        After an error, some bytes may have been written; the caller discards them. Raises `CopyGone` if the
        node does not have the segment, `FetchRefused` if one side lacks the key, `FetchFailed` if the node
        does not answer, and `CopyCorrupt` if the bytes are not as expected.

        Args:
            location: the location of the segment.
            size: its size in bytes, from the signed result.
            write: receives the next bytes, which are valid only during the call.
        """
        with self._connected(location) as client:
            ticket = self._ticket(client, location)
            self._read(client, ticket, size, write)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            while self._clients:
                self._clients.popitem()[1].close()

    def _ticket(self, client: Any, location: Location) -> _Ticket:
        from pyarrow import flight

        client_nonce = self._chance.randbytes(NONCE_BYTES)
        options = flight.FlightCallOptions(timeout=self._patience_s)
        results = client.do_action(flight.Action("hello", client_nonce), options)
        answers = [result.body.to_pybytes() for result in results]
        answer = answers[0] if len(answers) == 1 else b""
        server_nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        self._signer.check("flight-hello", proof, client_nonce, server_nonce)
        name = location.name
        signature = self._signer.sign("flight-get", client_nonce, server_nonce, name.encode())
        return _Ticket(name, client_nonce, server_nonce, signature)

    def _read(self, client: Any, ticket: _Ticket, size: int, write: Callable[[memoryview], None]) -> None:
        from pyarrow import flight

        options = flight.FlightCallOptions(timeout=self._patience_s + size / LEAST_BYTES_PER_S)
        reader = client.do_get(flight.Ticket(_encode(ticket)), options)
        digest, received, proof = blake2b(digest_size=32), 0, b""
        try:
            for chunk in reader:
                if chunk.data is not None and len(chunk.data):
                    piece = _octets(chunk.data)
                    received += len(piece)
                    if received > size:
                        raise CopyCorrupt(f"{ticket.name} has more than the expected {size:,} bytes")
                    digest.update(piece)
                    write(piece)
                if chunk.app_metadata is not None:
                    proof = chunk.app_metadata.to_pybytes()
        except BaseException:
            with contextlib.suppress(Exception):
                reader.cancel()
            raise
        if received != size:
            raise CopyCorrupt(f"only {received:,} of {size:,} bytes of {ticket.name} arrived")
        try:
            self._signer.check("flight-body", proof, *_body_parts(ticket, digest.digest(), size))
        except BadSignature:
            raise CopyCorrupt(f"{ticket.name} was changed during the transfer") from None

    @contextlib.contextmanager
    def _connected(self, location: Location) -> Iterator[Any]:
        """Yield the connection to a node, and turn its errors into errors of `tidemill.errors`."""
        import pyarrow as pa
        from pyarrow import flight

        address = location.address
        try:
            yield self._client(address)
        except BadSignature:
            raise FetchRefused(f"the node at {address} does not have this cluster's key") from None
        except flight.FlightUnauthenticatedError:
            raise FetchRefused(f"the node at {address} rejected the cluster key of this process") from None
        except flight.FlightError as error:
            if error.extra_info == _GONE:
                raise CopyGone(
                    f"the node at {address} no longer has the stored result {location.name}"
                ) from None
            self._forget(address)
            raise FetchFailed(
                f"{location.name} could not be fetched from {address}: {_short(error)}"
            ) from None
        except pa.ArrowException as error:
            self._forget(address)
            raise FetchFailed(
                f"{location.name} could not be fetched from {address}: {_short(error)}"
            ) from None

    def _client(self, address: str) -> Any:
        from pyarrow import flight

        with self._lock:
            if address in self._clients:
                self._clients.move_to_end(address)
                return self._clients[address]
            try:
                url = urlsplit(address)
                scheme, host, _ = url.scheme, url.hostname or "", url.port
            except ValueError:
                scheme, host = "", ""
            if scheme not in (_PLAIN, _TLS) or not host:
                raise FetchFailed(f"{address!a:.200} is not the address of a node")
            if scheme == _PLAIN and not is_loopback(host):
                raise FetchRefused(
                    f"{address} is on another host and does not use TLS",
                    hint="start the worker at this address with --certificate",
                )
            tls: dict[str, Any] = {}
            if scheme == _TLS and self._roots is not None:
                tls["tls_root_certs"] = self._roots.read_bytes()
            client = flight.FlightClient(address, generic_options=_OPTIONS, **tls)
            self._clients[address] = client
            if len(self._clients) > 64:
                self._clients.popitem(last=False)  # closed when its last transfer has ended
            return client

    def _forget(self, address: str) -> None:
        """Forget a connection: the node may have been restarted at the same address."""
        with self._lock:
            self._clients.pop(address, None)


def _octets(batch: Any) -> memoryview:
    """Return a view of the bytes of a batch. Raise `CopyCorrupt` if the batch is not one column of bytes."""
    if batch.num_columns != 1 or str(batch.schema.field(0).type) != "uint8" or batch.column(0).null_count:
        raise CopyCorrupt("a node sent data that is not a stored result")
    column = batch.column(0)
    return memoryview(column.buffers()[1]).cast("B")[column.offset : column.offset + len(column)]


def _short(error: BaseException) -> str:
    """Return the first line of a driver's message; the rest is stack traces."""
    return str(error).partition("\n")[0].partition(" gRPC client debug context")[0][:300]
