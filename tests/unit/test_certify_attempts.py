"""Attempts to certify views: recorded before they start, repeated after a death, given up after several."""

import queue
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill import crash
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import SparkUnavailable
from tidemill.events import Event
from tidemill.objects.memory import MemoryObjects
from tidemill.runner.certifier import BUSY_TRIES, Certifier, NotCertified
from tidemill.runner.program import GroupProgram, Program, ViewProgram
from tidemill.scope import Scope
from tidemill.spark import java_process
from tidemill.spark.sessions import PINNED
from tidemill.store import Tx
from tidemill.store.memory import MemoryStore
from tidemill.testing import FakeClock
from tidemill.testing.threads import STUCK_S
from tidemill.views.certify import certificates, declared_functions, tester
from tidemill.views.certify.bounds import BoundExceeded, Bounds, TimeExceeded, ends_spark, is_query_error
from tidemill.views.certify.certificates import (
    MOST_DEATHS,
    UNFINISHED,
    Attempt,
    CertificateLate,
    ViewCertificate,
    ViewCertified,
    ViewNotCertified,
)
from tidemill.views.certify.view_tests import CircuitTest
from tidemill.views.sql.compiler import compile_query
from tidemill.views.steps.groups import GroupSpec, ViewSpec

C, DIGEST = "c", "d"
EQUAL = ViewCertificate(equal=True, compared=4)
SECOND_US = 1_000_000


class PatientClock(FakeClock):
    """A clock on which nothing expires by itself; a pause between two looks is short."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(0.001) if timeout_s < 1 else event.wait()


class Stage:
    """A store with the node list of a cluster."""

    def __init__(self) -> None:
        self.clock: FakeClock = PatientClock()
        self.store = MemoryStore(clock=self.clock, chance=random.Random(1))
        self.nodes: dict[str, Node] = {}

    def join(self, name: str) -> Node:
        node = Node(id=name, epoch=0)
        self.nodes[name] = self.store.run(lambda tx: nodes.join(tx, ClusterKeys(C), node, 15 * SECOND_US))
        return self.nodes[name]

    def begin(self, node: str) -> ViewCertificate | Attempt:
        return self.store.run(lambda tx: certificates.begin(tx, C, DIGEST, self.nodes[node]))

    def read(self, digest: str = DIGEST) -> ViewCertificate | None:
        return self.store.run(lambda tx: certificates.read(tx, C, digest))

    def finish(self, node: str, certificate: ViewCertificate) -> bool:
        return self.store.run(lambda tx: certificates.finish(tx, C, DIGEST, self.nodes[node], certificate))

    def withdraw(self, node: str, *, died: bool = False) -> None:
        self.store.run(lambda tx: certificates.withdraw(tx, C, DIGEST, self.nodes[node], died=died))


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    for name in ("a", "b"):
        stage.join(name)
    return stage


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the Java process of other tests: the certifier would wait for its end, which does not come."""
    monkeypatch.setattr(java_process, "_java_process", lambda: None)


@pytest.mark.rule("DBSP-19")
def test_a_death_makes_a_suspect_and_several_deaths_a_failure(stage: Stage) -> None:
    assert stage.begin("a") is Attempt.BEGUN
    stored = stage.read()
    assert stored is not None
    assert (stored.equal, stored.open, stored.failed, stored.attempted_by) == (False, True, False, "a")
    assert stage.begin("b") is Attempt.RUNNING
    stale = stage.nodes["a"]
    for _ in range(MOST_DEATHS - 1):
        stage.clock.advance(16)
        stage.join("a")
        assert stage.begin("a") is Attempt.SUSPECT
    assert not stage.store.run(lambda tx: certificates.finish(tx, C, DIGEST, stale, UNFINISHED)), (
        "a failure of a stale node changes nothing"
    )
    stage.clock.advance(16)
    stage.join("b")
    assert stage.begin("b") == UNFINISHED
    assert stage.read() == UNFINISHED
    assert UNFINISHED.failed


def test_a_node_that_joins_again_under_a_new_epoch_has_died(stage: Stage) -> None:
    """A supervisor keeps its node and starts another child, under the next epoch."""
    assert stage.begin("a") is Attempt.BEGUN
    assert stage.begin("a") is Attempt.RUNNING
    stage.join("a")
    assert stage.begin("a") is Attempt.SUSPECT


