"""A session of our own never becomes the active session, which code of the user may ask for."""

import threading
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidemill.spark.sessions import frame_of
from tidemill.testing.threads import STUCK_S


class OtherSession:
    """Makes itself the active session when it creates a frame, as pyspark does."""

    def createDataFrame(self, data: pa.Table, columns: object) -> pa.Table:  # noqa: N802 - its name in pyspark
        SparkSession._activeSession = self  # type: ignore[assignment]
        return data


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Any:
    session = object()
    monkeypatch.setattr(SparkSession, "_activeSession", session)
    return session


def test_a_frame_of_another_session_leaves_the_active_session(users: Any) -> None:
    data = pa.table({"a": [1]})
    assert frame_of(OtherSession(), data) is data  # type: ignore[arg-type,comparison-overlap]
    assert SparkSession._activeSession is users


def test_threads_that_share_a_session_leave_the_active_session(users: Any) -> None:
    session, data = OtherSession(), pa.table({"a": [1]})

    def create() -> None:
        for _ in range(1000):
            frame_of(session, data)  # type: ignore[arg-type]

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(STUCK_S)
    assert SparkSession._activeSession is users
