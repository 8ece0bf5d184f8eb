"""A session starts when it is first used, once, with the tags and functions that were set before."""

import threading
from typing import Any

import pytest

from tidemill.spark import sessions
from tidemill.spark.analyses import Analyses
from tidemill.spark.on_demand import OnDemandSession, as_session, is_started, when_started
from tidemill.spark.sessions import SparkSettings
from tidemill.testing.threads import STUCK_S


class Context:
    """Records the tags of jobs and what is interrupted."""

    defaultParallelism = 7  # noqa: N815 - its name in Spark

    def __init__(self) -> None:
        self.log: list[str] = []

    def addJobTag(self, tag: str) -> None:  # noqa: N802
        self.log.append(f"+{tag}")

    def removeJobTag(self, tag: str) -> None:  # noqa: N802
        self.log.append(f"-{tag}")

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        self.log.append(f"!{tag}")


class Session:
    version = "4.1.0"

    def __init__(self) -> None:
        self.sparkContext = Context()
        self.set: dict[str, str] = {}
        self.conf = self


class Stage:
    def __init__(self, settings: SparkSettings | None = None) -> None:
        self.started: list[Session] = []
        self.lazy = OnDemandSession(settings or SparkSettings(master="local[3]"), self._start, Analyses())
        self.spark = as_session(self.lazy)

    def _start(self) -> Any:
        self.started.append(Session())
        return self.started[-1]

    @property
    def log(self) -> list[str]:
        return self.started[0].sparkContext.log


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_what_the_settings_tell_does_not_start_spark(stage: Stage) -> None:
    assert sessions.parallelism(stage.spark) == 3
    assert sessions.is_local(stage.spark)
    sessions.pin(stage.spark)
    sessions.interrupt(stage.spark, "a")
    with sessions.tagged(stage.spark, "a"), sessions.repinned(stage.spark):
        assert not is_started(stage.spark)
    assert stage.started == []


def test_the_first_use_starts_spark_once(stage: Stage) -> None:
    announced: list[str] = []
    with stage.lazy.announced(lambda: announced.append("starting")):
        threads = [threading.Thread(target=lambda: stage.spark.version) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(STUCK_S)
    assert stage.spark.version == "4.1.0"
    assert len(stage.started) == 1
    assert announced == ["starting"]


def test_a_cluster_decides_its_parallelism() -> None:
    stage = Stage(SparkSettings(master="spark://host:7077"))
    assert sessions.parallelism(stage.spark) == 7
    assert len(stage.started) == 1


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[6]", 6), ("local[2,3]", 2), ("yarn", 0), ("local-cluster[2,1,1]", 0)],
)
def test_the_cores_of_a_master(master: str, cores: int) -> None:
    assert SparkSettings(master=master).cores == cores


def test_jobs_that_start_spark_have_the_tags_of_their_block(stage: Stage) -> None:
    with sessions.tagged(stage.spark, "outer"), sessions.tagged(stage.spark, "inner"):
        stage.spark.version  # noqa: B018 - starts Spark
        assert stage.log == ["+outer", "+inner"]
    assert stage.log == ["+outer", "+inner", "-inner", "-outer"]
    sessions.interrupt(stage.spark, "outer")
    assert stage.log[-1] == "!outer"


def test_a_thread_has_its_own_tags(stage: Stage) -> None:
    with sessions.tagged(stage.spark, "first"):
        thread = threading.Thread(target=lambda: stage.spark.version)
        thread.start()
        thread.join(STUCK_S)
        assert stage.log == []  # the other thread has no tag
        stage.spark.version  # noqa: B018
        assert stage.log == ["+first"]


def test_preparations_run_before_the_session_is_used(stage: Stage) -> None:
    order: list[str] = []
    when_started(stage.spark, "f", lambda _: order.append("replaced"))
    when_started(stage.spark, "f", lambda session: order.append(session.version))
    assert order == []
    assert stage.spark.version == "4.1.0"
    when_started(stage.spark, "g", lambda _: order.append("now"))
    assert order == ["4.1.0", "now"]


def test_a_start_that_fails_is_repeated() -> None:
    starts: list[str] = []

    def start() -> Any:
        starts.append("start")
        if len(starts) == 1:
            raise OSError("no Java")
        return Session()

    spark = as_session(OnDemandSession(SparkSettings(), start, Analyses()))
    with pytest.raises(OSError, match="no Java"):
        spark.version  # noqa: B018
    assert spark.version == "4.1.0"
