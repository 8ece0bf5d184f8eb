"""What is told of a view that fails: Spark's first sentence, the piece of the query, a function's line."""

import pytest

from tidemill.errors import ViewFailed, ViewRefused
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


def test_the_piece_of_the_query_is_shown_without_plans_and_stacks() -> None:
    words = error_text(RuntimeError(OVERFLOW))
    assert words.startswith("[ARITHMETIC_OVERFLOW] integer overflow.")
    assert words.endswith("In: amount + 2147483647")
    assert "JVM" not in words


def test_of_a_function_the_line_that_raised_is_shown() -> None:
    assert (
        error_text(RuntimeError(WORKER))
        == "ZeroDivisionError: division by zero (/somewhere/views.py:12, in half)"
    )


def test_an_error_is_told_as_the_views_and_one_of_ours_as_it_is() -> None:
    with pytest.raises(ViewFailed, match=r"shop\.py:7: view totals: it broke"), failing_view(View()):
        raise ValueError("it broke")
    with pytest.raises(ViewRefused, match="as it is"), failing_view(View()):
        raise ViewRefused("as it is")
