"""One pipeline, run by several runners at once, on a Spark cluster that loses a worker, and through Spark
Connect: the same tables each time.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import shop
from tests.acceptance.pipeline_processes import Place, Run
from tests.servers.fixtures import _or_skip
from tests.servers.process import wait_until
from tests.servers.spark import SMALL, SparkConnectServer, SparkStandalone, small_spark
from tidemill.pipeline.run import join_cluster, run_as_node
from tidemill.testing.threads import STUCK_S, Racer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES, ROWS = 5, 4
SHARED = 3
"""How many files two runners share."""
IDS = [range(10 * n, 10 * n + ROWS) for n in range(FILES)]


class InProcess:
    """A runner in a thread of this process, which uses the Spark of the tests."""

    def __init__(self, place: Place, spark: "SparkSession") -> None:
        self._place = place
        self._spark = spark
        self._stop = threading.Event()
        self._runner = Racer(self._run)
        self._runner.start()

    def _run(self) -> int:
        with self._place.declare(self._spark) as pipeline, join_cluster(pipeline) as presence:
            run_as_node(pipeline, presence, watch=True, stop=self._stop, threads=1)
        return 0

    def until(self, ready: Callable[[], bool], what: str) -> None:
        wait_until(lambda: ready() or not self._runner.is_alive(), timeout_s=STUCK_S, every_s=0.05)
        assert ready(), what

    def drain(self) -> int:
        self._stop.set()
        return self._runner.outcome()

    def end(self) -> None:
        self._stop.set()
        self._runner.join(STUCK_S)


def together(place: Place, start: "Callable[[], Run | InProcess]") -> None:
    """Two runners watch; files arrive when both are there; both are asked to leave when all is done.

    Parts wait for each other until both runners have begun one: a slow machine might let one make them all.
    """
    with ExitStack() as stack:
        runs = [start() for _ in range(2)]
        for run in runs:
            stack.callback(run.end)
        for run in runs:
            run.until(lambda: len(place.lines("double")) == 2, "both have planned")
        for n, ids in enumerate(IDS[:SHARED]):
            shop.land(place.landing, f"f{n}", ids.start, ROWS)
        pipeline = stack.enter_context(place.declare())
        runs[0].until(lambda: pipeline["doubled"].position == SHARED, "all lots are doubled")
        want = shop.expected(*IDS[:SHARED])
        runs[0].until(lambda: shop.view(pipeline) == want[shop.VIEW], "the view has caught up")
        assert [run.drain() for run in runs] == [0, 0]
        assert shop.held(pipeline) == want
        shop.clean_up(pipeline)
        assert shop.orphans(pipeline) == []
        shop.seen(pipeline)  # with what must hold of any
    made = {word: sum(place.runners(word).values()) for word in ("clean", "double")}
    assert made == {"clean": SHARED, "double": 2 * SHARED}  # each part once: no lot was processed twice
    assert len(place.runners("double")) == 2, "both runners made parts"


@pytest.mark.rule("LOT-14")
@pytest.mark.rule("LOT-26")
def test_two_runners_share_the_parts_of_each_lot(
    tmp_path: Path, postgres_url: str, spark: "SparkSession"
) -> None:
    place = Place(tmp_path, small_spark(SMALL), store=postgres_url, max_files=1, together=2)
    together(place, lambda: InProcess(place, spark))


@pytest.mark.crash
@pytest.mark.rule("LOT-14")
@pytest.mark.rule("LOT-26")
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_two_processes_share_the_work_of_one_pipeline(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgresql" else ""
    place = Place(tmp_path, small_spark(SMALL), store=url, max_files=1, together=2)
    together(place, lambda: Run(place, "--watch", "--threads", "1"))


@pytest.mark.crash
@pytest.mark.rule("LOT-26")
def test_a_spark_worker_that_is_killed_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    with _or_skip(SparkStandalone) as cluster, ExitStack() as stack:
        gate = tmp_path / "gate"
        place = Place(tmp_path, cluster.settings(SMALL), max_files=1, gate=str(gate))
        for n, ids in enumerate(IDS):
            shop.land(place.landing, f"f{n}", ids.start, ROWS)
        run = Run(place)
        stack.callback(run.end)
        run.until(lambda: len(place.lines("clean")) > 2, "parts are being made")
        cluster.kill_worker(0)
        assert len(place.lines("clean")) < FILES + 1  # it is in the middle
        gate.touch()
        assert run.report()["ok"]
        with place.declare() as pipeline:
            assert shop.held(pipeline) == shop.expected(*IDS)
            shop.clean_up(pipeline)
            assert shop.orphans(pipeline) == []
            shop.seen(pipeline)


def test_the_same_pipeline_through_spark_connect(tmp_path: Path, spark_connect: SparkConnectServer) -> None:
    place = Place(tmp_path, small_spark(SMALL), refresh="auto")  # certified there as well
    shop.land(place.landing, "a", 0, 6)
    run = Run(place, "--spark", spark_connect.url)
    try:
        assert run.report()["ok"]
    finally:
        run.end()
    with place.declare() as pipeline:
        assert shop.held(pipeline) == shop.expected(range(6))
        shop.clean_up(pipeline)
        assert shop.orphans(pipeline) == []
