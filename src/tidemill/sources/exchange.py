"""One HTTP request with bounds: on the time of all of it, on the size of the answer, on where it leads.

A target that hangs, drips, or sends for ever costs its time limit and no more: a thread closes the connection
when that is over, wherever the exchange is. What the answer says of itself is checked against what it is.
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

MOST_HOPS: Final = 5
_PIECE: Final = 1 << 16
_HOPS: Final = frozenset({301, 302, 303, 307, 308})


class Answer(NamedTuple):
    """What came back; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Limits(NamedTuple):
    """How long all of it may take, and how large the body may be, packed and unpacked."""

    timeout_s: float
    body_bytes: int


def get(url: str, headers: Mapping[str, str], limits: Limits, clock: Clock) -> Answer:
    """GET, and follow where it is sent on; headers that we were given go to the first host alone.

    `SourceUnavailable` when it does not answer in time, `PollRefused` when the answer is not what it says.
    """
    deadline = clock.monotonic() + limits.timeout_s
    first = urlsplit(url)
    for _ in range(MOST_HOPS + 1):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PollRefused(f"{first.hostname} leads to {parts.scheme!r:.20}, which is no web address")
        if first.scheme == "https" and parts.scheme != "https":
            raise PollRefused(f"{first.hostname} leads from https to {parts.scheme}")
        same = (parts.scheme, parts.netloc) == (first.scheme, first.netloc)
        left_s = deadline - clock.monotonic()
        answer = _Once(parts, limits, clock, max(0.001, left_s)).get(headers if same else {})
        if answer.status not in _HOPS:
            return answer
        url = urljoin(url, answer.headers.get("location", ""))
    raise PollRefused(f"{first.hostname} leads on and on, {MOST_HOPS} times")


class _Once:
    """One connection, closed when its time is over."""

    def __init__(self, url: SplitResult, limits: Limits, clock: Clock, timeout_s: float) -> None:
        self._url = url
        self._limits = limits
        self._clock = clock
        self._timeout_s = timeout_s
        self._late = False

    def get(self, headers: Mapping[str, str]) -> Answer:
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
            return self._asked(connection, headers)
        except (OSError, http.client.HTTPException) as error:
            said = f"no answer within {self._limits.timeout_s:g} s" if self._is_late(error) else _words(error)
            raise SourceUnavailable(f"{host}: {said}", hint="it is asked again by itself") from None
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

    def _asked(self, connection: http.client.HTTPConnection, headers: Mapping[str, str]) -> Answer:
        target = self._url.path or "/"
        connection.putrequest("GET", f"{target}?{self._url.query}" if self._url.query else target)
        for name, value in {"User-Agent": "tidemill", "Accept-Encoding": "gzip", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        if response.status in _HOPS or response.status == 304:
            return Answer(response.status, found, b"")
        return Answer(response.status, found, self._unpacked(self._body(response), found))

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        most = self._limits.body_bytes
        if response.length is not None and response.length > most:
            raise PollRefused(f"{self._url.hostname}: a body of {response.length:,} bytes, {most:,} at most")
        expected, body = response.length, bytearray()
        while piece := response.read(_PIECE):
            body += piece
            if len(body) > most:
                raise PollRefused(f"{self._url.hostname}: a body of more than {most:,} bytes")
        if self._late:
            raise TimeoutError
        if expected is not None and len(body) != expected:
            raise SourceUnavailable(
                f"{self._url.hostname}: the body ended after {len(body):,} of {expected:,} bytes",
                hint="nothing of it was taken; it is asked again by itself",
            )
        return bytes(body)

    def _unpacked(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        packing = headers.get("content-encoding", "identity").strip().lower()
        if packing in ("identity", ""):
            return body
        if packing not in ("gzip", "x-gzip"):
            raise PollRefused(f"{self._url.hostname}: the encoding {packing!r:.40}, and gzip was asked for")
        most = self._limits.body_bytes
        try:
            with gzip.open(io.BytesIO(body)) as file:
                found = file.read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise PollRefused(
                f"{self._url.hostname}: the body says it is gzip, and is not: {error}"
            ) from None
        if len(found) > most:
            raise PollRefused(f"{self._url.hostname}: a body of more than {most:,} bytes when unpacked")
        return found


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:300]
