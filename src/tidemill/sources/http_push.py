"""HTTP push: rows that are sent to a node, one node per source, under a lease (CLU-19).

    POST /{dataset}     JSON lines, a JSON array or object, or an Arrow stream; gzip or not
    GET  /healthz

    Authorization: Bearer TOKEN            required
    Tidemill-Producer, Tidemill-Seq        who sends it, and its number: sent again it is answered as the
                                           first time (LOT-36); without them a repetition is taken twice

200 with the receipt means that the rows are durable and visible; anything else that they may be sent again.
400 the body is not what its header says, 401 no or another token, 404 no such dataset, 409 the number was
used for other rows, 411 no length, 413 too large, 415 another kind of body, 422 rows that do not fit, 429 too
much waits, 503 this node cannot take it now.

It listens on loopback unless told otherwise: it speaks no TLS, so what is public belongs behind a proxy that
does. Python's own HTTP server does the reading (`docs/adr/0009-sources.md` says why); each connection has a
thread and a time limit.
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
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as AnswerTimeout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from tidemill.errors import (
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
from tidemill.sources.receiving import Receiver

BODY_BYTES: Final = 8 << 20
TOKEN_LETTERS: Final = 16
_DRAIN_BYTES: Final = 16 << 20
_DRAIN_S: Final = 2.0
_ARROW: Final = "application/vnd.apache.arrow.stream"
_LINES: Final = frozenset({"application/x-ndjson", "application/jsonl", "application/json-lines"})

Convert = Callable[[Any], pa.Table]
"""Makes a table of the declared columns, of a list of dictionaries or a table; raises what is wrong."""


class Endpoint(msgspec.Struct, frozen=True):
    """A dataset that takes rows here."""

    receiver: Receiver
    convert: Convert


class PushServer:
    """Listens from `start` to `close`.

    Args:
        endpoints: by the name in the path.
        token: what senders show; 16 letters at least.
        host: an address of this machine; loopback unless `public`.
        port: 0 for any that is free.
        public: take requests from other machines too.
        body_bytes: the largest body, packed and unpacked.
        connections: how many at once; more are closed at once.
        answer_s: how long a request waits for its rows to be durable.
        idle_s: how long a connection may say nothing.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
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
            raise BadSource(
                "the token is too short", hint=f"{TOKEN_LETTERS} letters at least, drawn by chance"
            )
        if not public and not is_loopback(host):
            raise BadSource(
                f"{host} is not loopback", hint="pass public=True, behind a proxy that speaks TLS"
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
        """Is every dataset still received here? One whose lease is lost is not."""
        return all(not endpoint.receiver.closed for endpoint in self.endpoints.values())

    def start(self) -> None:
        threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="tidemill-push",
            daemon=True,
        ).start()

    def close(self) -> None:
        """Take no more connections; publish and answer what waits."""
        self._server.shutdown()
        for endpoint in self.endpoints.values():
            endpoint.receiver.close()
        self._server.server_close()


