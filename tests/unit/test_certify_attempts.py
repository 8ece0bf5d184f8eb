"""A certification that fails or ends its process: recorded before it starts, and not repeated."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import SparkUnavailable
from tidemill.events import Event
from tidemill.pipeline.plan.certification import CertifyView
from tidemill.store import Tx
from tidemill.store.memory import MemoryStore
from tidemill.testing import FakeClock
from tidemill.views.certify import certificates
from tidemill.views.certify.bounds import BoundExceeded, Bounds, ends_spark, is_query_error
from tidemill.views.certify.certificates import (
    UNFINISHED,
    Attempt,
    ViewCertificate,
    ViewCertified,
    ViewNotCertified,
)
from tidemill.views.sql.compiler import compile_query

C, DIGEST = "c", "d"
EQUAL = ViewCertificate(equal=True, compared=4)
SECOND_US = 1_000_000


class Stage:
    """A store with the node list of a cluster."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock, chance=random.Random(1))

    def join(self, name: str) -> None:
        node = Node(id=name, epoch=0)
        self.store.run(lambda tx: nodes.join(tx, ClusterKeys(C), node, 15 * SECOND_US))

    def begin(self, node: str) -> ViewCertificate | Attempt:
        return self.store.run(lambda tx: certificates.begin(tx, C, DIGEST, node))

    def read(self) -> ViewCertificate | None:
        return self.store.run(lambda tx: certificates.read(tx, C, DIGEST))

    def finish(self, node: str, certificate: ViewCertificate) -> bool:
        return self.store.run(lambda tx: certificates.finish(tx, C, DIGEST, node, certificate))


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    for name in ("a", "b"):
        stage.join(name)
    return stage


@pytest.mark.rule("DBSP-19")
def test_an_attempt_of_a_dead_node_has_failed(stage: Stage) -> None:
    assert stage.begin("a") is Attempt.BEGUN
    stored = stage.read()
    assert stored is not None
    assert (stored.equal, stored.failed, stored.attempted_by) == (False, True, "a")
    assert "node a has begun" in stored.reason
    assert stage.begin("b") is Attempt.RUNNING
    stage.clock.advance(16)
    assert stage.begin("b") is Attempt.DIED
    assert stage.begin("b") == UNFINISHED
    assert not stage.finish("a", EQUAL), "a stale node changes nothing"
    assert stage.read() == UNFINISHED


def test_a_finished_attempt_is_the_certificate(stage: Stage) -> None:
    stage.begin("a")
    assert not stage.finish("b", EQUAL)
    assert stage.finish("a", EQUAL)
    assert stage.begin("b") == EQUAL


def test_an_interrupted_attempt_begins_again(stage: Stage) -> None:
    stage.begin("a")

    def withdraw(node: str) -> None:
        stage.store.run(lambda tx: certificates.withdraw(tx, C, DIGEST, node))

    withdraw("b")
    assert stage.read() is not None
    withdraw("a")
    assert stage.begin("b") is Attempt.BEGUN


def test_only_a_failed_attempt_can_be_retried(stage: Stage) -> None:
    def forget(tx: Tx) -> bool:
        return certificates.forget_failure(tx, C, DIGEST)

    assert not stage.store.run(forget)
    stage.begin("a")
    assert not stage.store.run(forget), "node a may still be at it"
    stage.clock.advance(16)
    stage.begin("b")
    assert stage.store.run(forget)
    stage.begin("b")
    stage.finish("b", EQUAL)
    assert not stage.store.run(forget)


# --- the stage of a plan


class FakeSpark:
    """A session that only has settings and takes tags."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.settings: dict[str, str] = {"spark.sql.shuffle.partitions": "7"}
        self.conf = SimpleNamespace(
            get=self.settings.get, set=self.settings.__setitem__, unset=self.settings.pop
        )
        self.sparkContext = SimpleNamespace(
            addJobTag=lambda tag: None, removeJobTag=lambda tag: None, cancelJobsWithTag=self.cancelled.append
        )


class PatientClock(FakeClock):
    """A clock on which nothing expires by itself."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait()


@dataclass
class Context:
    """What a certification uses of the context of a pipeline."""

    store: MemoryStore
    node: Node
    clock: FakeClock = field(default_factory=PatientClock)
    place: Any = field(default_factory=lambda: SimpleNamespace(cluster=C))

    @contextmanager
    def spark(self) -> Iterator[Any]:
        session = FakeSpark()
        before = dict(session.settings)
        yield session
        assert session.settings == before, "the settings are restored"


OUTPUT = compile_query("SELECT 1 AS n", {}).output
Result = Callable[[], ViewCertificate]


def apply(stage: Stage, monkeypatch: pytest.MonkeyPatch, result: Result, node: str = "a") -> Event | None:
    monkeypatch.setattr(certificates, "certify", lambda *args, **options: result())
    view = CertifyView(
        pipeline="p",
        view="v",
        where="p.py:1",
        digest=DIGEST,
        tables={},
        sql="SELECT 1 AS n",
        output=OUTPUT,
        written=OUTPUT,
    )
    return view.apply(Context(stage.store, Node(id=node, epoch=1)), node)  # type: ignore[arg-type]


