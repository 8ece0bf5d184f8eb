"""Spark for tests: settings that start fast and stay small."""

import os
from collections.abc import Mapping

from tests.servers.process import ServerUnavailable
from tidemill.errors import JavaMissing
from tidemill.spark.java import find_java
from tidemill.spark.sessions import SparkSettings

# The C1 compiler and a serial collector: a third of the CPU for sessions that live for seconds.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def small_spark(conf: Mapping[str, str] | None = None) -> SparkSettings:
    """A local Spark of two threads and 1 GiB, for this process or for a child of a test."""
    return SparkSettings(
        master="local[2]",
        app="tidemill-tests",
        conf={
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": JVM_OPTIONS,
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            **(conf or {}),
        },
    )


def require_spark() -> None:
    """Raise `ServerUnavailable`, with the reason, where no Spark can be started."""
    try:
        import pyspark  # noqa: F401 - the import is the question
    except ImportError as reason:
        raise ServerUnavailable(f"no pyspark: {reason}") from None
    try:
        find_java(os.environ)
    except JavaMissing as reason:
        raise ServerUnavailable(str(reason)) from None
