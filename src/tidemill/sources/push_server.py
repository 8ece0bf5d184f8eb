"""The HTTP server that receives pushed rows, on one node per source, under a lease (CLU-19).

    POST /{dataset}     JSON lines, a JSON array or object, or an Arrow stream; gzip is optional
    GET  /healthz

    Authorization: Bearer TOKEN            required
    Tidemill-Producer, Tidemill-Seq        the sender and the number of the request. A repeated request gets
                                           the first answer (LOT-36). Without these headers,
                                           a repeated request is stored twice.

Status 200 with the receipt means that the rows are durable and visible. After any other status, the sender
may send the rows again. 400: the body does not match its headers; 401: the token is missing or wrong; 404:
the dataset does not exist; 409: the number was used for other rows; 411: Content-Length is missing; 413: the
body is too large; 415: the type of the body is unknown; 422: the rows do not fit, or the request exceeds a
limit of the store; 429: too many requests are waiting; 500: an error in Tidemill; 503: this node cannot take
the rows now.

By default the server listens on a loopback address. For other machines, give it a certificate, or put a
proxy with TLS in front of it. One thread runs the event loop; it parses small bodies itself, and leaves
the others to a few more threads, so that a large body does not delay small ones.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from tidemill.errors import (
    BadSource,
    ObjectError,
    ProducerConflict,
    PublishError,
    PushBusy,
    SourceUnavailable,
    StoreError,
    TidemillError,
)
from tidemill.lots.producers import Identity, Receipt
from tidemill.sources.push_body import BODY_BYTES, RequestRefused, decompressed, parse_rows
from tidemill.sources.push_receiver import PushReceiver
from tidemill.sources.row_converters import Convert
from tidemill.web import WebServer, is_loopback, listen, require_packages

T = TypeVar("T")
Headers = Mapping[str, str]
TOKEN_LETTERS: Final = 16
SHORT_TOKEN_HINT: Final = f"use a random token of at least {TOKEN_LETTERS} characters"
_SMALL_BYTES: Final = 8 << 10
"""The event loop parses JSON bodies up to this size itself: passing them to a thread takes longer. Larger
bodies would keep it from reading other requests, so that fewer of them become one lot."""


class PushEndpoint(msgspec.Struct, frozen=True):
    """A dataset that this server receives rows for."""

    receiver: PushReceiver
    convert: Convert


class PushServer:
    """An HTTP server that receives pushed rows from `start` until `close`.

    Args:
        endpoints: the datasets, by the name in the path.
        token: the token that senders must send; at least 16 characters.
        host: an address of this machine. It must be a loopback address unless `public` is set.
        port: the port; 0 for any free port.
        public: accept requests from other machines.
        tls_cert: a file with a certificate (PEM), for TLS.
        tls_key: a file with the certificate's key.
        body_bytes: the maximum size of a body, before and after decompression.
        connections: the maximum number of open connections; the server closes further ones immediately.
        answer_s: how long a request waits until its rows are durable.
        idle_s: how long a connection may be silent.
    """

    def __init__(
        self,
        endpoints: Mapping[str, PushEndpoint],
        *,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        public: bool = False,
        tls_cert: str = "",
        tls_key: str = "",
        body_bytes: int = BODY_BYTES,
        connections: int = 256,
        answer_s: float = 30.0,
        idle_s: float = 30.0,
    ) -> None:
        if len(token) < TOKEN_LETTERS:
            raise BadSource("the token is too short", hint=SHORT_TOKEN_HINT)
        if not public and not is_loopback(host):
            raise BadSource(
                f"{host} is not a loopback address",
                hint="set public=True, and use TLS: tls_cert= and tls_key=, or a proxy in front",
            )
        require_packages(("uvicorn",), "push", "http_push")
        from tidemill.sources.push_connection import limited

        self.endpoints = dict(endpoints)
        self.token = token
        self.body_bytes = body_bytes
        self.answer_s = answer_s
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="tidemill-push-body")
        try:
            self._server = WebServer(
                self._answer,
                listen(host, port),
                tls_cert=tls_cert,
                tls_key=tls_key,
                protocol=limited(connections, idle_s),
            )
        except (OSError, ValueError) as error:
            raise BadSource(
                f"the push server cannot listen on {host}:{port}: {error}",
                hint="choose a free port, and check tls_cert= and tls_key=",
            ) from None

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def receives(self) -> bool:
        """Whether this server still receives rows for every dataset; False after it has lost a lease."""
        return all(not endpoint.receiver.closed for endpoint in self.endpoints.values())

    def start(self) -> None:
        self._server.start("tidemill-push")

    def close(self) -> None:
        """Publish and answer the waiting requests, and close the server."""
        for endpoint in self.endpoints.values():
            endpoint.receiver.close()
        self._server.stop()
        self._threads.shutdown(wait=False)

    # --- requests

    async def _answer(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request. This is the ASGI application."""
        try:
            status, answer = 200, await self._process(scope, receive)
        except RequestRefused as refused:
            status, answer = refused.status, _error(refused.code, refused.message, refused.hint)
        except _SenderGone:
            return
        except Exception as error:  # noqa: BLE001 - a bug must not leave a sender without an answer
            message = f"the request could not be processed: {type(error).__name__}"
            status, answer = 500, _error("internal", message, "this is a bug in Tidemill; please report it")
        body = json.dumps(answer).encode() + b"\n"
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status in (429, 503):
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _process(self, scope: Mapping[str, Any], receive: Any) -> dict[str, Any]:
        path = scope["raw_path"].decode("latin-1")
        if scope["method"] != "POST":
            if scope["method"] == "GET" and path == "/healthz":
                return {"ok": True}
            raise RequestRefused(404, "not-found", "this path does not exist", "use POST /{dataset}")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        shown = headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(), self.token.encode()):
            raise RequestRefused(
                401, "unauthorized", "the token is missing or wrong", "send Authorization: Bearer TOKEN"
            )
        endpoint = self.endpoints.get(unquote(path.strip("/")))
        if endpoint is None:
            raise RequestRefused(
                404, "not-found", "this dataset does not exist", f"use one of {', '.join(self.endpoints)}"
            )
        body = await _body(receive, self._length(headers))

        def submit() -> tuple[Future[Receipt], pa.Table]:
            return self._submit(endpoint, headers, body)

        if len(body) <= _SMALL_BYTES and _is_plain_json(headers):
            waiting, table = submit()
        else:
            waiting, table = await asyncio.get_running_loop().run_in_executor(self._threads, submit)
        with _refusals():
            receipt = await _result(waiting, self.answer_s)
        return _receipt(receipt, table.num_rows)

    def _length(self, headers: Headers) -> int:
        length = headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or len(length) > 18:
            raise RequestRefused(
                411, "length-required", "Content-Length is missing or invalid", "send Content-Length"
            )
        if int(length) > self.body_bytes:
            raise RequestRefused(
                413,
                "too-large",
                f"the body is too large: {int(length):,} bytes",
                f"send at most {self.body_bytes:,} bytes",
            )
        return int(length)

    def _submit(
        self, endpoint: PushEndpoint, headers: Headers, body: bytes
    ) -> tuple[Future[Receipt], pa.Table]:
        """Parse a body, and pass its rows to the receiver."""
        encoding = headers.get("content-encoding", "identity")
        if encoding not in ("identity", "gzip"):
            raise RequestRefused(
                415, "bad-encoding", f"the encoding {encoding!r:.40} is not supported", "use gzip, or none"
            )
        if encoding == "gzip":
            body = decompressed(body, self.body_bytes)
        identity = _identity(headers, body)
        rows = parse_rows(body, headers.get("content-type", ""), self.body_bytes)
        with _refusals():
            table = endpoint.convert(rows)
            return endpoint.receiver.submit(table, identity, rows), table


