"""Open a store by its URL. Only this module knows which backend belongs to which scheme."""

import random
import re
from urllib.parse import parse_qsl, unquote

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import BadUrl, MissingDriver
from tidemill.paths import expanded
from tidemill.store.memory import MemoryStore
from tidemill.store.port import Store
from tidemill.store.secrets import redact

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>//)?(?P<rest>.*)", re.DOTALL)
_KNOWN = ("memory", "sqlite", "postgresql", "postgres", "foundationdb")


def open_store(url: str, *, clock: Clock = SYSTEM, chance: random.Random | None = None) -> Store:
    """Open the store at a URL. A backend is imported only when a URL needs it.

    Args:
        url: `memory://`, `sqlite:///abs/path` or a plain path, `postgresql://user@host/db`,
            `foundationdb:///etc/foundationdb/fdb.cluster`.
        clock: the source of time.
        chance: the source of random numbers.

    >>> open_store("memory://")
    <MemoryStore memory://>
    """
    parts = _SCHEME.fullmatch(url)
    scheme = parts["scheme"].lower() if parts else ""
    if parts is None or (not parts["slashes"] and scheme not in _KNOWN):
        if redact(url) != url:  # it has a secret: not a file name, but a DSN or a URL without a scheme
            raise BadUrl(f"the store's URL {redact(url)} is not valid")
        return _sqlite(url, url, clock, chance)
    if not parts["slashes"] or scheme not in _KNOWN:
        raise BadUrl(f"the store's URL {redact(url)} is not valid")
    if scheme == "memory":
        if parts["rest"]:
            raise BadUrl(f"the store's URL {redact(url)} has a path", hint="write memory:// without a path")
        return MemoryStore(clock=clock, chance=chance)
    if scheme == "sqlite":
        return _sqlite(url, _absolute_path(url, parts["rest"]), clock, chance)
    if scheme == "foundationdb":
        return _foundationdb(url, parts["rest"], clock, chance)
    return _postgres(url, clock, chance)


def _absolute_path(url: str, rest: str) -> str:
    if not rest.startswith("/") or "?" in rest or "#" in rest:
        raise BadUrl(
            f"the store's URL {redact(url)} has no absolute path",
            hint="write sqlite:///home/me/tidemill.db with three slashes, or just the path",
        )
    return unquote(rest)


def _sqlite(url: str, path: str, clock: Clock, chance: random.Random | None) -> Store:
    if not path.strip("/"):
        raise BadUrl(f"the store's URL {redact(url)!r} has no file name")
    from tidemill.store.sqlite import SqliteStore

    return SqliteStore(expanded(path), clock=clock, chance=chance)


def _postgres(url: str, clock: Clock, chance: random.Random | None) -> Store:
    try:
        from tidemill.store.postgres import PostgresStore
    except ImportError as error:
        missing = f"PostgreSQL needs a driver that cannot be imported: {error}"
    else:
        return PostgresStore(url, clock=clock, chance=chance)
    raise MissingDriver(missing, hint="run pip install 'tidemill[postgres]'")


def _foundationdb(url: str, rest: str, clock: Clock, chance: random.Random | None) -> Store:
    path, _, query = rest.partition("?")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    if (path and not path.startswith("/")) or "#" in rest or parameters.keys() - {"prefix"}:
        raise BadUrl(
            f"the store's URL {redact(url)} is not valid",
            hint="write foundationdb:///etc/foundationdb/fdb.cluster?prefix=tidemill",
        )
    from tidemill.store.foundationdb import FoundationStore
    from tidemill.store.keys import pack

    prefix = pack((parameters["prefix"],)) if parameters.get("prefix") else None
    return FoundationStore(unquote(path) or None, prefix=prefix, clock=clock, chance=chance)
