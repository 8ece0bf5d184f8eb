"""Shows tests that take long or fail while others run, and writes how long each test took.

A test that has run for a minute is named on the terminal, and again after each further minute:

    still running (60 s): tests/integration/test_x.py::test_y [gw1]

A test that fails is named at once, with the first line of its error.
Pytest prints the whole error in the end.

The process that reports to the terminal prints it, from a thread: a worker of xdist that hangs in C, or is
stopped, is named too. Nothing here passes or fails a test. `--still-running-s` changes the minute.

`build/durations.json` lists set-up, call and tear-down together, the slowest test first. A run of some of the
tests replaces those tests' numbers and keeps the others.
"""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.plugin_rules import plain_id
from tidemill.clock import SYSTEM

FILE = "durations.json"


class Running(NamedTuple):
    """One test that runs: since when, and when it is named next."""

    since: float
    next_at: float


class RunningTests:
    """Which tests run, and which of them to name now. The caller passes the time in."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}
        self._workers: dict[str, str] = {}

    def start(self, test: str, now: float) -> None:
        with self._lock:
            self._running[test] = Running(now, now + self._every_s)

    def place(self, test: str, worker: str) -> None:
        """Which worker of xdist runs it: known once its set-up has ended."""
        with self._lock:
            self._workers[test] = worker

    def end(self, test: str) -> None:
        with self._lock:
            self._running.pop(test, None)
            self._workers.pop(test, None)

    def due(self, now: float) -> list[str]:
        """The lines to print now, the longest-running test first."""
        lines: list[str] = []
        with self._lock:
            for test, running in sorted(self._running.items(), key=lambda entry: entry[1]):
                if now >= running.next_at:
                    self._running[test] = running._replace(next_at=now + self._every_s)
                    worker = f" [{self._workers[test]}]" if test in self._workers else ""
                    lines.append(f"still running ({now - running.since:.0f} s): {test}{worker}")
        return lines


class TimeReporter:
    """Follows the tests of this run. Under xdist it sits in the process that hands out the work."""

    def __init__(self, config: pytest.Config, write: Callable[[str], None]) -> None:
        every_s = float(config.getoption("still_running_s"))
        self._path = config.rootpath / "build" / FILE
        self._tick_s = min(1.0, every_s / 4)
        self._write = write
        self._tests = RunningTests(every_s)
        self._took_s: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="still-running", daemon=True)

    def pytest_sessionstart(self) -> None:
        self._thread.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tests.start(plain_id(nodeid), SYSTEM.monotonic())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = plain_id(report.nodeid)
        self._took_s[test] = self._took_s.get(test, 0.0) + report.duration
        if report.when not in ("setup", "call", "teardown"):  # its worker died: there will be no logfinish
            self._tests.end(test)
        elif hasattr(report, "node"):
            self._tests.place(test, report.node.gateway.id)
        if report.failed:
            lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            self._write(f"\nfailed ({report.when}): {test}: {lines[0][1:].strip() if lines else ''}\n")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tests.end(plain_id(nodeid))

    def pytest_sessionfinish(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._took_s:
            write_durations(self._path, self._took_s)

    def _watch(self) -> None:
        while not self._over.wait(self._tick_s):
            for line in self._tests.due(SYSTEM.monotonic()):
                self._write(f"\n{line}\n")


def write_durations(path: Path, took_s: dict[str, float]) -> None:
    """Merge seconds per test into the file, the slowest first."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        known = {}
    merged = known | {test: round(seconds, 3) for test, seconds in took_s.items()}
    slowest = dict(sorted(merged.items(), key=lambda entry: (-entry[1], entry[0])))
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(slowest, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--still-running-s",
        type=float,
        default=60.0,
        help="name a test on the terminal each time it has run for so many seconds more (default: 60)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    # Tests capture descriptors 1 and 2 while they run; nothing is captured now.
    terminal = os.dup(2)
    config.add_cleanup(lambda: os.close(terminal))
    reporter = TimeReporter(config, lambda text: _write_all(terminal, text.encode()))
    config.pluginmanager.register(reporter, "tidemill-time-reporter")


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
