"""Parse the URLs of object storage, and show them only without their secrets (STO-14).

    /data/objects, file:///data/objects     files on this machine
    memory://                               memory of this process
    s3://bucket/prefix?region=…&endpoint=…  S3 and compatible servers
    gs://bucket/prefix                      Google Cloud Storage
    az://container/prefix?account=…         Azure Blob Storage

Tidemill looks for credentials where the provider's own tools look (`AWS_*`, `GOOGLE_*`, `AZURE_*`, instance
roles), or takes them from the URL: `s3://KEY:SECRET@bucket`, `az://ACCOUNT:KEY@container`, with the
characters / + @ : of a secret percent-encoded. We parse the URL ourselves, because the errors of urllib quote
parts of the URL.
"""

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from tidemill.errors import BadUrl
from tidemill.objects.key import fault

HINT = "use a path, file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or memory://"
PREFIX_BYTES: Final = 123
BLOT: Final = "***"


@dataclass(frozen=True)
class UrlOptions:
    """The options that a URL of one provider can have, with the names of obstore's settings for them."""

    userinfo: tuple[str, str] | None
    plain: dict[str, str]
    secret: dict[str, str]


KINDS: Final[dict[str, UrlOptions]] = {
    "s3": UrlOptions(
        userinfo=("access_key_id", "secret_access_key"),
        plain={
            "endpoint": "endpoint",
            "region": "region",
            "virtual_hosted": "virtual_hosted_style_request",
            "bulk_delete": "disable_bulk_delete",
        },
        secret={
            "access_key_id": "access_key_id",
            "secret_access_key": "secret_access_key",
            "session_token": "session_token",
        },
    ),
    "gs": UrlOptions(
        userinfo=None,
        plain={"endpoint": "base_url", "service_account": "service_account"},
        secret={"bearer_token": "bearer_token"},
    ),
    "az": UrlOptions(
        userinfo=("account_name", "account_key"),
        plain={"account": "account_name", "endpoint": "endpoint"},
        secret={"account_key": "account_key", "sas_key": "sas_key", "token": "token"},
    ),
}
OWN: Final = ("listing", "timeout_s")
"""Options that Tidemill uses and obstore does not; see `RemoteUrl`."""


@dataclass(frozen=True)
class RemoteUrl:
    """A parsed URL of a provider. Its repr and `shown` have no secrets.

    `listing` is `flat` if the user says that the provider lists by key bytes, and `folders` if Tidemill must
    list by folders. If it is empty, a probe decides. `timeout_s` limits one request. A call, with all its
    retries, takes at most three times as long.
    """

    kind: str
    bucket: str
    prefix: str
    shown: str
    settings: dict[str, str]
    secrets: dict[str, str] = field(repr=False)
    listing: str = ""
    timeout_s: float = 30.0

    @property
    def allow_http(self) -> bool:
        """Whether the URL requests a connection without TLS."""
        return any(value.startswith("http://") for value in self.settings.values())


def scheme(url: str) -> str:
    """Return the scheme of a URL in lower case; empty for a plain path."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url)
    return match[1].lower() if match else ""


def redact(url: str) -> str:
    """Return a URL with everything redacted that could be a secret. It never fails."""
    name = scheme(url)
    if not name:
        return url if is_path(url) else BLOT
    rest, _, query = url[len(name) + 3 :].partition("?")
    authority, slash, path = rest.rpartition("@")[2].partition("/")
    if ":" in authority and not re.fullmatch(r"[^:]+:[0-9]{1,5}", authority):
        authority = BLOT
    shown = f"{name}://{BLOT + '@' if '@' in rest else ''}{authority}{slash}{path}"
    options = [_redact_option(name, option) for option in query.split("&")] if query else []
    return f"{shown}?{'&'.join(options)}" if options else shown


def _redact_option(name: str, option: str) -> str:
    word, _, value = option.partition("=")
    kind = KINDS.get(name, UrlOptions(None, {}, {}))
    if word in kind.plain or word in OWN:
        return f"{word}={BLOT if '@' in unquote(value) else unquote(value)}"
    return f"{word if word in kind.secret else BLOT}={BLOT}"


def is_path(url: str) -> bool:
    """Return whether this is a plain path, and not a URL or a misspelled URL (`s3:/bucket`)."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url) is None


