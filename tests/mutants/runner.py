"""Apply mutants to a copy of the repository, one after the other, and run their tests there.

The copy is a temporary folder, so the working files never change. A mutant is *caught* if a test fails, and
*survived* if all of its tests pass. It is *broken* if pytest could not run the tests at all, or if they took
longer than the time limit: such a mutant proves nothing.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec

from tests.mutants.mutant import ROOT, Mutant
from tidemill.clock import SYSTEM

LIMIT_S = 300.0
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+)", re.MULTILINE)
PASSED, TESTS_FAILED = 0, 1  # exit codes of pytest


class Outcome(StrEnum):
    """How the tests of a mutant ended."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    BROKEN = "broken"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one mutant, with the test that failed and, if it is broken, the end of the output."""

    name: str
    package: str
    outcome: Outcome
    caught_by: str = ""
    seconds: float = 0.0
    output: str = ""


class TreeUnusable(Exception):
    """The copy is not what the tests run, or the tests fail without a mutant."""


class Tree:
    """A copy of the repository in which mutants are applied."""

    def __init__(self, root: Path, scratch: Path, *, limit_s: float = LIMIT_S) -> None:
        self.root = root
        self._scratch = scratch
        self._limit_s = limit_s

    @classmethod
    def copy(cls, folder: Path, *, limit_s: float = LIMIT_S) -> "Tree":
        """Copy the files that git knows, and new ones that it does not ignore, into an empty folder."""
        root = folder / "tree"
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listing.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, root / name)
        tree = cls(root, folder, limit_s=limit_s)
        tree.check_import()
        return tree

    def check_import(self) -> None:
        """Raise `TreeUnusable` unless Python imports the package from the copy."""
        code = "import tidemill; print(tidemill.__file__)"
        run = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.root,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        if not Path(run.stdout.strip()).is_relative_to(self.root):
            raise TreeUnusable(f"Python imports {run.stdout.strip()} instead of the copy in {self.root}")

    def check_tests(self, tests: Iterable[str]) -> None:
        """Raise `TreeUnusable` if one of these tests fails without a mutant."""
        code, output = self._pytest(sorted(set(tests)))
        if code != PASSED:
            raise TreeUnusable(f"the tests fail without a mutant:\n{output[-4000:]}")

    def run(self, mutant: Mutant) -> Result:
        """Apply a mutant, run its tests, and undo it."""
        started = SYSTEM.monotonic()
        with self._applied(mutant):
            code, output = self._pytest(mutant.tests)
        seconds = round(SYSTEM.monotonic() - started, 1)
        failed = FAILED.search(output)
        if code == TESTS_FAILED and failed is not None:
            return Result(
                name=mutant.name,
                package=mutant.package,
                outcome=Outcome.CAUGHT,
                caught_by=failed[1].partition("[")[0],
                seconds=seconds,
            )
        outcome = Outcome.SURVIVED if code == PASSED else Outcome.BROKEN
        tail = "" if code == PASSED else output[-2000:]
        return Result(name=mutant.name, package=mutant.package, outcome=outcome, seconds=seconds, output=tail)

    @contextmanager
    def _applied(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.path
        before = path.read_text(encoding="utf-8")
        self._write(path, mutant.apply(self.root))
        try:
            yield
        finally:
            self._write(path, before)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """Write a source file, and remove its bytecode: two versions may have the same size and time."""
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def _pytest(self, tests: Sequence[str]) -> tuple[int | None, str]:
        """Run tests until one fails; return the exit code (None after the time limit) and the output."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider"]
        process = subprocess.Popen(
            [*command, "-p", "no:xdist", f"--basetemp={self._scratch / 't'}", *tests],
            cwd=self.root,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return None, f"{output}\nno result within {self._limit_s:g} s"
        return process.returncode, output

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.root / "src"), "TMPDIR": str(self._scratch)}