class Refusal(Exception):
    """A request that is answered with an error."""

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
        """A sender that went away is no news."""


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
            self._say(200, {"ok": True})
        else:
            self._say(404, _error("not-found", "there is nothing here", "POST /{dataset}"))

    def do_POST(self) -> None:
        try:
            answer = self._taken()
        except Refusal as refused:
            self.close_connection = True
            self._say(refused.status, _error(refused.code, refused.message, refused.hint))
            self._drain()
        else:
            self._say(200, answer)

    def _taken(self) -> dict[str, Any]:
        push = self.server.push
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(), push.token.encode()):
            raise Refusal(401, "unauthorized", "no token, or not this one", "Authorization: Bearer TOKEN")
        endpoint = push.endpoints.get(unquote(self.path.partition("?")[0].strip("/")))
        if endpoint is None:
            raise Refusal(404, "not-found", "there is no such dataset", f"one of {', '.join(push.endpoints)}")
        body = self._body()
        identity = self._identity(body)
        rows = parsed(body, self.headers.get("Content-Type", ""))
        try:
            table = endpoint.convert(rows)
            waiting = endpoint.receiver.submit(table, identity, rows)
            receipt = waiting.result(push.answer_s)
        except PushBusy as busy:
            raise Refusal(429, busy.code, busy.message, busy.hint) from None
        except ProducerConflict as conflict:
            raise Refusal(409, conflict.code, conflict.message, conflict.hint) from None
        except AnswerTimeout:
            raise Refusal(503, "unavailable", "no answer in time", "send it again") from None
        except (StoreError, ObjectError, PublishError, SourceUnavailable) as away:
            raise Refusal(503, away.code, away.message, away.hint) from None
        except TidemillError as error:
            raise Refusal(422, error.code, error.message, error.hint) from None
        return _told(receipt, table.num_rows)

    def _body(self) -> bytes:
        most = self.server.push.body_bytes
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise Refusal(411, "length-required", "the body has no length", "send Content-Length")
        if int(length) > most:
            raise Refusal(413, "too-large", f"a body of {int(length):,} bytes", f"{most:,} at most")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise Refusal(400, "bad-body", "the body ended before its length", "send it again")
        packing = self.headers.get("Content-Encoding", "identity")
        if packing == "gzip":
            return _unpacked(body, most)
        if packing != "identity":
            raise Refusal(415, "bad-encoding", f"the encoding {packing!r:.40}", "gzip, or none")
        return body

    def _drain(self) -> None:
        """Read on for a moment: a connection that is closed with bytes unread takes the answer with it."""
        self.connection.settimeout(_DRAIN_S)
        left = _DRAIN_BYTES
        with contextlib.suppress(OSError, ValueError):
            self.connection.shutdown(socket.SHUT_WR)
            while left > 0 and (piece := self.rfile.read1(min(left, 1 << 16))):
                left -= len(piece)

    def _identity(self, body: bytes) -> Identity | None:
        producer, seq = self.headers.get("Tidemill-Producer"), self.headers.get("Tidemill-Seq")
        if producer is None and seq is None:
            return None
        if not producer or seq is None or not seq.isascii() or not seq.isdigit() or len(seq) > 18:
            raise Refusal(400, "bad-number", "a producer and a number go together", "Tidemill-Seq: 17")
        return Identity(producer, int(seq), hashlib.sha256(body).hexdigest()[:32])

    def _say(self, status: int, answer: dict[str, Any]) -> None:
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
        """Nothing: who wants to know listens to events."""


def parsed(body: bytes, kind: str) -> Any:
    """The rows in a body, by what its header says it is."""
    kind = kind.partition(";")[0].strip().lower()
    try:
        if kind == _ARROW:
            with pa.ipc.open_stream(io.BytesIO(body)) as stream:
                return stream.read_all()
        if kind in _LINES:
            return [_object(json.loads(line)) for line in body.splitlines() if line.strip()]
        if kind == "application/json":
            found = json.loads(body)
            return [_object(one) for one in (found if isinstance(found, list) else [found])]
    except (ValueError, RecursionError, pa.ArrowException, OSError) as error:
        raise Refusal(400, "bad-body", f"the body is no {kind}: {error}"[:500], PushRefused.hint) from None
    raise Refusal(
        415, "bad-type", f"the type {kind!r:.60}", f"application/x-ndjson, application/json, {_ARROW}"
    )


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.60} is no object")  # noqa: TRY004 - told as any other wrong body is
    return value


def _unpacked(body: bytes, most: int) -> bytes:
    try:
        with gzip.open(io.BytesIO(body)) as file:
            found = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Refusal(400, "bad-body", f"the body is no gzip: {error}", "send it again") from None
    if len(found) > most:
        raise Refusal(
            413, "too-large", "the body is too large when it is unpacked", f"{most:,} bytes at most"
        )
    return found


def _told(receipt: Receipt, rows: int) -> dict[str, Any]:
    return {
        "dataset": receipt.dataset.name,
        "lot": receipt.lot,
        "position": receipt.position,
        "rows": rows,
    }


def _error(code: str, message: str, hint: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "hint": hint}}


def is_loopback(host: str) -> bool:
    """Does nobody but this machine reach it?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
