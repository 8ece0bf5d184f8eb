"""Segments for other hosts: one Arrow Flight server in each supervisor, and what fetches from it (FUT-29).

A fetch is two calls. `hello` carries a nonce of the client; the answer is a nonce of the server and a proof
that it has the cluster's key. Then `do_get` with a ticket: the segment's name, both nonces and the client's
proof over them. The key itself is never sent; a server nonce is good for one ticket; neither side can be
played by somebody who listened. The stream ends with the server's proof over the digest of all that was sent,
so that a stream which was cut, changed or made up is an error and never a result.

Connections between hosts are encrypted: without a certificate the server listens on the loopback address
alone, and the client talks plainly to nobody else. Memory is bounded on both sides: the server sends slices
of the mapped file, the client writes each to where it shall lie, and more than was promised ends the fetch.

pyarrow is imported by who makes a `SegmentServer` or fetches: most processes do neither.
"""

import contextlib
import ipaddress
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

CHUNK_BYTES = 1 << 20
NONCE_BYTES = 32
LEAST_BYTES_PER_S = 5_000_000
"""A transfer that is slower than this, after `patience_s`, is given up."""

_MOST_NONCES = 4_096
_MOST_STREAMS = 64
_GONE, _BUSY = b"copy-gone", b"busy"
_PLAIN, _TLS = "grpc+tcp", "grpc+tls"
_OPTIONS = [("grpc.enable_http_proxy", 0)]  # nodes talk to each other, whatever the environment says


class TlsCertificate(NamedTuple):
    """Files in PEM form: the chain, and its private key."""

    chain: Path
    key: Path


class _Ticket(msgspec.Struct, frozen=True, array_like=True):
    name: str
    client: bytes  # nonce
    server: bytes  # nonce
    proof: bytes


_ticket = msgspec.msgpack.Decoder(_Ticket)
_encode = msgspec.msgpack.Encoder().encode


def is_loopback(host: str) -> bool:
    """Whether what is sent to this host never leaves the machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _address(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class SegmentServer:
    """Serves the segments of a supervisor, in threads of its own, from when it is made until `close`.

    Args:
        map_segment: gives a view of one of our segments by name, or raises `CopyGone`: `Segments.map`.
        signer: has the cluster's key.
        host: where to listen; other than a loopback address only with a certificate.
        port: 0 for one that is free.
        certificate: for connections from other hosts.
        advertise: the name under which others reach us, if it is not `host`.
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
                f"results are served to other hosts over TLS only, and {host} is not a loopback address",
                hint="give a certificate and its key, or listen on 127.0.0.1",
            )
        scheme = _PLAIN if certificate is None else _TLS
        self._server = _serve(
            _Desk(map_segment, signer), _address(scheme, host, port), _certificates(certificate)
        )
        self.address = _address(scheme, advertise or host, self._server.port)

    def close(self) -> None:
        """Stop; transfers under way end first."""
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
            f"the certificate cannot be read: {error}", hint="give two files in PEM form: chain and key"
        ) from None


class _Desk:
    """Who may have what; knows nothing of Flight."""

    def __init__(self, map_segment: Callable[[str], memoryview], signer: Signer) -> None:
        self.map_segment = map_segment
        self.signer = signer
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self._nonces: OrderedDict[bytes, bytes] = OrderedDict()  # server's -> client's
        self._lock = threading.Lock()
        self._chance = random.SystemRandom()

    def hello(self, client: bytes) -> bytes:
        """A nonce for one ticket, and the proof that we have the key."""
        if len(client) != NONCE_BYTES:
            raise BadSignature("this is no nonce")
        server = self._chance.randbytes(NONCE_BYTES)
        with self._lock:
            self._nonces[server] = client
            if len(self._nonces) > _MOST_NONCES:
                self._nonces.popitem(last=False)
        return server + self.signer.sign("flight-hello", client, server)

    def admit(self, raw: bytes) -> _Ticket:
        """The ticket, if whoever wrote it has the key and was given its nonce; else `BadSignature`."""
        try:
            ticket = _ticket.decode(raw)
        except msgspec.DecodeError:
            raise BadSignature("this is no ticket") from None
        with self._lock:
            known = self._nonces.pop(ticket.server, None)
        if known is None or known != ticket.client:
            raise BadSignature("this ticket was used before or is too old")
        self.signer.check("flight-get", ticket.proof, ticket.client, ticket.server, ticket.name.encode())
        return ticket

    def proof(self, ticket: _Ticket, digest: bytes, total: int) -> bytes:
        return self.signer.sign("flight-body", *_body_parts(ticket, digest, total))


