"""`tidemill run` whose process ends like kill -9 at a crash point: its supervisor starts another, which ends
as if nothing had been. In `make test` a tenth of all points, drawn by a seed; in `make crash` all, and more.
"""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import shop
from tests.acceptance.pipeline_processes import Place, Run
from tests.servers.spark import small_spark
from tidemill import crash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 4
STEPS = (
    "arcs.begin",
    "publish.commit",
    "publish.intent",
    "publish.manifest",
    "publish.part-manifest",
    "publish.project-arc",
    "publish.project-lot",
    "runner.round",
    "runner.submit",
    "sources.begin",
    "sources.take",
    "spark.write",
    "tender.push",
    "views.commit",
    "views.cut",
    "views.manifest",
    "views.open",
)
POINTS = (
    *(f"{step}.{side}" for step in STEPS for side in ("before", "after")),
    "objects.local.before_rename",
    "objects.local.after_rename",
    "runner.function.before",
    "store.sqlite.before_commit",
    "store.sqlite.after_commit",
)
"""What a run passes that begins with an empty home; a test sees to it that these are all."""

SOME = random.Random(SEED).sample(POINTS, len(POINTS) // 10)

LATER = (
    "publish.abandon",
    "publish.remove-data",
    "publish.remove-manifests",
    "publish.swept",
    "runner.errand",
    "runner.forget",
    "tender.prune",
    "tender.rebuild",
    "tender.wake",
)
"""What a run does when there is time for it."""


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> dict[str, object]:
    """What an undisturbed run leaves, once the points that it passes are those that are listed here."""
    folder = tmp_path_factory.mktemp("calm")
    shop.land(folder / "landing", "a", 0)
    with shop.declare(folder / "home", folder / "landing", spark, refresh="full") as pipeline:
        with crash.recorded() as passed:
            assert pipeline.run().ok
        later = {f"{step}.{side}" for step in LATER for side in ("before", "after")}
        assert passed - later == {*POINTS}
        shop.clean_up(pipeline)
        assert shop.orphans(pipeline) == []
        return shop.seen(pipeline, steps=False)


def killed_at(place: Place, crash_at: str) -> bool:
    """Run with a point armed until everything is done; whether the process was killed meanwhile."""
    imported = len(place.lines("imported"))
    run = Run(place, crash=crash_at)
    try:
        assert run.report()["ok"], run.said()
    finally:
        run.end()
    return len(place.lines("imported")) - imported == 3  # asked what it is; the first process; the second


def check(point: str, folder: Path, calm: dict[str, object]) -> None:
    place = Place(folder, small_spark())
    shop.land(place.landing, "a", 0)
    assert killed_at(place, point), point
    with place.declare() as pipeline:
        shop.clean_up(pipeline)
        assert shop.orphans(pipeline) == []
        assert shop.seen(pipeline, steps=False) == calm


@pytest.mark.rule("LOT-20")
@pytest.mark.parametrize("point", SOME)
def test_after_a_kill_the_next_process_leaves_what_an_undisturbed_one_does(
    point: str, tmp_path: Path, calm: dict[str, object]
) -> None:
    check(point, tmp_path, calm)


@pytest.mark.crash
@pytest.mark.parametrize("point", [point for point in POINTS if point not in SOME])
def test_after_a_kill_at_any_other_point_too(point: str, tmp_path: Path, calm: dict[str, object]) -> None:
    check(point, tmp_path, calm)


ROUNDS, KILLS = 10, 10


@pytest.mark.crash
@pytest.mark.parametrize("number", range(ROUNDS))
def test_also_after_many_kills_wherever_they_are(
    number: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # noqa: T201 - shown when this fails
    chance = random.Random(seed)
    place = Place(tmp_path, small_spark())
    ids: list[range] = []
    kills = 0
    for n in range(KILLS):
        ids.append(range(10 * n, 10 * n + chance.randint(1, 10)))
        shop.land(place.landing, f"f{n}", ids[-1].start, len(ids[-1]))
        kills += killed_at(place, f"{chance.choice(POINTS)}:{chance.randint(1, 6)}")
        with place.declare() as pipeline:
            assert shop.held(pipeline) == shop.expected(*ids)
    assert kills >= KILLS // 3
    with place.declare() as pipeline:
        shop.clean_up(pipeline)
        assert shop.orphans(pipeline) == []
        shop.seen(pipeline)
