"""Errors of failing views: the first sentence of Spark, the part of the query, the line of a function."""

import pytest
from pyspark.errors import PySparkException

from tidemill.errors import DiskFull, StepLost, ViewFailed, ViewRefused
from tidemill.views.spark.failures import error_text, failing_view, failing_views

OVERFLOW = """[ARITHMETIC_OVERFLOW] integer overflow. If necessary use try_add. SQLSTATE: 22003
== SQL (line 2, position 8) ==
SELECT amount + 2147483647 AS more FROM tidemill_plan_1
       ^^^^^^^^^^^^^^^^^^^

JVM stacktrace:
org.apache.spark.SparkArithmeticException
\tat org.apache.spark.Something(Some.scala:1)"""

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/somewhere/views.py", line 12, in half
    return 1 / value
           ~~^~~~~~~
ZeroDivisionError: division by zero
"""


STORAGE = """
Traceback (most recent call last):
  File "/somewhere/tidemill/views/spark/tasks.py", line 12, in write
    put(key, body)
OSError: [Errno 5] Input/output error
"""


class View:
    name = "totals"
    where = "shop.py:7"


def test_the_error_shows_the_part_of_the_query_without_plans_and_stacks() -> None:
    text = error_text(RuntimeError(OVERFLOW))
    assert text.startswith("[ARITHMETIC_OVERFLOW] integer overflow.")
    assert text.endswith("In: amount + 2147483647")
    assert "JVM" not in text


def test_the_error_of_a_function_shows_the_line_that_raised() -> None:
    assert (
        error_text(RuntimeError(WORKER))
        == "ZeroDivisionError: division by zero (/somewhere/views.py:12, in half)"
    )


def test_the_password_of_a_url_is_not_in_the_message() -> None:
    url = "cannot reach postgresql://ann:s3cret@db/shop"
    assert error_text(ValueError(url)) == "cannot reach postgresql://ann:***@db/shop"
    in_worker = WORKER.replace("ZeroDivisionError: division by zero", f"ValueError: {url}")
    assert "s3cret" not in error_text(RuntimeError(in_worker))


def test_a_view_is_not_blamed_for_a_full_disk() -> None:
    full = f"{OVERFLOW}\nCaused by: java.io.IOException: No space left on device"
    with pytest.raises(DiskFull), failing_view(View()):
        raise RuntimeError(full)


def test_errors_are_attributed_to_the_view_and_our_errors_stay_unchanged() -> None:
    with pytest.raises(ViewFailed, match=r"shop\.py:7: view totals: it broke"), failing_view(View()):
        raise ValueError("it broke")
    with pytest.raises(ViewRefused, match="as it is") as refused, failing_view(View()):
        raise ViewRefused("as it is")
    assert refused.value.view == "totals"
    with pytest.raises(ViewRefused, match="raised SystemExit") as exits, failing_view(View()):
        raise SystemExit
    assert exits.value.view == "totals"


@pytest.mark.rule("DBSP-40")
@pytest.mark.parametrize(
    ("error", "view"),
    [
        (RuntimeError(OVERFLOW), "totals"),
        (RuntimeError(WORKER), "totals"),
        (ValueError("a function raised it"), "totals"),
        (OSError("no space left"), None),
        (PySparkException(WORKER + "MemoryError"), None),
        (MemoryError(), None),
    ],
)
def test_only_errors_of_rows_and_functions_belong_to_a_view(error: Exception, view: str | None) -> None:
    with pytest.raises(ViewFailed) as failed, failing_view(View()):
        raise error
    assert failed.value.view == view


@pytest.mark.rule("DBSP-40")
@pytest.mark.parametrize(
    "error",
    [OSError("no space left"), RuntimeError("a bug"), RuntimeError(STORAGE), StepLost("a worker exited")],
)
def test_errors_of_storage_and_spark_belong_to_no_view_of_a_chain(error: Exception) -> None:
    with pytest.raises(type(error)), failing_views():
        raise error


@pytest.mark.rule("DBSP-40")
@pytest.mark.parametrize("error", [RuntimeError(OVERFLOW), RuntimeError(WORKER), ZeroDivisionError()])
def test_errors_of_rows_belong_to_one_of_the_views_of_a_chain(error: Exception) -> None:
    with pytest.raises(ViewFailed) as failed, failing_views():
        raise error
    assert failed.value.view == ""
