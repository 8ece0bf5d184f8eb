from collections.abc import Iterator

import psycopg
import pytest

from tests.clocks import JumpingClock
from tests.servers.postgres import PostgresServer
from tidemill.store import Store
from tidemill.store.postgres import PostgresStore
from tidemill.testing import StoreConformance


@pytest.fixture(scope="module")
def address(postgres_server: PostgresServer) -> Iterator[str]:
    """One database for all tests: each would spend most of its time on making tables."""
    postgres_server.ensure_running()
    database = postgres_server.new_database()
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    yield postgres_server.socket_url(str(name))
    postgres_server.ensure_running()
    postgres_server.drop_database(database)


class TestPostgresStore(StoreConformance):
    examples = 40

    @pytest.fixture
    def store(self, address: str) -> Iterator[Store]:
        self.address = address
        with PostgresStore(address, clock=JumpingClock()) as store:
            store.run(lambda tx: tx.clear_range(b"\x00", b"\xfe"))
            yield store

    def reopen(self, store: Store) -> Store:
        return PostgresStore(self.address, clock=store.clock)

    def opens_elsewhere(self, store: Store) -> str:
        return f"from tidemill.store.postgres import PostgresStore; store = PostgresStore({self.address!r})"

    def age(self, store: Store, seconds: float) -> None:
        assert isinstance(store.clock, JumpingClock)
        store.clock.skip(seconds)
