"""Cache the results of Spark's query analysis: for as long as the process lives, or in the store.

Spark needs tens of milliseconds to analyse a query, and every run plans its pipeline again. The result
depends only on the text of the query, the types of the tables, the settings of the session and the version of
Spark. All four are part of the key (see `engine_of`), so Spark always analyses a changed declaration or
setting again. Errors are not cached.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from tidemill.spark.analyses import Analyses, start_digest
from tidemill.spark.on_demand import OnDemandSession, on_demand
from tidemill.spark.sessions import engine_settings, is_running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Value = TypeVar("Value")

MOST: Final = 4_000


class SparkEngine(NamedTuple):
    """The version of Spark, and the SQL settings of a session."""

    version: str
    settings: frozenset[tuple[str, str]]


def engine_of(spark: "SparkSession") -> SparkEngine:
    """Return the version and SQL settings of this session, on which the analysis of a query depends.

    If Spark has not been started, they are those of the last Spark that was started in the same way.
    """
    lazy = on_demand(spark)
    if lazy is not None and not lazy.started:
        return _engine_at_start(lazy)
    return SparkEngine(str(spark.version), frozenset(engine_settings(spark).items()))


def _engine_at_start(lazy: OnDemandSession) -> SparkEngine:
    settings = lazy.settings
    own = settings.remote is None and not is_running()
    start = start_digest(settings.all_conf(), settings.where) if own else None
    known = None if start is None else lazy.analyses.engine(start)
    if known is not None:
        return SparkEngine(known[0], frozenset(known[1].items()))
    engine = SparkEngine(str(lazy.session.version), frozenset(engine_settings(lazy.session).items()))
    if start is not None:
        lazy.analyses.keep_engine(start, engine.version, dict(engine.settings))
    return engine


def analyses_of(spark: "SparkSession") -> Analyses:
    """Return what Spark answered in earlier processes; nothing for a session of the user."""
    lazy = on_demand(spark)
    return Analyses() if lazy is None else lazy.analyses


class PlanningMemo(Generic[Value]):
    """A cache of values by key. Any thread may use it. It drops the least recently used values.

    >>> lengths = PlanningMemo(most=100)
    >>> lengths.get("orders", lambda: len("orders"))
    6
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, key: Hashable, make: Callable[[], Value], *, keep: Callable[[Value], bool] = lambda _: True
    ) -> Value:
        """Return the cached value of a key, or call `make` and cache its result. Errors are not cached.

        - keep: decides whether to cache a new value.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        if keep(value):
            with self._lock:
                self._values[key] = value
                while len(self._values) > self._most:
                    self._values.popitem(last=False)
        return value
