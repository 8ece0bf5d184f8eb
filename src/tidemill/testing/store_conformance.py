"""Conformance tests for a store, for authors of backends.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path):
            with MyStore(tmp_path / "my.db") as store:
                yield store

        def reopen(self, store):
            return MyStore(store.path)

`store` is an empty store, a new one for each test. `reopen` returns a second handle on the same data, or None
if that is not possible. If several processes can share the store, override `opens_elsewhere`: it returns
Python source that opens the same data in another process. If the store's clock can jump, override `age`.
`examples` is the number of random programs that are compared with the model. The `rule` marks name the rules
of docs/rules/store.md; a project that runs pytest with `--strict-markers` must register that mark.

Some tests run threads against each other. Their assertions hold for every order of events, so a failure is
never caused by unlucky timing.
"""

from tidemill.testing.store_tests.isolation import IsolationTests
from tidemill.testing.store_tests.lifecycle import LifecycleTests, StoreProcessTests
from tidemill.testing.store_tests.limits import LimitTests
from tidemill.testing.store_tests.maps import MapTests
from tidemill.testing.store_tests.snapshots import SnapshotTests
from tidemill.testing.store_tests.takes import TakeTests
from tidemill.testing.store_tests.versions import VersionTests
from tidemill.testing.store_tests.watches import TimeTests, WatchTests


class StoreConformance(
    MapTests,
    IsolationTests,
    TakeTests,
    VersionTests,
    SnapshotTests,
    LimitTests,
    TimeTests,
    WatchTests,
    LifecycleTests,
    StoreProcessTests,
):
    """All conformance tests for a store."""
