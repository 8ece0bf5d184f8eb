"""Run the pipeline demo: kill a runner with kill -9, start another, and check the result to the cent.

The demo creates a home in a temporary folder, starts `tidemill run` as a process with its own Spark session,
and kills that process with SIGKILL. At the end it sums up the files in plain Python and compares the sums
with the view.
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
from types import TracebackType
from typing import Self

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidemill.cli.lots import MARKS
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
TABLES = ("orders", "clean_orders", "revenue")
WIDTH = 80


class PipelineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The checks and measurements of one run of the demo."""

    ok: bool
    checks: dict[str, bool]
    files: int
    rows: int
    lots_before_kill: int  # how many lots were complete when the runner was killed
    lots: int
    first_s: float  # from the first start to the kill
    resumed_s: float  # from the second start to the end
    table: list[list[str]]
    home: str | None


class PipelineScreen:
    """Show the lots of every table and a log of events."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self.console = console
        self.clock = clock
        self._started_at = clock.monotonic()
        self._log: list[tuple[float, str, str]] = []
        self._lots: dict[str, Sequence[LotInfo]] = {}
        self._live = (
            Live(console=console, refresh_per_second=8, get_renderable=self.render)
            if console.is_terminal and console.width >= WIDTH
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, lots: dict[str, Sequence[LotInfo]]) -> None:
        """Replace the lots that are shown."""
        self._lots = lots

    def log(self, text: str, style: str = "") -> None:
        """Add a line to the log."""
        at = self.clock.monotonic() - self._started_at
        self._log.append((at, text, style))
        if self._live is None:
            self.console.print(Text(f"{at:6.1f} s  {text}"))

    def render(self) -> RenderableType:
        """Return the panel as it looks now."""
        at = self.clock.monotonic() - self._started_at
        lines: list[RenderableType] = []
        for name in TABLES:
            lots = self._lots.get(name, ())
            line = Text(f"{name:>13}  ", style="bold")
            for lot in list(lots)[-56:]:
                mark, style = MARKS[lot.state]
                line.append(mark * 2 + " ", style=style)
            rows = sum(lot.rows for lot in lots)
            line.append(
                f" {rows:,} {'changes' if name == 'revenue' else 'rows'}" if rows else "", style="dim"
            )
            lines.append(line)
        lines.append(Text())
        for seconds, text, style in self._log[-12:]:
            lines.append(Text.assemble((f"{seconds:6.1f} s  ", "dim"), (text, style)))
        title = f"[bold]tidemill demo[/] · file → lot → arc → view · {at:4.1f} s"
        return Panel(Group(*lines), title=title, title_align="left", border_style="blue", width=WIDTH)


def print_summary(console: Console, summary: PipelineSummary) -> None:
    """Print the view's rows and the outcome of every check."""
    table = Table(title="revenue", title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in ("region", "day", "orders", "total"):
        table.add_column(name, justify="right" if name in ("orders", "total") else "left")
    for row in summary.table:
        table.add_row(*row)
    console.print(table)
    sentences = {
        "view_matches_files": "the view equals the sums computed from the files in plain Python",
        "each_order_once": f"each of {summary.rows:,} orders in {summary.files} files was processed once",
        "lots_before_kill_kept": (
            f"{summary.lots_before_kill} of {summary.lots} lots were complete before kill -9 "
            "and did not run again"
        ),
    }
    for name, passed in summary.checks.items():
        mark, style = ("✔", "green") if passed else ("✘", "bold red")
        console.print(Text.assemble((f"  {mark} ", style), sentences[name]))
    if summary.home is not None:
        console.print(Text(f"  to inspect it: cd {summary.home} && tidemill status", style="dim"))


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
        """Poll until `ready` returns True. In messages, `goal` follows the word "before"."""
        started_at = self.clock.monotonic()
        while True:
            lots = self._lots(pipeline)
            self.screen.show(lots)
            if ready(lots):
                return lots
            if runner.poll() is not None:
                raise DemoFailed(f"the runner exited before {goal}\n{self._log_tail()}")
            if self.clock.monotonic() - started_at > LIMIT_S:
                raise DemoFailed(f"gave up after {LIMIT_S:g} s, before {goal}\n{self._log_tail()}")
            self.clock.sleep(POLL_S)

    def _lots(self, pipeline: Pipeline) -> dict[str, Sequence[LotInfo]]:
        return {name: pipeline[name].lots() for name in TABLES}

    def _query(self, sql: str) -> list[list[str]]:
        process = subprocess.run(
            [sys.executable, "-m", "tidemill.cli", "query", "--json", sql],
            cwd=self.folder,
            capture_output=True,
            check=False,
        )
        if process.returncode != 0:
            raise DemoFailed(f"the query failed\n{process.stderr.decode()[-2000:]}")
        rows: list[list[str]] = json.loads(process.stdout.splitlines()[-1])["rows"]
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
