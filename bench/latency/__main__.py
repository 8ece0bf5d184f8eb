"""Waiting times of a user at a terminal: each command in a new process, with the installed package.

run_small_s            `tidemill run` with one new file of 1,000 rows, and views that have kernels
session_s              from the start of Python to the result of the first Spark query
watch_ms               `tidemill run --watch`: from the arrival of a file to its rows in the view (median)
watch_worst_ms         the longest of these times
first_load_vs_spark    the first load of 5 million rows by a source, an arc and a view, divided by the time of
                       a plain Spark script that does the same

Keys, targets and how to read them: bench/README.md.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench import machine
from bench.comparison import Comparison, Series
from bench.latency.shop import PIPELINE_WITH_ARC, Shop
from bench.report import Report, at_most, main
from bench.side import ROOT
from tidemill.pipeline.pipeline_file import load

ROWS = 1_000
RUNS = 5
WATCHED = 30
LOADED_ROWS, LOADED_FILES = 5_000_000, 20
PATIENCE_S = 120.0
LOOK_EVERY_S = 0.002
COMMANDS: dict[str, Sequence[str]] = {
    "run_nothing_s": ("run", "--quiet"),
    "plan_s": ("plan", "--json"),
    "explain_s": ("explain", "revenue", "--json"),
    "status_s": ("status", "--json"),
    "query_s": ("query", "SELECT * FROM revenue", "--json"),
}
SESSION = """
from tidemill.spark.sessions import open_session
assert open_session().sql("SELECT 1").first()[0] == 1
"""


def measure(report: Report) -> None:
    with machine.scratch("latency") as folder:
        _small_runs(report, Shop(folder / "small"))
        _session(report)
        _watch(report, Shop(folder / "watch"))
        _first_load(report, folder)


def _tidemill(shop: Shop, *arguments: str) -> tuple[float, str]:
    """Run a command of the installed package; return its seconds and what it printed."""
    command = [str(Path(sys.executable).with_name("tidemill")), *arguments]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=shop.folder, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return took, done.stdout + done.stderr


def _small_runs(report: Report, shop: Shop) -> None:
    shop.arrive(ROWS)
    first, _ = _tidemill(shop, "run")
    report.say(f"the first run, with certification: {first:.1f} s")
    took, started = [], 0
    for _ in range(1 if report.quick else RUNS):
        shop.arrive(ROWS)
        seconds, text = _tidemill(shop, "run")
        took.append(seconds)
        started += "starting Spark" in text
        if "1 file read" not in text:
            raise RuntimeError(f"the run read no file: {text}")
    raw: dict[str, Any] = {"all": took, "first_run_s": first, "runs_that_started_spark": started}
    for name, arguments in COMMANDS.items():
        raw[name] = statistics.median(_tidemill(shop, *arguments)[0] for _ in took)
        report.say(f"{name} = {raw[name]:.2f}")
    report.figure("run_small_s", statistics.median(took), raw, target=at_most(2))


def _session(report: Report) -> None:
    took = []
    for _ in range(1 if report.quick else 3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", SESSION], check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    report.figure("session_s", statistics.median(took), {"all": took}, target=at_most(3))


def _watch(report: Report, shop: Shop) -> None:
    """Let files arrive while a runner watches; the view's position tells when their step is committed."""
    shop.arrive(ROWS)
    _tidemill(shop, "run")
    command = [str(Path(sys.executable).with_name("tidemill")), "run", "--watch", "--quiet"]
    runner = subprocess.Popen(command, cwd=shop.folder, stdout=subprocess.DEVNULL)
    took = []
    try:
        with load("pipeline.py:shop", shop.folder) as pipeline:
            revenue = pipeline["revenue"]
            for number in range(3 if report.quick else WATCHED):
                before = revenue.position
                shop.arrive(ROWS)
                began = time.perf_counter()
                while revenue.position == before:
                    if time.perf_counter() - began > PATIENCE_S:
                        raise RuntimeError("the view does not follow")
                    time.sleep(LOOK_EVERY_S)
                if number:  # the runner has started after the first file
                    took.append(1000 * (time.perf_counter() - began))
    finally:
        runner.terminate()
        with suppress(subprocess.TimeoutExpired):
            runner.wait(PATIENCE_S)
    report.figure("watch_ms", statistics.median(took), {"all": took}, target=at_most(1000))
    report.figure("watch_worst_ms", max(took))


def _first_load(report: Report, folder: Path) -> None:
    files = 2 if report.quick else LOADED_FILES
    rows = 1_000 if report.quick else LOADED_ROWS // LOADED_FILES
    ours, peer = Series("tidemill run", "s"), Series("a plain Spark script", "s")
    shop = Shop(folder / "load", PIPELINE_WITH_ARC)
    for _ in range(files):
        shop.arrive(rows)
    for _ in range(1 if report.quick else 3):
        ours.values.append(_tidemill(shop, "run")[0])
        with load("pipeline.py:shop", shop.folder) as pipeline:
            assert pipeline["revenue"].position
        subprocess.run(["rm", "-rf", shop.folder / "home", shop.folder / "plain"], check=True)
        began = time.perf_counter()
        script = [sys.executable, "-m", "bench.latency.plain_spark", str(shop.folder)]
        done = subprocess.run(script, cwd=ROOT, check=True, capture_output=True, text=True)
        peer.values.append(time.perf_counter() - began)
        assert int(done.stdout), json.dumps(done.stdout)
    report.compare("first_load_vs_spark", Comparison(ours, peer), target=at_most(1.5))


if __name__ == "__main__":
    main("latency", __doc__, measure)
