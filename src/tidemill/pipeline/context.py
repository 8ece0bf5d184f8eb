"""What a pipeline stands on in this process: its store, its object storage and its Spark session."""

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Union

from tidemill.clock import Clock, poll
from tidemill.cluster.leases import TTL_S
from tidemill.cluster.membership import Membership
from tidemill.cluster.nodes import Node
from tidemill.errors import StoreUnavailable, UsageError
from tidemill.futures.client.connection import Connection
from tidemill.futures.home import Place
from tidemill.objects import Objects
from tidemill.publish.manifests import Manifests
from tidemill.publish.publisher import Publisher
from tidemill.scope import Scope
from tidemill.spark.sessions import SparkSettings, adopt, open_session
from tidemill.spark.storage import Storage
from tidemill.store import Store
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Wanted = Union[SparkSession, SparkSettings, str, None]  # noqa: UP007 - a name that only types know


def settings_of(spark: "Wanted", app: str) -> SparkSettings:
    """What a user means by `spark=`, unless it is a session."""
    if spark is None:
        return SparkSettings(app=app)
    if isinstance(spark, SparkSettings):
        return spark
    if isinstance(spark, str):
        remote = spark.startswith("sc://")
        return SparkSettings(remote=spark, app=app) if remote else SparkSettings(master=spark, app=app)
    raise UsageError(
        f"spark= is a {type(spark).__name__}", hint="a session, a master, an sc:// address or SparkSettings"
    )


def is_session(spark: object) -> bool:
    """A session of either kind; told without importing either."""
    return hasattr(spark, "createDataFrame") and hasattr(spark, "catalog")


class Site:
    """Opened when first used, each part by itself. Safe to share between threads."""

    def __init__(
        self, place: Place, spark: "Wanted", *, app: str, clock: Clock, chance: random.Random
    ) -> None:
        self.place = place
        self.clock = clock
        self.chance = chance
        self.keys = StepKeys(place.cluster)
        self._wanted = spark
        self._app = app
        self._connection: Connection | None = None
        self._session: SparkSession | None = None
        self._lock = threading.RLock()

    # --- the store

    @property
    def connection(self) -> Connection:
        """This process as a node of the cluster: what producers write under."""
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
            raise UsageError("a pipeline needs object storage", hint='give objects="s3://…" beside store=')
        return objects

    @property
    def manifests(self) -> Manifests:
        return Manifests(self.objects, self.clock)

    @property
    def storage(self) -> Storage:
        return Storage(self.objects)

    @property
    def scope(self) -> Scope:
        """What this process works with, as a node of the cluster."""
        return Scope(
            store=self.store,
            cluster=self.place.cluster,
            objects=self.objects,
            node=self.node,
            clock=self.clock,
            chance=self.chance,
        )

    @property
    def publisher(self) -> Publisher:
        return Publisher(self.scope)

    @property
    def node(self) -> Node:
        """As whom this process publishes."""
        return self._membership.node

    @property
    def _membership(self) -> Membership:
        self.connection.check()
        membership = self.connection.membership
        assert membership is not None
        return membership

    def wait_to_join_again(self, lost: Node) -> None:
        """Until we are in the node list under another epoch than this one, which was lost."""
        membership = self._membership

        def again() -> bool:
            return membership.alive() and membership.node.epoch != lost.epoch

        if not poll(again, self.clock, every_s=0.1, timeout_s=TTL_S):
            raise StoreUnavailable(f"{lost.id} could not join the node list of its cluster again")

    # --- Spark

    @contextlib.contextmanager
    def spark(self) -> Iterator["SparkSession"]:
        """The session, opened when first asked for; a user's own has our settings inside of the block."""
        if is_session(self._wanted):
            with adopt(self._wanted) as session:  # type: ignore[arg-type] # just told
                yield session
            return
        with self._lock:
            if self._session is None:
                self._session = open_session(settings_of(self._wanted, self._app))
        yield self._session

    @property
    def settings(self) -> SparkSettings | None:
        """How another process opens Spark for this pipeline; None for a session of the user's."""
        return None if is_session(self._wanted) else settings_of(self._wanted, self._app)

    def close(self) -> None:
        """Close the store. Spark is left running: other sessions of this process may stand on it."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
