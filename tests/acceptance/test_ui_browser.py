"""The page in a real browser: its script and style load under the strict policy, and no error is logged.

Skipped where no Chromium is installed (Debian: `apt-get install chromium`).
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.page_stage import PageStage
from tidemill.testing.threads import STUCK_S
from tidemill.ui.server import PageOptions, in_background, make_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--dump-dom",
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    stage = PageStage().fill()
    server = make_server(stage.store, "c", PageOptions(port=0), clock=stage.clock)
    with in_background(server):
        yield server.url


@pytest.mark.parametrize(
    ("path", "width"), [("/", 390), ("/table?table=cleaned", 1024), ("/view?view=totals", 1920)]
)
def test_a_screen_runs_its_script_and_logs_no_error(url: str, tmp_path: Path, path: str, width: int) -> None:
    profile = tmp_path / "profile"
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},900", url + path]
    process = subprocess.run(command, capture_output=True, text=True, timeout=STUCK_S, check=True)
    assert 'id="main"' in process.stdout
    logged = [line for line in process.stderr.splitlines() if "CONSOLE" in line]
    assert logged == []
    if path == "/":  # the script makes the last lot of each row reachable by keyboard
        assert re.search(r'class="cell [^>]*tabindex="0"', process.stdout)
