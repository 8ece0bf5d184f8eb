"""`tidemill demo`: files arrive, become lots, an arc cleans them, a view sums them up; the runner is killed
in the middle with kill -9, another goes on, and the table is right to the cent.

Everything is real: a home in a temporary folder, `tidemill run` as a process with its own Spark, SIGKILL.
What the view says at the end is compared with the files, added up in plain Python.
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

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidemill.cli.lots import MARKS
from tidemill.cli.output import Output, json_option
from tidemill.clock import SYSTEM, Clock
from tidemill.errors import DemoFailed
from tidemill.pipeline import loading
from tidemill.pipeline.overview import LotShown
from tidemill.pipeline.pipeline import Pipeline

SHOP = Path(__file__).with_name("demo_shop.py")
FILES, ROWS = 24, 200
REGIONS = ("north", "south", "east", "west")
DAYS = ("2026-03-01", "2026-03-02", "2026-03-03")
TABLES = ("orders", "clean_orders", "revenue")
LOOK_S = 0.2
LIMIT_S = 600.0
WIDTH = 80


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What was shown, with what was measured."""

    ok: bool
    checks: dict[str, bool]
    files: int
    rows: int
    lots_before: int  # complete when the runner was killed
    lots: int
    first_s: float  # until the kill
    resumed_s: float  # from the second start to the end
    table: list[list[str]]
    home: str | None


