"""Draw the pipeline demo: live on a terminal, as plain lines anywhere else."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidemill.cli.lots import MARKS
from tidemill.clock import Clock
from tidemill.pipeline.lot_info import LotInfo

TABLES = ("orders", "clean_orders", "revenue")
WIDTH = 80


class PipelineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The checks and measurements of one run of the demo."""

    ok: bool
    checks: dict[str, bool]
    files: int
    rows: int
    lots_before_kill: int  # complete when the runner was killed
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
