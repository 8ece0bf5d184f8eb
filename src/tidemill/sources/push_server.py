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

By default the server listens on a loopback address. It has no TLS: for other machines, put a proxy with TLS
in front of it. It uses the HTTP server of Python's standard library (`docs/adr/0009-sources.md` explains
why). Each connection has a thread and a time limit.
"""

import contextlib
import gzip
import hashlib
import hmac
import io
import ipaddress
import json
import socket
import threading
import zlib
from collections.abc import Mapping
from concurrent.futures import TimeoutError as AnswerTimeout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from tidemill.errors import (
    AppendRefused,
    BadSource,
    ObjectError,
    ProducerConflict,
    PublishError,
    PushBusy,
    PushRefused,
    SourceUnavailable,
    StoreError,
    TidemillError,
)
from tidemill.lots.producers import Identity, Receipt
from tidemill.sources.arrow_streams import StreamTooLarge, read_stream
from tidemill.sources.json_objects import check_object
from tidemill.sources.push_receiver import PushReceiver
from tidemill.sources.row_converters import Convert

BODY_BYTES: Final = 8 << 20
TOKEN_LETTERS: Final = 16
SHORT_TOKEN_HINT: Final = f"use a random token of at least {TOKEN_LETTERS} characters"
_DRAIN_BYTES: Final = 16 << 20
_DRAIN_S: Final = 2.0
_ARROW: Final = "application/vnd.apache.arrow.stream"
_LINES: Final = frozenset({"application/x-ndjson", "application/jsonl", "application/json-lines"})


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
                hint="set public=True, and put a proxy with TLS in front",
            )
        self.endpoints = dict(endpoints)
        self.token = token
        self.body_bytes = body_bytes
        self.answer_s = answer_s
        self.idle_s = idle_s
        self._server = _Server((host, port), _Handler, self, connections)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def receives(self) -> bool:
        """Whether this server still receives rows for every dataset; False after it has lost a lease."""
        return all(not endpoint.receiver.closed for endpoint in self.endpoints.values())

    def start(self) -> None:
        threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="tidemill-push",
            daemon=True,
        ).start()

    def close(self) -> None:
        """Close the server; publish and answer the waiting requests."""
        self._server.shutdown()
        for endpoint in self.endpoints.values():
            endpoint.receiver.close()
        self._server.server_close()


class RequestRefused(Exception):
    """The server refuses a request, and answers it with this error."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type["_Handler"], push: PushServer, connections: int
    ) -> None:
        self.push = push
        self._free = threading.Semaphore(connections)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: it is normal that a sender closes its connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    server_version = "tidemill"
    sys_version = ""

    def setup(self) -> None:
        self.request.settimeout(self.server.push.idle_s)
        super().setup()

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._respond(200, {"ok": True})
        else:
            self._respond(404, _error("not-found", "this path does not exist", "use POST /{dataset}"))

    def do_POST(self) -> None:
        try:
            answer = self._take()
        except RequestRefused as refused:
            self.close_connection = True
            self._respond(refused.status, _error(refused.code, refused.message, refused.hint))
            self._drain()
        except OSError:
            raise  # the sender closed its connection
        except Exception as error:  # noqa: BLE001 - a bug must not leave a sender without an answer
            self.close_connection = True
            message = f"the request could not be processed: {type(error).__name__}"
            self._respond(500, _error("internal", message, "this is a bug in Tidemill; please report it"))
            self._drain()
        else:
            self._respond(200, answer)

    def _take(self) -> dict[str, Any]:
        push = self.server.push
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(), push.token.encode()):
            raise RequestRefused(
                401, "unauthorized", "the token is missing or wrong", "send Authorization: Bearer TOKEN"
            )
        endpoint = push.endpoints.get(unquote(self.path.partition("?")[0].strip("/")))
        if endpoint is None:
            raise RequestRefused(
                404, "not-found", "this dataset does not exist", f"use one of {', '.join(push.endpoints)}"
            )
        body = self._body()
        identity = self._identity(body)
        rows = parse_rows(body, self.headers.get("Content-Type", ""), push.body_bytes)
        try:
            table = endpoint.convert(rows)
            waiting = endpoint.receiver.submit(table, identity, rows)
            receipt = waiting.result(push.answer_s)
        except PushBusy as busy:
            raise RequestRefused(429, busy.code, busy.message, busy.hint) from None
        except ProducerConflict as conflict:
            raise RequestRefused(409, conflict.code, conflict.message, conflict.hint) from None
        except AnswerTimeout:
            raise RequestRefused(
                503, "unavailable", "the rows could not be stored in time", "send them again"
            ) from None
        except (StoreError, ObjectError, PublishError, SourceUnavailable) as unavailable:
            raise RequestRefused(503, unavailable.code, unavailable.message, unavailable.hint) from None
        except TidemillError as error:
            raise RequestRefused(422, error.code, error.message, error.hint) from None
        return _receipt(receipt, table.num_rows)

    def _body(self) -> bytes:
        most = self.server.push.body_bytes
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or len(length) > 18:
            raise RequestRefused(
                411, "length-required", "Content-Length is missing or invalid", "send Content-Length"
            )
        if int(length) > most:
            raise RequestRefused(
                413,
                "too-large",
                f"the body is too large: {int(length):,} bytes",
                f"send at most {most:,} bytes",
            )
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise RequestRefused(
                400, "bad-body", "the body is shorter than Content-Length", "send the request again"
            )
        encoding = self.headers.get("Content-Encoding", "identity")
        if encoding == "gzip":
            return _decompressed(body, most)
        if encoding != "identity":
            raise RequestRefused(
                415, "bad-encoding", f"the encoding {encoding!r:.40} is not supported", "use gzip, or none"
            )
        return body

    def _drain(self) -> None:
        """Keep reading for a moment: closing a connection with unread bytes would discard the answer."""
        self.connection.settimeout(_DRAIN_S)
        left = _DRAIN_BYTES
        with contextlib.suppress(OSError, ValueError):
            self.connection.shutdown(socket.SHUT_WR)
            while left > 0 and (chunk := self.rfile.read1(min(left, 1 << 16))):
                left -= len(chunk)

    def _identity(self, body: bytes) -> Identity | None:
        producer, seq = self.headers.get("Tidemill-Producer"), self.headers.get("Tidemill-Seq")
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

    def _respond(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status in (429, 503):
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Log nothing: events report what happens."""


def parse_rows(body: bytes, content_type: str, most: int = BODY_BYTES) -> Any:
    """Parse the rows of a body according to its content type; they may have at most `most` bytes."""
    content_type = content_type.partition(";")[0].strip().lower()
    try:
        if content_type == _ARROW:
            return read_stream(body, most)
        if content_type in _LINES:
            return [_object(json.loads(line)) for line in body.splitlines() if line.strip()]
        if content_type == "application/json":
            value = json.loads(body)
            return [_object(item) for item in (value if isinstance(value, list) else [value])]
    except AppendRefused as refused:
        raise RequestRefused(422, refused.code, refused.message, refused.hint) from None
    except StreamTooLarge:
        raise RequestRefused(
            413, "too-large", "the table in the body is too large", f"send at most {most:,} bytes of rows"
        ) from None
    except (ValueError, RecursionError, pa.ArrowException, OSError) as error:
        raise RequestRefused(
            400, "bad-body", f"the body is not {content_type}: {error}"[:500], PushRefused.hint
        ) from None
    raise RequestRefused(
        415,
        "bad-type",
        f"the content type {content_type!r:.60} is not supported",
        f"use application/x-ndjson, application/json or {_ARROW}",
    )


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.60} is not a JSON object")  # noqa: TRY004 - the body is bad, not the program
    return check_object(value)


def _decompressed(body: bytes, most: int) -> bytes:
    try:
        with gzip.open(io.BytesIO(body)) as file:
            data = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RequestRefused(
            400, "bad-body", f"the body is not gzip: {error}", "send the request again"
        ) from None
    if len(data) > most:
        raise RequestRefused(
            413, "too-large", "the decompressed body is too large", f"send at most {most:,} bytes"
        )
    return data


def _receipt(receipt: Receipt, rows: int) -> dict[str, Any]:
    return {
        "dataset": receipt.dataset.name,
        "lot": receipt.lot,
        "position": receipt.position,
        "rows": rows,
    }


def _error(code: str, message: str, hint: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "hint": hint}}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