def _body_parts(ticket: _Ticket, digest: bytes, total: int) -> tuple[bytes, ...]:
    return ticket.client, ticket.server, ticket.name.encode(), total.to_bytes(8, "big"), digest


def _serve(desk: _Desk, location: str, certificates: list[tuple[bytes, bytes]] | None) -> Any:
    import pyarrow as pa
    from pyarrow import flight

    schema = pa.schema([("bytes", pa.uint8())])

    def batch(buffer: Any, at: int, size: int) -> Any:
        column = pa.Array.from_buffers(pa.uint8(), size, [None, buffer.slice(at, size)])
        return pa.record_batch([column], schema=schema)

    def stream(ticket: _Ticket, view: memoryview) -> Iterator[Any]:
        # It ends with the stream, whether it was read to its end or dropped: then the place is free again.
        try:
            buffer, digest = pa.py_buffer(view), blake2b(digest_size=32)
            for at in range(0, len(view), CHUNK_BYTES):
                size = min(CHUNK_BYTES, len(view) - at)
                digest.update(view[at : at + size])
                yield batch(buffer, at, size), None
            yield batch(buffer, 0, 0), desk.proof(ticket, digest.digest(), len(view))
        finally:
            desk.streams.release()

    class Flight(flight.FlightServerBase):  # type: ignore[misc] # pyarrow has no types
        def do_action(self, context: Any, action: Any) -> list[bytes]:
            if action.type != "hello":
                raise flight.FlightServerError("no such action")
            try:
                return [desk.hello(action.body.to_pybytes())]
            except BadSignature as error:
                raise flight.FlightUnauthenticatedError(error.message) from None

        def do_get(self, context: Any, raw: Any) -> Any:
            try:
                ticket = desk.admit(raw.ticket)
                view = desk.map_segment(ticket.name)
            except BadSignature as error:
                raise flight.FlightUnauthenticatedError(error.message) from None
            except CopyGone as error:
                raise flight.FlightServerError(error.message, extra_info=_GONE) from None
            if not desk.streams.acquire(blocking=False):
                raise flight.FlightUnavailableError("too many transfers at once", extra_info=_BUSY)
            return flight.GeneratorStream(schema, _Started(stream(ticket, view)))

    try:
        return Flight(location, tls_certificates=certificates)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(
            f"results cannot be served at {location}: {_short(error)}",
            hint="is the port taken, or the certificate not in PEM form?",
        ) from None


