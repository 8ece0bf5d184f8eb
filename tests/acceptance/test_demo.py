"""`tidemill demo`, as people and as programs run it."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import psutil
import pytest

from tests.servers.process import wait_until
from tidemill.testing.threads import STUCK_S


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp_path), "NO_COLOR": "1"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidemill.cli", "demo", "--nodes", *arguments]


@pytest.mark.rule("CLU-9", "CLU-13", "CLU-26")
def test_the_demo_shows_what_it_says_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--json"),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["ok"] is True
    assert set(summary["checks"].values()) == {True}
    assert "every_partition_once" in summary["checks"]
    assert summary["violations"] == []
    assert summary["failover_s"] > 0
    assert summary["moved"] >= 1
    lines = done.stderr
    assert "is elected leader, epoch 1" in lines
    assert "the leader, is killed: kill -9" in lines
    assert "is elected leader, epoch 2" in lines
    assert "all partitions are done" in lines
    assert "\x1b" not in lines, "plain lines where there is no terminal"
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_demo_and_its_nodes(tmp_path: Path) -> None:
    """On a terminal of 100 by 40: it draws, and when it is interrupted it clears up."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    child = subprocess.Popen(
        command(),
        env={**environment(tmp_path), "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    drawn = bytearray()

    def shows(text: str) -> bool:
        try:
            while chunk := os.read(ours, 65536):
                drawn.extend(chunk)
        except BlockingIOError:
            pass
        except OSError:  # the other side is closed
            return text.encode() in drawn
        return text.encode() in drawn

    try:
        assert wait_until(lambda: shows("leader, epoch 1"), timeout_s=STUCK_S)
        assert wait_until(lambda: len(psutil.Process(child.pid).children()) == 3, timeout_s=STUCK_S)
        nodes = psutil.Process(child.pid).children()
        child.send_signal(signal.SIGINT)
        assert wait_until(lambda: shows("interrupted") or child.poll() is not None, timeout_s=STUCK_S)
        assert child.wait(STUCK_S) == 130
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    assert wait_until(lambda: not any(node.is_running() for node in nodes), timeout_s=STUCK_S)
    assert list(tmp_path.iterdir()) == []
