"""The page of rules is only as good as the file behind it: small suites are run, and the file is read."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SUITE = """
    import pytest

    @pytest.mark.rule("STO-1")
    def test_holds():
        pass

    @pytest.mark.rule("STO-1", "CLU-2")
    def test_does_not_hold():
        assert False

    @pytest.mark.rule("STO-2")
    @pytest.mark.parametrize("n", [1, 2])
    def test_for_each(n):
        pass

    @pytest.mark.rule("STO-3")
    @pytest.mark.skipif(True, reason="no server")
    def test_elsewhere():
        pass

    def test_without_a_rule():
        pass
"""

EXPECTED = {
    "CLU-2": {"tests/test_suite.py::test_does_not_hold": "failed"},
    "STO-1": {
        "tests/test_suite.py::test_does_not_hold": "failed",
        "tests/test_suite.py::test_holds": "passed",
    },
    "STO-2": {
        "tests/test_suite.py::test_for_each[1]": "passed",
        "tests/test_suite.py::test_for_each[2]": "passed",
    },
    "STO-3": {"tests/test_suite.py::test_elsewhere": "skipped"},
}


class Project:
    """A project of one test file that uses the plugin of this one."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pytester = pytester
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
        pytester.makeini(
            '[pytest]\ntestpaths = tests\naddopts = -m "not crash"\nmarkers =\n  rule\n  crash\n'
        )
        pytester.mkdir("tests")

    def run(self, suite: str, *arguments: str) -> pytest.RunResult:
        (self._pytester.path / "tests" / "test_suite.py").write_text(
            suite.replace("\n    ", "\n"), encoding="utf-8"
        )
        plugins = ["-p", "tests.plugin_rules", "-p", "no:hypothesispytest"]
        return self._pytester.runpytest_inprocess(*plugins, *arguments)

    def file(self, name: str) -> object:
        path = self._pytester.path / "build" / name
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(pytester, monkeypatch)


@pytest.mark.parametrize("workers", [[], ["-n", "2", "--dist", "loadgroup"]], ids=["alone", "xdist"])
def test_a_whole_run_writes_every_outcome(project: Project, workers: list[str]) -> None:
    result = project.run(SUITE, *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert project.file("rules.json") == EXPECTED
    result.stdout.fnmatch_lines(["rules: 1 passed, 2 failed, 1 only skipped; see build/rules.json"])


@pytest.mark.parametrize(
    "narrowed",
    [["-k", "holds"], ["tests/test_suite.py::test_holds"], ["-m", "crash or rule"], ["--maxfail=9"]],
)
def test_a_partial_run_leaves_the_whole_run_alone(project: Project, narrowed: list[str]) -> None:
    project.run(SUITE)
    result = project.run("def test_new(): pass\n" + SUITE, *narrowed)
    assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    assert project.file("rules.json") == EXPECTED
    partial = project.file("rules-partial.json")
    assert isinstance(partial, dict)
    assert partial["STO-1"]["tests/test_suite.py::test_holds"] == "passed"


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ('rule("STO-1", "XYZ-7")', "*no such rule in docs/rules: XYZ-7*"),
        ('rule("STO-1..STO-3")', "*no such rule in docs/rules: STO-1..STO-3*"),
        ('rule("STO-1", "STO-2", "STO-3", "STO-4", "STO-5")', "*5 rules on one test, at most 4*"),
    ],
    ids=["unknown", "range", "five"],
)
@pytest.mark.parametrize("skip", [False, True], ids=["run", "skipped"])
def test_a_wrong_mark_fails_the_run(project: Project, mark: str, message: str, skip: bool) -> None:
    result = project.run(
        f"import pytest\n@pytest.mark.{mark}\n@pytest.mark.skipif({skip}, reason='')\ndef test_x(): pass\n"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([message])


def test_a_test_whose_process_died_has_failed(project: Project) -> None:
    suite = "import os, pytest\n@pytest.mark.rule('STO-1')\ndef test_dies(): os._exit(3)\n"
    assert project.run(suite, "-n", "1").ret == pytest.ExitCode.TESTS_FAILED
    assert project.file("rules.json") == {"STO-1": {"tests/test_suite.py::test_dies": "failed"}}
