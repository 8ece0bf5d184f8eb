"""Parse the URL of a PostgreSQL store strictly, and keep its password out of messages.

libpq could parse the URL itself, but its errors quote the text that it cannot parse, and that text may be a
password that was not percent-encoded. So this module checks the shape of the URL first, and never shows a
message of libpq's parser.
"""

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tidemill.errors import BadUrl
from tidemill.store.postgres.schema import NAME
from tidemill.store.secrets import Scrubber, redact

_SHAPE = re.compile(
    r"postgres(?:ql)?://"
    r"(?:[^:@/?#]*(?::[^@/?#]*)?@)?"  # user:password@
    r"(?P<hosts>[^@/?#]*)"
    r"(?:/[^@?#/]*)?"  # /database
    r"(?:\?(?P<query>[^@#]*))?"
)
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(?::\d{1,5})?")
_PARAMETER_NAME = re.compile(r"[a-z_]{1,40}")
_HINT = "write postgresql://user:password@host:5432/database; percent-encode @ / ? # in a password (@ is %40)"

# Defaults for libpq. With them, a host that disappears is noticed within seconds.
_DEFAULTS = {
    "application_name": "tidemill",
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


class Address:
    """One PostgreSQL database and the schema in it. Its repr shows no secret."""

    __slots__ = ("parameters", "schema", "scrub", "shown")

    def __init__(self, url: str) -> None:
        """Parse the URL. It may have any parameter of libpq, and `schema=`, the schema for our tables."""
        self.scrub = Scrubber(url)
        self.shown = redact(url)
        shape = _SHAPE.fullmatch(url)
        if shape is None or not all(_HOST.fullmatch(host) for host in shape["hosts"].split(",")):
            raise self._bad("is not valid")
        query = self._query(shape["query"] or "")
        self.schema = query.pop("schema", None)
        if self.schema is not None and not NAME.fullmatch(self.schema):
            raise self._bad("has an invalid schema name")
        plain = url.partition("?")[0] + ("?" + urlencode(query, quote_via=quote) if query else "")
        self.parameters = {**_DEFAULTS, **self._parsed(plain)}

    def _query(self, query: str) -> dict[str, str]:
        names = {"schema", *(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults())}
        parts = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True)
        if not all("=" in part for part in query.split("&") if part):
            raise self._bad("has a parameter without a value")
        for name, _ in parts:
            if name not in names:
                shown = f" {name}" if _PARAMETER_NAME.fullmatch(name) else ""
                raise self._bad(f"has an unknown parameter{shown}")
        return dict(parts)

    def _parsed(self, url: str) -> dict[str, str]:
        try:
            parameters = conninfo_to_dict(url)
        except psycopg.Error:
            parameters = None  # the error may quote the secret
        if parameters is None:
            raise self._bad("is not valid")
        return {name: str(value) for name, value in parameters.items() if value is not None}

    def _bad(self, problem: str) -> BadUrl:
        return BadUrl(f"the store's URL {self.shown} {problem}", hint=_HINT)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {unquote(self.shown)}>"
