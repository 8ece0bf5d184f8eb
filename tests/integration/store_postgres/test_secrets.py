"""Passwords are planted in URLs and looked for in everything an error can show."""

import logging
import traceback
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest

from tests.integration.store_postgres.stage import (
    base_of,
    execute,
)
from tests.servers.postgres import PostgresServer
from tidemill.errors import (
    BadUrl,
    StoreError,
    StoreUnavailable,
    TidemillError,
)
from tidemill.store import open_store
from tidemill.store.postgres import PostgresStore
from tidemill.testing.threads import STUCK_S

SECRET = "s3cr€t@/:?#& '\\pass word"


class TestSecrets:
    """A secret is planted in URLs, and looked for in everything an error can show (STO-14)."""

    @pytest.fixture
    def secret_url(self, postgres_server: PostgresServer, url: str) -> Iterator[str]:
        schema = url.partition("?schema=")[2]
        role, base = f"role_{schema}", base_of(url)
        execute(base, f"CREATE ROLE {role} LOGIN PASSWORD {psycopg.sql.quote(SECRET)}")
        execute(base, f"CREATE SCHEMA {schema} AUTHORIZATION {role}")
        execute(base, f"ALTER ROLE {role} SET search_path = {schema}")
        where = f"127.0.0.1:{postgres_server.port}/{base.rpartition('/')[2]}"
        yield f"postgresql://{role}:{quote(SECRET, safe='')}@{where}"
        execute(base, f"DROP OWNED BY {role}; DROP ROLE {role}")

    @staticmethod
    def shown(error: BaseException | None) -> Iterator[str]:
        """Everything an error, and whatever hangs on it, can show."""
        visited: set[int] = set()
        todo = [error]
        while todo:
            each = todo.pop()
            if each is None or id(each) in visited:
                continue
            visited.add(id(each))
            yield from (str(each), repr(each), repr(each.args), repr(vars(each)))
            yield "".join(traceback.format_exception(each))
            todo += [each.__cause__, each.__context__]

    def clean(self, texts: Iterator[str] | list[str]) -> None:
        forms = {
            SECRET,
            quote(SECRET, safe=""),
            quote(SECRET),
            SECRET.partition("@")[0],
            "pass word",
            "pass%20word",
        }
        for text in texts:
            assert not [form for form in forms if form in text], text

    @pytest.mark.rule("STO-14")
    def test_no_error_of_a_working_store_shows_the_password(
        self, postgres_server: PostgresServer, secret_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        errors: list[TidemillError] = []
        with PostgresStore(secret_url) as store:
            self.clean([store.url, repr(store), repr(store.address), str(store.address.scrub)])
            store.run(lambda tx: tx.set(b"k", b""))
            execute(secret_url, "ALTER TABLE tidemill_kv RENAME TO gone")
            with pytest.raises(StoreError) as damaged:
                store.run(lambda tx: tx.set(b"k", b""))
            execute(secret_url, "ALTER TABLE gone RENAME TO tidemill_kv")
            errors.append(damaged.value)
            postgres_server.kill()
            store.patience_s = 0.1
            with pytest.raises(StoreUnavailable) as absent:
                store.run(lambda tx: tx.set(b"k", b""))
            errors.append(absent.value)
            with pytest.raises(StoreUnavailable) as unopened:
                PostgresStore(secret_url, patience_s=0.1)
            errors.append(unopened.value)
            postgres_server.start()
            store.patience_s = STUCK_S
            store.run(lambda tx: tx.set(b"k", b""))
        for error in errors:
            assert error.hint
            self.clean(self.shown(error))
        self.clean([caplog.text])

    @pytest.mark.rule("STO-14")
    @pytest.mark.parametrize("wrong", ["password", "host", "database", "user", "schema"])
    def test_errors_do_not_show_the_password(
        self, secret_url: str, wrong: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        password = quote(SECRET, safe="")
        urls = {
            "password": secret_url.replace(password, password + "x"),
            "host": secret_url.replace("@127.0.0.1", "@no-such-host.invalid"),
            "database": secret_url.rpartition("/")[0] + "/nothing",
            "user": secret_url.replace("role_", "nobody_"),
            "schema": secret_url + "?schema=pg_catalog",
        }
        with pytest.raises(StoreUnavailable) as raised:
            open_store(urls[wrong])
        assert raised.value.hint != StoreUnavailable.hint, "the hint says what to do about just this"
        self.clean(self.shown(raised.value))
        self.clean([caplog.text])

    @pytest.mark.rule("STO-14")
    def test_a_password_in_a_parameter_is_a_secret_too(self, secret_url: str) -> None:
        bare = secret_url.replace(":" + quote(SECRET, safe="") + "@", "@")
        good = f"{bare}?password={quote(SECRET, safe='')}"
        with PostgresStore(good) as store:
            self.clean([store.url, repr(store)])
            store.run(lambda tx: tx.set(b"k", b""))
        with pytest.raises(StoreUnavailable) as raised:
            PostgresStore(f"{good}&dbname=nothing")
        self.clean(self.shown(raised.value))

    @pytest.mark.rule("STO-14")
    def test_a_password_that_is_not_encoded_is_refused_and_not_shown(self, secret_url: str) -> None:
        raw = secret_url.replace(quote(SECRET, safe=""), SECRET)
        with pytest.raises(BadUrl) as raised:
            open_store(raw)
        self.clean(self.shown(raised.value))
