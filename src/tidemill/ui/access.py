"""Decide who may read the page and who may act: hosts, the token, sessions, and forged requests.

- Without a token, the server listens on a loopback address, and no user can act.
- On a loopback address, everyone who can reach it may read; an action needs the token. A request must name a
  loopback host: otherwise a web site could read the page through a DNS name that points to 127.0.0.1.
- On any other address, reading needs the token too.

A browser gets a session: a cookie that is signed with the token, `HttpOnly` and `SameSite=Strict`. An action
in a session must come from the page itself: its `Origin` is ours, and it carries the form token of the
session, which other sites cannot read. A program sends the token as `Authorization: Bearer …`; no browser
adds that header by itself.
"""

import hashlib
import hmac
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tidemill.clock import Clock
from tidemill.errors import UsageError
from tidemill.web import is_loopback

COOKIE = "tidemill-session"
SESSION_S = 12 * 3600
LEAST_TOKEN = 16

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""The headers of every response."""


def read_token(path: str) -> str:
    """Read the token from a file that only its owner may read; raise `UsageError` if it is not safe."""
    file = Path(path)
    try:
        token = file.read_text(encoding="utf-8").strip()
        shared = file.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the token file {path} cannot be read: {error}", hint="create it with mode 0600"
        ) from None
    if shared:
        raise UsageError(f"other users can read the token file {path}", hint=f"restrict it: chmod 600 {path}")
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"the token in {path} is not valid",
            hint=f"use a random token of at least {LEAST_TOKEN} characters",
        )
    return token


@dataclass(frozen=True, kw_only=True)
class AccessPolicy:
    """Who may read and who may act.

    Args:
        host: the address that the server listens on.
        token: the token; empty if no user may act.
        clock: the source of time.
        chance: the source of random numbers; must be unpredictable.
        tls: whether the server uses TLS.
    """

    host: str
    token: str = field(repr=False)
    clock: Clock
    chance: random.Random
    tls: bool = False

    def __post_init__(self) -> None:
        if not self.token and not is_loopback(self.host):
            raise UsageError(
                f"without a token, the page is served on loopback addresses only, not on {self.host}",
                hint="pass --token-file FILE, or use --host 127.0.0.1",
            )

    @property
    def reads_need_token(self) -> bool:
        return not is_loopback(self.host)

    def accepts_host(self, header: str) -> bool:
        """Return whether the `Host` of a request is ours."""
        if self.reads_need_token:
            return True
        name = urlsplit(f"//{header}").hostname or ""
        return is_loopback(name) or name == self.host

    # --- tokens and sessions

    def is_token(self, text: str) -> bool:
        return bool(self.token) and hmac.compare_digest(text.encode(), self.token.encode())

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Return whether a program sent the token."""
        scheme, _, text = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(text.strip())

    def new_session(self) -> str:
        """Return the value of a new session's cookie."""
        expires_at = int(self.clock.wall()) + SESSION_S
        text = f"{expires_at}.{self.chance.getrandbits(128):032x}"
        return f"{text}.{self._sign('session', text)}"

    def has_session(self, cookie: str) -> bool:
        """Return whether a cookie is a session that has not expired."""
        text, _, signature = cookie.rpartition(".")
        expires_at = text.partition(".")[0]
        if not self.token or not hmac.compare_digest(
            signature.encode(), self._sign("session", text).encode()
        ):
            return False
        return int(expires_at) > self.clock.wall()

    def form_token(self, cookie: str) -> str:
        """Return the form token of a session."""
        return self._sign("form", cookie) if cookie else ""

    def is_form_token(self, cookie: str, text: str) -> bool:
        return bool(cookie) and hmac.compare_digest(text.encode(), self.form_token(cookie).encode())

    def is_same_origin(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request comes from a page of this server."""
        scheme = "https" if self.tls else "http"
        return headers.get("origin", "") == f"{scheme}://{headers.get('host', '')}"

    def _sign(self, purpose: str, text: str) -> str:
        key = hashlib.sha256(b"tidemill page " + self.token.encode()).digest()
        return hmac.new(key, f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()
