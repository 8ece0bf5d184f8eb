"""The reader of the page: the store, the keys and the caches that all answers share."""

import threading
from collections.abc import Callable
from typing import TypeVar

from tidemill.arcs.keys import ArcKeys
from tidemill.clock import SYSTEM, Clock
from tidemill.futures.client import queries
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.objects import Objects
from tidemill.obs.keys import ObservationKeys
from tidemill.pipeline.descriptions import DescriptionKeys
from tidemill.runner.keys import RunnerKeys
from tidemill.sources.keys import SourceKeys
from tidemill.store import Store, Tx
from tidemill.ui.model import catalog
from tidemill.ui.model.catalog import Declarations
from tidemill.ui.model.totals import TableTotals
from tidemill.views.steps.keys import StepKeys

T = TypeVar("T")

FRESH_S = 2.0
"""How long the catalog and the counts of futures are reused. Lots and runs are read for each answer."""

MOST_FUTURES = 20_000
"""How many futures are counted at most; the page then shows a plus sign."""


class StoreReader:
    """Reads the store of one cluster for the page. Several threads may share it.

    Args:
        store: the opened store. The page only reads it.
        cluster: the name of the cluster.
        clock: the source of time.
        open_objects: opens the object storage, to show rows; None if the page cannot reach it.
    """

    def __init__(
        self,
        store: Store,
        cluster: str,
        *,
        clock: Clock = SYSTEM,
        open_objects: Callable[[], Objects] | None = None,
    ) -> None:
        self.store = store
        self.cluster = cluster
        self.clock = clock
        self.keys = StepKeys(cluster)
        self.arcs = ArcKeys(cluster)
        self.futures = FutureKeys(cluster)
        self.sources = SourceKeys(cluster)
        self.runners = RunnerKeys(cluster)
        self.descriptions = DescriptionKeys(cluster)
        self.observations = ObservationKeys(cluster)
        self.totals = TableTotals(store, self.keys.lots, clock)
        self._open_objects = open_objects
        self._objects: Objects | None = None
        self._lock = threading.Lock()
        self._cached: dict[str, tuple[float, object]] = {}

    def run(self, fn: Callable[[Tx], T]) -> T:
        """Run a read-only transaction."""
        return self.store.run(fn)

    @property
    def objects(self) -> Objects | None:
        """The object storage, opened when it is first used; None if the page cannot reach it."""
        with self._lock:
            if self._objects is None and self._open_objects is not None:
                self._objects = self._open_objects()
            return self._objects

    def catalog(self) -> Declarations:
        """Return the declarations of the cluster, at most `FRESH_S` old."""
        return self._fresh("catalog", lambda: catalog.read(self.store, self.keys, self.arcs))

    def count_futures(self) -> dict[str, int]:
        """Count the newest futures by state."""
        return self._fresh("futures", lambda: queries.count_states(self.store, self.futures, MOST_FUTURES))

    def _fresh(self, name: str, read: Callable[[], T]) -> T:
        now = self.clock.monotonic()
        with self._lock:
            at, value = self._cached.get(name, (0.0, None))
        if value is None or now - at > FRESH_S:
            value = read()
            with self._lock:
                self._cached[name] = (now, value)
        return value  # type: ignore[return-value] # only `read` puts values under its name
