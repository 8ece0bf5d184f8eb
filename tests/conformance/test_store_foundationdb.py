"""FoundationDB runs the suite where there is a cluster; elsewhere it is skipped, and says so (STO-9)."""

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.clocks import JumpingClock
from tidemill.errors import MissingDriver, StoreBusy, StoreUnavailable
from tidemill.store import Store, pack
from tidemill.store.foundationdb import FoundationStore
from tidemill.testing import StoreConformance

VARIABLE = "TIDEMILL_FDB_CLUSTER_FILE"


@pytest.fixture(scope="module")
def cluster_file() -> str:
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"{VARIABLE} names no cluster file")
    try:
        FoundationStore(path, prefix=pack(("tidemill-test",)), patience_s=5.0).close()
    except (MissingDriver, StoreBusy, StoreUnavailable) as reason:
        pytest.skip(f"{VARIABLE} is {path}, but {reason.message}")
    return path


class TestFoundationStore(StoreConformance):
    @pytest.fixture
    def store(self, cluster_file: str) -> Iterator[Store]:
        self.cluster_file = cluster_file
        self.prefix = pack(("tidemill-test", uuid.uuid1()))
        with FoundationStore(cluster_file, prefix=self.prefix, clock=JumpingClock()) as store:
            yield store
        with FoundationStore(cluster_file, prefix=self.prefix) as again:
            tr = again.begin()
            tr.clear_range(self.prefix, self.prefix + b"\xff")
            tr.commit().wait()

    def reopen(self, store: Store) -> Store:
        return FoundationStore(self.cluster_file, prefix=self.prefix, clock=store.clock)

    def opens_elsewhere(self, store: Store) -> str:
        arguments = f"{self.cluster_file!r}, prefix={self.prefix!r}"
        return (
            f"from tidemill.store.foundationdb import FoundationStore; store = FoundationStore({arguments})"
        )

    def age(self, store: Store, seconds: float) -> None:
        assert isinstance(store.clock, JumpingClock)
        store.clock.skip(seconds)
