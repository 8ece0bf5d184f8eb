"""URLs of object storage: read once, shown only without their secrets (STO-14).

    /data/objects, file:///data/objects     files of this machine
    memory://                               this process
    s3://bucket/prefix?region=…&endpoint=…  S3 and what speaks it
    gs://bucket/prefix                      Google Cloud Storage
    az://container/prefix?account=…         Azure Blob Storage

Credentials come from where the provider's own tools look (`AWS_*`, `GOOGLE_*`, `AZURE_*`, instance roles), or
from the URL: `s3://KEY:SECRET@bucket`, `az://ACCOUNT:KEY@container`, with / + @ : inside a secret
percent-encoded. Parsing is our own: urllib quotes what it cannot read (half a password) in its errors.
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
class Kind:
    """What the URLs of one provider may say; values are the names of obstore's settings."""

    userinfo: tuple[str, str] | None
    plain: dict[str, str]
    secret: dict[str, str]


KINDS: Final[dict[str, Kind]] = {
    "s3": Kind(
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
    "gs": Kind(
        userinfo=None,
        plain={"endpoint": "base_url", "service_account": "service_account"},
        secret={"bearer_token": "bearer_token"},
    ),
    "az": Kind(
        userinfo=("account_name", "account_key"),
        plain={"account": "account_name", "endpoint": "endpoint"},
        secret={"account_key": "account_key", "sas_key": "sas_key", "token": "token"},
    ),
}
OWN: Final = ("listing", "timeout_s")
"""Options for us, not for obstore: see `RemoteUrl`."""


@dataclass(frozen=True)
class RemoteUrl:
    """A parsed URL of a provider. Its repr, like `shown`, holds no secret.

    `listing` is `flat` when the provider is known to list by key bytes, `folders` when it may not, empty when
    nothing is known. `timeout_s` bounds one request; with its repetitions a call takes at most three times as
    long.
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
        """Whether the URL itself asks for a connection without TLS."""
        return any(value.startswith("http://") for value in self.settings.values())


def scheme(url: str) -> str:
    """The scheme of a URL in lower case; empty for a plain path."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url)
    return found[1].lower() if found else ""


def redact(url: str) -> str:
    """A URL with everything blotted out that could be a secret; never fails, whatever it is given."""
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
    kind = KINDS.get(name, Kind(None, {}, {}))
    if word in kind.plain or word in OWN:
        return f"{word}={BLOT if '@' in unquote(value) else unquote(value)}"
    return f"{word if word in kind.secret else BLOT}={BLOT}"


def is_path(url: str) -> bool:
    """Whether this is a plain path, and not a URL or the attempt at one (`s3:/bucket`)."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url) is None


def parse_remote(url: str) -> RemoteUrl:
    """Read a URL of S3, GCS or Azure; `BadUrl`, without its secrets, when it makes no sense."""
    name, shown = scheme(url), redact(url)
    kind = KINDS[name]
    rest, _, query = url[len(name) + 3 :].partition("?")
    authority, _, path = rest.partition("/")
    userinfo, _, bucket = authority.rpartition("@")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket) or "@" in path:
        raise BadUrl(
            f"no bucket in {shown}",
            hint=f"write {name}://bucket/prefix; percent-encode / + @ : inside a secret",
        )
    prefix = unquote(path).strip("/")
    wrong = prefix and fault(prefix)
    if wrong or len(prefix.encode()) > PREFIX_BYTES:
        raise BadUrl(f"not a prefix in {shown}: {wrong or f'more than {PREFIX_BYTES} bytes'}", hint=HINT)
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
            raise BadUrl(f"an option that is not known in {shown}", hint=f"{name}:// takes {allowed}")
    if userinfo:
        secrets |= _credentials(kind, userinfo, shown)
    listing, timeout_s = _own(own, shown)
    return RemoteUrl(name, bucket, prefix, shown, settings, secrets, listing, timeout_s)


def _checked(option: str, value: str, shown: str) -> str:
    if option == "endpoint":
        host = re.fullmatch(r"https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._/-]*)?", value)
        if not host:
            raise BadUrl(
                f"not an endpoint in {shown}", hint="endpoint=https://host:port, without credentials"
            )
    if option in ("virtual_hosted", "bulk_delete"):
        if value not in ("true", "false"):
            raise BadUrl(
                f"{option} is neither true nor false in {shown}", hint=f"{option}=true or {option}=false"
            )
        if option == "bulk_delete":
            return "false" if value == "true" else "true"
    return value


def _credentials(kind: Kind, userinfo: str, shown: str) -> dict[str, str]:
    if kind.userinfo is None:
        raise BadUrl(
            f"credentials before the bucket in {shown}", hint="use service_account=FILE or the environment"
        )
    name, colon, secret = userinfo.partition(":")
    if not (name and colon and secret):
        raise BadUrl(f"half a credential in {shown}", hint="write NAME:SECRET@bucket, percent-encoded")
    return dict(zip(kind.userinfo, (unquote(name), unquote(secret)), strict=True))


def _own(options: dict[str, str], shown: str) -> tuple[str, float]:
    listing = options.get("listing", "")
    if listing not in ("", "flat", "folders"):
        raise BadUrl(f"not a way to list in {shown}", hint="listing=flat or listing=folders")
    try:
        timeout_s = float(options.get("timeout_s", "30"))
    except ValueError:
        timeout_s = 0.0
    if not 0.1 <= timeout_s <= 3600:
        raise BadUrl(f"not a timeout in {shown}", hint="timeout_s is between 0.1 and 3600 seconds")
    return listing, timeout_s


def local_path(url: str) -> str:
    """The path that a file:// URL names."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or len(parts.path) < 2:
        raise BadUrl(f"not a file URL: {redact(url)}", hint="write file:///path, with three slashes")
    return unquote(parts.path)
