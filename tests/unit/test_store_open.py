"""URLs of stores, and the secrets in them."""

import builtins
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.clock import SystemClock
from tidemill.errors import BadUrl, MissingDriver, TidemillError
from tidemill.store import open_store
from tidemill.store.memory import MemoryStore
from tidemill.store.postgres.address import Address
from tidemill.store.secrets import HIDDEN, Scrubber, redact

SECRET = "tide-s3cret"


class TestOpenStore:
    def test_memory(self) -> None:
        clock, chance = SystemClock(), random.Random(7)
        with open_store("memory://", clock=clock, chance=chance) as store:
            assert isinstance(store, MemoryStore)
            assert store.clock is clock
            assert store.chance is chance

    def test_a_path_and_the_url_of_a_path_are_one_file(self, tmp_path: Path) -> None:
        path = tmp_path / "my store.db"
        with open_store(str(path)) as store:
            store.run(lambda tx: tx.set(b"k", b"1"))
        with open_store(f"sqlite://{quote(str(path))}") as store:
            assert store.run(lambda tx: tx.get(b"k")) == b"1"

    def test_a_relative_path_may_have_a_colon(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        open_store("a:b.db").close()
        assert (tmp_path / "a:b.db").exists()

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "/",
            "memory://somewhere",
            "memory:",
            "sqlite:/a.db",
            "sqlite://relative.db",
            "sqlite:///a.db?mode=ro",
            "sqlite:///",
            "mysql://localhost/x",
            "http://localhost",
            "postgresql:/localhost",
            "postgresql:db",
            "postgresql://localhost:port/db",
            "postgresql://localhost:123456/db",
            "postgresql://localhost/db?nonsense=1",
            "postgresql://localhost/db?sslmode",
            "postgresql://localhost/db?schema=",
            "postgresql://localhost/db?schema=a'b",
            "postgresql://localhost/db#part",
            "postgresql://localhost/db%zz",
            "foundationdb://relative/fdb.cluster",
            "foundationdb:///etc/fdb.cluster?database=x",
            "foundationdb:///etc/fdb.cluster#x",
        ],
    )
    def test_a_url_that_cannot_be_understood_is_refused_with_a_hint(self, url: str) -> None:
        with pytest.raises(BadUrl) as raised:
            open_store(url)
        assert raised.value.hint

    @pytest.mark.rule("STO-14")
    @pytest.mark.parametrize(
        "url",
        [
            f"postgresql://ann:{SECRET}@host:port/db",
            f"postgresql://ann:{SECRET}",
            f"postgresql://ann:{SECRET}/db",
            f"postgresql://ann:x@{SECRET}@host/db",
            f"postgresql://ann:x/{SECRET}@host/db",
            f"postgresql://ann:x?{SECRET}@host/db",
            f"postgresql://ann:x#{SECRET}@host/db",
            f"postgresql://ann:%zz{SECRET}@host/db",
            f"postgresql://host/db?nonsense=1&password={SECRET}",
            f"postgresql://host/db?sslpassword={SECRET}&x",
            f"postgres:ann:{SECRET}@host/db",
            f"mysql://ann:{SECRET}@host/db",
            f"ann:{SECRET}@host/db",
            f"host=db user=ann password={SECRET}",
            f"host=db user=ann password='{SECRET} x'",
            f"redis://host/0?token={SECRET}",
            f"foundationdb:///etc/fdb.cluster?token={SECRET}",
        ],
    )
    def test_a_url_that_is_refused_is_not_quoted_with_its_secret(self, url: str, tmp_path: Path) -> None:
        with pytest.raises(BadUrl) as raised:
            open_store(url)
        assert_clean(raised.value)
        assert raised.value.hint

    @pytest.mark.parametrize(
        ("scheme", "package"), [("postgresql", "postgres"), ("foundationdb", "foundationdb")]
    )
    def test_a_missing_driver_is_an_error_with_the_command_that_installs_it(
        self, scheme: str, package: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [
            name for name in sys.modules if name.startswith(("tidemill.store.postgres", "psycopg", "fdb"))
        ]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(builtins, "__import__", _without("psycopg", "fdb", real=builtins.__import__))
        with pytest.raises(MissingDriver) as raised:
            open_store(
                f"{scheme}://ann:{SECRET}@localhost/db" if scheme == "postgresql" else f"{scheme}:///x"
            )
        assert f"pip install 'tidemill[{package}]'" in raised.value.hint
        assert_clean(raised.value)


def _without(*names: str, real: Callable[..., object]) -> Callable[..., object]:
    def importer(name: str, *rest: object, **options: object) -> object:
        if name.partition(".")[0] in names:
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **options)

    return importer


