"""One pipeline, run by several runners at once, on a Spark cluster that loses a worker, and through Spark
Connect: the same tables each time.
"""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import shop
from tests.acceptance.pipeline_processes import Place, Run
from tests.servers.fixtures import _or_skip
from tests.servers.spark import SMALL, SparkConnectServer, SparkStandalone, small_spark

FILES, ROWS = 5, 4
SHARED = 3
"""How many files two runners share."""
IDS = [range(10 * n, 10 * n + ROWS) for n in range(FILES)]


def together(place: Place) -> None:
    """Two runners watch; files arrive when both are there; both are asked to leave when all is done.

    Parts wait for each other until both runners have begun one: a slow machine might let one make them all.
    """
    with ExitStack() as stack:
        runs = [Run(place, "--watch", "--threads", "1") for _ in range(2)]
        for run in runs:
            stack.callback(run.end)
        for run in runs:
            run.until(lambda: len({*place.lines("double")}) == 2, "both have planned")
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
    plans = 1  # of each process calls every function once
    made = Counter({word: len(place.lines(word)) - 2 * plans for word in ("clean", "double")})
    assert made == {"clean": SHARED, "double": 2 * SHARED}  # each part once: no lot was processed twice
    by = Counter(place.lines("clean") + place.lines("double"))
    assert all(count > 2 * plans for count in by.values()), by
    assert len(by) == 2


@pytest.mark.crash  # as on PostgreSQL, below
@pytest.mark.rule("LOT-14")
@pytest.mark.rule("LOT-26")
def test_two_runners_share_the_work_of_one_pipeline_on_sqlite(tmp_path: Path) -> None:
    together(Place(tmp_path, small_spark(SMALL), max_files=1, together=2))


@pytest.mark.rule("LOT-14")
@pytest.mark.rule("LOT-26")
def test_two_runners_share_the_work_of_one_pipeline_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    together(Place(tmp_path, small_spark(SMALL), store=postgres_url, max_files=1, together=2))


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
