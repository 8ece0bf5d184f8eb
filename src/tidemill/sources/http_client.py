"""An HTTP client that limits the time of a request, the size of the response, and redirects.

A redirect may lead to the origin of the first address (same scheme, host and port) and to origins that the
caller allows. Without this rule, a server could make this process read an internal address, for example the
metadata service of a cloud provider, and the response would become rows.

Errors never quote the request. The path, the query and the headers may contain secrets, and Python's client
quotes them in some errors.

A server that hangs, sends slowly, or never stops sending cannot exceed the time limit: a thread closes the
connection when time is up, at any stage of the request. The client checks that the body of a response matches
its headers.
"""

import gzip
import http.client
import io
import socket
import ssl
import threading
import zlib
from collections.abc import Mapping, Set
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from tidemill.clock import Clock
from tidemill.errors import PollRefused, SourceUnavailable

MOST_REDIRECTS: Final = 5
_CHUNK: Final = 1 << 16
_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_TOO_LARGE: Final = "raise body_bytes=, or make the server send smaller responses"


class HttpResponse(NamedTuple):
    """A response; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpLimits(NamedTuple):
    """The limits of a request.

    - timeout_s: the maximum time for a request with its redirects.
    - body_bytes: the maximum size of a body, before and after decompression.
    - redirect_origins: the origins that redirects may lead to, in addition to the origin of the first
      address.
    """

    timeout_s: float
    body_bytes: int
    redirect_origins: frozenset[str] = frozenset()


def origin(url: SplitResult) -> str:
    """Return the scheme, the host and the port of an address; raise `ValueError` if one of them is invalid.

    >>> origin(urlsplit("https://user@Example.com/orders?key=secret"))
    'https://example.com:443'
    """
    if url.scheme not in _PORTS or not url.hostname:
        raise ValueError("not a web address")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{url.scheme}://{host}:{url.port or _PORTS[url.scheme]}"


def get(url: str, headers: Mapping[str, str], limits: HttpLimits, clock: Clock) -> HttpResponse:
    """Send a GET request and follow redirects; the given headers go to the first origin only.

    Raise `SourceUnavailable` if the server does not respond in time, and `PollRefused` if the response does
    not match its headers, or redirects to an origin that is not allowed.
    """
    deadline = clock.monotonic() + limits.timeout_s
    first = address = urlsplit(url)
    for _ in range(MOST_REDIRECTS + 1):
        left_s = deadline - clock.monotonic()
        same = origin(address) == origin(first)
        response = _Request(address, limits, clock, max(0.001, left_s)).get(headers if same else {})
        if response.status not in _REDIRECTS:
            return response
        address = _redirected(first, address, response, limits.redirect_origins)
    raise PollRefused(
        f"{first.hostname} redirects more than {MOST_REDIRECTS} times", hint="declare the final address"
    )


def _redirected(
    first: SplitResult, address: SplitResult, response: HttpResponse, allowed: Set[str]
) -> SplitResult:
    """Return the address that a response redirects to; raise `PollRefused` if it is not allowed."""
    try:
        parts = urlsplit(urljoin(address.geturl(), response.headers.get("location", "")))
        target = origin(parts)
    except ValueError:
        raise PollRefused(
            f"{first.hostname} redirects to an address that is invalid, or that is not http or https",
            hint="declare an address that responds over http or https",
        ) from None
    if first.scheme == "https" and parts.scheme != "https":
        raise PollRefused(
            f"{first.hostname} redirects from https to {parts.scheme}", hint="declare the final address"
        )
    if target != origin(first) and target not in allowed:
        raise PollRefused(
            f"{first.hostname} redirects to another origin, {target!r:.200}",
            hint="declare the final address, or list the origin in redirect_origins= if you trust it",
        )
    return parts


class _Request:
    """One request on its own connection, which is closed when time is up."""

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
        except (ValueError, http.client.InvalidURL):
            raise _cannot_send(host) from None
        over = threading.Event()
        try:
            connection.connect()
            watch = threading.Thread(target=self._watch, args=(connection.sock, over), daemon=True)
            watch.start()
            return self._send(connection, headers)
        except http.client.InvalidURL:
            raise _cannot_send(host) from None
        except (OSError, http.client.HTTPException) as error:
            reason = (
                f"no response within {self._limits.timeout_s:g} s" if self._is_late(error) else _text(error)
            )
            raise SourceUnavailable(
                f"{host}: {reason}", hint="no action is needed: the runner repeats the request"
            ) from None
        except ValueError:  # after OSError: some errors of TLS are both
            raise _cannot_send(host) from None
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
                f"{self._url.hostname}: the encoding is gzip, but the body is not valid gzip: {error}"
            ) from None
        if len(data) > most:
            raise PollRefused(
                f"{self._url.hostname}: the decompressed body has more than {most:,} bytes", hint=_TOO_LARGE
            )
        return data


def _cannot_send(host: str) -> PollRefused:
    """Replace an error of the HTTP client that quotes the address or a header."""
    return PollRefused(
        f"{host!r:.200}: the address or a header contains a character that cannot be sent",
        hint="percent-encode the address, for example a space as %20",
    )


def _text(error: Exception) -> str:
    """Describe an error without the text of the HTTP client, which may quote the request or the response."""
    reason = (error.strerror or "") if isinstance(error, OSError) else ""
    return f"{type(error).__name__}: {reason}".rstrip(": ")[:300]