@pytest.mark.parametrize("losses", [1, MOST_DEATHS])
def test_a_node_that_lost_its_lease_and_runs_on_stores_its_result(stage: Stage, losses: int) -> None:
    """It counts as dead, but its result shows that the comparison did not end it."""
    alive = stage.nodes["a"]
    stage.begin("a")
    for _ in range(losses):
        stage.clock.advance(16)
        stage.join("b")
        stage.begin("b")
    assert stage.store.run(lambda tx: certificates.finish(tx, C, DIGEST, alive, EQUAL))
    assert stage.begin("b") == EQUAL
    differs = ViewCertificate(equal=False, why="a row differs")
    assert not stage.finish("b", differs), "the first result counts"
    assert stage.read() == EQUAL


def test_a_finished_attempt_is_the_certificate(stage: Stage) -> None:
    stage.begin("a")
    assert not stage.finish("b", UNFINISHED)
    assert stage.finish("a", EQUAL)
    assert stage.begin("b") == EQUAL


def test_an_interrupted_attempt_begins_again_and_keeps_the_deaths_before_it(stage: Stage) -> None:
    stage.begin("a")
    stage.withdraw("b")
    assert stage.read() is not None
    stage.withdraw("a")
    assert stage.read() is None
    assert stage.begin("a") is Attempt.BEGUN
    stage.withdraw("a", died=True)
    assert stage.begin("b") is Attempt.SUSPECT
    stage.withdraw("b")
    assert stage.begin("a") is Attempt.SUSPECT


def test_only_a_failed_attempt_can_be_retried(stage: Stage) -> None:
    def forget(tx: Tx) -> bool:
        return certificates.forget_failure(tx, C, DIGEST)

    assert not stage.store.run(forget)
    stage.begin("a")
    assert not stage.store.run(forget), "node a may still be at it"
    assert stage.finish("a", UNFINISHED)
    assert stage.store.run(forget)
    stage.begin("b")
    stage.finish("b", EQUAL)
    assert not stage.store.run(forget)


@pytest.mark.rule("DBSP-19")
def test_the_digest_covers_query_types_and_the_version_of_spark() -> None:
    digests = {
        certificates.digest_of(code, output, spark)
        for code in ("code", "other code")
        for output in (OUTPUT, compile_query("SELECT 2 AS n", {}).output)
        for spark in ("4.3.0", "4.3.1")
    }
    assert len(digests) == 8
    functions = {
        certificates.digest_of_function("code", declared, {"t": ddl}, spark)
        for declared in ("linear", "keyed by a")
        for ddl in ("a INT", "a BIGINT")
        for spark in ("4.3.0", "4.3.1")
    }
    assert len(functions) == 8


def test_another_release_certifies_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = certificates.digest_of("code", OUTPUT, "4.3.0")
    monkeypatch.setattr(certificates, "_release", lambda: "another release")
    assert certificates.digest_of("code", OUTPUT, "4.3.0") != before


# --- the certifier of a runner


