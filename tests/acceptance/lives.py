"""Processes that live in a scene (`tests.integration.life_scenes`) and are killed at a point of it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.life_scenes import Scene, Stage
from tests.servers.process import wait_until
from tidemill import crash
from tidemill.testing.threads import STUCK_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


class Lives:
    """Starts processes that live in a scene, and may die there. They share Java with this process."""

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
        """Live in a home; return the number of the signal that ended the process.

        The jobs that it had started in Spark have ended, too.
        """
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


@pytest.fixture(scope="module")
def lives(spark: "SparkSession") -> Iterator[Lives]:
    started = Lives(spark)
    yield started
    started.close()


class Kills(Stage):
    """A scene in which processes are killed, and the points that an undisturbed life passes."""

    def __init__(self, scene: Scene, folder: Path, spark: "SparkSession") -> None:
        super().__init__(scene, folder, spark)
        home = self.fresh()
        with crash.recorded() as self.passed:
            self.live(home)
        self.calm = self.seen(home)

    def trouble(self, lives: Lives, points: Sequence[str]) -> str:
        """Kill a process at each of the points in turn; return what is wrong after the next life."""
        home = self.fresh()
        for point in points:
            self.later()
            if lives.live(self, home, point) != signal.SIGKILL:
                return f"no process reached {point}"
        return self.trouble_after(home)