class _Started:
    """A generator that has begun, so that its `finally` runs even if nobody ever asks for an item."""

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
    """Fetches segments from other nodes. Safe to share between threads; keeps a connection for each node.

    Args:
        signer: has the cluster's key.
        roots: a file of certificates to trust (PEM), if the nodes' are not signed by one of the system's.
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
        """Hand the bytes of a segment to `write`, piece by piece; on return all of them came, unchanged.

        After an error some of them may have been written: the caller throws them away. `CopyGone` when the
        node answers that it has no such segment; `FetchRefused` when one of us has not the key; `FetchFailed`
        when it does not answer; `CopyCorrupt` when it is not what was promised.

        Args:
            location: of the segment.
            size: in bytes, from the signed result.
            write: takes the next bytes; they are only valid during the call.
        """
        with self._telling(location) as client:
            ticket = self._ticket(client, location)
            self._read(client, ticket, size, write)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            while self._clients:
                self._clients.popitem()[1].close()

    def _ticket(self, client: Any, location: Location) -> _Ticket:
        from pyarrow import flight

        mine = self._chance.randbytes(NONCE_BYTES)
        options = flight.FlightCallOptions(timeout=self._patience_s)
        answers = [one.body.to_pybytes() for one in client.do_action(flight.Action("hello", mine), options)]
        answer = answers[0] if len(answers) == 1 else b""
        theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        self._signer.check("flight-hello", proof, mine, theirs)
        name = location.name
        return _Ticket(name, mine, theirs, self._signer.sign("flight-get", mine, theirs, name.encode()))

    def _read(self, client: Any, ticket: _Ticket, size: int, write: Callable[[memoryview], None]) -> None:
        from pyarrow import flight

        options = flight.FlightCallOptions(timeout=self._patience_s + size / LEAST_BYTES_PER_S)
        reader = client.do_get(flight.Ticket(_encode(ticket)), options)
        digest, came, proof = blake2b(digest_size=32), 0, b""
        try:
            for chunk in reader:
                if chunk.data is not None and len(chunk.data):
                    piece = _octets(chunk.data)
                    came += len(piece)
                    if came > size:
                        raise CopyCorrupt(f"{ticket.name} is longer than the {size:,} bytes it should have")
                    digest.update(piece)
                    write(piece)
                if chunk.app_metadata is not None:
                    proof = chunk.app_metadata.to_pybytes()
        except BaseException:
            with contextlib.suppress(Exception):
                reader.cancel()
            raise
        if came != size:
            raise CopyCorrupt(f"{came:,} of {size:,} bytes of {ticket.name} came")
        try:
            self._signer.check("flight-body", proof, *_body_parts(ticket, digest.digest(), size))
        except BadSignature:
            raise CopyCorrupt(f"{ticket.name} was changed on its way") from None

    @contextlib.contextmanager
    def _telling(self, location: Location) -> Iterator[Any]:
        """The connection to a node; what goes wrong with it comes out as one of our errors."""
        import pyarrow as pa
        from pyarrow import flight

        address = location.address
        try:
            yield self._client(address)
        except BadSignature:
            raise FetchRefused(f"the node at {address} has not this cluster's key") from None
        except flight.FlightUnauthenticatedError:
            raise FetchRefused(f"the node at {address} says that we have not its cluster's key") from None
        except flight.FlightError as error:
            if error.extra_info == _GONE:
                raise CopyGone(f"the node at {address} has no segment {location.name} any more") from None
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
                found = urlsplit(address)
                scheme, host, _ = found.scheme, found.hostname or "", found.port
            except ValueError:
                scheme, host = "", ""
            if scheme not in (_PLAIN, _TLS) or not host:
                raise FetchFailed(f"no results can be fetched from {address!a:.200}")
            if scheme == _PLAIN and not is_loopback(host):
                raise FetchRefused(f"{address} is on another host and does not offer TLS")
            more: dict[str, Any] = {}
            if scheme == _TLS and self._roots is not None:
                more["tls_root_certs"] = self._roots.read_bytes()
            client = flight.FlightClient(address, generic_options=_OPTIONS, **more)
            self._clients[address] = client
            if len(self._clients) > 64:
                self._clients.popitem(last=False)  # closed when its last transfer has ended
            return client

    def _forget(self, address: str) -> None:
        """Connect anew next time: a node may have been started again at the same address."""
        with self._lock:
            self._clients.pop(address, None)


def _octets(batch: Any) -> memoryview:
    """The bytes of a batch, as they lie there; `CopyCorrupt` if it is none of ours."""
    if batch.num_columns != 1 or str(batch.schema.field(0).type) != "uint8" or batch.column(0).null_count:
        raise CopyCorrupt("a node sent something that is no segment")
    column = batch.column(0)
    return memoryview(column.buffers()[1]).cast("B")[column.offset : column.offset + len(column)]


def _short(error: BaseException) -> str:
    """A driver's message in one line: the rest of it is stack traces."""
    return str(error).partition("\n")[0].partition(" gRPC client debug context")[0][:300]
