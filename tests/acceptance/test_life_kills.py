"""Processes of the life of lots that end like kill -9: at replay, backfill, compaction, at every source.

Each lives in a scene (`tests.integration.life_scenes`), and one is killed before a step that the scene is
about, the next one behind it. Then a third, this one, leaves what an undisturbed one does. In `make test` a
tenth of all steps, drawn by a seed; in `make crash` all.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.test_pipeline_kills import LATER
from tests.integration.life_scenes import SCENES, Scene, Stage, Staged, staged
from tests.integration.test_pipeline_life_crashes import BELOW
from tests.servers.process import wait_until
from tests.unit.test_sources_http_poll import web
from tidemill import crash
from tidemill.testing.threads import STUCK_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["web"]  # a fixture
ROOT = Path(__file__).parents[2]
SEED = 104
STEPS = {
    "ordered": "arcs.begin lot_requests.submit publish.commit publish.intent publish.part-manifest"
    " runner.function runner.submit spark.write",
    "compaction": "publish.compact-commit publish.compact-digest publish.compact-open publish.intent"
    " publish.part-manifest publish.retire-data publish.retire-manifest publish.retired spark.write",
    "folder": "publish.commit publish.intent publish.part-manifest runner.submit sources.begin sources.take"
    " spark.write",
    "bucket": "publish.commit publish.intent publish.part-manifest runner.submit sources.begin sources.take"
    " spark.write",
    "poll": "publish.commit publish.intent publish.part-manifest sources.draw spark.write_table",
    "kafka": "publish.commit publish.intent publish.part-manifest sources.draw sources.leave sources.mark"
    " sources.renew sources.share sources.take-partition spark.write_table",
    "push": "publish.commit publish.intent publish.part-manifest sources.receive spark.write_table",
}
"""The steps that an undisturbed life passes in each scene, without those of the layers below."""

ALL = [(scene, step) for scene, steps in STEPS.items() for step in steps.split()]
SOME = random.Random(SEED).sample(ALL, len(ALL) // 10)
ONE_SIDED = {"runner.function": ("before",)}


class Lives:
    """Starts processes that live in a scene, and may die there."""

    def __init__(self, spark: "SparkSession") -> None:
        self._jobs = spark.sparkContext.statusTracker()
        self._context = spark.sparkContext
        where = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
        there = {"PYSPARK_GATEWAY_PORT": str(where.port), "PYSPARK_GATEWAY_SECRET": str(where.auth_token)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.life_process"],
            cwd=ROOT,
            env={**os.environ, **there, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def live(self, stage: Stage, home: Path, point: str) -> int:
        """Live in a home; how it ended, the number of the signal. What it had Spark do has ended, too."""
        scene, shift_s = stage.scene, stage.clock.wall_shift_s
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"scene": scene.name, "options": scene.options, "home": str(home), "shift_s": shift_s}
        self._process.stdin.write(json.dumps(request | {"point": point}) + "\n")
        self._process.stdin.flush()
        ended = int(self._process.stdout.readline())
        self._context.cancelAllJobs()  # type: ignore[no-untyped-call]
        assert wait_until(lambda: not self._jobs.getActiveJobsIds(), timeout_s=STUCK_S)
        return ended

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Kills(Stage):
    """A scene in which processes are killed."""

    def __init__(self, scene: Scene, folder: Path, spark: "SparkSession") -> None:
        super().__init__(scene, folder, spark)
        home = self.fresh()
        with crash.recorded() as passed:
            self.live(home)
        self.calm = self.seen(home)
        steps = {point.rpartition(".")[0] for point in passed if not point.startswith(BELOW)}
        assert steps - {*LATER} == {*STEPS[scene.name].split()}


@pytest.fixture(scope="module")
def lives(spark: "SparkSession") -> Iterator[Lives]:
    started = Lives(spark)
    yield started
    started.close()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Staged[Kills]:
    return staged(Kills, tmp_path_factory, spark)


def trouble(stage: Kills, step: str, lives: Lives) -> str:
    """What is wrong when one was killed before a step, and another behind it."""
    home = stage.fresh()
    for side in ONE_SIDED.get(step, ("before", "after")):
        stage.later()
        if lives.live(stage, home, f"{step}.{side}") != signal.SIGKILL:
            return f"nobody came to {step}.{side}"
    return stage.trouble_after(home)


@pytest.mark.rule("LOT-20")
@pytest.mark.parametrize(("name", "step"), SOME)
def test_after_kills_before_and_behind_a_step_in_the_life_of_lots_all_is_as_if_nothing_had_been(
    name: str,
    step: str,
    scenes: Staged[Kills],
    lives: Lives,
    request: pytest.FixtureRequest,
) -> None:
    assert trouble(scenes(name, request), step, lives) == ""


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
    troubles = {step: trouble(stage, step, lives) for step in STEPS[name].split()}
    assert {step: wrong for step, wrong in troubles.items() if wrong} == {}
