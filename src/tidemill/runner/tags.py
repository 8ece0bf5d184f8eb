"""Tags: the Spark jobs that a runner's loop has under way, by their attempts, so that they can be ended."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemill.spark.sessions import interrupt, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Tags:
    """Of one session; for any number of threads."""

    def __init__(self, session: "SparkSession") -> None:
        self._session = session
        self._tags: set[str] = set()

    @contextmanager
    def marked(self, attempt: str) -> Iterator[None]:
        """Every job that this thread starts in the block is of an attempt."""
        tag = f"tidemill-{attempt}"
        self._tags.add(tag)
        try:
            with tagged(self._session, tag):
                yield
        finally:
            self._tags.discard(tag)

    def interrupt(self) -> None:
        """End the jobs that are under way, not those that start a moment later: who must know repeats it."""
        for tag in list(self._tags):
            with contextlib.suppress(Exception):  # Spark may be gone with what ended us
                interrupt(self._session, tag)
