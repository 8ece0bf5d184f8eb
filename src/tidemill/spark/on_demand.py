"""A Spark session that starts when something first uses it.

Starting Spark takes seconds, and most small changes do not need it: Arrow reads their files, kernels compute
their steps, and the answers of Spark's analysis are stored (`analyses`). So a pipeline passes an
`OnDemandSession` wherever code may need Spark. It has every attribute of a `SparkSession`, and reading one of
them starts Spark. A function that only needs to know something about Spark asks `sessions`, which knows it
from the settings (`is_local`, `parallelism`) or has nothing to do before the start (`pin`, `interrupt`,
`tagged`).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from tidemill.spark.analyses import Analyses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.spark.sessions import SparkSettings

Prepare = Callable[["SparkSession"], None]
"""Prepares a session that has just started."""


class OnDemandSession:
    """Starts a Spark session when it is first used. Threads may share it.

    Args:
        settings: how Spark will be started.
        start: starts it.
        analyses: what Spark's analysis answered in earlier processes.
    """

    def __init__(
        self, settings: "SparkSettings", start: Callable[[], "SparkSession"], analyses: Analyses
    ) -> None:
        self.settings = settings
        self.analyses = analyses
        self._start = start
        self._session: SparkSession | None = None
        self._starting: Callable[[], None] = lambda: None
        self._prepare: dict[str, Prepare] = {}
        self._lock = threading.RLock()
        self._tags = threading.local()

    @property
    def started(self) -> bool:
        """Whether Spark has been started."""
        return self._session is not None

    @property
    def session(self) -> "SparkSession":
        """The session; Spark is started if needed."""
        if self._session is None:
            with self._lock:
                if self._session is None:
                    self._open()
        assert self._session is not None
        self._set_tags(self._session)
        return self._session

    def _open(self) -> None:
        self._starting()
        session = self._start()
        for prepare in self._prepare.values():
            prepare(session)
        self._session = session

    def when_started(self, name: str, prepare: Prepare) -> None:
        """Prepare the session: now if Spark has been started, otherwise when it starts.

        - name: of several preparations with one name, the last one counts.
        """
        with self._lock:
            self._prepare[name] = prepare
            if self._session is not None:
                prepare(self._session)

    @contextmanager
    def announced(self, starting: Callable[[], None]) -> Iterator[None]:
        """Call a function before Spark is started inside the block."""
        before, self._starting = self._starting, starting
        try:
            yield
        finally:
            self._starting = before

    # --- tags of jobs

    @contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        """Tag the jobs of this thread, also if Spark starts inside the block."""
        from tidemill.spark import sessions

        wanted: list[str] = self._tags.__dict__.setdefault("wanted", [])
        wanted.append(tag)
        try:
            yield
        finally:
            wanted.remove(tag)
            applied: set[str] = self._tags.__dict__.get("applied", set())
            if tag in applied and tag not in wanted and self._session is not None:
                applied.discard(tag)
                sessions.remove_tag(self._session, tag)

    def _set_tags(self, session: "SparkSession") -> None:
        """Set the tags of this thread that are not set yet."""
        from tidemill.spark import sessions

        wanted: list[str] = self._tags.__dict__.get("wanted", [])
        applied: set[str] = self._tags.__dict__.setdefault("applied", set())
        for tag in wanted:
            if tag not in applied:
                applied.add(tag)
                sessions.add_tag(session, tag)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # such as `__wrapped__`, with which libraries look at an object
            raise AttributeError(name)
        return getattr(self.session, name)


def on_demand(spark: object) -> OnDemandSession | None:
    """Return this session as one that starts on demand; None if it has been started elsewhere."""
    return spark if isinstance(spark, OnDemandSession) else None


def is_started(spark: object) -> bool:
    """Return whether Spark has been started."""
    return not isinstance(spark, OnDemandSession) or spark.started


def started_session(spark: "SparkSession") -> "SparkSession":
    """Return the session itself; start Spark if needed."""
    return spark.session if isinstance(spark, OnDemandSession) else spark


def when_started(spark: "SparkSession", name: str, prepare: Prepare) -> None:
    """Prepare a session: now if Spark has been started, otherwise when it starts.

    - name: of several preparations with one name, the last one counts.
    """
    if isinstance(spark, OnDemandSession):
        spark.when_started(name, prepare)
    else:
        prepare(spark)


def as_session(spark: OnDemandSession) -> "SparkSession":
    """Return the object as a `SparkSession`, for code that uses only attributes of one."""
    return cast("SparkSession", spark)
