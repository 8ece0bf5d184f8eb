from collections.abc import Iterator

import pytest

from tests.clocks import JumpingClock
from tidemill.store import Store
from tidemill.store.memory import MemoryStore
from tidemill.testing import StoreConformance


class TestMemoryStore(StoreConformance):
    examples = 60

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with MemoryStore(clock=JumpingClock()) as store:
            yield store

    def reopen(self, store: Store) -> None:
        return None

    def age(self, store: Store, seconds: float) -> None:
        assert isinstance(store.clock, JumpingClock)
        store.clock.skip(seconds)