class FakeSpark:
    """A session that only has settings and takes tags."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.settings: dict[str, str] = {"spark.sql.shuffle.partitions": "7"}
        self.conf = SimpleNamespace(
            get=self.settings.get,
            set=self.settings.__setitem__,
            unset=self.settings.pop,
            getAll=self.settings,
            isModifiable=lambda name: True,
        )
        self.sparkContext = SimpleNamespace(
            addJobTag=lambda tag: None, removeJobTag=lambda tag: None, cancelJobsWithTag=self.cancelled.append
        )

    def newSession(self) -> "FakeSpark":  # noqa: N802 - its name in pyspark
        return FakeSpark()


OUTPUT = compile_query("SELECT 1 AS n", {}).output
GROUP = "views:p/main"
Compare = Callable[[list[str]], list[ViewCertificate]]


def view(name: str, refresh: str = "auto") -> ViewProgram:
    return ViewProgram(
        name=name,
        sql="SELECT 1 AS n",
        schema="n INT",
        datasets={},
        views=(),
        where="p.py:1",
        code="code",
        circuit=OUTPUT,
        refresh=refresh,
    )


class Life:
    """One life of a process that certifies views."""

    def __init__(
        self,
        stage: Stage,
        monkeypatch: pytest.MonkeyPatch,
        compare: Compare,
        *names: str,
        node: str = "a",
        refresh: str = "auto",
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        def certify_circuits(spark: Any, tests: list[CircuitTest], *_: Any, **__: Any) -> Any:
            assert spark.settings["spark.sql.shuffle.partitions"] == "1"
            return compare([test.view for test in tests])

        monkeypatch.setattr(tester, "certify_circuits", certify_circuits)
        self.events: list[Event] = []
        self.spark = FakeSpark()
        self.views = {name: view(name, refresh) for name in names or ("v",)}
        spec = GroupSpec(
            name="main", views=tuple(ViewSpec(name=name, code="code", reads=()) for name in self.views)
        )
        program = Program(
            pipeline="p",
            datasets={},
            arcs={},
            sources={},
            groups={GROUP: GroupProgram(spec=spec, views=tuple(self.views.values()))},
            tests={
                name: CircuitTest(
                    pipeline="p",
                    view=name,
                    digest=DIGEST if name == "v" else f"digest of {name}",
                    tables={},
                    sql="SELECT 1 AS n",
                    output=OUTPUT,
                )
                for name in self.views
            },
        )
        scope = Scope(
            store=stage.store,
            cluster=C,
            objects=MemoryObjects(stage.clock),
            node=stage.nodes[node],
            clock=stage.clock,
            chance=random.Random(2),
            emit=self.events.append,
        )
        self.certifier = Certifier(
            scope,
            lambda: stage.nodes[node],
            self.spark,  # type: ignore[arg-type]
            program,
            is_busy=is_busy,
        )
        self.certifier.start()

    def end(self) -> list[Event]:
        self.certifier.wait(STUCK_S)
        assert self.certifier.is_done()
        assert self.spark.settings == {"spark.sql.shuffle.partitions": "7"}, "the user's session is untouched"
        return self.events

    def uses(self, name: str = "v") -> bool:
        return self.certifier.usable(self.views[name]).circuit is not None


def equal(names: list[str]) -> list[ViewCertificate]:
    return [EQUAL for _ in names]


def never(names: list[str]) -> list[ViewCertificate]:
    raise AssertionError("the test must not be repeated")


def raising(error: BaseException) -> Compare:
    def compare(names: list[str]) -> list[ViewCertificate]:
        raise error

    return compare


@pytest.mark.rule("DBSP-19")
def test_the_attempt_is_recorded_before_the_test_starts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(names: list[str]) -> list[ViewCertificate]:
        stored = stage.read()
        assert stored is not None
        assert (stored.attempted_by, stored.open) == ("a", True)
        return equal(names)

    life = Life(stage, monkeypatch, compare)
    assert [type(event) for event in life.end()] == [ViewCertified]
    assert life.uses()
    assert stage.read() == EQUAL
    assert Life(stage, monkeypatch, never).end() == []


class Gate:
    """A comparison that ends when a test lets it end."""

    def __init__(self, compare: Compare) -> None:
        self._compare = compare
        self._opened = threading.Event()

    def __call__(self, names: list[str]) -> list[ViewCertificate]:
        assert self._opened.wait(STUCK_S)
        return self._compare(names)

    def open(self) -> None:
        self._opened.set()


def only_right(names: list[str]) -> list[ViewCertificate]:
    return [ViewCertificate(equal=name == "right", why="differs") for name in names]


@pytest.mark.rule("DBSP-19")
def test_a_step_uses_circuits_before_they_are_certified_but_is_not_committed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = Gate(only_right)
    life = Life(stage, monkeypatch, compare, "right", "wrong")
    assert life.uses("right")
    assert life.uses("wrong")
    confirmed: list[str] = []

    def confirm() -> None:
        with pytest.raises(NotCertified, match="differ from what plain Spark computes: wrong"):
            life.certifier.confirm(["right", "wrong"])
        confirmed.append("refused")

    step = threading.Thread(target=confirm)
    step.start()
    assert not life.certifier.is_done()
    assert not confirmed
    compare.open()
    step.join(STUCK_S)
    assert confirmed == ["refused"]
    life.end()
    assert life.uses("right")
    assert not life.uses("wrong"), "the next attempt recomputes it"
    life.certifier.confirm(["right"])


@pytest.mark.rule("DBSP-19")
def test_a_step_that_has_waited_long_enough_recomputes_its_views_until_certificates_arrive(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.clock = FakeClock()
    compare = Gate(only_right)
    life = Life(stage, monkeypatch, compare, "right", "wrong")
    for _ in range(2):
        with pytest.raises(NotCertified, match="not compared with plain Spark yet: right, wrong"):
            life.certifier.confirm(["right", "wrong"])
    late = [event.view for event in life.events if isinstance(event, CertificateLate)]
    assert sorted(late) == ["right", "wrong"], "once for each view"
    assert not life.uses("right")
    life.certifier.confirm([])
    compare.open()
    life.end()
    assert life.uses("right")
    assert not life.uses("wrong")


def test_a_view_that_must_be_incremental_waits_for_its_certificate(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.clock = FakeClock()
    compare = Gate(equal)
    life = Life(stage, monkeypatch, compare, refresh="incremental")
    step = threading.Thread(target=life.certifier.confirm, args=(["v"],))
    step.start()
    while stage.clock.monotonic() < 10_000:
        assert step.is_alive()
    compare.open()
    step.join(STUCK_S)
    life.end()
    assert life.uses("v")


@pytest.mark.rule("DBSP-19")
@pytest.mark.parametrize("error", [BoundExceeded("it took longer than 2 s"), ValueError("a bug")])
def test_a_test_that_fails_stops_no_pipeline_and_is_not_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Of a batch that fails, each view is compared alone; only one of them is to blame."""

    def compare(names: list[str]) -> list[ViewCertificate]:
        if "v" in names:
            raise error
        return equal(names)

    life = Life(stage, monkeypatch, compare, "u", "v", "w")
    events = life.end()
    (event,) = [event for event in events if isinstance(event, ViewNotCertified)]
    assert event.view == "v"
    assert str(error) in event.why
    assert {event.view for event in events if isinstance(event, ViewCertified)} == {"u", "w"}
    stored = stage.read()
    assert stored is not None
    assert (stored.equal, stored.failed, stored.attempted_by) == (False, True, "")
    assert not life.uses()
    assert Life(stage, monkeypatch, never, "u", "v", "w").end() == []