def parse_remote(url: str) -> RemoteUrl:
    """Parse a URL of S3, GCS or Azure. Raise `BadUrl`, without secrets, if it is not valid."""
    name, shown = scheme(url), redact(url)
    kind = KINDS[name]
    rest, _, query = url[len(name) + 3 :].partition("?")
    authority, _, path = rest.partition("/")
    userinfo, _, bucket = authority.rpartition("@")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket) or "@" in path:
        raise BadUrl(
            f"{shown} has no valid bucket name",
            hint=f"write {name}://bucket/prefix; in a secret, percent-encode '/', '+', '@' and ':'",
        )
    prefix = unquote(path).strip("/")
    reason = prefix and fault(prefix)
    if reason or len(prefix.encode()) > PREFIX_BYTES:
        raise BadUrl(
            f"the prefix in {shown} is not valid: {reason or f'more than {PREFIX_BYTES} bytes'}", hint=HINT
        )
    settings: dict[str, str] = {}
    secrets: dict[str, str] = {}
    own: dict[str, str] = {}
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option in kind.plain:
            settings[kind.plain[option]] = _checked(option, value, shown)
        elif option in kind.secret:
            secrets[kind.secret[option]] = value
        elif option in OWN:
            own[option] = value
        else:
            allowed = ", ".join(sorted([*kind.plain, *kind.secret, *OWN]))
            raise BadUrl(f"{shown} has an unknown option", hint=f"use {allowed} with {name}://")
    if userinfo:
        secrets |= _credentials(kind, userinfo, shown)
    listing, timeout_s = _own(own, shown)
    return RemoteUrl(name, bucket, prefix, shown, settings, secrets, listing, timeout_s)


def _checked(option: str, value: str, shown: str) -> str:
    if option == "endpoint":
        host = re.fullmatch(r"https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._/-]*)?", value)
        if not host:
            raise BadUrl(
                f"the endpoint in {shown} is not valid",
                hint="write endpoint=https://host:port, without credentials",
            )
    if option in ("virtual_hosted", "bulk_delete"):
        if value not in ("true", "false"):
            raise BadUrl(
                f"the option {option}= in {shown} is neither true nor false",
                hint=f"write {option}=true or {option}=false",
            )
        if option == "bulk_delete":
            return "false" if value == "true" else "true"
    return value


def _credentials(kind: UrlOptions, userinfo: str, shown: str) -> dict[str, str]:
    if kind.userinfo is None:
        raise BadUrl(
            f"{shown} has credentials before the bucket",
            hint="use service_account=FILE, or set the credentials in environment variables",
        )
    name, colon, secret = userinfo.partition(":")
    if not (name and colon and secret):
        raise BadUrl(
            f"the credentials in {shown} are incomplete", hint="write NAME:SECRET@bucket, percent-encoded"
        )
    return dict(zip(kind.userinfo, (unquote(name), unquote(secret)), strict=True))


def _own(options: dict[str, str], shown: str) -> tuple[str, float]:
    listing = options.get("listing", "")
    if listing not in ("", "flat", "folders"):
        raise BadUrl(
            f"the option listing= in {shown} is not valid", hint="write listing=flat or listing=folders"
        )
    try:
        timeout_s = float(options.get("timeout_s", "30"))
    except ValueError:
        timeout_s = 0.0
    if not 0.1 <= timeout_s <= 3600:
        raise BadUrl(
            f"the option timeout_s= in {shown} is not valid", hint="use a value from 0.1 to 3600 seconds"
        )
    return listing, timeout_s


def local_path(url: str) -> str:
    """Return the path that a file:// URL names."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets in the place of the host
        parts = None
    if (
        parts is None
        or parts.netloc not in ("", "localhost")
        or parts.query
        or parts.fragment
        or len(parts.path) < 2
    ):
        raise BadUrl(f"not a file URL: {redact(url)}", hint="write file:///path, with three slashes")
    return unquote(parts.path)
