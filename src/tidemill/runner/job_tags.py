"""Tag a runner's Spark jobs with their attempt, so that the runner can interrupt them."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemill.spark.sessions import interrupt, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JobTags:
    """The tags that are in use in one Spark session. Several threads may share this object."""

    def __init__(self, session: "SparkSession") -> None:
        self._session = session
        self._tags: set[str] = set()

    @contextmanager
    def marked(self, attempt: str) -> Iterator[None]:
        """Tag the jobs that this thread starts inside the block. The tag names the attempt."""
        tag = f"tidemill-{attempt}"
        self._tags.add(tag)
        try:
            with tagged(self._session, tag):
                yield
        finally:
            self._tags.discard(tag)

    def interrupt(self) -> None:
        """Interrupt all running jobs. Repeat the call, because a job may start right after it."""
        for tag in list(self._tags):
            with contextlib.suppress(Exception):  # Spark may have died too
                interrupt(self._session, tag)
