"""Run the pipeline demo: kill a runner with kill -9, start another, and check the result to the cent.

Everything is real: a home in a temporary folder, `tidemill run` as a process with its own Spark session,
SIGKILL. At the end the view is compared with the files, summed up in plain Python.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

from tidemill.cli.demo.pipeline_screen import TABLES, PipelineScreen, PipelineSummary, print_summary
from tidemill.cli.output import CommandOutput
from tidemill.clock import SYSTEM, Clock
from tidemill.errors import DemoFailed
from tidemill.pipeline import pipeline_file
from tidemill.pipeline.lot_info import LotInfo
from tidemill.pipeline.pipeline import Pipeline

SHOP = Path(__file__).with_name("shop.py")
FILES, ROWS = 24, 200
REGIONS = ("north", "south", "east", "west")
DAYS = ("2026-03-01", "2026-03-02", "2026-03-03")
POLL_S = 0.2
LIMIT_S = 600.0


class PipelineDemo:
    """One run of the demo, in `folder`."""

    def __init__(self, folder: Path, screen: PipelineScreen, clock: Clock, chance: random.Random) -> None:
        self.folder = folder
        self.screen = screen
        self.clock = clock
        self.chance = chance
        self.expected: dict[tuple[str, str], tuple[int, Decimal]] = {}

    def run(self, *, keep: bool) -> PipelineSummary:
        """Write the files, run the pipeline with a kill in the middle, and check the result."""
        self._write_files()
        pipeline = pipeline_file.load("shop.py:shop", self.folder)
        try:
            return self._run(pipeline, keep)
        finally:
            pipeline.close()

    def _write_files(self) -> None:
        """Write the pipeline's file and the input files, and compute the expected sums."""
        shutil.copy(SHOP, self.folder / "shop.py")
        (self.folder / "tidemill.toml").write_text('pipeline = "shop.py:shop"\n')
        landing = self.folder / "landing"
        landing.mkdir()
        sums: dict[tuple[str, str], tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal()))
        for number in range(FILES):
            lines = []
            for row in range(ROWS):
                customer = self.chance.randrange(40)
                amount = Decimal(self.chance.randrange(-500, 10_000)) / 100
                day = self.chance.choice(DAYS)
                order = number * ROWS + row
                lines.append(f'{{"id":{order},"customer":{customer},"amount":{amount},"day":"{day}"}}')
                if amount > 0:
                    key = REGIONS[customer % len(REGIONS)], day
                    count, total = sums[key]
                    sums[key] = count + 1, total + amount
            (landing / f"{number:03}.json").write_text("\n".join(lines) + "\n")
        self.expected = dict(sums)
        self.screen.log(f"{FILES} files with {FILES * ROWS:,} orders arrive in landing/")

    def _run(self, pipeline: Pipeline, keep: bool) -> PipelineSummary:
        customers = pipeline["customers"]
        customers.upsert([(number, REGIONS[number % len(REGIONS)]) for number in range(40)])  # type: ignore[attr-defined]
        self.screen.log("40 customers are upserted, without Spark")

        started_at = self.clock.monotonic()
        with self._start_runner() as runner:
            self.screen.log(f"tidemill run (pid {runner.pid}) starts Spark")
            lots = self._wait(pipeline, runner, self._is_halfway, "the arc was halfway through a lot")
            complete = sum(lot.state == "complete" for lot in lots["clean_orders"])
            os.kill(runner.pid, signal.SIGKILL)
            runner.wait()
        first_s = self.clock.monotonic() - started_at
        rest = len(lots["orders"]) - complete
        self.screen.log(f"kill -9 {runner.pid}: {complete} lots are clean, {rest} are not", "bold red")

        started_at = self.clock.monotonic()
        with self._start_runner() as runner:
            self.screen.log(f"tidemill run (pid {runner.pid}) resumes where it stopped", "bold green")
            self._wait(pipeline, runner, lambda _: runner.poll() is not None, "the second runner finished")
        resumed_s = self.clock.monotonic() - started_at
        if runner.returncode != 0:
            raise DemoFailed(f"the second runner exited with code {runner.returncode}\n{self._log_tail()}")
        lots = self._lots(pipeline)
        self.screen.show(lots)
        self.screen.log("all files are processed", "bold green")

        rows = self._query("SELECT region, day, orders, total FROM revenue ORDER BY region, day")
        clean = self._query("SELECT count(*), count(DISTINCT id) FROM clean_orders")[0]
        sums = {(row[0], row[1]): (int(row[2]), Decimal(row[3])) for row in rows}
        orders = sum(count for count, _ in self.expected.values())
        checks = {
            "view_matches_files": sums == self.expected,
            "each_order_once": [int(clean[0]), int(clean[1])] == [orders, orders],
            "lots_before_kill_kept": complete > 0,
        }
        return PipelineSummary(
            ok=all(checks.values()),
            checks=checks,
            files=FILES,
            rows=FILES * ROWS,
            lots_before_kill=complete,
            lots=len(lots["clean_orders"]),
            first_s=round(first_s, 1),
            resumed_s=round(resumed_s, 1),
            table=[[str(value) for value in row] for row in rows],
            home=str(self.folder) if keep else None,
        )

    def _is_halfway(self, lots: dict[str, Sequence[LotInfo]]) -> bool:
        states = [lot.state for lot in lots["clean_orders"]]
        return "running" in states and "complete" in states

    def _start_runner(self) -> "subprocess.Popen[bytes]":
        with (self.folder / "run.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tidemill.cli", "run", "--json"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait(
        self,
        pipeline: Pipeline,
        runner: "subprocess.Popen[bytes]",
        ready: Callable[[dict[str, Sequence[LotInfo]]], bool],
        goal: str,
    ) -> dict[str, Sequence[LotInfo]]:
        """Poll until `ready`; `goal` completes the sentence "the runner exited before ..."."""
        started_at = self.clock.monotonic()
        while True:
            lots = self._lots(pipeline)
            self.screen.show(lots)
            if ready(lots):
                return lots
            if runner.poll() is not None:
                raise DemoFailed(f"the runner exited before {goal}\n{self._log_tail()}")
            if self.clock.monotonic() - started_at > LIMIT_S:
                raise DemoFailed(f"{LIMIT_S:g} s passed before {goal}\n{self._log_tail()}")
            self.clock.sleep(POLL_S)

    def _lots(self, pipeline: Pipeline) -> dict[str, Sequence[LotInfo]]:
        return {name: pipeline[name].lots() for name in TABLES}

    def _query(self, sql: str) -> list[list[str]]:
        done = subprocess.run(
            [sys.executable, "-m", "tidemill.cli", "query", "--json", sql],
            cwd=self.folder,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise DemoFailed(f"the query failed\n{done.stderr.decode()[-2000:]}")
        rows: list[list[str]] = json.loads(done.stdout.splitlines()[-1])["rows"]
        return rows

    def _log_tail(self) -> str:
        return (self.folder / "run.log").read_text(errors="replace")[-2000:]


def show_pipeline(output: CommandOutput, *, keep: bool) -> int:
    """Run the demo in a temporary folder; return its exit code."""
    folder = Path(tempfile.mkdtemp(prefix="tidemill-demo-"))
    console = output.people
    try:
        with PipelineScreen(console, SYSTEM) as screen:
            summary = PipelineDemo(folder, screen, SYSTEM, random.Random(7)).run(keep=keep)
        if not output.json:
            print_summary(console, summary)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    output.result(summary)
    return 0 if summary.ok else 1
