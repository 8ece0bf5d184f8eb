import itertools
from collections.abc import Iterator

import pytest

from tests.clocks import JumpingClock
from tests.servers.postgres import PostgresServer
from tidemill.store import Store
from tidemill.store.postgres import PostgresStore
from tidemill.testing import StoreConformance

_schemas = itertools.count()


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[str]:
    postgres_server.ensure_running()
    url = postgres_server.new_database()
    yield url
    postgres_server.ensure_running()
    postgres_server.drop_database(url)


class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def store(self, database: str) -> Iterator[Store]:
        # a schema of its own is as fresh as a database and made in a tenth of the time
        self.opened_as = f"{database}?schema=s{next(_schemas)}"
        with PostgresStore(self.opened_as, clock=JumpingClock()) as store:
            yield store

    def reopen(self, store: Store) -> Store:
        return PostgresStore(self.opened_as, clock=JumpingClock())

    def age(self, store: Store, seconds: float) -> None:
        assert isinstance(store.clock, JumpingClock)
        store.clock.skip(seconds)
