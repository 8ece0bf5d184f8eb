"""Open and reuse connections to PostgreSQL, and classify its errors.

The pool is a stack: it lends the connection that was returned last. Connections left over from a burst stay
idle at the bottom. A forked child gets its own pool and never touches its parent's connections, because
closing one would end a session that the parent still uses.
"""

import re
import threading

import psycopg

from tidemill.errors import StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from tidemill.store.postgres.address import Address
from tidemill.store.postgres.connection import ConnectionLost, PostgresConnection, StatementFailed
from tidemill.store.postgres.schema import settle_session
from tidemill.store.postgres.statements import Sql
from tidemill.store.retry import Conflict, Unreached

# If a connection cannot be opened, there is no SQLSTATE, only a text. These texts mean that a retry cannot
# help. After any other text, the server may come back.
_LASTING = [
    (
        r"authentication failed|no password supplied|role \".*\" does not exist",
        "check user and password: in the URL, in PGPASSWORD or in ~/.pgpass",
    ),
    (r"database \".*\" does not exist", "create the database, or correct its name in the URL"),
    (
        r"no pg_hba\.conf entry|does not support SSL|certificate verify failed|root certificate file",
        "check sslmode and the certificates in the URL, and the server's pg_hba.conf",
    ),
    (r"invalid \S+ value|invalid integer value", "check the parameters in the URL"),
    (r"permission denied for database", "grant CONNECT on that database"),
]
_UNKNOWN_HOST = r"could not translate host name|failed to resolve host|Name or service not known"

_CONFLICTS = {
    "40001",
    "40P01",
    "55P03",
    "57014",
    "23505",
}  # also lock and statement timeouts, and the row of a fenced operation (23505)
_FLEETING = {
    "25006",
    "26000",
    "42P05",
    "0A000",
}  # the server is now a standby, or the session is not the one we set up
_CORRUPT = {"42P01", "42883", "3F000", "XX001", "XX002"}


def connect(address: Address, *, opening: bool = False) -> PostgresConnection:
    """Open a connection and set up its session; raise Unreached if a retry may help, else StoreUnavailable.

    When a store is opened (`opening`), an unknown host raises StoreUnavailable at once: the name is probably
    misspelt.
    """
    link: PostgresConnection | None = None
    trouble: Exception
    try:
        connection = psycopg.connect(**address.parameters, autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]
        link = PostgresConnection(connection, address.scrub)
        settle_session(link)
        return link
    except psycopg.Error as error:
        trouble = _absence(address, address.scrub(str(error)), opening=opening)
    except (ConnectionLost, StatementFailed) as error:
        trouble = verdict(error)
    if link is not None:
        link.close()
    raise trouble  # outside of `except`, so that the driver's exception is not its context


def _absence(address: Address, text: str, *, opening: bool) -> Exception:
    message = " ".join(text.split())
    for pattern, hint in _LASTING:
        if re.search(pattern, message):
            return StoreUnavailable(f"cannot connect to {address.shown}: {message}", hint=hint)
    if opening and re.search(_UNKNOWN_HOST, message):
        return StoreUnavailable(
            f"cannot connect to {address.shown}: {message}", hint="check the host in the URL"
        )
    return Unreached(message)


def verdict(error: ConnectionLost | StatementFailed) -> Exception:
    """Return the error to raise for a failed statement. Its class says whether to retry, wait or give up.

    Do not use it if the connection broke after COMMIT was sent, because the outcome is then unknown.
    """
    message = f"{error} (SQLSTATE {error.sqlstate})" if error.sqlstate else str(error)
    code = error.sqlstate
    if isinstance(error, ConnectionLost):
        return Unreached(message)
    if code in _CONFLICTS:
        return Conflict(message)
    if code == "53100":
        return StoreFull(f"PostgreSQL has no space left: {message}")
    if code in _FLEETING or code.startswith(("08", "53", "57P")):
        return Unreached(message)
    if code == "42501":
        return StoreUnavailable(
            f"PostgreSQL denied permission: {message}",
            hint="grant the user CREATE on the schema, or name another schema in the URL: ?schema=tidemill",
        )
    if code in _CORRUPT:
        return StoreCorrupt(
            f"the tables of the store are damaged: {message}",
            hint="restore the tables from a backup of the database",
        )
    return StoreError(f"PostgreSQL refused a statement: {message}")


class Pool:
    """The connections of one process."""

    def __init__(self, address: Address, sql: Sql, *, most: int) -> None:
        self._address = address
        self._sql = sql
        self._idle: list[PostgresConnection] = []
        self._lock = threading.Lock()
        self._free = threading.Semaphore(most)
        self._closed = False

    def take(self, timeout_s: float) -> PostgresConnection:
        """Lend a connection to the calling thread, which returns it with `give`."""
        if not self._free.acquire(timeout=timeout_s):
            raise StoreBusy("all connections are in use", hint="run fewer transactions at once")
        try:
            return self._idle_link() or self.fresh()
        except BaseException:
            self._free.release()
            raise

    def give(self, link: PostgresConnection) -> None:
        """Return a connection to the pool; close it if it is not usable."""
        with self._lock:
            keep = link.usable and not self._closed
            if keep:
                self._idle.append(link)
        if not keep:
            link.close()
        self._free.release()

    def fresh(self) -> PostgresConnection:
        """Open a connection that the pool does not count."""
        link = connect(self._address)
        if not link.pooled:
            try:
                link.prepare(self._sql.prepared)
            except (ConnectionLost, StatementFailed) as error:
                trouble = verdict(error)
            else:
                return link
            link.close()
            raise trouble
        return link

    def add(self, link: PostgresConnection) -> None:
        """Add a connection that the pool did not open."""
        with self._lock:
            self._idle.append(link)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def _idle_link(self) -> PostgresConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                link = self._idle.pop()
            if link.is_open():
                return link
            link.close()
