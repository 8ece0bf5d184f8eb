"""All statements that a PostgreSQL store sends (`schema` defines the tables).

Statements for several rows get the rows as arrays sorted by key (unnested in the SELECT list, which is an
eighth faster than in FROM). They are planned as index lookups in that order (SETTINGS), so two transactions
lock rows in the same order and rarely deadlock. Index scans also keep the predicate locks of SERIALIZABLE
small: a sequential scan would lock the whole table, and conflict with every write to it.

`Sql.text` replaces `@` in a statement with the schema and the prefix of our names: `@kv` becomes
`"schema".tidemill_kv`. It also replaces the words NOW_US and CLOCK_LOCK.
"""

import hashlib

from tidemill.store.port import Mode
from tidemill.store.postgres.connection import BoundStatement, Statement

# Timeouts are short, so that no client waits long for another client that stopped in the middle of a
# transaction (which lasts at most 2 s). A timeout for a row lock counts as a conflict and is retried. Plans
# do not depend on statistics.
SETTINGS = {
    "lock_timeout": "1500ms",
    "statement_timeout": "5s",
    "idle_in_transaction_session_timeout": "3s",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}


def lock_id(*words: str | bytes) -> int:
    """Return the 64-bit number of the advisory lock that these words name."""
    digest = hashlib.blake2b(digest_size=8, person=b"tidemill")
    for word in words:
        raw = word.encode() if isinstance(word, str) else word
        digest.update(len(raw).to_bytes(4, "big") + raw)
    return int.from_bytes(digest.digest(), "big", signed=True)


