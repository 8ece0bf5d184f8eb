"""Errors of failing views: the first sentence of Spark, the part of the query, the line of a function."""

import pytest

from tidemill.errors import DiskFull, ViewFailed, ViewRefused
from tidemill.views.spark.failures import error_text, failing_view

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


def test_a_view_is_not_blamed_for_a_full_disk() -> None:
    full = f"{OVERFLOW}\nCaused by: java.io.IOException: No space left on device"
    with pytest.raises(DiskFull), failing_view(View()):
        raise RuntimeError(full)


def test_errors_are_attributed_to_the_view_and_our_errors_stay_unchanged() -> None:
    with pytest.raises(ViewFailed, match=r"shop\.py:7: view totals: it broke"), failing_view(View()):
        raise ValueError("it broke")
    with pytest.raises(ViewRefused, match="as it is"), failing_view(View()):
        raise ViewRefused("as it is")