@pytest.mark.rule("DBSP-19")
def test_a_view_that_ends_spark_alone_has_failed_and_the_others_of_its_batch_have_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[str]] = []

    def compare(names: list[str]) -> list[ViewCertificate]:
        batches.append(names)
        if "v" not in names:
            return equal(names)
        try:
            raise ArithmeticException("java.lang.OutOfMemoryError: Java heap space")
        finally:  # cleaning up
            raise ConnectionRefusedError("refused")

    for lives in range(4):
        life = Life(stage, monkeypatch, compare, "u", "v")
        if lives > 1:
            assert life.end() == []
            continue
        with pytest.raises(SparkUnavailable, match=r"Spark ended during the test of .*OutOfMemoryError"):
            life.end()
    assert batches == [["u", "v"], ["u"], ["v"]]
    assert stage.read("digest of u") == EQUAL
    stored = stage.read()
    assert stored is not None
    assert stored.failed
    assert "ended Spark: java.lang.OutOfMemoryError" in stored.why


@pytest.mark.rule("DBSP-19")
@pytest.mark.parametrize("point", ["certify.begin.after", "certify.finish.before"])
def test_a_test_whose_process_is_killed_is_repeated_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """One kill proves nothing about the view, so the view is not recomputed for ever."""
    batches: list[list[str]] = []

    def compare(names: list[str]) -> list[ViewCertificate]:
        batches.append(names)
        return equal(names)

    with crash.armed(point):
        life = Life(stage, monkeypatch, compare, "u", "v")
        with pytest.raises(crash.Crashed):
            life.end()
    life.certifier.abandon()
    stage.join("a")
    life = Life(stage, monkeypatch, compare, "u", "v")
    events = life.end()
    assert {event.view for event in events if isinstance(event, ViewCertified)} == {"u", "v"}
    assert batches[-2:] == [["u"], ["v"]], "suspects are compared alone"


