"""A view whose state is larger than the memory of all processes that compute it together loads, and steps."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.views_large import DIRECT_MB, HEAP_MB
from tests.servers.process import ServerUnavailable
from tests.servers.spark import require_spark

ROOT = Path(__file__).parents[2]
WORKER_MB = 280  # of each Python worker, and of the runner
NOTES_MB = 780


def _small_stacks() -> None:
    """Threads of the child have small stacks: a stack counts as allocated, though nobody writes to it."""
    resource.setrlimit(resource.RLIMIT_STACK, (2**20, resource.getrlimit(resource.RLIMIT_STACK)[1]))


@pytest.mark.crash  # minutes, and some GB of disk
def test_state_larger_than_the_memory_of_all_processes_loads_and_steps(tmp_path: Path) -> None:
    try:
        require_spark()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    ours = {
        "TIDEMILL_WORKER_BYTES": str(WORKER_MB * 2**20),
        "TIDEMILL_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": paths,
        # Free memory is returned at once, and there are no threads whose stacks are not needed.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "MALLOC_TRIM_THRESHOLD_": "131072",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.integration.views_large", str(tmp_path / "home"), str(NOTES_MB)]
    done = subprocess.run(
        command,
        env={**os.environ, **ours},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_small_stacks,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["right"] == [True, True], "after the load, and after the steps"
    assert result["loaded_again"] == [False] * 3
    given_mb = HEAP_MB + DIRECT_MB + result["workers"] * WORKER_MB + WORKER_MB
    assert result["workers"] >= 1
    assert result["state_mb"] > given_mb, "as it is stored, compressed"