def assert_clean(error: TidemillError) -> None:
    chain: list[BaseException | None] = [error, error.__cause__, error.__context__]
    for each in chain:
        if each is not None:
            shown = [str(each), repr(each), *traceback.format_exception_only(each)]
            assert SECRET not in "\n".join(shown)
    assert SECRET not in error.hint


class TestAddress:
    def test_parameters_of_libpq_pass_through(self) -> None:
        address = Address(
            "postgres://ann:p%40ss%20word@one:5433,two:5434/shop?sslmode=verify-full&sslrootcert=/etc/ca.pem"
            "&target_session_attrs=read-write&schema=mill&connect_timeout=9&options=-c%20jit%3Don"
        )
        parameters = address.parameters
        assert address.schema == "mill"
        assert "schema" not in parameters
        assert (parameters["host"], parameters["port"], parameters["dbname"]) == (
            "one,two",
            "5433,5434",
            "shop",
        )
        assert (parameters["user"], parameters["password"]) == ("ann", "p@ss word")
        assert (parameters["sslmode"], parameters["sslrootcert"]) == ("verify-full", "/etc/ca.pem")
        assert (parameters["target_session_attrs"], parameters["options"]) == ("read-write", "-c jit=on")
        assert (parameters["connect_timeout"], parameters["application_name"]) == ("9", "tidemill")

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql:///shop?host=/run/postgresql",
            "postgresql://",
            "postgresql://[::1]:5432/shop",
            "postgresql://ann@/shop",
            "postgresql://localhost",
        ],
    )
    def test_other_forms_of_libpq_are_understood(self, url: str) -> None:
        assert Address(url).parameters["application_name"] == "tidemill"

    def test_a_plus_is_a_plus(self) -> None:
        assert Address("postgresql://a:b+c@h/d?application_name=x+y").parameters["password"] == "b+c"
        assert Address("postgresql://a@h/d?application_name=x+y").parameters["application_name"] == "x+y"

    @pytest.mark.rule("STO-14")
    def test_its_text_form_has_no_secret(self) -> None:
        address = Address(f"postgresql://ann:{SECRET}@host/db?sslpassword={SECRET}")
        assert SECRET not in f"{address!r} {address.shown} {address.scrub!r}"
        assert address.shown == f"postgresql://ann:{HIDDEN}@host/db?sslpassword={HIDDEN}"


class TestSecrets:
    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("postgresql://ann:x@host/db", "postgresql://ann:***@host/db"),
            ("postgresql://ann@host/db", "postgresql://ann@host/db"),
            ("postgresql://host:5432/db?sslmode=require", "postgresql://host:5432/db?sslmode=require"),
            ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db"),
            (
                "postgresql://host/db?password=a&sslkey=/etc/key",
                "postgresql://host/db?password=***&sslkey=/etc/key",
            ),
            ("s3://bucket/x?secret_access_key=a&region=b", "s3://bucket/x?secret_access_key=***&region=b"),
            ("sqlite:///home/ann/mill.db", "sqlite:///home/ann/mill.db"),
            ("/home/ann/mill.db", "/home/ann/mill.db"),
            ("memory://", "memory://"),
        ],
    )
    def test_a_url_is_shown_without_its_secret_and_otherwise_whole(self, url: str, shown: str) -> None:
        assert redact(url) == shown
        assert redact(shown) == shown

    @pytest.mark.rule("STO-14")
    @given(
        secret=st.text(min_size=4, max_size=30).filter(
            lambda text: text.strip() == text and HIDDEN not in text
        )
    )
    def test_no_form_of_a_secret_survives(self, secret: str) -> None:
        encoded = quote(secret, safe="")
        for form in ("postgresql://ann:{}@host/db", "postgresql://ann@host/db?password={}"):
            url = form.format(encoded)
            assert redact(url) == form.format(HIDDEN)
            scrub = Scrubber(url)
            for text in (encoded, secret, quote(secret), quote_plus(secret), repr(secret)[1:-1]):
                assert f"<{text}>" not in scrub(f"connection failed for <{text}>: try again")

    @pytest.mark.rule("STO-14")
    def test_a_text_of_others_loses_parameters_that_are_called_secrets(self) -> None:
        scrub = Scrubber("postgresql://host/db")
        assert (
            scrub("bad option: password=abc host=x token='d e'")
            == "bad option: password=*** host=x token=***"
        )
        assert scrub("nothing to hide") == "nothing to hide"
