"""Errors of Spark about an object: damage of a file, or an outage of the object storage.

The texts are those of Spark 4.3 with S3A, when its S3 server was killed before a read and before the plan.
"""

import errno
from typing import Any, cast

import pytest

from tidemill.clock import SYSTEM
from tidemill.errors import DiskFull, ObjectUnavailable, ObjectUnreadable
from tidemill.lots.manifest import StoredObject
from tidemill.objects import open_objects
from tidemill.spark.lot_reader import read_errors, read_objects
from tidemill.spark.outages import outages
from tidemill.spark.storage import Storage

KEY = "data/a.parquet"
ITEM = StoredObject(uri=KEY, size=10)
FAILED = (
    "An error occurred while calling o116.collectToPython.\n"
    ": org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file"
    " s3a://bucket/lake/data/a.parquet.  SQLSTATE: KD001\n"
    "\tat org.apache.spark.sql.execution.datasources.FileScanRDD$$anon$1.hasNext(FileScanRDD.scala:153)\n"
)
REFUSED = (
    "java.net.ConnectException: getFileStatus on s3a://bucket/lake/data/a.parquet:"
    " software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request:"
    " Connect to 127.0.0.1:48575 [/127.0.0.1] failed: Connection refused (SDK Attempt Count: 1)"
)
DAMAGED = (
    "Caused by: java.lang.RuntimeException: s3a://bucket/lake/data/a.parquet is not a Parquet file."
    " Expected magic number at tail"
)


@pytest.fixture
def storage() -> Storage:
    return Storage(open_objects("s3://bucket/lake", clock=SYSTEM, probe=False))


def test_a_killed_server_is_an_outage_and_a_file_that_was_cut_is_damage(storage: Storage) -> None:
    refused = r"'data/a.parquet'.*java.net.ConnectException"
    with pytest.raises(ObjectUnavailable, match=refused), read_errors(storage):
        raise RuntimeError(f"{FAILED}Caused by: {REFUSED}")
    with pytest.raises(ObjectUnreadable), read_errors(storage):
        raise RuntimeError(FAILED + DAMAGED)


FULL = (
    "An error occurred while calling o1620.getResult.\n"
    ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
    "\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)\n"
    "Caused by: java.io.IOException: No space left on device\n"
    "\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n"
)
NO_BLOCK = (
    "Caused by: org.apache.hadoop.util.DiskChecker$DiskErrorException: Could not find any valid local"
    " directory for s3ablock-0001- with requested size 67108864"
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(FULL), DiskFull),
        (RuntimeError(NO_BLOCK), DiskFull),
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull),
        (RuntimeError(f"[TASK_WRITE_FAILED] Task failed.\nCaused by: {REFUSED}"), ObjectUnavailable),
        (OSError(errno.EACCES, "Permission denied"), OSError),
        (ValueError("amount is negative"), ValueError),
        (ObjectUnreadable("it is damaged"), ObjectUnreadable),
    ],
)
def test_a_full_disk_and_a_killed_server_are_outages_and_other_errors_do_not_change(
    error: Exception, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as raised, outages():
        raise error
    assert type(raised.value) is expected if expected is not OSError else raised.value is error


def test_an_outage_names_the_server_that_does_not_respond() -> None:
    with pytest.raises(ObjectUnavailable, match=r"48575 .*Connection refused"), outages():
        raise RuntimeError(f"[TASK_WRITE_FAILED] Task failed.\nCaused by: {REFUSED}\n\tat a.B.c(B.java:1)")


class PlanningSession:
    """A session whose plans fail with an error."""

    def __init__(self, message: str) -> None:
        self._message = message
        self.read = self

    def schema(self, _columns: object) -> "PlanningSession":
        return self

    def options(self, **_options: str) -> "PlanningSession":
        return self

    def parquet(self, *_paths: str) -> None:
        raise RuntimeError(self._message)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"An error occurred while calling o118.parquet.\n: {REFUSED}", ObjectUnavailable),
        ("[PATH_NOT_FOUND] Path does not exist: s3a://bucket/lake/data/a.parquet.", ObjectUnreadable),
        ("[UNSUPPORTED] another error", RuntimeError),
    ],
)
def test_so_it_is_when_spark_plans_the_read(
    message: str, expected: type[Exception], storage: Storage
) -> None:
    with pytest.raises(expected):
        read_objects(cast("Any", PlanningSession(message)), storage, "id BIGINT", [ITEM])
