"""Processes of the life of lots that end like kill -9: at replay, backfill, compaction, at every source.

Each lives in a scene (`tests.integration.life_scenes`), and one is killed before a step that the scene is
about, the next one behind it. Then a third, this one, leaves what an undisturbed one does. In `make test` one
step of each scene, drawn by a seed; in `make crash` all.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.lives import Kills, Lives, lives
from tests.acceptance.test_pipeline_kills import LATER
from tests.integration.life_scenes import SCENES, Scene, Staged, staged
from tests.integration.test_pipeline_life_crashes import BELOW
from tests.kill_samples import sample
from tests.unit.test_sources_http_poll import web

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lives", "web"]  # fixtures
STEPS = {
    "ordered": "arcs.begin lot_requests.submit publish.commit publish.intent publish.part-manifest"
    " runner.function runner.submit spark.write",
    "compaction": "publish.compact-commit publish.compact-digest publish.compact-open publish.intent"
    " publish.part-manifest publish.retire-data publish.retire-manifest publish.retired spark.write",
    "folder": "publish.commit publish.intent publish.part-manifest runner.submit sources.begin sources.take"
    " spark.write spark.write_table",
    "bucket": "publish.commit publish.intent publish.part-manifest runner.submit sources.begin sources.take"
    " spark.write spark.write_table",
    "poll": "publish.commit publish.intent publish.part-manifest sources.fetch spark.write_table",
    "kafka": "publish.commit publish.intent publish.part-manifest sources.checkpoint sources.fetch"
    " sources.leave sources.renew sources.share sources.take-partition spark.write_table",
    "push": "publish.commit publish.intent publish.part-manifest sources.receive spark.write_table",
}
"""The steps that an undisturbed life passes in each scene, without those of the layers below."""

CHOSEN = [
    point for scene, steps in STEPS.items() for point in sample([(scene, step) for step in steps.split()])
]
"""A step of each scene, so that `make test` checks each list of steps."""

ONE_SIDED = {"runner.function": ("before",)}


def kills(scene: Scene, folder: Path, spark: "SparkSession") -> Kills:
    """The stage of a scene, which passes the steps that are listed here."""
    stage = Kills(scene, folder, spark)
    steps = {point.rpartition(".")[0] for point in stage.passed if not point.startswith(BELOW)}
    assert steps - {*LATER} == {*STEPS[scene.name].split()}
    assert steps >= scene.steps
    return stage


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Staged[Kills]:
    return staged(kills, tmp_path_factory, spark)


def points(step: str) -> list[str]:
    """The points before and after a step."""
    return [f"{step}.{side}" for side in ONE_SIDED.get(step, ("before", "after"))]


@pytest.mark.rule("LOT-20")
@pytest.mark.parametrize(("name", "step"), CHOSEN)
def test_after_kills_before_and_behind_a_step_in_the_life_of_lots_all_is_as_if_nothing_had_been(
    name: str,
    step: str,
    scenes: Staged[Kills],
    lives: Lives,
    request: pytest.FixtureRequest,
) -> None:
    assert scenes(name, request).trouble(lives, points(step)) == ""


@pytest.mark.crash
@pytest.mark.rule("LOT-31")
@pytest.mark.rule("LOT-35")
@pytest.mark.rule("LOT-37")
@pytest.mark.rule("CLU-22")
@pytest.mark.parametrize("name", SCENES)
def test_also_at_every_step_of_every_scene(
    name: str,
    scenes: Staged[Kills],
    lives: Lives,
    request: pytest.FixtureRequest,
) -> None:
    stage = scenes(name, request)
    troubles = {step: stage.trouble(lives, points(step)) for step in STEPS[name].split()}
    assert {step: wrong for step, wrong in troubles.items() if wrong} == {}
