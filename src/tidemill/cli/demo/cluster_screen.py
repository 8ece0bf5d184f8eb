"""Draw the cluster demo: live on a terminal, as plain lines anywhere else.

Each partition is a bar that grows with its progress, in the colour of the node that holds it. When a node
dies, its bars turn red. When another node takes over the partitions, their bars change colour and grow again.
"""

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidemill.cli.demo.cluster_snapshot import ClusterSnapshot, ClusterSummary, LogLine
from tidemill.testing.work import WorkPlan

COLOURS = {"n1": "cyan", "n2": "magenta", "n3": "yellow"}
BARS = "▁▂▃▄▅▆▇█"
TONES = {"": "", "good": "bold green", "bad": "bold red"}
LOG_LINES = 12
WIDTH = 80
ABOVE_LOG = 12  # how many lines of the panel do not belong to the log


class ClusterDisplay(Protocol):
    """Shows the progress and the summary of the demo."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, snapshot: ClusterSnapshot) -> None: ...

    def log(self, line: LogLine) -> None: ...

    def print_summary(self, summary: ClusterSummary) -> None: ...


class ClusterLines:
    """Print one line per event, for logs, pipes and simple terminals."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, snapshot: ClusterSnapshot) -> None:
        pass

    def log(self, line: LogLine) -> None:
        self.console.print(Text(f"{line.seconds:6.2f} s  {line.text}"))

    def print_summary(self, summary: ClusterSummary) -> None:
        for text, passed in sentences(summary):
            self.console.print(Text(f"{'ok' if passed else 'FAILED':>8}  {text}"))


class ClusterScreen:
    """Draw a table of the nodes, one bar per partition, and the log. The screen updates in place."""

    def __init__(self, console: Console, plan: WorkPlan, ttl_s: float) -> None:
        self.console = console
        self.plan = plan
        self.ttl_s = ttl_s
        self._log: list[LogLine] = []
        self._snapshot: ClusterSnapshot | None = None
        self._live = Live(console=console, refresh_per_second=10, get_renderable=self._draw)

    @staticmethod
    def fits(console: Console) -> bool:
        """Return whether this terminal is large enough and can draw the screen."""
        drawable = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
        return drawable and console.width >= WIDTH and console.height >= ABOVE_LOG + 8

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot

    def log(self, line: LogLine) -> None:
        self._log.append(line)

    def print_summary(self, summary: ClusterSummary) -> None:
        lines = Text()
        for text, passed in sentences(summary):
            lines.append("  ✔ " if passed else "  ✘ ", style="bold green" if passed else "bold red")
            lines.append(text + "\n", style="" if passed else "bold red")
        lines.rstrip()
        style = "green" if summary.ok else "red"
        self.console.print(Panel(lines, title="summary", title_align="left", border_style=style, width=WIDTH))

    # --- drawing

    def _draw(self) -> RenderableType:
        snapshot = self._snapshot
        if snapshot is None:
            return Text("starting three nodes …", style="dim")
        parts: list[RenderableType] = [
            self._nodes(snapshot),
            Text(),
            self._bars(snapshot),
            Text(),
            self._lines(),
        ]
        title = f"[bold]tidemill demo[/] · three nodes, one SQLite file · {snapshot.seconds:4.1f} s"
        return Panel(
            Group(*parts), title=title, title_align="left", border_style="blue", width=WIDTH, padding=(0, 2)
        )

    def _nodes(self, snapshot: ClusterSnapshot) -> Table:
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
        for name, node_id in snapshot.ids.items():
            colour = COLOURS.get(name, "white")
            dead = name == snapshot.dead
            holds = len(snapshot.held_by(node_id)) if node_id else 0
            table.add_row(
                Text(f"● {name}", style="red" if dead else f"bold {colour}"),
                Text(str(snapshot.pids[name]), style="dim strike" if dead else "dim"),
                self._role(snapshot, name),
                self._lease(snapshot, name),
                Text(str(holds) if holds else "–", style="red" if dead and holds else colour),
                Text(str(snapshot.done_by(node_id)) if node_id else "–", style="green"),
            )
        return table

    def _role(self, snapshot: ClusterSnapshot, name: str) -> Text:
        if name == snapshot.dead:
            return Text("killed (-9)", style="bold red")
        node_id = snapshot.ids[name]
        if node_id and node_id == snapshot.leader_id() and snapshot.leader is not None:
            return Text(f"★ leader, epoch {snapshot.leader.epoch}", style="bold")
        return Text(
            "follower" if node_id in snapshot.nodes else "left" if snapshot.finished else "…", style="dim"
        )

    def _lease(self, snapshot: ClusterSnapshot, name: str) -> Text:
        left_s = snapshot.lease_s(name)
        if not left_s:
            return Text(
                "expired" if name == snapshot.dead else "–", style="red" if name == snapshot.dead else "dim"
            )
        cells = 8
        full = min(cells, round(left_s / self.ttl_s * cells))
        style = "red" if name == snapshot.dead else "green"
        return Text.assemble(("━" * full, style), ("━" * (cells - full), "grey23"), f" {left_s:3.1f} s")

    def _bars(self, snapshot: ClusterSnapshot) -> RenderableType:
        bars = Text()
        for part in sorted(snapshot.holders):
            finished = part in snapshot.done
            level = min(len(BARS) - 1, snapshot.progress.get(part, 0) * len(BARS) // self.plan.units)
            name = snapshot.name_of(snapshot.holders[part])
            style = "red" if name == snapshot.dead and not finished else COLOURS.get(name, "grey37")
            bars.append(BARS[-1] * 2 if finished else BARS[level] * 2, style=style)
            bars.append(" ")
        share = snapshot.done_share(self.plan)
        cells = 65
        full = int(share * cells)
        progress = Text.assemble(("━" * full, "green"), ("━" * (cells - full), "grey23"), f"  {share:4.0%}")
        caption = Text("one bar per partition, in the colour of the node that holds it", style="dim")
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


def sentences(summary: ClusterSummary) -> list[tuple[str, bool]]:
    """Return the sentences of the summary. Each comes with True if its check passed."""
    checks = summary.checks
    led = (
        f"another node became the leader {summary.failover_s:.2f} s after the kill"
        f" (leases last {summary.ttl_s:g} s)"
    )
    moved = (
        f"other nodes took over the killed node's {summary.moved} partitions within {summary.moved_s:.2f} s"
    )
    exactly_once = f"{summary.units} writes: every partition was processed exactly once"
    shape = f"{summary.nodes} processes, {summary.partitions} partitions, one file, no server"
    lines = [
        (led, checks["another_node_leads"]),
        (moved, checks["partitions_moved"]),
        (exactly_once, checks["every_partition_once"]),
        *((violation, False) for violation in summary.violations),
        (f"{shape}: {summary.seconds:.1f} s", summary.ok),
    ]
    if summary.home is not None:
        lines.append((f"the store and the logs of the nodes are in {summary.home}", True))
    return lines
