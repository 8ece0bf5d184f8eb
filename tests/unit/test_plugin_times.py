"""A test that hangs is named while it runs, with and without xdist, and each test's time is written down."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.plugin_times import RunningTests, write_durations
from tidemill.clock import SYSTEM

ROOT = Path(__file__).parents[2]

# Neither test ends before a file is there. The outer test writes it when it has read both names.
SUITE = """
    import pathlib, threading

    def wait():
        while not pathlib.Path("named").exists():
            threading.Event().wait(0.01)

    def test_first():
        wait()

    def test_second():
        wait()
"""


def test_a_test_is_named_after_each_period_until_it_ends() -> None:
    running = RunningTests(60.0)
    running.start("t::a", 0.0)
    running.start("t::b", 10.0)
    assert running.due(59.9) == []
    running.place("t::a", "gw1")
    assert running.due(60.0) == ["still running (60 s): t::a [gw1]"]
    assert running.due(69.0) == []
    assert running.due(130.0) == ["still running (130 s): t::a [gw1]", "still running (120 s): t::b"]
    running.end("t::a")
    assert running.due(1000.0) == ["still running (990 s): t::b"]
    running.end("t::b")
    running.end("t::never_started")
    assert running.due(9999.0) == []


@pytest.mark.parametrize("workers", [[], ["-n", "2", "--dist", "worksteal"]], ids=["alone", "xdist"])
def test_what_hangs_is_named_while_it_hangs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(test_suite=SUITE)
    plugins = ["-p", "tests.plugin_times", "-p", "no:hypothesispytest", "--still-running-s=0.1"]
    command = (sys.executable, "-m", "pytest", *plugins, *workers)
    errors = pytester.path / "errors"
    with errors.open("wb") as output:
        process = pytester.popen(command, stdout=output, stderr=output)
    wanted = {"first", "second"} if workers else {"first"}
    named: set[str] = set()
    while not wanted <= named and process.poll() is None:
        named = set(re.findall(r"still running \(\d+ s\): test_suite.py::test_(\w+)", errors.read_text()))
        SYSTEM.sleep(0.01)
    (pytester.path / "named").touch()
    assert process.wait() == 0, errors.read_text()
    assert wanted <= named
    if workers:
        assert re.search(r"still running \(\d+ s\): test_suite.py::test_first \[gw\d\]", errors.read_text())
    durations = json.loads((pytester.path / "build" / "durations.json").read_text())
    assert set(durations) == {"test_suite.py::test_first", "test_suite.py::test_second"}


def test_a_test_that_fails_is_named_at_once_with_its_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(test_suite="def test_wrong():\n    assert 1 == 2\n")
    done = pytester.run(
        sys.executable, "-m", "pytest", "-p", "tests.plugin_times", "-p", "no:hypothesispytest"
    )
    assert done.ret == 1
    assert "failed (call): test_suite.py::test_wrong: assert 1 == 2" in done.errlines


def test_a_run_of_some_tests_keeps_the_durations_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "build" / "durations.json"
    write_durations(path, {"a": 1.0, "b": 2.0})
    write_durations(path, {"a": 3.00049, "c": 2.0})
    assert list(json.loads(path.read_text()).items()) == [("a", 3.0), ("b", 2.0), ("c", 2.0)]