def never() -> ViewCertificate:
    raise AssertionError("the test must not be repeated")


def raising(error: BaseException) -> Result:
    def result() -> ViewCertificate:
        raise error

    return result


@pytest.mark.rule("DBSP-19")
def test_the_attempt_is_recorded_before_the_test_starts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result() -> ViewCertificate:
        stored = stage.read()
        assert stored is not None
        assert stored.attempted_by == "a"
        return EQUAL

    assert isinstance(apply(stage, monkeypatch, result), ViewCertified)
    assert stage.read() == EQUAL
    assert apply(stage, monkeypatch, never) is None


@pytest.mark.rule("DBSP-19")
@pytest.mark.parametrize("error", [BoundExceeded("it took longer than 2 s"), ValueError("a bug")])
def test_a_test_that_fails_stops_no_pipeline_and_is_not_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    event = apply(stage, monkeypatch, raising(error))
    assert isinstance(event, ViewNotCertified)
    assert str(error) in event.why
    stored = stage.read()
    assert stored is not None
    assert (stored.equal, stored.failed, stored.attempted_by) == (False, True, "")
    assert apply(stage, monkeypatch, never) is None


@pytest.mark.rule("DBSP-19")
def test_a_test_that_ends_spark_ends_the_run_and_is_not_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends, because the tests of the other views would fail too, for no reason of theirs."""

    def result() -> ViewCertificate:
        try:
            raise ArithmeticException("java.lang.OutOfMemoryError: Java heap space")
        finally:  # cleaning up
            raise ConnectionRefusedError("refused")

    with pytest.raises(SparkUnavailable, match=r"Spark ended during the test of view v.*OutOfMemoryError"):
        apply(stage, monkeypatch, result)
    stored = stage.read()
    assert stored is not None
    assert "ended Spark: java.lang.OutOfMemoryError" in stored.why
    assert apply(stage, monkeypatch, never) is None


@pytest.mark.rule("DBSP-19")
def test_a_test_that_ends_its_process_is_not_repeated(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.begin("a")  # and then the process is killed
    stage.clock.advance(16)
    event = apply(stage, monkeypatch, never, node="b")
    assert isinstance(event, ViewNotCertified)
    assert "ended Spark or the process" in event.why
    assert apply(stage, monkeypatch, never, node="b") is None, "one event is enough"


def test_an_interrupted_test_is_repeated(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        apply(stage, monkeypatch, raising(KeyboardInterrupt()))
    assert isinstance(apply(stage, monkeypatch, lambda: EQUAL), ViewCertified)


# --- bounds


class Expiring(FakeClock):
    """A clock on which the first wait times out, and later ones last until the end."""

    def __init__(self) -> None:
        super().__init__()
        self.expired = threading.Event()
        self.waits: list[float] = []

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        if len(self.waits) == 1:
            return False
        self.expired.set()
        return event.wait()


def test_jobs_are_cancelled_once_the_time_is_over() -> None:
    spark, clock, bounds = FakeSpark(), Expiring(), Bounds(seconds=30)
    bounds.check()
    with bounds.watch(spark, clock):  # type: ignore[arg-type]
        assert clock.expired.wait(60)
        with pytest.raises(BoundExceeded, match="longer than 30 s"):
            bounds.check()
    assert clock.waits[0] == 30
    assert len(spark.cancelled) == 1


class Py4JNetworkError(Exception):
    __module__ = "py4j.protocol"


class Py4JJavaError(Exception):
    __module__ = "py4j.protocol"


class ArithmeticException(Exception):
    __module__ = "pyspark.errors.exceptions.captured"


@pytest.mark.parametrize(
    ("error", "of_query", "ends"),
    [
        (ArithmeticException("[DIVIDE_BY_ZERO]"), True, False),
        (Py4JJavaError("java.lang.IllegalStateException"), True, False),
        (
            ArithmeticException("java.lang.OutOfMemoryError: Requested array size exceeds VM limit"),
            False,
            True,
        ),
        (ArithmeticException("Job 3 cancelled because SparkContext was shut down"), False, True),
        (Py4JNetworkError("Answer from Java side is empty"), False, True),
        (ConnectionRefusedError(), False, True),
        (ValueError("a bug"), False, False),
    ],
)
def test_errors_that_end_spark_are_not_results_of_the_query(
    error: Exception, of_query: bool, ends: bool
) -> None:
    assert is_query_error(error) is of_query
    assert ends_spark(error) is ends


def test_a_result_that_is_too_large_is_recognized_by_its_error() -> None:
    bounds = Bounds(rows=10, result_bytes=1000)
    bounds.check(ValueError("TIDEMILL_TOO_MANY_ROWS in the text of a query"))
    with pytest.raises(BoundExceeded, match="more than 10 rows"):
        bounds.check(ValueError("[USER_RAISED_EXCEPTION] TIDEMILL_TOO_MANY_ROWS SQLSTATE: P0001"))
    with pytest.raises(BoundExceeded, match="more than 1,000 bytes"):
        bounds.check(ValueError("[USER_RAISED_EXCEPTION] TIDEMILL_TOO_MANY_BYTES SQLSTATE: P0001"))
