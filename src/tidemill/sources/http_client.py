"""An HTTP client that limits the time of a request, the size of the response, and redirects.

A server that hangs, sends slowly, or never stops sending cannot exceed the time limit: a thread closes the
connection when the time is over, at any stage of the request. The client checks that the body of a response
matches its headers.
"""

import gzip
import http.client
import io
import socket
import ssl
import threading
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from tidemill.clock import Clock
from tidemill.errors import PollRefused, SourceUnavailable

MOST_REDIRECTS: Final = 5
_CHUNK: Final = 1 << 16
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_TOO_LARGE: Final = "raise body_bytes=, or make the server send smaller responses"


class HttpResponse(NamedTuple):
    """A response; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpLimits(NamedTuple):
    """The maximum time for a request, and the maximum size of a body, compressed and decompressed."""

    timeout_s: float
    body_bytes: int


def get(url: str, headers: Mapping[str, str], limits: HttpLimits, clock: Clock) -> HttpResponse:
    """Send a GET request and follow redirects; the given headers go to the first host only.

    Raise `SourceUnavailable` if the server does not respond in time, and `PollRefused` if the response does
    not match its headers.
    """
    deadline = clock.monotonic() + limits.timeout_s
    first = urlsplit(url)
    for _ in range(MOST_REDIRECTS + 1):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PollRefused(
                f"{first.hostname} redirects to {parts.scheme!r:.20}, not to http or https",
                hint="declare an address that responds over http or https",
            )
        if first.scheme == "https" and parts.scheme != "https":
            raise PollRefused(
                f"{first.hostname} redirects from https to {parts.scheme}", hint="declare the final address"
            )
        same = (parts.scheme, parts.netloc) == (first.scheme, first.netloc)
        left_s = deadline - clock.monotonic()
        response = _Request(parts, limits, clock, max(0.001, left_s)).get(headers if same else {})
        if response.status not in _REDIRECTS:
            return response
        url = urljoin(url, response.headers.get("location", ""))
    raise PollRefused(
        f"{first.hostname} redirects more than {MOST_REDIRECTS} times", hint="declare the final address"
    )


class _Request:
    """One request on its own connection, which is closed when the time is over."""

    def __init__(self, url: SplitResult, limits: HttpLimits, clock: Clock, timeout_s: float) -> None:
        self._url = url
        self._limits = limits
        self._clock = clock
        self._timeout_s = timeout_s
        self._late = False

    def get(self, headers: Mapping[str, str]) -> HttpResponse:
        host = self._url.hostname or ""
        connection: http.client.HTTPConnection
        try:
            if self._url.scheme == "https":
                context = ssl.create_default_context()
                connection = http.client.HTTPSConnection(
                    host, self._url.port, timeout=self._timeout_s, context=context
                )
            else:
                connection = http.client.HTTPConnection(host, self._url.port, timeout=self._timeout_s)
        except ValueError as error:
            raise PollRefused(f"{host}: {error}") from None
        over = threading.Event()
        try:
            connection.connect()
            watch = threading.Thread(target=self._watch, args=(connection.sock, over), daemon=True)
            watch.start()
            return self._send(connection, headers)
        except (OSError, http.client.HTTPException) as error:
            reason = (
                f"no response within {self._limits.timeout_s:g} s" if self._is_late(error) else _text(error)
            )
            raise SourceUnavailable(
                f"{host}: {reason}", hint="no action is needed: the runner repeats the request"
            ) from None
        finally:
            over.set()
            connection.close()

    def _is_late(self, error: Exception) -> bool:
        return self._late or isinstance(error, TimeoutError)

    def _watch(self, sock: socket.socket, over: threading.Event) -> None:
        if not self._clock.wait(over, self._timeout_s):
            self._late = True
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _send(self, connection: http.client.HTTPConnection, headers: Mapping[str, str]) -> HttpResponse:
        target = self._url.path or "/"
        connection.putrequest("GET", f"{target}?{self._url.query}" if self._url.query else target)
        for name, value in {"User-Agent": "tidemill", "Accept-Encoding": "gzip", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        if response.status in _REDIRECTS or response.status == 304:
            return HttpResponse(response.status, received, b"")
        return HttpResponse(response.status, received, self._decompressed(self._body(response), received))

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        most = self._limits.body_bytes
        if response.length is not None and response.length > most:
            raise PollRefused(
                f"{self._url.hostname}: the body has {response.length:,} bytes; the limit is {most:,}",
                hint=_TOO_LARGE,
            )
        expected, body = response.length, bytearray()
        while chunk := response.read(_CHUNK):
            body += chunk
            if len(body) > most:
                raise PollRefused(
                    f"{self._url.hostname}: the body has more than {most:,} bytes", hint=_TOO_LARGE
                )
        if self._late:
            raise TimeoutError
        if expected is not None and len(body) != expected:
            raise SourceUnavailable(
                f"{self._url.hostname}: the body ended after {len(body):,} of {expected:,} bytes",
                hint="no action is needed: nothing was ingested, and the runner repeats the request",
            )
        return bytes(body)

    def _decompressed(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("identity", ""):
            return body
        if encoding not in ("gzip", "x-gzip"):
            raise PollRefused(
                f"{self._url.hostname}: the encoding is {encoding!r:.40}; only gzip is supported"
            )
        most = self._limits.body_bytes
        try:
            with gzip.open(io.BytesIO(body)) as file:
                data = file.read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise PollRefused(
                f"{self._url.hostname}: the encoding is gzip, but the body is not: {error}"
            ) from None
        if len(data) > most:
            raise PollRefused(
                f"{self._url.hostname}: the decompressed body has more than {most:,} bytes", hint=_TOO_LARGE
            )
        return data


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:300]