class _SenderGone(Exception):
    """The sender closed its connection."""


def _is_plain_json(headers: Headers) -> bool:
    return "content-encoding" not in headers and "json" in headers.get("content-type", "")


async def _body(receive: Any, length: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _SenderGone
        body += message["body"]
        if not message["more_body"]:
            break
    if len(body) != length:
        raise RequestRefused(
            400, "bad-body", "the body does not have the length of Content-Length", "send the request again"
        )
    return bytes(body)


async def _result(waiting: "Future[T]", timeout_s: float) -> T:
    """Return the result of a future of another thread. A timeout does not cancel it."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(done.set)

    waiting.add_done_callback(wake)
    await asyncio.wait_for(done.wait(), timeout_s)
    return waiting.result()


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Refuse the request with the status that fits an error."""
    try:
        yield
    except PushBusy as busy:
        raise RequestRefused(429, busy.code, busy.message, busy.hint) from None
    except ProducerConflict as conflict:
        raise RequestRefused(409, conflict.code, conflict.message, conflict.hint) from None
    except TimeoutError:
        raise RequestRefused(
            503, "unavailable", "the rows could not be stored in time", "send them again"
        ) from None
    except (StoreError, ObjectError, PublishError, SourceUnavailable) as unavailable:
        raise RequestRefused(503, unavailable.code, unavailable.message, unavailable.hint) from None
    except TidemillError as error:
        raise RequestRefused(422, error.code, error.message, error.hint) from None


def _identity(headers: Headers, body: bytes) -> Identity | None:
    producer, seq = headers.get("tidemill-producer"), headers.get("tidemill-seq")
    if producer is None and seq is None:
        return None
    if not producer or seq is None or not seq.isascii() or not seq.isdigit() or len(seq) > 18:
        raise RequestRefused(
            400,
            "bad-number",
            "Tidemill-Producer or Tidemill-Seq is missing or invalid",
            "send both headers; Tidemill-Seq must be a number, for example 17",
        )
    return Identity(producer, int(seq), hashlib.sha256(body).hexdigest()[:32])


def _receipt(receipt: Receipt, rows: int) -> dict[str, Any]:
    return {
        "dataset": receipt.dataset.name,
        "lot": receipt.lot,
        "position": receipt.position,
        "rows": rows,
    }


def _error(code: str, message: str, hint: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "hint": hint}}
