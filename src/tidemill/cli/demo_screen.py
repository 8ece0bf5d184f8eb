"""Drawing the demo: live on a terminal, as plain lines anywhere else.

Each partition is a bar that grows as its work goes on, in the colour of the node that holds it. When a node
dies its bars turn red; when another takes them over they change colour and go on growing from there.
"""

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidemill.cli.demo_scene import Line, Sight, Summary
from tidemill.testing.work import Plan

COLOURS = {"n1": "cyan", "n2": "magenta", "n3": "yellow"}
BARS = "▁▂▃▄▅▆▇█"
TONES = {"": "", "good": "bold green", "bad": "bold red"}
LOG_LINES = 12
WIDTH = 80
ABOVE_LOG = 12  # lines of the panel that are not the log


class Picture(Protocol):
    """What shows the demo to somebody."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, sight: Sight) -> None: ...

    def tell(self, line: Line) -> None: ...

    def sum_up(self, summary: Summary) -> None: ...


class Lines:
    """One line per happening, for logs, pipes and terminals that cannot draw."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, sight: Sight) -> None:
        pass

    def tell(self, line: Line) -> None:
        self.console.print(Text(f"{line.seconds:6.2f} s  {line.text}"))

    def sum_up(self, summary: Summary) -> None:
        for text, held in sentences(summary):
            self.console.print(Text(f"{'ok' if held else 'FAILED':>8}  {text}"))


class Screen:
    """A table of the nodes, a bar per partition, and the log below; redrawn in place."""

    def __init__(self, console: Console, plan: Plan, ttl_s: float) -> None:
        self.console = console
        self.plan = plan
        self.ttl_s = ttl_s
        self._log: list[Line] = []
        self._sight: Sight | None = None
        self._live = Live(console=console, refresh_per_second=10, get_renderable=self._draw)

    @staticmethod
    def fits(console: Console) -> bool:
        """Can this terminal show it?"""
        drawable = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
        return drawable and console.width >= WIDTH and console.height >= ABOVE_LOG + 8

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, sight: Sight) -> None:
        self._sight = sight

    def tell(self, line: Line) -> None:
        self._log.append(line)

    def sum_up(self, summary: Summary) -> None:
        lines = Text()
        for text, held in sentences(summary):
            lines.append("  ✔ " if held else "  ✘ ", style="bold green" if held else "bold red")
            lines.append(text + "\n", style="" if held else "bold red")
        lines.rstrip()
        style = "green" if summary.ok else "red"
        self.console.print(
            Panel(lines, title="what was shown", title_align="left", border_style=style, width=WIDTH)
        )

    # --- drawing

    def _draw(self) -> RenderableType:
        sight = self._sight
        if sight is None:
            return Text("starting three nodes …", style="dim")
        parts: list[RenderableType] = [self._nodes(sight), Text(), self._bars(sight), Text(), self._lines()]
        title = f"[bold]tidemill demo[/] · three nodes, one SQLite file · {sight.seconds:4.1f} s"
        return Panel(
            Group(*parts), title=title, title_align="left", border_style="blue", width=WIDTH, padding=(0, 2)
        )

    def _nodes(self, sight: Sight) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for column, width in (
            ("node", 6),
            ("process", 8),
            ("role", 19),
            ("lease", 17),
            ("holds", 6),
            ("done", 5),
        ):
            table.add_column(column, width=width, justify="right" if column in ("holds", "done") else "left")
        for name, node_id in sight.ids.items():
            colour = COLOURS.get(name, "white")
            dead = name == sight.dead
            holds = len(sight.held_by(node_id)) if node_id else 0
            table.add_row(
                Text(f"● {name}", style="red" if dead else f"bold {colour}"),
                Text(str(sight.pids[name]), style="dim strike" if dead else "dim"),
                self._role(sight, name),
                self._lease(sight, name),
                Text(str(holds) if holds else "–", style="red" if dead and holds else colour),
                Text(str(sight.done_by(node_id)) if node_id else "–", style="green"),
            )
        return table

    def _role(self, sight: Sight, name: str) -> Text:
        if name == sight.dead:
            return Text("killed (-9)", style="bold red")
        node_id = sight.ids[name]
        if node_id and node_id == sight.leader_id() and sight.leader is not None:
            return Text(f"★ leader, epoch {sight.leader.epoch}", style="bold")
        return Text("follows" if node_id in sight.nodes else "left" if sight.finished else "…", style="dim")

    def _lease(self, sight: Sight, name: str) -> Text:
        left_s = sight.lease_s(name)
        if not left_s:
            return Text("over" if name == sight.dead else "–", style="red" if name == sight.dead else "dim")
        cells = 8
        full = min(cells, round(left_s / self.ttl_s * cells))
        style = "red" if name == sight.dead else "green"
        return Text.assemble(("━" * full, style), ("━" * (cells - full), "grey23"), f" {left_s:3.1f} s")

    def _bars(self, sight: Sight) -> RenderableType:
        bars = Text()
        for part in sorted(sight.holders):
            done = part in sight.done
            level = min(len(BARS) - 1, sight.progress.get(part, 0) * len(BARS) // self.plan.units)
            name = sight.name_of(sight.holders[part])
            style = "red" if name == sight.dead and not done else COLOURS.get(name, "grey37")
            bars.append(BARS[-1] * 2 if done else BARS[level] * 2, style=style)
            bars.append(" ")
        share = sight.done_share(self.plan)
        cells = 65
        full = int(share * cells)
        progress = Text.assemble(("━" * full, "green"), ("━" * (cells - full), "grey23"), f"  {share:4.0%}")
        caption = Text("a bar per partition, in the colour of the node that holds it", style="dim")
        return Group(caption, bars, Text(), progress)

    def _lines(self) -> Text:
        room = min(LOG_LINES, self.console.height - ABOVE_LOG - 2)
        shown = self._log[-room:]
        text = Text()
        for line in shown:
            text.append(f"{line.seconds:6.2f} s  ", style="dim")
            text.append("● ", style=COLOURS.get(line.node, "grey37"))
            text.append(line.text + "\n", style=TONES[line.tone])
        text.append("\n" * (room - len(shown) - 1))
        if len(shown) == room:
            text.rstrip()
        return text


def sentences(summary: Summary) -> list[tuple[str, bool]]:
    """The summary in words, each with whether it held."""
    checks = summary.checks
    led = f"killed the leader; another led after {summary.failover_s:.2f} s (leases last {summary.ttl_s:g} s)"
    moved = f"the {summary.moved} partitions it held went on elsewhere after {summary.moved_s:.2f} s"
    once = f"{summary.units} writes, every partition done exactly once: checked"
    said = [
        (led, checks["another_node_leads"]),
        (moved, checks["the_work_of_the_dead_moved"]),
        (once, checks["every_partition_done_exactly_once"]),
    ]
    said += [(wrong, False) for wrong in summary.wrong]
    what = f"{summary.nodes} processes, {summary.partitions} partitions, one file, no server"
    said.append((f"{what}: {summary.seconds:.1f} s", summary.ok))
    if summary.home is not None:
        said.append((f"the store and the nodes' logs are in {summary.home}", True))
    return said
