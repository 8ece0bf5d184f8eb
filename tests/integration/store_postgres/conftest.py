"""A fresh store for each test of this folder."""

import itertools
from collections.abc import Iterator

import pytest

from tests.servers.postgres import PostgresServer
from tidemill.store.postgres import PostgresStore

_names = (f"s{n}" for n in itertools.count())


@pytest.fixture(scope="package")
def database(postgres_server: PostgresServer) -> Iterator[str]:
    postgres_server.ensure_running()
    url = postgres_server.new_database()
    yield url
    postgres_server.ensure_running()
    postgres_server.drop_database(url)


@pytest.fixture
def url(postgres_server: PostgresServer, database: str) -> str:
    """A fresh store: a schema of its own is as good as a database, and made in a tenth of the time."""
    postgres_server.ensure_running()
    return f"{database}?schema={next(_names)}"


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with PostgresStore(url) as store:
        yield store
