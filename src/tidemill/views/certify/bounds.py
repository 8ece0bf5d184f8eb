"""Bounds of a certification: how many rows and bytes its queries may return, and how long it may take.

Generated tables are small, but a query can multiply them: by joins, by `explode(sequence(…))`, or by long
texts. A certification that exceeds a bound ends with `BoundExceeded`. Then each step recomputes the view.
"""

import contextlib
import itertools
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tidemill.clock import Clock
from tidemill.spark.sessions import interrupt, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_ROWS: Final = 100_000
MOST_BYTES: Final = 32 * 1024**2
MOST_SECONDS: Final = 300.0
INTERRUPT_EVERY_S: Final = 1.0

_RAISED = re.compile(r"USER_RAISED_EXCEPTION\] TIDEMILL_TOO_MANY_(ROWS|BYTES)")
_ROW_NUMBER = "monotonically_increasing_id() & 8589934591L"
"""The number of a row in its partition: the lower 33 bits of Spark's number."""

_numbers = itertools.count()


_ENDS_SPARK = re.compile(r"OutOfMemoryError|SparkContext was shut down|stopped SparkContext")


class BoundExceeded(Exception):
    """A certification was stopped because it exceeded a bound."""


class TimeExceeded(BoundExceeded):
    """A certification took too long."""


class Bounds:
    """The bounds of one certification.

    - rows: how many rows a Spark job may return.
    - result_bytes: about how many bytes a Spark job may return.
    - seconds: how long the certification may take.
    - tag: the tag of its Spark jobs.
    """

    def __init__(
        self, *, rows: int = MOST_ROWS, result_bytes: int = MOST_BYTES, seconds: float = MOST_SECONDS
    ) -> None:
        self.rows = rows
        self.result_bytes = result_bytes
        self.seconds = seconds
        self.tag = f"tidemill-certify-{next(_numbers)}"
        self._expired = threading.Event()

    @contextlib.contextmanager
    def watch(self, spark: "SparkSession", clock: Clock) -> Iterator[None]:
        """When time is up, cancel the Spark jobs that this thread has started in the block."""
        done = threading.Event()

        def cancel() -> None:
            left_s = self.seconds
            while not clock.wait(done, left_s):
                self.expire()
                with contextlib.suppress(Exception):  # Spark may have died
                    interrupt(spark, self.tag)
                left_s = INTERRUPT_EVERY_S  # a job may have started right after the interrupt

        thread = threading.Thread(target=cancel, name="certification", daemon=True)
        with tagged(spark, self.tag):
            thread.start()
            try:
                yield
            finally:
                done.set()
                thread.join()

    def expire(self) -> None:
        """Let the certification end as if time were up."""
        self._expired.set()

    def limited(self, query: str) -> str:
        """Wrap a query so that it fails if its result exceeds a bound.

        The query has the columns `number`, `json` and `kind`. The wrapped query counts its own rows. A LIMIT
        would change the plan, and perhaps the order of ties.
        """
        numbered = f"SELECT *, {_ROW_NUMBER} AS row FROM (\n{query}\n)"  # noqa: S608
        # Each row is counted as if all rows before it were as long as this row. This limits the total size.
        return (
            "SELECT number, CASE"  # noqa: S608
            f" WHEN row >= {self.rows} THEN raise_error('TIDEMILL_TOO_MANY_ROWS')"
            f" WHEN octet_length(json) * (row + 1) > {self.result_bytes}"
            f" THEN raise_error('TIDEMILL_TOO_MANY_BYTES') ELSE json END AS json, kind FROM (\n{numbered}\n)"
        )

    def check(self, error: BaseException | None = None) -> None:
        """Raise `BoundExceeded` if time is up, or if Spark raised this error because of a bound."""
        if self._expired.is_set():
            raise TimeExceeded(f"it took longer than {self.seconds:g} s") from None
        raised = _RAISED.search(str(error))
        if raised is not None:
            most = f"{self.rows:,} rows" if raised[1] == "ROWS" else f"{self.result_bytes:,} bytes"
            raise BoundExceeded(f"on generated test data, its queries return more than {most}") from None


def is_query_error(error: BaseException) -> bool:
    """Return whether the query itself raised the error. If so, both sides of a comparison may raise it."""
    from_spark = type(error).__module__.startswith("pyspark.") or type(error).__name__ == "Py4JJavaError"
    return from_spark and not ends_spark(error)


def ends_spark(error: BaseException) -> bool:
    """Return whether Spark has ended, or is about to end.

    A task that runs out of memory ends the Java process.
    """
    if isinstance(error, ConnectionError | EOFError):
        return True
    of_gateway = type(error).__module__.startswith("py4j.") and type(error).__name__ != "Py4JJavaError"
    return of_gateway or _ENDS_SPARK.search(str(error)) is not None
