from collections.abc import Iterator
from itertools import count

import pytest

from tests.clocks import JumpingClock
from tests.servers.postgres import PostgresServer
from tidemill.store import Store
from tidemill.store.postgres import PostgresStore
from tidemill.testing import StoreConformance


@pytest.fixture(scope="module")
def addresses(postgres_server: PostgresServer) -> Iterator[Iterator[str]]:
    """Empty schemas of one database: a schema is made in a fraction of the time that a database takes."""
    postgres_server.ensure_running()
    database = postgres_server.new_database()
    yield (f"{database}?schema=s{n}" for n in count(1))
    postgres_server.ensure_running()
    postgres_server.drop_database(database)


class TestPostgresStore(StoreConformance):
    examples = 60

    @pytest.fixture
    def store(self, addresses: Iterator[str]) -> Iterator[Store]:
        self.address = next(addresses)
        with PostgresStore(self.address, clock=JumpingClock()) as store:
            yield store

    def reopen(self, store: Store) -> Store:
        return PostgresStore(self.address, clock=store.clock)

    def opens_elsewhere(self, store: Store) -> str:
        return f"from tidemill.store.postgres import PostgresStore; store = PostgresStore({self.address!r})"

    def age(self, store: Store, seconds: float) -> None:
        assert isinstance(store.clock, JumpingClock)
        store.clock.skip(seconds)
