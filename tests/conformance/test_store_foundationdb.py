"""The conformance suite against a FoundationDB cluster where one answers; elsewhere one skip says why not."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clocks import JumpingClock
from tidemill.errors import MissingDriver, StoreError
from tidemill.store import Store, pack
from tidemill.store.foundationdb import FoundationStore, load_binding
from tidemill.testing import StoreConformance

CLUSTER_FILE = Path(os.environ.get("FDB_CLUSTER_FILE", "/etc/foundationdb/fdb.cluster"))


def _obstacle() -> str | None:
    try:
        load_binding()
    except MissingDriver as missing:
        return missing.message
    if not CLUSTER_FILE.exists():
        return f"no FoundationDB cluster file at {CLUSTER_FILE} (FDB_CLUSTER_FILE names another)"
    try:
        FoundationStore(str(CLUSTER_FILE), prefix=pack(("tidemill tests",)), patience_s=3).close()
    except StoreError as absent:
        return f"the FoundationDB cluster of {CLUSTER_FILE} does not answer: {absent.message}"
    return None


if (obstacle := _obstacle()) is not None:
    pytest.skip(obstacle, allow_module_level=True)


class TestFoundationStore(StoreConformance):
    has_snapshots = False

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        self.prefix = pack(("tidemill tests", uuid.uuid1()))
        with FoundationStore(str(CLUSTER_FILE), prefix=self.prefix, clock=JumpingClock()) as store:
            yield store
            tr = store.begin()
            tr.clear_range_startswith(self.prefix)
            tr.commit().wait()

    def reopen(self, store: Store) -> Store:
        return FoundationStore(str(CLUSTER_FILE), prefix=self.prefix, clock=JumpingClock())

    def opens_elsewhere(self, store: Store) -> str:
        opening = f"FoundationStore({str(CLUSTER_FILE)!r}, prefix={self.prefix!r})"
        return f"from tidemill.store.foundationdb import FoundationStore; store = {opening}"

    def age(self, store: Store, seconds: float) -> None:
        assert isinstance(store.clock, JumpingClock)
        store.clock.skip(seconds)
