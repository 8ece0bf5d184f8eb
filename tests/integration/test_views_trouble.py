"""Workers that die, a storage without room, files that are not as they were: steps fail or succeed, whole."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers.process import ServerUnavailable
from tests.servers.spark import require_spark

ROOT = Path(__file__).parents[2]
FIRST = [[["x", 10, 135], ["y", 10, 145]], [["x", 10], ["y", 10], [None, 10]]]


pytestmark = pytest.mark.crash  # a Spark of its own, whose workers die one after the other


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All of it in one process, because a Spark that tries tasks again is one of its own."""
    try:
        require_spark()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    home, trouble = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("trouble")
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    ours = {"TIDEMILL_TROUBLE": str(trouble), "TIDEMILL_CACHE": "off", "TIDEMILL_PLACE": "spark"}
    env = {**os.environ, **ours, "PYTHONPATH": paths}
    command = [sys.executable, "-m", "tests.integration.views_trouble", str(home), str(trouble)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.rule("DBSP-46")
def test_a_worker_killed_after_its_bundle_in_every_layer_changes_nothing(outcomes: dict[str, Any]) -> None:
    assert outcomes["marks"] == ["killed-0-1", "killed-0-2", "killed-0-3", "killed-1-1", "killed-1-2"]
    assert outcomes["failed"] == [], "the step was not even tried again"
    assert outcomes["rows"] == FIRST
    assert outcomes["orphans"], "what the dead had written was there"
    assert outcomes["listed"] == [], "and no version lists it: each task counts once"
    assert outcomes["left"] == [], "it was collected"
    assert outcomes["lacking"] == [], "and nothing that is needed"


@pytest.mark.parametrize(
    ("what", "code", "detail"),
    [
        ("full", "objects-full", ".runs'"),
        ("memory", "step-lost", "not enough memory"),
        ("corrupt", "trace-corrupt", ".runs'"),
        ("missing", "trace-missing", ".runs'"),
        ("newer", "trace-format", "version' has format 99"),
    ],
)
def test_a_step_in_trouble_fails_with_a_name_and_the_last_version_serves(
    outcomes: dict[str, Any], what: str, code: str, detail: str
) -> None:
    outcome = outcomes[what]
    failed = outcome["failed"]
    assert failed, "the step failed"
    assert all(each.startswith(f"{code}: ") and detail in each for each in failed), failed
    assert outcome["rows"] == FIRST, "what was committed before is there"


def test_when_the_trouble_is_over_the_step_is_run_once(outcomes: dict[str, Any]) -> None:
    assert outcomes["over"]["failed"] == []
    assert outcomes["over"]["rows"] == [[["x", 11, 1135], ["y", 10, 145]], [["x", 11], ["y", 10], [None, 10]]]
