"""An alert about a table arrives although the process that filled the table, and sent alerts, was killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.clock import SYSTEM, poll
from tidemill.testing.threads import STUCK_S

PIPELINE = Path(__file__).with_name("alert_pipeline.py")
FILLER = """
import runpy, sys, threading
orders = runpy.run_path(sys.argv[1])["orders"]
orders.append([{"id": 1}])
print("ready", flush=True)
threading.Event().wait()
"""


@contextmanager
def process(*arguments: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process; kill it at the end of the block."""
    started = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        for stream in (started.stdout, started.stderr):
            if stream is not None:
                stream.close()


def test_a_killed_process_leaves_a_stale_table_that_another_process_reports(tmp_path: Path) -> None:
    target = tmp_path / "alerts.jsonl"
    environment = {"ALERT_HOME": str(tmp_path / "home"), "ALERT_FILE": str(target)}
    watch = ("-m", "tidemill.cli", "alerts", "-f", f"{PIPELINE}:shop", "--watch")
    with process("-c", FILLER, str(PIPELINE), environment=environment) as filler:
        assert filler.stdout is not None
        assert filler.stdout.readline() == "ready\n"
        with process(*watch, environment=environment) as first:
            assert first.stderr is not None
            assert "sending the alerts" in first.stderr.readline()
            filler.send_signal(signal.SIGKILL)
            first.send_signal(signal.SIGKILL)
            first.wait()
    with process(*watch, environment=environment) as last:
        assert poll(
            lambda: last.poll() is not None or (target.exists() and target.read_text().endswith("\n")),
            SYSTEM,
            every_s=0.1,
            timeout_s=STUCK_S,
        )
    alert = json.loads(target.read_text().splitlines()[0])
    assert (alert["kind"], alert["pipeline"], alert["name"]) == ("stale", "shop", "orders")
