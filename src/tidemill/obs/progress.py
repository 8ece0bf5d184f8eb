"""Progress: count finished and running work from typed events. Any thread may pass events to it."""

import threading
from dataclasses import dataclass, field

from tidemill.arcs.events import ArcLotBegan, ArcLotComplete, ArcLotMissing, ArcLotPartial
from tidemill.events import Event
from tidemill.obs.lines import counted
from tidemill.publish.events import IntervalClosed, PartEnded
from tidemill.sources.events import (
    BatchFetched,
    BatchReceived,
    FilesDiscovered,
    RecordsQuarantined,
    WindowFailed,
    WindowPublished,
)
from tidemill.triggers.events import RunEnded, RunFailed, RunStarted
from tidemill.views.steps.events import StepCommitted, ViewSetAside
from tidemill.views.steps.keys import group_id


@dataclass
class Bar:
    """The progress of one arc, source or view group: its lots or steps, and the parts of the current lot.

    - known: how many lots or steps are finished, failed or waiting; 0 if that cannot be known. A view group
      computes several lots in one step, so it shows the number of lots that wait in `note`.
    """

    name: str
    kind: str
    done: int = 0
    known: int = 0
    rows: int = 0
    failed: int = 0
    parts: int = 0
    parts_done: int = 0
    note: str = ""

    @property
    def share(self) -> float:
        """The finished share of the known work, from 0 to 1."""
        if not self.known:
            return 1.0 if self.done else 0.0
        part = self.parts_done / self.parts if self.parts else 0.0
        return min(1.0, (self.done + self.failed + part) / self.known)

    @property
    def count(self) -> str:
        """The number of finished lots or steps, and of all that are known: `3/5`, or `3` if nothing waits."""
        if self.done + self.failed >= self.known:
            return f"{self.done:,}"
        return f"{self.done:,}/{self.known:,}"

    def expect(self, more: int) -> None:
        """Note that this many lots or steps are still to be finished, at least."""
        self.known = max(self.known, self.done + self.failed + more)


@dataclass
class Progress:
    """All progress bars, in the order of their first event."""

    bars: dict[str, Bar] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __call__(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            self._count(event)

    def _bar(self, name: str, kind: str) -> Bar:
        return self.bars.setdefault(name, Bar(name.partition("/")[2] or name, kind))

    def _count(self, event: Event) -> None:
        match event:
            case IntervalClosed():
                bar = self._bar(event.dataset.partition("@")[0], "interval")
                bar.done += 1
                bar.rows += event.rows
            case RunStarted():
                if event.name.startswith("views:"):
                    bar = self._bar(event.name, "views")
                    bar.note = f"{counted(event.behind, 'lot')} to read" if event.behind else ""
                else:
                    self._bar(event.name, "arc").expect(event.most)
            case RunEnded():
                bar = self._bar(event.name, "views" if event.name.startswith("views:") else "arc")
                bar.known = bar.done + bar.failed
                bar.note = bar.note if bar.kind == "arc" else ""
            case ArcLotBegan():
                bar = self._bar(event.arc, "arc")
                bar.parts, bar.parts_done = event.parts, 0
                bar.expect(1)
            case PartEnded() if event.author.startswith("arc:"):
                self._bar(event.author, "arc").parts_done += not event.error
            case ArcLotComplete():
                bar = self._bar(event.arc, "arc")
                bar.done += 1
                bar.parts = bar.parts_done = 0
                bar.rows += sum(event.rows.values())
            case ArcLotPartial() | ArcLotMissing():
                bar = self._bar(event.arc, "arc")
                bar.failed += 1
                bar.parts = bar.parts_done = 0
                bar.note = event.error[:60]
            case StepCommitted():
                bar = self._bar(group_id(event.pipeline, event.group), "views")
                bar.done += 1
                bar.rows += event.rows
                bar.note = ""
            case ViewSetAside():
                note = f"view {event.view}: {event.why}"
                self._bar(group_id(event.pipeline, event.group), "views").note = note[:60]
            case RunFailed():
                kind = "views" if event.name.startswith("views:") else "arc"
                self._bar(event.name, kind).note = event.message[:60]
            case _:
                self._count_source(event)

    def _count_source(self, event: Event) -> None:
        match event:
            case FilesDiscovered():
                bar = self._bar(event.source, "source")
                bar.expect(0)
                bar.known += event.windows
            case WindowPublished():
                bar = self._bar(event.source, "source")
                bar.done += 1
                bar.rows += event.rows
            case BatchFetched() | BatchReceived():
                bar = self._bar(event.source, "source")
                bar.done += 1
                bar.rows += event.rows
            case RecordsQuarantined():
                bar = self._bar(event.source, "source")
                bar.note = f"{event.records:,} quarantined"
            case WindowFailed():
                self._bar(event.source, "source").note = event.message[:60]
            case _:
                pass
