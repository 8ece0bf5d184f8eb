"""Create the tables of a PostgreSQL store, and refuse tables of another format (STO-10).

tidemill_kv      the rows: k bytea primary key, v bytea
tidemill_op      operation ids (STO-5). They have their own table. If they were in tidemill_kv, each commit
                 would change an index page that serialisable readers have read, and conflict with them
tidemill_meta    the format number
tidemill_version, tidemill_lease_mark, tidemill_lease_offset
                 sequences: the order of `set_versioned`, and lease time (see `lease_clock`)
tidemill_set, tidemill_add, tidemill_raise_mark, tidemill_rebase
                 small functions for operations that must run on the server in one step
"""

import re

from tidemill.errors import StoreCorrupt, StoreFormat, StoreUnavailable
from tidemill.store.postgres.connection import BoundStatement, PostgresConnection, Statement, number
from tidemill.store.postgres.statements import PID, SESSION_SETTINGS, Sql, lock_id, quoted

FORMAT = 1
OLDEST_SERVER = 130000
NAME = re.compile(r"[^\x00\"'$\\@]{1,63}")  # a name that needs no escaping in our statements

_VACUUM = (
    "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500, "
    "autovacuum_analyze_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.01"
)
_FIND = "SELECT to_regclass('@meta')::text"
_READ = "SELECT value FROM @meta WHERE name = 'format'"


def open_tables(link: PostgresConnection, schema: str | None) -> Sql:
    """Create the tables if they do not exist; return the statements for them.

    The tables are in `schema`, or in the connection's current schema if `schema` is None.
    """
    name = schema or _value(link, "SELECT current_schema()::text")
    if name is None or not NAME.fullmatch(name):
        raise StoreUnavailable(
            "there is no schema for the tables", hint="set one in the URL: ?schema=tidemill"
        )
    sql = Sql(name)
    stored = _format(link, sql)
    if stored is None:
        _create(link, sql)
        stored = _format(link, sql)
    if stored is None or not stored.isdigit():
        raise StoreCorrupt(f"the table {sql.text('@meta')} has no format number")
    if int(stored) > FORMAT:
        raise StoreFormat(f"the store has format {stored}, but this release supports {FORMAT}")
    if int(stored) < FORMAT:
        raise StoreFormat(
            f"the store has format {stored}, but this release supports {FORMAT}",
            hint="open the store with the release that wrote it",
        )
    return sql


def settle_session(link: PostgresConnection) -> None:
    """Find out whether a connection pooler is between us and the server; if not, set up the session."""
    if link.server_version < OLDEST_SERVER:
        version = link.server_version // 10000
        raise StoreUnavailable(f"PostgreSQL {version} is too old", hint="use PostgreSQL 13 or newer")
    (result,) = link.exchange([BoundStatement(PID)])
    link.pooled = number(result.get_value(0, 0)) != link.backend_pid
    if not link.pooled:
        link.exchange([BoundStatement(SESSION_SETTINGS)])


def plain(text: str) -> BoundStatement:
    """Return a statement that is sent once, as text."""
    return BoundStatement(Statement(b"", text.encode()))


def _value(link: PostgresConnection, text: str) -> str | None:
    """Return the single text value of a query."""
    (result,) = link.exchange([plain(text)])
    raw = result.get_value(0, 0) if result.ntuples else None
    return None if raw is None else raw.decode()


def _format(link: PostgresConnection, sql: Sql) -> str | None:
    if _value(link, sql.text(_FIND)) is None:
        return None
    return _value(link, sql.text(_READ))


def _create(link: PostgresConnection, sql: Sql) -> None:
    """Create the tables in one transaction. If several processes try, one creates them for all."""
    opening = ["BEGIN", f"SELECT pg_advisory_xact_lock({lock_id(sql.schema, 'create')})"]
    if _value(link, f"SELECT to_regnamespace('{quoted(sql.schema)}')::text") is None:
        opening.append(f"CREATE SCHEMA IF NOT EXISTS {quoted(sql.schema)}")
    creation = [sql.text(each.replace("FORMAT_NUMBER", str(FORMAT))) for each in _CREATION]
    link.exchange([plain(text) for text in (*opening, *creation, "COMMIT")])


