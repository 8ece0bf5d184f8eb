"""Rows that are asked for, as a source: `http_poll("https://example.com/orders.json", every_s=60)`."""

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from tidemill.errors import BadSource

Follow = Literal["versions", "lines"]
OnGone = Literal["fail", "restart"]
BODY_BYTES = 64 << 20


class PollSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for, how often, and what is new about an answer."""

    url: str
    every_s: float
    follow: Follow
    format: str  # json or lines; as the answer says if empty
    headers: dict[str, str]  # may hold secrets
    timeout_s: float
    body_bytes: int
    on_gone: OnGone

    @property
    def shown(self) -> str:
        """For people: without user, password and query, which may hold secrets."""
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"

    def __repr__(self) -> str:
        return f"<PollSpec {self.shown} every {self.every_s:g} s>"


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
) -> PollSpec:
    """What a web address answers, asked for again and again by one node.

    >>> http_poll("https://example.com/orders.json?key=secret", every_s=60)
    <PollSpec https://example.com/orders.json every 60 s>

    Args:
        url: asked for by GET.
        every_s: how long it is left alone after an answer.
        follow: what is new: each other `versions` of the answer as a whole (by its ETag, or its content), or
            the `lines` that were added at its end since.
        format: `json` (an array of objects, or one) or `lines` (an object per line), whatever the answer says
            it is; by its Content-Type unless given.
        headers: sent with each request to this host, `{"Authorization": "Bearer …"}` for example.
        timeout_s: of a whole exchange.
        body_bytes: the largest answer, packed and unpacked.
        on_gone: of `lines`, when there are fewer than were taken: `fail`, or `restart` from the first one.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadSource(f"{url.partition('?')[0]!r:.200} is no web address", hint="http://… or https://…")
    if parts.username or parts.password:
        raise BadSource("a user or password in the address", hint="headers={'Authorization': …}")
    if not 0.05 <= every_s <= 86_400:
        raise BadSource(f"every_s={every_s}", hint="seconds, up to a day")
    if follow not in ("versions", "lines"):
        raise BadSource(f"follow={follow!r}", hint="'versions' or 'lines'")
    if format not in (None, "json", "lines") or (follow == "lines" and format == "json"):
        raise BadSource(f"format={format!r}", hint="'lines', or 'json' of whole versions")
    if not 0 < timeout_s <= 3600:
        raise BadSource(f"timeout_s={timeout_s}", hint="seconds, up to an hour")
    if body_bytes < 1:
        raise BadSource(f"body_bytes={body_bytes}", hint="a number of bytes")
    if on_gone not in ("fail", "restart"):
        raise BadSource(f"on_gone={on_gone!r}", hint="'fail' or 'restart'")
    given = dict(headers or {})
    for name, value in given.items():
        if not name.isascii() or not name.isprintable() or not value.isprintable() or not value.isascii():
            raise BadSource(f"the header {name!r:.60}", hint="one line of plain ASCII")
    return PollSpec(
        url=url,
        every_s=every_s,
        follow=follow,  # type: ignore[arg-type] # just told
        format=format or "",
        headers=given,
        timeout_s=timeout_s,
        body_bytes=body_bytes,
        on_gone=on_gone,  # type: ignore[arg-type] # just told
    )
