"""A pipeline's process is killed before a step and its successor after it: the third one leaves what an
undisturbed one does.

`make crash` kills `tidemill run` at every step and at a hundred random points. `make test` kills processes at
a tenth of the steps; they share Java with the test, so that none of them has to start one.
`tests.integration.test_pipeline_crashes` ends lives within one process.
"""

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests import shop
from tests.acceptance.lives import Kills, Lives, lives
from tests.acceptance.pipeline_processes import Place, Run
from tests.integration.life_scenes import Shop
from tests.kill_samples import sample
from tests.servers.spark import SMALL, small_spark
from tidemill import crash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lives"]  # a fixture

STEPS = (
    "arcs.begin",
    "publish.commit",
    "publish.intent",
    "publish.manifest",
    "publish.part-manifest",
    "publish.project-arc",
    "publish.project-lot",
    "futures.round",
    "runner.submit",
    "sources.begin",
    "sources.take",
    "spark.write",
    "spark.write_table",
    "triggers.push",
    "views.commit",
    "views.cut",
    "views.manifest",
    "views.open",
)
SIDES = {
    **{step: (f"{step}.before", f"{step}.after") for step in STEPS},
    "objects.local.link": ("objects.local.before_link", "objects.local.after_link"),
    "objects.local.rename": ("objects.local.before_rename", "objects.local.after_rename"),
    "runner.function": ("runner.function.before",),
    "store.sqlite.commit": ("store.sqlite.before_commit", "store.sqlite.after_commit"),
    "views.trace.version": ("views.trace.before_version", "views.trace.after_version"),
}
POINTS = tuple(point for points in SIDES.values() for point in points)
"""What a run passes whose pipeline is declared; a test sees to it that these are all."""

IN_WORKERS = ("views.trace.before_bundle", "views.trace.after_bundle", "views.task.reported")
"""What Spark's workers pass in a step of a view, where they kill their runner; in a small one, it does."""

ALL = {**SIDES, "views.trace.bundle": IN_WORKERS}

LATER = (
    "publish.abandon",
    "publish.remove-data",
    "publish.remove-manifests",
    "publish.swept",
    "publish.forget",
    "futures.pending",
    "runner.forget",
    "triggers.prune",
    "triggers.rebuild",
    "triggers.wake",
)
"""What a run does when there is time for it."""


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Kills:
    """What an undisturbed run leaves, once the points that it passes are those that are listed here."""
    folder = tmp_path_factory.mktemp("calm")
    stage = Kills(Shop.of(folder / "landing"), folder, spark)
    later = {f"{step}.{side}" for step in LATER for side in ("before", "after")}
    assert stage.passed - later - {*IN_WORKERS} == {*POINTS}
    return stage


def of_packages(*packages: str) -> list[str]:
    return [step for step in SIDES if step.partition(".")[0] in packages]


PARTS = (
    of_packages("views"),
    of_packages("publish"),
    of_packages("store", "objects"),
    of_packages("arcs", "futures", "runner", "sources", "spark", "triggers"),
)
"""The steps, by what they are part of: the sample has some of each part."""


@pytest.mark.rule("LOT-20")
@pytest.mark.parametrize("step", [step for steps in PARTS for step in sample(steps)])
def test_after_kills_around_a_step_the_next_life_leaves_what_an_undisturbed_one_does(
    step: str, calm: Kills, lives: Lives
) -> None:
    assert calm.trouble(lives, SIDES[step]) == ""


def killed_at(place: Place, *points: str) -> int:
    """Run until everything is done, with a point armed in each life; how many of them ended there."""
    imported = len(place.lines("imported"))
    run = Run(place, crash=",".join(points))
    try:
        assert run.report()["ok"], run.said()
    finally:
        run.end()
    return len(place.lines("imported")) - imported - 2  # asked what it is; and the last one


@pytest.mark.crash
@pytest.mark.rule("LOT-20")
@pytest.mark.parametrize("step", ALL)
def test_after_kills_before_and_after_a_step_the_next_process_leaves_what_an_undisturbed_one_does(
    step: str, tmp_path: Path, calm: Kills, spark: "SparkSession"
) -> None:
    place = Place(tmp_path, small_spark(_conf(step)), refresh="auto", landing=calm.scene.options["landing"])
    shutil.copytree(calm.folder / "before", tmp_path / "home")
    assert killed_at(place, *ALL[step]) == len(ALL[step])
    with place.declare() as pipeline:
        shop.clean_up(pipeline)
        assert shop.orphans(pipeline) == []
        assert shop.seen(pipeline, steps=False) == calm.calm
    landing = Path(calm.scene.options["landing"])
    shop.land(landing, "b", 6)
    try:
        with place.declare(spark) as pipeline:  # the view's state is what it should be, too
            assert pipeline.run().ok
            assert shop.held(pipeline) == shop.expected(range(12))
    finally:
        (landing / "b.json").unlink()


def _conf(step: str) -> dict[str, str]:
    daemon = {"spark.python.daemon.module": "tests.acceptance.killing_daemon"}
    return SMALL | daemon if step == "views.trace.bundle" else SMALL


ROUNDS, KILLS, AT_ONCE = 10, 10, 4
FILES = [range(10 * n, 10 * n + 1 + 7 * n % 10) for n in range(10)]
"""The orders that arrive, a file at a time; whoever takes it dies some times, and so do its successors."""


class Visited(NamedTuple):
    """How often a run comes by each point, at least, in the order of the first visits; and what there is
    after so many files when nobody was killed.
    """

    least: dict[str, int]
    left: list[dict[str, object]]


@pytest.fixture(scope="module")
def visited(calm: Kills, tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Visited:
    folder = tmp_path_factory.mktemp("visited")
    shutil.copytree(calm.folder / "before", folder / "home")
    times, left = list[Counter[str]](), list[dict[str, object]]()
    for n, ids in enumerate(FILES):  # of four points that are armed for each, one or two may not come
        shop.land(folder / "landing", f"f{n}", ids.start, len(ids))
        with shop.declare(folder / "home", folder / "landing", spark) as pipeline:
            times.append(Counter())
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(crash, "point", lambda name: times[-1].update([name]))
                assert pipeline.run().ok
            shop.clean_up(pipeline)
            left.append(shop.seen(pipeline, steps=False))
    least = {point: min(visits[point] for visits in times) for point in times[0] if point in POINTS}
    return Visited(least, left)


@pytest.mark.crash
@pytest.mark.parametrize("number", range(ROUNDS))
def test_also_after_many_kills_wherever_they_are(
    number: int, tmp_path: Path, calm: Kills, visited: Visited
) -> None:
    seed = int(os.environ.get("TIDEMILL_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    print(f"TIDEMILL_SEED={seed}")  # noqa: T201 - to repeat it
    chance, order = random.Random(f"{seed} {number}"), list(visited.least)
    place = Place(tmp_path, small_spark(SMALL), refresh="auto")
    shutil.copytree(calm.folder / "before", tmp_path / "home")
    kills = 0
    for n, left in enumerate(visited.left):
        shop.land(place.landing, f"f{n}", FILES[n].start, len(FILES[n]))
        points = sorted(chance.choices(order, k=AT_ONCE), key=order.index)
        kills += killed_at(
            place, *(f"{point}:{chance.randint(1, max(1, visited.least[point]))}" for point in points)
        )
        with place.declare() as pipeline:
            shop.clean_up(pipeline)
            assert shop.orphans(pipeline) == []
            assert shop.seen(pipeline, steps=False) == left
        if kills >= KILLS:
            return
    raise AssertionError(f"only {kills} kills")
