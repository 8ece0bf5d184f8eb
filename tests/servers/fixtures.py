"""The servers as pytest fixtures. Each xdist worker has its own, started by the first test that asks.

A server of its own per worker is what lets one test restart its PostgreSQL while another is using theirs.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.certificates import assumed_certificates, shared_certificates
from tests.servers.kafka import KafkaServer
from tests.servers.postgres import PostgresServer
from tests.servers.process import ServerUnavailable
from tests.servers.s3 import RcloneS3, S3rver, S3Server, SeaweedS3
from tests.servers.spark import (
    SMALL,
    WARM,
    SparkConnectServer,
    SparkStandalone,
    remember_classes,
    require_spark,
    small_spark,
)
from tidemill.spark.sessions import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

CARELESS: dict[str, Callable[[], S3Server]] = {"rclone": RcloneS3, "s3rver": S3rver}


@contextmanager
def _or_skip(make: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(make())
        except ServerUnavailable as reason:
            pytest.skip(str(reason))
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL without fsync, for tests of logic. Nobody else uses it: a test may restart it."""
    with _or_skip(PostgresServer) as server:
        yield server


@pytest.fixture(scope="session")
def durable_postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL with fsync, for tests of durability and for figures."""
    with _or_skip(lambda: PostgresServer(durable=True)) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh, empty database over loopback TCP with a password; gone after the test."""
    postgres_server.ensure_running()
    url = postgres_server.new_database()
    yield url
    postgres_server.ensure_running()
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server that decides conditions atomically."""
    with _or_skip(SeaweedS3) as server:
        yield server


@pytest.fixture(scope="session", params=sorted(CARELESS))
def careless_s3(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """Two S3 servers that ignore conditions, one after the other."""
    with _or_skip(CARELESS[request.param]) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """A Kafka broker; tests make topics of their own."""
    with _or_skip(KafkaServer) as server:
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A local Spark of two threads, one per pytest process, started by the first test that asks.

    Tests share it: set no conf without setting it back, and leave no temporary views behind.
    """
    try:
        require_spark()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own, at its start: nothing a test could do about them
        session = open_session(small_spark({**SMALL, **WARM}))
    for form in ("short", "long"):  # else Spark walks its stack for every RDD, to say where it was made
        session.sparkContext.setLocalProperty(f"callSite.{form}", "a test")
    remember_classes(session)
    with shared_certificates():
        yield session
    session.stop()


@pytest.fixture(name="assumed_certificates", scope="module")
def _assumed_certificates() -> Iterator[None]:
    """Views of the module's pipelines are taken as certified: see `tests.certificates`."""
    with assumed_certificates():
        yield


@pytest.fixture(scope="session")
def spark_standalone() -> Iterator[SparkStandalone]:
    """A Spark cluster on loopback, master and two workers; a test that kills a worker makes its own."""
    with _or_skip(SparkStandalone) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark_connect() -> Iterator[SparkConnectServer]:
    """A Spark Connect server. Its clients are processes of their own."""
    with _or_skip(SparkConnectServer) as server:
        yield server
