"""Runners that are killed at random, again and again: every part is made, and counts once."""

import os
import random
import signal
from pathlib import Path

import pytest

from tests import runner_parts
from tests.integration.runner_stage import InThread, Stage
from tests.integration.test_runner_processes import RunnerProcess
from tests.kill_samples import SEED, tenth_and_all
from tests.runner_parts import part
from tests.scopes import scope_of
from tests.workers import wait
from tidemill.futures.home import ClusterAddress
from tidemill.publish.parts import PartDone
from tidemill.runner.part_futures import PartFutures
from tidemill.testing.threads import STUCK_S

PARTS_EACH = 5
"""So many parts are to be made for each kill."""


def killed_child(runner: RunnerProcess) -> bool:
    """Kill the runner's child; False if none runs at this moment."""
    try:
        os.kill(runner.events("ChildStarted")[-1]["pid"], signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return False
    return True


@pytest.mark.parametrize("kills", tenth_and_all(16))
def test_every_part_is_made_once_whatever_is_killed(kills: int, tmp_path: Path) -> None:
    place = ClusterAddress.of_home(tmp_path / "home")
    key = place.key
    stage = Stage(place.store, tmp_path)
    chance = random.Random(SEED)
    tasks = [part(n, tmp_path, slow="0.25") for n in range(PARTS_EACH * kills)]
    runners = [RunnerProcess(stage, home=place.home, ttl_s=5.0, most_pause_s=0.2) for _ in range(2)]
    scope = scope_of(stage.store, place.cluster)
    try:
        waiting = InThread(PartFutures(scope, key, runner_parts.make), tasks)
        for _ in range(kills):
            so_far = len(stage.notes())
            wait(lambda: len(stage.notes()) > so_far + 3 or not waiting.running, "something was made")  # noqa: B023
            nth = chance.randrange(2)
            if chance.random() < 1 / 4:
                runners[nth].end(signal.SIGKILL)
                runners[nth] = RunnerProcess(stage, home=place.home, ttl_s=5.0, most_pause_s=0.2)
            else:
                wait(lambda: killed_child(runners[nth]), "a child was killed")  # noqa: B023
        ends = waiting.result(timeout_s=STUCK_S)
    finally:
        for runner in runners:
            runner.end(signal.SIGKILL)
    folders = {end.written[0].objects[0].uri.rpartition("/")[0] for end in ends if isinstance(end, PartDone)}
    assert len(ends) == len(folders) == len(tasks)
    made = [line for line in stage.notes() if line.startswith("ended")]
    assert len(set(made)) == len(made) >= len(tasks)  # no claim was run twice
    assert PartFutures(scope, key, runner_parts.make).forget("a1") == len(tasks)
    assert stage.rows_left() == []
    stage.close()
