"""Open the store, the object storage and the Spark session of a pipeline in this process."""

import atexit
import contextlib
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Union

from tidemill.clock import Clock, poll
from tidemill.cluster.leases import DEFAULT_TIMING, TTL_S, LeaseTiming
from tidemill.cluster.membership import Membership
from tidemill.cluster.nodes import Node
from tidemill.errors import StoreUnavailable, UsageError
from tidemill.events import Emit, ignore
from tidemill.futures.client.connection import Connection
from tidemill.futures.home import ClusterAddress
from tidemill.objects import Objects
from tidemill.publish.manifests import Manifests
from tidemill.publish.publisher import Publisher
from tidemill.scope import Scope
from tidemill.spark.analyses import Analyses
from tidemill.spark.on_demand import OnDemandSession, as_session
from tidemill.spark.sessions import SparkSettings, adopt, open_session
from tidemill.spark.storage import Storage
from tidemill.store import Store, long_values
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    SparkOption = Union[SparkSession, SparkSettings, str, None]  # noqa: UP007 - pyspark is imported for types only


def settings_of(spark: "SparkOption", app: str) -> SparkSettings:
    """Return the Spark settings for a value of `spark=` that is not a session."""
    if spark is None:
        return SparkSettings(app=app)
    if isinstance(spark, SparkSettings):
        return spark
    if isinstance(spark, str):
        remote = spark.startswith("sc://")
        return SparkSettings(remote=spark, app=app) if remote else SparkSettings(master=spark, app=app)
    raise UsageError(
        f"spark= is a {type(spark).__name__}, which is not supported",
        hint="pass a SparkSession, the URL of a master, an sc:// address or SparkSettings",
    )


def is_session(spark: object) -> bool:
    """Return whether this is a Spark session, classic or Connect, without importing pyspark."""
    return hasattr(spark, "createDataFrame") and hasattr(spark, "catalog")


class PipelineContext:
    """The store, the object storage, the Spark session and the node of a pipeline in this process.

    Each is opened when first used. Safe to share between threads.
    """

    def __init__(
        self, place: ClusterAddress, spark: "SparkOption", *, app: str, clock: Clock, chance: random.Random
    ) -> None:
        self.place = place
        self.clock = clock
        self.chance = chance
        self.keys = StepKeys(place.cluster)
        self._spark_option = spark
        self._app = app  # the name of the pipeline
        self._connection: Connection | None = None
        self._session: OnDemandSession | None = None
        self._lock = threading.RLock()
        self._pid = os.getpid()
        _contexts.add(self)

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""
        return self._app

    # --- the store

    @property
    def connection(self) -> Connection:
        """This process as a node of the cluster. Appends are published in the name of this node."""
        with self._lock:
            if self._connection is None:
                self._connection = Connection.open(self.place, clock=self.clock, chance=self.chance)
            return self._connection

    @property
    def store(self) -> Store:
        return self.connection.store

    @property
    def objects(self) -> Objects:
        objects = self.connection.objects
        if objects is None:
            raise UsageError(
                "a pipeline needs object storage", hint='pass objects="s3://…" together with store='
            )
        return objects

    @property
    def manifests(self) -> Manifests:
        return Manifests(self.objects, self.clock)

    @property
    def storage(self) -> Storage:
        return Storage(self.objects)

    @property
    def scope(self) -> Scope:
        """Return the scope of this process as a node of the cluster."""
        return self.scope_of(self.node)

    def scope_of(self, node: Node, emit: Emit = ignore, timing: LeaseTiming = DEFAULT_TIMING) -> Scope:
        """Return the scope of another node in this process, such as a runner."""
        return Scope(
            store=self.store,
            cluster=self.place.cluster,
            objects=self.objects,
            node=node,
            clock=self.clock,
            chance=self.chance,
            emit=emit,
            timing=timing,
        )

    @property
    def publisher(self) -> Publisher:
        return Publisher(self.scope)

    @property
    def node(self) -> Node:
        """The node that this process publishes as."""
        return self._membership.node

    @property
    def _membership(self) -> Membership:
        self.connection.check()
        membership = self.connection.membership
        assert membership is not None
        return membership

    def wait_to_rejoin(self, lost: Node) -> None:
        """Wait until this process is in the node list again, under a new epoch."""
        membership = self._membership

        def has_rejoined() -> bool:
            return membership.alive() and membership.node.epoch != lost.epoch

        if not poll(has_rejoined, self.clock, every_s=0.1, timeout_s=TTL_S):
            raise StoreUnavailable(f"node {lost.id} could not rejoin its cluster within {TTL_S:g} s")

    # --- Spark

    @contextlib.contextmanager
    def spark(self) -> Iterator["SparkSession"]:
        """Yield the Spark session. Spark starts when something first uses it (`OnDemandSession`).

        If the user passed a session, it has Tidemill's settings inside the block.
        """
        if is_session(self._spark_option):
            with adopt(self._spark_option) as session:  # type: ignore[arg-type] # checked above
                yield session
            return
        yield as_session(self.on_demand)

    @property
    def on_demand(self) -> OnDemandSession:
        """The session that starts when something first uses it, if the user did not pass one."""
        with self._lock:
            if self._session is None:
                settings = settings_of(self._spark_option, self._app)
                analyses = Analyses(self._stored_analyses)
                self._session = OnDemandSession(settings, lambda: open_session(settings), analyses)
            return self._session

    @contextlib.contextmanager
    def announcing_spark(self, starting: Callable[[SparkSettings], None]) -> Iterator[None]:
        """Call a function before this process starts Spark inside the block."""
        settings = self.settings
        if settings is None:
            yield
            return
        with self.on_demand.announced(lambda: starting(settings)):
            yield

    def _stored_analyses(self) -> bytes | None:
        key = self.keys.analyses[self._app]
        return self.store.run(lambda tx: long_values.get_long(tx, self.keys.more, key))

    def store_analyses(self) -> None:
        """Store what Spark's analysis answered in this process, for the next one."""
        raw = None if self._session is None else self._session.analyses.encoded()
        if raw is not None:
            key = self.keys.analyses[self._app]
            self.store.run(lambda tx: long_values.set_long(tx, self.keys.more, key, raw))

    @property
    def settings(self) -> SparkSettings | None:
        """The settings with which another process opens Spark; None if the user passed a session."""
        return None if is_session(self._spark_option) else settings_of(self._spark_option, self._app)

    @property
    def session_of_user(self) -> "SparkSession | None":
        """The session that the user passed; None if Tidemill starts one."""
        return self._spark_option if is_session(self._spark_option) else None  # type: ignore[return-value]

    def close(self) -> None:
        """Close the store. Leave Spark running: other code in this process may use it."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_contexts: weakref.WeakSet[PipelineContext] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what a program left open, while its threads still run.

    When Python deletes the pipelines later, the threads of their connections are stopped but have not ended.
    Python 3.13 would wait for them forever.
    """
    for context in list(_contexts):
        if context._pid == os.getpid():
            with contextlib.suppress(Exception):
                context.close()
