from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clocks import JumpingClock
from tidemill.store import Store
from tidemill.store.sqlite import SqliteStore
from tidemill.testing import StoreConformance


class TestSqliteStore(StoreConformance):
    examples = 60

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with SqliteStore(tmp_path / "store.db", clock=JumpingClock()) as store:
            yield store

    def reopen(self, store: Store) -> Store:
        assert isinstance(store, SqliteStore)
        return SqliteStore(store.path, clock=store.clock)

    def opens_elsewhere(self, store: Store) -> str:
        assert isinstance(store, SqliteStore)
        return f"from tidemill.store.sqlite import SqliteStore; store = SqliteStore({str(store.path)!r})"

    def age(self, store: Store, seconds: float) -> None:
        assert isinstance(store.clock, JumpingClock)
        store.clock.skip(seconds)
