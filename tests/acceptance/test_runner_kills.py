"""Runners that are killed at random, again and again: every part is made, and counts once."""

import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from tests import runner_parts
from tests.integration.runner_stage import InThread, Stage
from tests.integration.test_runner_processes import RunnerProcess
from tests.runner_parts import part
from tests.scopes import scope_of
from tests.workers import wait
from tidemill.futures.home import ClusterAddress
from tidemill.publish.parts import PartDone
from tidemill.runner.part_futures import PartFutures
from tidemill.testing.threads import STUCK_S

PARTS, KILLS, SEED = 80, 16, 11


@pytest.mark.crash
def test_every_part_is_made_once_whatever_is_killed(tmp_path: Path) -> None:
    place = ClusterAddress.of_home(tmp_path / "home")
    key = place.key
    stage = Stage(place.store, tmp_path)
    chance = random.Random(SEED)
    tasks = [part(n, tmp_path, slow="0.25") for n in range(PARTS)]
    runners = [RunnerProcess(stage, home=place.home, ttl_s=5.0, most_pause_s=0.2) for _ in range(2)]
    scope = scope_of(stage.store, place.cluster)
    try:
        waiting = InThread(PartFutures(scope, key, runner_parts.make), tasks)
        for kill in range(KILLS):
            so_far = len(stage.notes())
            wait(lambda: len(stage.notes()) > so_far + 3 or not waiting.running, "something was made")  # noqa: B023
            nth = chance.randrange(2)
            if kill % 4 == 3:
                runners[nth].end(signal.SIGKILL)
                runners[nth] = RunnerProcess(stage, home=place.home, ttl_s=5.0, most_pause_s=0.2)
            elif started := runners[nth].events("ChildStarted"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(started[-1]["pid"], signal.SIGKILL)
        ends = waiting.result(timeout_s=STUCK_S)
    finally:
        for runner in runners:
            runner.end(signal.SIGKILL)
    folders = {end.written[0].objects[0].uri.rpartition("/")[0] for end in ends if isinstance(end, PartDone)}
    assert len(ends) == len(folders) == PARTS
    made = [line for line in stage.notes() if line.startswith("ended")]
    assert len(set(made)) == len(made) >= PARTS  # no claim was run twice
    assert PartFutures(scope, key, runner_parts.make).forget("a1") == PARTS
    assert stage.rows_left() == []
    stage.close()
