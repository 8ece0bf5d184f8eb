"""Keep the secrets of URLs out of messages: redact URLs, and clean the messages of drivers (STO-14).

A URL may have a password in its user part or in a parameter. Two measures keep it out of errors and logs:

- `redact` removes secrets from every URL that is shown. The URL need not be valid: `redact` takes everything
  between `//` and the last `@` as the user part. A parser would split the URL in the wrong place if a
  password such as `p@ss/word` was not percent-encoded.
- A driver's message may quote the password, perhaps encoded or escaped. `Scrubber` removes all these forms. A
  driver's exception is never chained: only its cleaned text and its SQLSTATE are kept.
"""

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"

_SECRET_NAME = re.compile(r"pass|pwd|secret|token|credential|signature|(?:^|[_-])key$", re.IGNORECASE)
_PARAMETER = re.compile(r"(?P<name>[\w.-]+)(?P<equals>\s*=\s*)(?P<value>'[^']*'|[^&\s#]*)")
_HEADLESS = re.compile(r"(?P<name>[^/:@]+):(?P<secret>.*)@(?P<host>[^@]*)$", re.DOTALL)
_AUTHORITY_END = re.compile(r"[/?#]")


_IN_TEXT = re.compile(r"[A-Za-z][\w+.-]{0,31}://[^\s'\"<>]+")  # bounded: a long word must not take long


def redact(url: str) -> str:
    """Return the URL without its password and secret parameters.

    >>> redact("postgresql://ann:tide%40mill@db.example/shop?sslpassword=x&sslmode=require")
    'postgresql://ann:***@db.example/shop?sslpassword=***&sslmode=require'
    """
    scheme, separator, rest = url.partition("://")
    if not separator:  # a path, or a URL without a scheme
        headless = _HEADLESS.match(url)
        return _without_parameters(f"{headless['name']}:{HIDDEN}@{headless['host']}" if headless else url)
    before, at, host = rest.rpartition("@")
    if at:
        user, colon, _ = before.partition(":")
        return _without_parameters(f"{scheme}://{user}{colon and ':' + HIDDEN}@{host}")
    end = _AUTHORITY_END.search(rest)
    authority, tail = (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
    return _without_parameters(f"{scheme}://{_without_odd_port(authority)}{tail}")


def names_secret(name: str) -> bool:
    """Return whether something with this name is probably a secret.

    >>> names_secret("DB_PASSWORD"), names_secret("HOME")
    (True, False)
    """
    return _SECRET_NAME.search(name) is not None


def _without_odd_port(authority: str) -> str:
    """Hide the port if it is not a number: `user:password` without a host looks like host and port."""
    name, colon, port = authority.rpartition(":")
    odd = colon and not port.isdigit() and not authority.endswith("]")
    return f"{name}:{HIDDEN}" if odd and port else authority


def _without_parameters(text: str) -> str:
    return _PARAMETER.sub(
        lambda m: f"{m['name']}{m['equals']}{HIDDEN}" if _SECRET_NAME.search(m["name"]) else m[0], text
    )


def _secrets_of(url: str) -> set[str]:
    """Return every part of the URL that may be a secret, as written there."""
    secrets = {m["value"].strip("'") for m in _PARAMETER.finditer(url) if _SECRET_NAME.search(m["name"])}
    _, _, rest = url.partition("://")
    before, at, _ = rest.rpartition("@")
    if at:
        _, _, password = before.partition(":")
        secrets |= {password, password.partition("@")[0]}
    elif (headless := _HEADLESS.match(url)) is not None:
        secrets.add(headless["secret"])
    return secrets


def _forms(secret: str) -> set[str]:
    """Return the forms in which a driver or Python may write a secret."""
    plain = {secret, unquote(secret), unquote_plus(secret)}
    forms = set(plain)
    for each in plain:
        forms |= {quote(each), quote(each, safe=""), quote_plus(each)}
        forms |= {repr(each)[1:-1], each.replace("\\", "\\\\").replace("'", "\\'")}
    return forms


class Scrubber:
    """Removes secrets from any text. Its repr shows none of them.

    Args:
        urls: URLs with secrets.
        secrets: other secrets.
    """

    __slots__ = ("_pattern",)

    def __init__(self, *urls: str, secrets: Iterable[str] = ()) -> None:
        known = {secret for url in urls for secret in _secrets_of(url)} | set(secrets)
        forms = {form for secret in known for form in _forms(secret) if form}
        longest_first = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        cleaned = text if self._pattern is None else self._pattern.sub(HIDDEN, text)
        return _without_parameters(cleaned)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def redact_text(text: str) -> str:
    """Return a text without the passwords and tokens of the URLs in it.

    >>> redact_text("cannot connect to postgresql://ann:s3cret@db/shop")
    'cannot connect to postgresql://ann:***@db/shop'
    """
    return _IN_TEXT.sub(lambda match: redact(match[0]), text)
