"""A web address as a source: `http_poll("https://example.com/orders.json", every_s=60)`."""

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast
from urllib.parse import SplitResult, urlsplit

from tidemill.cluster.keeper import HeldLease
from tidemill.errors import BadSource
from tidemill.sources import batch_publisher, http_client, source_lease
from tidemill.sources.batch_publisher import BatchPublisher
from tidemill.sources.http_poller import HttpPoller
from tidemill.sources.keys import SourceKeys
from tidemill.sources.row_converters import check_types
from tidemill.sources.source import (
    POLL_EVERY_S,
    PollResult,
    Source,
    SourceRuntime,
    SourceStatus,
    SourceTarget,
    acquired,
)
from tidemill.store import Tx

Follow = Literal["versions", "lines"]
OnGone = Literal["fail", "restart"]
BODY_BYTES = 64 << 20
_SENDABLE = re.compile(r"[!-~]+")
"""The characters of an address that can be sent as they are: printable ASCII without the space."""


@dataclass(frozen=True, kw_only=True, repr=False)
class PollSource(Source):
    """A web address that one node requests at intervals.

    Args:
        format: `json` or `lines`; empty to use the Content-Type of the response.
        headers: request headers, which may contain secrets.
        redirect_origins: origins that redirects may lead to, in addition to the origin of the address.
    """

    url: str
    every_s: float
    follow: Follow
    format: str
    headers: dict[str, str] = field(repr=False)
    timeout_s: float
    body_bytes: int
    on_gone: OnGone
    redirect_origins: frozenset[str] = frozenset()

    @property
    def description(self) -> str:
        """The address without user, password or query, which may contain secrets."""
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"

    def __repr__(self) -> str:
        return f"<PollSource {self.description} every {self.every_s:g} s>"

    def check(self, target: SourceTarget) -> None:
        check_types(target.dataset)

    def open(self, target: SourceTarget, runtime: SourceRuntime) -> "PollArrival":
        return PollArrival(self, target, runtime)

    def status(self, tx: Tx, keys: SourceKeys, source: str) -> SourceStatus:
        return SourceStatus(errors=batch_publisher.problems(tx, keys, source))


def http_poll(
    url: str,
    *,
    every_s: float = 60.0,
    follow: str = "versions",
    format: str | None = None,  # noqa: A002 - what users call it
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
    body_bytes: int = BODY_BYTES,
    on_gone: str = "fail",
    redirect_origins: Sequence[str] = (),
) -> PollSource:
    """Declare a source: the response of a web address, which one node requests at intervals.

    >>> http_poll("https://example.com/orders.json?key=secret", every_s=60)
    <PollSource https://example.com/orders.json every 60 s>

    Args:
        url: the address, which is requested with GET.
        every_s: how many seconds to wait after a response before the next request.
        follow: which data is new. `versions`: each new version of the whole response, judged by its ETag or
            its content. `lines`: the lines that were added at its end.
        format: `json` (an array of objects, or one object) or `lines` (one object per line); by default, the
            Content-Type of the response decides.
        headers: sent with each request to this host, for example `{"Authorization": "Bearer …"}`.
        timeout_s: the maximum time for a request and its response.
        body_bytes: the maximum size of a response, before and after decompression.
        on_gone: with `follow="lines"`, what to do if the response is now shorter than the part that was
            already read: `fail`, or `restart` from the first line.
        redirect_origins: where redirects may lead, for example `["https://files.example.com"]`. By default,
            only to the scheme, host and port of `url`. `headers` are never sent to another origin.
    """
    parts = _web_address(url)
    if parts.username or parts.password:
        raise BadSource(
            "the address contains a user name or a password",
            hint="use headers={'Authorization': …} instead",
        )
    if not 0.05 <= every_s <= 86_400:
        raise BadSource(f"invalid every_s={every_s}", hint="use a value from 0.05 to 86400 seconds (one day)")
    if follow not in ("versions", "lines"):
        raise BadSource(f"invalid follow={follow!r}", hint="use 'versions' or 'lines'")
    if format not in (None, "json", "lines") or (follow == "lines" and format == "json"):
        raise BadSource(
            f"invalid format={format!r} with follow={follow!r}",
            hint="use format='lines'; format='json' is possible only with follow='versions'",
        )
    if not 0 < timeout_s <= 3600:
        raise BadSource(
            f"invalid timeout_s={timeout_s}", hint="use a positive number of seconds, up to 3600 (one hour)"
        )
    if body_bytes < 1:
        raise BadSource(f"invalid body_bytes={body_bytes}", hint="use a positive number of bytes")
    if on_gone not in ("fail", "restart"):
        raise BadSource(f"invalid on_gone={on_gone!r}", hint="use 'fail' or 'restart'")
    for name, value in (headers or {}).items():
        if not name.isascii() or not name.isprintable() or not value.isprintable() or not value.isascii():
            raise BadSource(
                f"invalid header {name!r:.60}", hint="use one line of printable ASCII for its name and value"
            )
    return PollSource(
        url=url,
        every_s=every_s,
        follow=cast(Follow, follow),
        format=format or "",
        headers=dict(headers or {}),
        timeout_s=timeout_s,
        body_bytes=body_bytes,
        on_gone=cast(OnGone, on_gone),
        redirect_origins=frozenset(http_client.origin(_web_address(allowed)) for allowed in redirect_origins),
    )


def _web_address(url: str) -> SplitResult:
    """Parse an address. The errors do not quote it, because it may contain secrets."""
    try:
        parts = urlsplit(url)
        http_client.origin(parts)
    except ValueError:
        raise BadSource(
            "the address is not a web address",
            hint="use an address that begins with http:// or https://, and has a host and a valid port",
        ) from None
    if not _SENDABLE.fullmatch(url):
        raise BadSource(
            f"the address with the host {parts.hostname!r:.100} contains a space, a control character or a"
            " letter outside ASCII",
            hint="percent-encode it, for example a space as %20 (urllib.parse.quote)",
        )
    return parts


class PollArrival:
    """A web address that is open on one node. Only the node that holds the lease sends requests."""

    def __init__(self, source: PollSource, target: SourceTarget, runtime: SourceRuntime) -> None:
        self._keeper = runtime.keeper
        self._clock = runtime.scope.clock
        self._lease_key = SourceKeys(runtime.scope.cluster).fetch_lease(target.id)
        self._every_s = source.every_s
        publisher = BatchPublisher(target, runtime.scope, runtime.evaluate)
        self._poller = HttpPoller(source, publisher)
        self._lock = threading.Lock()
        self._closed = False
        self._lease: HeldLease | None = None
        self._due = 0.0

    def poll(self) -> PollResult:
        """Request the address, if we hold the lease and the interval is over."""
        with self._lock:
            if self._closed:
                return PollResult()
            if self._lease is None or not self._lease.alive():
                self._lease = source_lease.acquire(self._keeper, self._lease_key)
            if self._lease is None:
                return PollResult()  # another node requests it
            now = self._clock.monotonic()
            if now < self._due:
                return PollResult(wait_s=min(POLL_EVERY_S, self._due - now))
            self._poller.poll(self._lease.fence)
            self._due = self._clock.monotonic() + self._every_s
            return PollResult(wait_s=min(POLL_EVERY_S, self._every_s), fetched=True)

    def close(self) -> None:
        """Release the lease."""
        self._closed = True
        with acquired(self._lock) as free:
            if free and self._lease is not None:
                lease, self._lease = self._lease, None
                self._keeper.release(lease)
