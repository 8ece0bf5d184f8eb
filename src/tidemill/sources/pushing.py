"""Rows that are pushed, as a source: `http_push(path="orders")`."""

import os

import msgspec

from tidemill.errors import BadSource
from tidemill.sources.http_push import BODY_BYTES, TOKEN_LETTERS, is_loopback

ENVIRONMENT = "TIDEMILL_PUSH_TOKEN"


class PushSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows are received, and what their senders show."""

    path: str  # the dataset's name if empty
    token: str  # one that is made from the cluster's key if empty
    host: str
    port: int
    public: bool
    body_bytes: int

    @property
    def shown(self) -> str:
        """For people: without the token."""
        return f"POST http://{self.host}:{self.port or '*'}/{self.path}"

    def __repr__(self) -> str:
        return f"<PushSpec {self.shown}>"


def http_push(
    path: str = "",
    *,
    token: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    public: bool = False,
    body_bytes: int = BODY_BYTES,
) -> PushSpec:
    """Rows that others POST, as JSON lines, a JSON array or an Arrow stream; one node at a time receives.

    >>> http_push("orders", token="drawn-by-chance-once")
    <PushSpec POST http://127.0.0.1:*/orders>

    Args:
        path: in the address; the dataset's name if left out.
        token: what senders show (`Authorization: Bearer …`); else `TIDEMILL_PUSH_TOKEN` of the environment,
            else one made from the cluster's key, which `Dataset.address()` tells.
        host: an address of this machine; loopback unless `public`.
        port: any that is free if left out; `tidemill status` shows it.
        public: take requests from other machines too; put a proxy that speaks TLS before it.
        body_bytes: the largest body, packed and unpacked.
    """
    shown = token if token is not None else os.environ.get(ENVIRONMENT, "")
    if (token is not None or shown) and len(shown) < TOKEN_LETTERS:
        raise BadSource("the token is too short", hint=f"{TOKEN_LETTERS} letters at least, drawn by chance")
    if not shown.isascii() or not shown.isprintable():
        raise BadSource("the token is no plain ASCII", hint="letters and digits, drawn by chance")
    if not public and not is_loopback(host):
        raise BadSource(f"{host} is not loopback", hint="pass public=True, behind a proxy that speaks TLS")
    if not 0 <= port < 65_536:
        raise BadSource(f"port={port}", hint="0 for any that is free, up to 65535")
    if body_bytes < 1:
        raise BadSource(f"body_bytes={body_bytes}", hint="a number of bytes")
    where = path.strip("/")
    if any(letter in where for letter in "?#\0"):
        raise BadSource(f"the path {path!r:.80}", hint="as in /orders")
    return PushSpec(path=where, token=shown, host=host, port=port, public=public, body_bytes=body_bytes)
