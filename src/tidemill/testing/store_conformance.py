"""The contract of the store's port as a test class: whoever writes a backend runs it.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path):
            with MyStore(tmp_path / "my.db") as store:
                yield store

        def reopen(self, store):
            return MyStore(store.path)

`store` is a fresh, empty store for each test; `reopen` is a second handle on the same data, or None where
there can be none. Those that processes can share give, in `opens_elsewhere`, the Python source which opens
the same data there; those whose clock can jump override `age`; `examples` is how many random programs are
compared with the model. The marks `rule` name the rules of docs/rules/store.md; a project that runs pytest
with `--strict-markers` registers that mark.

The tests race threads against each other. What they assert holds for every interleaving: a failure is never
"unlucky timing".
"""

from tidemill.testing.store_laws.isolation import IsolationLaws
from tidemill.testing.store_laws.lifecycle import LifecycleLaws
from tidemill.testing.store_laws.limits import LimitLaws
from tidemill.testing.store_laws.maps import MapLaws
from tidemill.testing.store_laws.processes import StoreProcessLaws
from tidemill.testing.store_laws.takes import TakeLaws
from tidemill.testing.store_laws.times import TimeLaws
from tidemill.testing.store_laws.versions import VersionLaws
from tidemill.testing.store_laws.watches import WatchLaws


class StoreConformance(
    MapLaws,
    IsolationLaws,
    TakeLaws,
    VersionLaws,
    LimitLaws,
    TimeLaws,
    WatchLaws,
    LifecycleLaws,
    StoreProcessLaws,
):
    """Every law of the store."""