def test_nothing_else_starts_while_a_suspect_is_compared(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.begin("a")  # and then the process is killed
    stage.join("a")
    compared = threading.Event()

    def compare(names: list[str]) -> list[ViewCertificate]:
        assert compared.wait(STUCK_S)
        return equal(names)

    life = Life(stage, monkeypatch, compare)
    assert life.certifier.is_exclusive()
    compared.set()
    life.end()
    assert not life.certifier.is_exclusive()


def test_a_view_whose_processes_keep_dying_is_recomputed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(MOST_DEATHS):
        stage.begin("a")
        stage.join("a")
    life = Life(stage, monkeypatch, never)
    (event,) = life.end()
    assert isinstance(event, ViewNotCertified)
    assert "ended Spark or its process 3 times" in event.why
    assert not life.uses()
    assert Life(stage, monkeypatch, never).end() == [], "one event is enough"


@pytest.mark.rule("DBSP-19")
@pytest.mark.parametrize("point", ["certify.withdraw.before", "certify.withdraw.after"])
def test_a_process_that_is_killed_while_it_withdraws_leaves_a_view_that_is_compared_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    lives: queue.Queue[Life] = queue.Queue()

    def compare(names: list[str]) -> list[ViewCertificate]:
        lives.get(timeout=STUCK_S).certifier._stop.set()
        raise ArithmeticException("[JOB_CANCELLED]")

    with crash.armed(point):
        life = Life(stage, monkeypatch, compare)
        lives.put(life)
        with pytest.raises(crash.Crashed):
            life.certifier.wait(STUCK_S)
    life.certifier.abandon()
    stage.join("a")
    events = Life(stage, monkeypatch, equal).end()
    assert [event.view for event in events if isinstance(event, ViewCertified)] == ["v"]


def test_an_interrupted_test_is_withdrawn_and_repeated(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    running, interrupted = threading.Event(), threading.Event()

    def compare(names: list[str]) -> list[ViewCertificate]:
        running.set()
        assert interrupted.wait(STUCK_S)
        raise ArithmeticException("[JOB_CANCELLED]")

    life = Life(stage, monkeypatch, compare)
    assert running.wait(STUCK_S)
    stopping = threading.Thread(target=life.certifier.stop)
    stopping.start()
    interrupted.set()
    stopping.join(STUCK_S)
    assert stage.read() is None
    assert [type(event) for event in Life(stage, monkeypatch, equal).end()] == [ViewCertified]


def test_a_runner_follows_the_comparison_of_another_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.clock = FakeClock()
    stage.store.run(lambda tx: certificates.begin(tx, C, DIGEST, stage.nodes["b"]))
    life = Life(stage, monkeypatch, never)
    assert not life.certifier.is_done()
    assert stage.finish("b", EQUAL)
    assert life.end() == [], "node b has reported it"
    life.certifier.confirm(["v"])


def test_a_view_is_not_blamed_for_the_end_of_spark_while_other_work_runs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.begin("b")
    life = Life(stage, monkeypatch, raising(ArithmeticException("java.lang.OutOfMemoryError")))
    while life.certifier.is_exclusive():
        pass
    stage.join("b")  # so its process has died, and our runner takes over while it does other work
    with pytest.raises(SparkUnavailable, match="Spark ended during the test"):
        life.end()
    stored = stage.read()
    assert stored is not None
    assert (stored.open, stored.deaths) == (True, 2)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
def test_a_function_that_exits_does_not_end_the_runner(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    life = Life(stage, monkeypatch, raising(error))
    life.end()
    stored = stage.read()
    assert stored is not None
    assert stored.failed


def test_after_a_stop_no_view_of_a_failed_batch_is_compared_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[str]] = []

    def compare(names: list[str]) -> list[ViewCertificate]:
        batches.append(names)
        if len(names) == 1:
            lives.get(timeout=STUCK_S).certifier._stop.set()
        raise ArithmeticException("[JOB_CANCELLED]")

    lives: queue.Queue[Life] = queue.Queue()
    life = Life(stage, monkeypatch, compare, "u", "v", "w")
    lives.put(life)
    life.certifier.wait(STUCK_S)
    assert batches == [["u", "v", "w"], ["u"]]
    assert [stage.read(digest) for digest in ("digest of u", DIGEST, "digest of w")] == [None] * 3


@pytest.mark.rule("DBSP-19")
@pytest.mark.parametrize("busy_tries", [0, 1, 3, 100])
def test_a_comparison_that_waits_for_other_work_on_spark_is_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, busy_tries: int
) -> None:
    """Spark runs the tasks of an earlier job first, so a large load keeps small queries waiting."""
    tries: list[list[str]] = []

    def compare(names: list[str]) -> list[ViewCertificate]:
        tries.append(names)
        if len(tries) <= max(busy_tries, 1):
            raise TimeExceeded("it took longer than 120 s")
        return equal(names)

    life = Life(stage, monkeypatch, compare, is_busy=lambda: len(tries) <= busy_tries - 1)
    life.end()
    stored = stage.read()
    assert stored is not None
    assert stored.failed is (busy_tries in (0, 100))
    assert len(tries) == {0: 1, 1: 2, 3: 4, 100: BUSY_TRIES}[busy_tries]


@pytest.mark.rule("DBSP-18")
def test_settings_are_pinned_again_after_a_tested_function_has_changed_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark, zone = FakeSpark(), "spark.sql.session.timeZone"

    def function(frame: object) -> object:
        spark.settings[zone] = "Asia/Tokyo"
        return SimpleNamespace(createOrReplaceTempView=lambda name: None)

    def collect_rows(_: object, texts: list[str], **options: object) -> list[list[Any]]:
        assert spark.settings[zone] == PINNED[zone]
        return [[] for _ in texts]

    spark.catalog = SimpleNamespace(dropTempView=lambda name: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(declared_functions.TableContents, "frame", lambda *_: None)
    monkeypatch.setattr(declared_functions, "collect_rows", collect_rows)
    declared_functions.certify_function(spark, function, ["t"], {"t": "a INT"})  # type: ignore[arg-type]


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
        assert clock.expired.wait(STUCK_S)
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
