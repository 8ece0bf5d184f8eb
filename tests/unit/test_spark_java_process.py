import subprocess
import sys
from collections.abc import Iterator

import pytest

from tidemill.errors import SparkDied
from tidemill.spark import java_process
from tidemill.spark.java_process import check_java

LOST = (
    "An error occurred while calling o3174.parquet.\n: org.apache.spark.SparkException: Job aborted due to"
    " stage failure: Lost task 0.0 in stage 32.0 (TID 38): java.lang.NoClassDefFoundError: Could not"
    " initialize class org.xerial.snappy.Snappy\n\tat org.apache.parquet.hadoop.codec.SnappyDecompressor"
)


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that runs, as the Java process of this process."""
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        monkeypatch.setattr(java_process, "_java_process", lambda: process)
        yield process
        process.kill()


def test_a_java_process_that_has_lost_a_class_is_replaced(java: "subprocess.Popen[bytes]") -> None:
    error = RuntimeError("the part failed")
    error.__cause__ = ValueError(LOST)
    with pytest.raises(SparkDied, match=r"cannot use the class org\.xerial\.snappy\.Snappy any more"):
        check_java(error)
    assert java.poll() is None


def test_a_class_that_does_not_exist_is_the_error_of_the_part(java: "subprocess.Popen[bytes]") -> None:
    check_java(ValueError("java.lang.NoClassDefFoundError: com/example/Missing"))
    check_java(ValueError("java.lang.ExceptionInInitializerError"))
    check_java()


def test_the_java_process_of_a_user_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_process, "_java_process", lambda: None)
    check_java(ValueError(LOST))
