"""Every target with fixed seeds, and for ten minutes with new ones; the fuzzer finds every kind of fault."""

import ctypes
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fuzz import targets
from tests.fuzz.campaign import Failure, Outcome, Target, failures, reduced
from tests.fuzz.targets import files_input
from tidemill.spark.expected_errors import expecting_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
LONG_S = 600


def run(*arguments: str) -> None:
    """Run targets in a process of their own: it forks, and limits its memory."""
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"


def test_damaged_and_hostile_input_is_stored_or_refused() -> None:
    run(*targets.NAMES, "--seed", "0", "--short")


def test_damaged_files_of_every_format_are_stored_or_quarantined(spark: "SparkSession") -> None:
    files_input.use(spark)
    target = targets.load("files")
    seeds: dict[str, int] = {}
    for seed in itertools.count():
        seeds.setdefault(target.case(seed)["format"], seed)
        if len(seeds) == len(files_input.FORMATS):
            break
    with expecting_errors():
        failed_cases = list(failures(target, iter(seeds.values())))
        assert not failed_cases, failed_cases[0].describe(target.case(failed_cases[0].seed))


@pytest.mark.crash
@pytest.mark.parametrize("name", [*targets.NAMES, *targets.SPARK_NAMES])
def test_ten_minutes_of_new_cases(name: str) -> None:
    run(name, "--seed", os.environ.get("TIDEMILL_SEED", "0"), "--seconds", str(LONG_S))


def _check(case: str) -> None:
    if "raise" in case:
        raise ZeroDivisionError("division")
    if "abort" in case:
        os.abort()
    if "crash" in case:
        ctypes.string_at(0)
    if "exit" in case:
        os._exit(3)
    if "hang" in case:
        threading.Event().wait()
    if "memory" in case:
        bytearray(64 << 30)


FAULTS = {
    "raise": "ZeroDivisionError",
    "abort": "SIGABRT",
    "crash": "SIGSEGV",
    "exit": "exit code 3",
    "hang": "hang",
    "memory": "MemoryError",
}


def _self_test() -> str:
    """Find each fault among harmless cases, in the process of the test below."""
    lines = []
    for word, kind in FAULTS.items():
        hangs = word == "hang"
        seeds, stuck_s = (range(8), 2.0) if hangs else (range(20), 120.0)
        target = Target("self", lambda rng, w=word: rng.choice(("fine", f"xxx {w} yyy")), _check, stuck_s)  # type: ignore[misc]
        faults = list(failures(target, iter(seeds)))
        bad = [seed for seed in seeds if target.case(seed) != "fine"]
        assert bad, word
        assert [failure.seed for failure in faults] == bad, (word, faults)
        assert {failure.outcome.kind.split(" at ")[0] for failure in faults} == {kind}, faults
        if not hangs:
            lines.append(f"{word}: {reduced(faults[0], tries=40)}")
    return "\n".join(lines)


def test_every_kind_of_fault_is_found_and_reduced() -> None:
    code = "from tests.fuzz import test_fuzz; print(test_fuzz._self_test())"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == [f"{word}: {word}" for word in FAULTS if word != "hang"]


def test_a_failure_is_printed_with_the_command_that_repeats_it() -> None:
    failure = Failure(targets.load("schemas"), 7, Outcome("ValueError at x.py:1", "details"))
    text = failure.describe("id INT")
    assert "schemas, seed 7: ValueError at x.py:1" in text
    assert "python -m tests.fuzz schemas --seed 7 --count 1" in text