def _half(value: str, at: int) -> str:
    """Return SQL that reads four bytes of a counter (little-endian) as a bigint."""
    return " + ".join(f"(get_byte({value}, {at + n})::bigint << {8 * n})" for n in range(4))


def _addition() -> str:
    """Return SQL for the sum of two counters modulo 2^64, in halves that cannot overflow."""
    zeros = "'\\x0000000000000000'::bytea"
    result = zeros
    for n in range(8):
        half, shift = ("lo", 8 * n) if n < 4 else ("hi", 8 * (n - 4))
        result = f"set_byte({result}, {n}, (({half} >> {shift}) & 255)::int)"
    padded = f"SELECT substring($1 || {zeros} FOR 8) AS a, substring($2 || {zeros} FOR 8) AS b"
    summed = f"{_half('a', 0)} + {_half('b', 0)} AS lo, {_half('a', 4)} + {_half('b', 4)} AS hi"
    carried = " ".join(["SELECT lo, hi + (lo >> 32) AS hi FROM (SELECT", summed, "FROM (", padded, ") p) s"])
    return " ".join(["SELECT", result, "FROM (", carried, ") c"])


_CREATION = [
    f"""CREATE TABLE IF NOT EXISTS @kv (k bytea PRIMARY KEY, v bytea NOT NULL)
    WITH (fillfactor = 70, {_VACUUM})""",
    f"CREATE TABLE IF NOT EXISTS @op (k bytea PRIMARY KEY, v bytea NOT NULL) WITH ({_VACUUM})",
    "CREATE TABLE IF NOT EXISTS @meta (name text PRIMARY KEY, value text NOT NULL)",
    "CREATE SEQUENCE IF NOT EXISTS @version CACHE 1",
    "CREATE SEQUENCE IF NOT EXISTS @lease_mark MINVALUE 0 START 0 CACHE 1",
    "CREATE SEQUENCE IF NOT EXISTS @lease_offset MINVALUE 0 START 0 CACHE 1",
    f"""CREATE OR REPLACE FUNCTION @add(bytea, bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ {_addition()} $$""",
    # Rows written in large numbers are mostly new, and a plain INSERT is a fifth faster than one that handles
    # conflicts. If a row existed, the subtransaction undoes the first INSERT, and the second one runs.
    """CREATE OR REPLACE FUNCTION @set(keys bytea[], vals bytea[]) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
    INSERT INTO @kv (k, v) SELECT unnest(keys), unnest(vals);
    EXCEPTION WHEN unique_violation THEN
    INSERT INTO @kv (k, v) SELECT unnest(keys), unnest(vals) ON CONFLICT (k) DO UPDATE SET v = excluded.v;
    END $$""",
    """CREATE OR REPLACE FUNCTION @raise_mark(reached bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_lock(CLOCK_LOCK);
    SELECT setval('@lease_mark', reached) FROM @lease_mark WHERE last_value < reached;
    SELECT pg_advisory_unlock(CLOCK_LOCK) $$""",
    """CREATE OR REPLACE FUNCTION @rebase(reached bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_lock(CLOCK_LOCK);
    SELECT setval('@lease_mark', reached) FROM @lease_mark WHERE last_value < reached;
    SELECT setval('@lease_offset', m.last_value - NOW_US) FROM @lease_mark m, @lease_offset o
    WHERE NOW_US + o.last_value < m.last_value;
    SELECT pg_advisory_unlock(CLOCK_LOCK) $$""",
    "INSERT INTO @meta VALUES ('format', 'FORMAT_NUMBER') ON CONFLICT (name) DO NOTHING",
]