def quoted(name: str) -> str:
    """Quote an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _settings(*, local: bool) -> str:
    """Return one SELECT that makes all settings, for the session or (`local`) for one transaction.

    It also turns on `synchronous_commit` if that is off.
    """
    scope = "true" if local else "false"
    sets = [f"set_config({_literal(name)}, {_literal(value)}, {scope})" for name, value in SETTINGS.items()]
    durable = (
        "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
        "ELSE current_setting('synchronous_commit') END"
    )
    sets.append(f"set_config('synchronous_commit', {durable}, {scope})")
    return "SELECT " + ", ".join(sets)


_NOW_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
SESSION_SETTINGS = Statement(b"", _settings(local=False).encode())
PID = Statement(b"", b"SELECT pg_backend_pid()")


class Sql:
    """The statements for the tables of one schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._at = quoted(schema) + ".tidemill_"
        statement = self._statement
        self.begin_serial = statement("begin_serial", "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE")
        self.begin_take = statement("begin_take", "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        self.commit = statement("commit", "COMMIT")
        self.rollback = statement("rollback", "ROLLBACK")
        self.settings = statement("settings", _settings(local=True))
        self.time = statement(
            "time", "SELECT NOW_US, m.last_value, o.last_value FROM @lease_mark m, @lease_offset o"
        )
        self.raise_mark = statement("raise_mark", "SELECT @raise_mark($1::bigint)")
        self.rebase = statement("rebase", "SELECT @rebase($1::bigint)")
        self.get = statement("get", "SELECT k, v FROM @kv WHERE k = ANY($1::bytea[])")
        self.get_locked = statement(
            "get_locked", "SELECT k, v FROM @kv WHERE k = ANY($1::bytea[]) ORDER BY k FOR UPDATE"
        )
        self.hold_absent = statement(
            "hold_absent",
            """INSERT INTO @kv (k, v) SELECT unnest($1::bytea[]), ''::bytea
            ON CONFLICT (k) DO NOTHING RETURNING k""",
        )
        span = "SELECT k, v FROM @kv WHERE k >= $1::bytea AND k < $2::bytea ORDER BY k"
        self.range = statement("range", f"{span} LIMIT $3::bigint")
        self.range_reverse = statement("range_reverse", f"{span} DESC LIMIT $3::bigint")
        self.set = statement(
            "set",
            """INSERT INTO @kv (k, v) SELECT unnest($1::bytea[]), unnest($2::bytea[])
            ON CONFLICT (k) DO UPDATE SET v = excluded.v""",
        )
        self.set_many = statement("set_many", "SELECT @set($1::bytea[], $2::bytea[])")
        self.add = statement(
            "add",
            """INSERT INTO @kv AS t (k, v) SELECT unnest($1::bytea[]), unnest($2::bytea[])
            ON CONFLICT (k) DO UPDATE SET v = @add(t.v, excluded.v)""",
        )
        self.clear = statement("clear", "DELETE FROM @kv WHERE k = ANY($1::bytea[])")
        self.clear_range = statement("clear_range", "DELETE FROM @kv WHERE k >= $1::bytea AND k < $2::bytea")
        self.take = statement(
            "take",
            """DELETE FROM @kv WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM @kv WHERE k >= $1::bytea AND k < $2::bytea ORDER BY k
            LIMIT $3::bigint FOR UPDATE SKIP LOCKED)) RETURNING k, v""",
        )
        self.swap = statement(
            "swap",
            """UPDATE @kv AS t SET v = u.new FROM (SELECT unnest($1::bytea[]) AS k,
            unnest($2::bytea[]) AS expected, unnest($3::bytea[]) AS new) AS u
            WHERE t.k = u.k AND t.v = u.expected RETURNING t.k""",
        )
        self.swap_in = statement(
            "swap_in",
            """INSERT INTO @kv (k, v) SELECT unnest($1::bytea[]), unnest($2::bytea[])
            ON CONFLICT (k) DO NOTHING RETURNING k""",
        )
        self.swap_out = statement("swap_out", "DELETE FROM @kv WHERE k = ANY($1::bytea[]) RETURNING k, v")
        self.keep_order = statement(
            "keep_order", "SELECT pg_advisory_xact_lock(h) FROM unnest($1::bigint[]) AS u(h)"
        )
        self.set_versioned = statement(
            "set_versioned",
            """WITH n AS MATERIALIZED (SELECT int8send(nextval('@version')) AS stamp)
            INSERT INTO @kv (k, v) SELECT u.head || n.stamp || u.tail, u.v
            FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS u(head, tail, v), n""",
        )
        self.operation = statement("operation", "INSERT INTO @op (k, v) VALUES ($1::bytea, $2::bytea)")
        self.fence = statement(
            "fence", "INSERT INTO @op (k, v) VALUES ($1::bytea, $2::bytea) ON CONFLICT (k) DO NOTHING"
        )
        self.outcome = statement("outcome", "SELECT v FROM @op WHERE k = $1::bytea")
        self.expire = statement(
            "expire",
            """DELETE FROM @op WHERE ctid = ANY(ARRAY(SELECT ctid FROM @op
            WHERE k >= $1::bytea AND k < $2::bytea ORDER BY k LIMIT 1000 FOR UPDATE SKIP LOCKED))
            RETURNING 1""",
        )
        self.notify = statement(
            "notify", "SELECT pg_notify($1::text, payload) FROM unnest($2::text[]) AS u(payload)"
        )
        self.prepared = [each for each in vars(self).values() if isinstance(each, Statement)]

    def beginning(self, mode: Mode, *, pooled: bool) -> list[BoundStatement]:
        """Return the statements that begin a transaction. With a pooler, they include the settings."""
        begin = BoundStatement(self.begin_take if mode == "take" else self.begin_serial)
        return [begin, BoundStatement(self.settings)] if pooled else [begin]

    def _statement(self, name: str, text: str) -> Statement:
        return Statement(f"tidemill_{name}".encode(), self.text(text).encode())

    def text(self, template: str) -> str:
        """Replace the placeholders in a statement: `@`, NOW_US and CLOCK_LOCK."""
        text = " ".join(template.split()).replace("NOW_US", _NOW_US)
        return text.replace("CLOCK_LOCK", str(lock_id(self.schema, "clock"))).replace("@", self._at)