class Picture:
    """The lots of every table as they come, and what happens, on a terminal; plain lines elsewhere."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self.console = console
        self.clock = clock
        self._began = clock.monotonic()
        self._log: list[tuple[float, str, str]] = []
        self._lots: dict[str, Sequence[LotShown]] = {}
        self._live = (
            Live(console=console, refresh_per_second=8, get_renderable=self.drawn)
            if console.is_terminal and console.width >= WIDTH
            else None
        )

    def __enter__(self) -> "Picture":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, lots: dict[str, Sequence[LotShown]]) -> None:
        """The tables as they are now."""
        self._lots = lots

    def tell(self, text: str, style: str = "") -> None:
        """Something happened."""
        at = self.clock.monotonic() - self._began
        self._log.append((at, text, style))
        if self._live is None:
            self.console.print(Text(f"{at:6.1f} s  {text}"))

    def drawn(self) -> RenderableType:
        """What a terminal shows at this moment."""
        at = self.clock.monotonic() - self._began
        lines: list[RenderableType] = []
        for name in TABLES:
            row = Text(f"{name:>13}  ", style="bold")
            for one in list(self._lots.get(name, ()))[-56:]:
                mark, style = MARKS[one.state]
                row.append(mark * 2 + " ", style=style)
            rows = sum(one.rows for one in self._lots.get(name, ()))
            row.append(f" {rows:,} {'changes' if name == 'revenue' else 'rows'}" if rows else "", style="dim")
            lines += [row]
        lines.append(Text())
        for seconds, text, style in self._log[-12:]:
            lines.append(Text.assemble((f"{seconds:6.1f} s  ", "dim"), (text, style)))
        title = f"[bold]tidemill demo[/] · file → lot → arc → view · {at:4.1f} s"
        return Panel(Group(*lines), title=title, title_align="left", border_style="blue", width=WIDTH)


class Mill:
    """The play."""

    def __init__(self, folder: Path, picture: Picture, clock: Clock, chance: random.Random) -> None:
        self.folder = folder
        self.picture = picture
        self.clock = clock
        self.chance = chance
        self.expected: dict[tuple[str, str], tuple[int, Decimal]] = {}

    def run(self, *, kept: bool) -> Summary:
        """From the first file to the last check."""
        self._write()
        pipeline = loading.load("shop.py:shop", self.folder)
        try:
            return self._play(pipeline, kept)
        finally:
            pipeline.close()

    def _write(self) -> None:
        """The pipeline's file, and the files that have arrived."""
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
        self.picture.tell(f"{FILES} files with {FILES * ROWS:,} orders have arrived in landing/")

    def _play(self, pipeline: Pipeline, kept: bool) -> Summary:
        shop = pipeline["customers"]
        shop.upsert([(number, REGIONS[number % len(REGIONS)]) for number in range(40)])  # type: ignore[attr-defined]
        self.picture.tell("40 customers are upserted, without Spark")

        begun = self.clock.monotonic()
        with self._runner() as runner:
            self.picture.tell(f"tidemill run (pid {runner.pid}) starts Spark")
            lots = self._until(pipeline, runner, self._in_the_middle, "an arc is in the middle of a lot")
            done = sum(one.state == "complete" for one in lots["clean_orders"])
            os.kill(runner.pid, signal.SIGKILL)
            runner.wait()
        first_s = self.clock.monotonic() - begun
        left = len(lots["orders"]) - done
        self.picture.tell(f"kill -9 {runner.pid}: {done} lots are clean, {left} are not", "bold red")

        begun = self.clock.monotonic()
        with self._runner() as runner:
            self.picture.tell(f"tidemill run (pid {runner.pid}) goes on where it stopped", "bold green")
            self._until(pipeline, runner, lambda _: runner.poll() is not None, "the second runner ends")
        resumed_s = self.clock.monotonic() - begun
        if runner.returncode != 0:
            raise DemoFailed(f"the second runner ended with {runner.returncode}\n{self._said()}")
        lots = self._look(pipeline)
        self.picture.show(lots)
        self.picture.tell("everything that arrived is processed", "bold green")

        found = self._query("SELECT region, day, orders, total FROM revenue ORDER BY region, day")
        clean = self._query("SELECT count(*), count(DISTINCT id) FROM clean_orders")[0]
        counted = {(row[0], row[1]): (int(row[2]), Decimal(row[3])) for row in found}
        orders = sum(count for count, _ in self.expected.values())
        checks = {
            "the_view_is_right_to_the_cent": counted == self.expected,
            "no_order_twice_and_none_lost": [int(clean[0]), int(clean[1])] == [orders, orders],
            "lots_done_before_the_kill_were_kept": done > 0,
        }
        return Summary(
            ok=all(checks.values()),
            checks=checks,
            files=FILES,
            rows=FILES * ROWS,
            lots_before=done,
            lots=len(lots["clean_orders"]),
            first_s=round(first_s, 1),
            resumed_s=round(resumed_s, 1),
            table=[[str(value) for value in row] for row in found],
            home=str(self.folder) if kept else None,
        )

    def _in_the_middle(self, lots: dict[str, Sequence[LotShown]]) -> bool:
        states = [one.state for one in lots["clean_orders"]]
        return "running" in states and "complete" in states

    def _runner(self) -> "subprocess.Popen[bytes]":
        with (self.folder / "run.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tidemill.cli", "run", "--json"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _until(
        self,
        pipeline: Pipeline,
        runner: "subprocess.Popen[bytes]",
        ready: Callable[[dict[str, Sequence[LotShown]]], bool],
        what: str,
    ) -> dict[str, Sequence[LotShown]]:
        begun = self.clock.monotonic()
        while True:
            lots = self._look(pipeline)
            self.picture.show(lots)
            if ready(lots):
                return lots
            if runner.poll() is not None:
                raise DemoFailed(f"the runner ended before {what}\n{self._said()}")
            if self.clock.monotonic() - begun > LIMIT_S:
                raise DemoFailed(f"it took more than {LIMIT_S:g} s until {what}\n{self._said()}")
            self.clock.sleep(LOOK_S)

    def _look(self, pipeline: Pipeline) -> dict[str, Sequence[LotShown]]:
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

    def _said(self) -> str:
        return (self.folder / "run.log").read_text(errors="replace")[-2000:]


def sum_up(console: Console, summary: Summary) -> None:
    """What was shown, in words and as a table."""
    table = Table(title="revenue", title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in ("region", "day", "orders", "total"):
        table.add_column(name, justify="right" if name in ("orders", "total") else "left")
    for row in summary.table:
        table.add_row(*row)
    console.print(table)
    words = {
        "the_view_is_right_to_the_cent": "the view equals the files, added up in plain Python",
        "no_order_twice_and_none_lost": f"{summary.rows:,} orders in {summary.files} files, each taken once",
        "lots_done_before_the_kill_were_kept": (
            f"{summary.lots_before} of {summary.lots} lots were done before kill -9, and were not done again"
        ),
    }
    for name, held in summary.checks.items():
        mark, style = ("✔", "green") if held else ("✘", "bold red")
        console.print(Text.assemble((f"  {mark} ", style), words[name]))
    if summary.home is not None:
        console.print(Text(f"  look around: cd {summary.home} && tidemill status", style="dim"))


@click.command(short_help="Files become lots, an arc and a view follow; killed, nothing is lost.")
@click.option("--keep", is_flag=True, help="Keep the folder, to look around in it with the other commands.")
@click.option("--nodes", is_flag=True, help="Show the cluster instead: three nodes, a leader, one killed.")
@json_option
def demo(output: Output, keep: bool, nodes: bool) -> int:
    """Orders arrive as files; an arc cleans them, a view sums them up; the runner is killed in the middle.

    Takes about a minute on two cores, for Spark is started three times. The exit code is 0 only if everything
    that is shown was checked. With --nodes it shows what lies below: three nodes share work through one file,
    the leader is killed, and its work moves.
    """
    if nodes:
        from tidemill.cli.demo_nodes import show_nodes

        return show_nodes(output, keep=keep)
    folder = Path(tempfile.mkdtemp(prefix="tidemill-demo-"))
    console = output.people
    try:
        with Picture(console, SYSTEM) as picture:
            summary = Mill(folder, picture, SYSTEM, random.Random(7)).run(kept=keep)
        if not output.json:
            sum_up(console, summary)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    output.result(summary)
    return 0 if summary.ok else 1
