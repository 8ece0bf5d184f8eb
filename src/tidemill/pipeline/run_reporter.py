"""Show the progress of a run, live on a terminal or as lines, and then its result, as text or as JSON."""

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

import msgspec
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidemill.events import Event
from tidemill.obs.lines import Severity, line_of
from tidemill.obs.progress import Progress
from tidemill.pipeline.run_report import Report

STYLES = {
    Severity.DETAIL: "dim",
    Severity.NORMAL: "",
    Severity.GOOD: "green",
    Severity.WARNING: "yellow",
    Severity.ERROR: "red",
}
KINDS = {"source": "lots", "arc": "lots", "views": "steps", "interval": "lots"}


class _RunConsole(Console):
    """A console that calls a function when the reader closes the pipe, and does not end the process."""

    def __init__(self, closed: Callable[[], None], *, stderr: bool) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True)
        self._closed = closed

    def on_broken_pipe(self) -> None:
        self.quiet = True
        _discard(self.file.fileno())
        self._closed()


def _discard(fd: int) -> None:
    """Discard further output. Otherwise Python reports the closed pipe again when the process ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)


class RunReporter:
    """Prints events as they happen. Safe to call from any thread.

    - json: print only the report to standard output, and events to standard error.
    - quiet: print only warnings and errors.
    - details: also print less important events.
    - on_closed: called when the reader of the output closes the pipe, as `head` does in
      `tidemill run | head -1`.
    - closed: whether the reader has closed the pipe. Nothing is printed after that.
    """

    def __init__(
        self,
        *,
        json: bool = False,
        quiet: bool = False,
        details: bool = False,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.closed = False
        self._on_closed = on_closed
        self._json = json
        self._quiet = quiet
        self._details = details
        self._console = _RunConsole(self._close, stderr=json)
        self._progress = Progress()
        self._lock = threading.Lock()
        live = self._console.is_terminal and not quiet
        self._live = Live(self._bars(), console=self._console, refresh_per_second=4) if live else None

    def __enter__(self) -> "RunReporter":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._bars())
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Print an event and update the progress bars."""
        self._progress(event)
        line = line_of(event)
        if line is not None and self._is_shown(line.severity):
            text = Text.assemble((f"{line.about:<16} ", "bold"), (line.text, STYLES[line.severity]))
            with self._lock:
                self._console.print(text)
        if self._live is not None:
            self._live.update(self._bars())

    def _close(self) -> None:
        self.closed = True
        self._on_closed()

    def _is_shown(self, severity: Severity) -> bool:
        if self._quiet:
            return severity in (Severity.WARNING, Severity.ERROR)
        return self._details or severity is not Severity.DETAIL

    def _bars(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        for bar in list(self._progress.bars.values()):
            failed = f" {bar.failed} failed" if bar.failed else ""
            table.add_row(
                Text(bar.name, style="bold"),
                ProgressBar(total=1.0, completed=bar.share, width=24),
                Text(f"{bar.count} {KINDS[bar.kind]}", style="cyan"),
                Text(f"{bar.rows:,} rows"),
                Text(bar.note + failed, style="yellow"),
            )
        return table

    def end(self, report: Report) -> None:
        """Print the report."""
        if self._json:
            try:
                sys.stdout.write(msgspec.json.encode({"ok": report.ok, "report": report}).decode() + "\n")
                sys.stdout.flush()
            except BrokenPipeError:
                _discard(sys.stdout.fileno())
                self._close()
        elif not self._quiet or not report.ok:
            style = "green" if report.ok else "yellow"
            self._console.print(Text(str(report), style=style))
