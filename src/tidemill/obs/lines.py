"""Progress lines: describe typed events in words, with a severity.

Events that this module does not describe are not shown to users. Programs receive every event.
"""

from enum import StrEnum
from functools import singledispatch

import msgspec

from tidemill.arcs.events import ArcLotBegan, ArcLotComplete, ArcLotMissing, ArcLotPartial
from tidemill.cluster.events import LeaderElected, NodeJoined, NodeLost
from tidemill.events import Event
from tidemill.futures.worker.events import ChildEnded, ClaimsGivenBack, StoreAway, TaskFailed
from tidemill.obs.events import TracesUnsent
from tidemill.obs.lineage import LineageUnsent
from tidemill.publish.events import (
    AttemptAbandoned,
    AttemptAdopted,
    AttemptCleaned,
    IntervalClosed,
    PartEnded,
    WallClockJumped,
)
from tidemill.sources.events import (
    BatchFetched,
    BatchReceived,
    CheckpointSkipped,
    FileChanged,
    FilesDiscovered,
    FileSkipped,
    FilesLeftOut,
    PartitionStuck,
    PushStarted,
    RecordsQuarantined,
    WindowFailed,
    WindowPublished,
    WindowTaken,
)
from tidemill.triggers.events import CronMissed, RunFailed, RunLapsed, StrangeKey, TemplateMatchless
from tidemill.views.steps.events import (
    FilesCollected,
    StepAbandoned,
    StepCommitted,
    StepTimed,
    ViewChecked,
    ViewSetAside,
    ViewsResumed,
)


class Severity(StrEnum):
    """How important a line is."""

    DETAIL = "detail"
    NORMAL = "normal"
    GOOD = "good"
    WARNING = "warning"
    ERROR = "error"


class Line(msgspec.Struct, frozen=True):
    """A description of an event, for users."""

    about: str
    text: str
    severity: Severity = Severity.NORMAL


CHILD_ENDS = {
    "again": "starts its child process again",
    "crash": "its child process died",
    "drain": "killed its child process at the end of the grace period",
    "lost": "lost its lease and killed its child process",
    "oom": "its child process ran out of memory",
    "unborn": "cannot start a child process",
}
"""How to say why a child process ended, by the kind of its end."""


def _short(author: str) -> str:
    """Shorten a name: `arc:shop/clean` -> `clean`."""
    return author.partition("/")[2] or author


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 lot` or `2,000 lots`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@singledispatch
def line_of(event: Event) -> Line | None:  # noqa: ARG001 - the functions below use it
    """Describe an event for users; return None if they do not need to see it."""
    return None


@line_of.register
def _(event: FilesDiscovered) -> Line:
    return Line(_short(event.source), f"{counted(event.files, 'new file')} ({event.size:,} bytes)")


@line_of.register
def _(event: FileSkipped) -> Line:
    return Line(_short(event.source), f"skipped {event.path}: {event.why}", Severity.WARNING)


@line_of.register
def _(event: FileChanged) -> Line:
    action = "reading it again" if event.taken else "not reading it again"
    return Line(_short(event.source), f"{event.path} changed after it was read: {action}", Severity.WARNING)


@line_of.register
def _(event: FilesLeftOut) -> Line:
    text = f"{counted(len(event.paths), 'file')} changed or disappeared before being read"
    return Line(_short(event.source), text, Severity.WARNING)


@line_of.register
def _(event: WindowTaken) -> Line | None:
    if not event.over:
        return None
    return Line(_short(event.source), "takes over the files of a node that died", Severity.WARNING)


@line_of.register
def _(event: WindowPublished) -> Line:
    text = f"lot {event.lot}: {counted(event.rows, 'row')} from {counted(event.files, 'file')}"
    return Line(_short(event.source), text, Severity.GOOD)


@line_of.register
def _(event: BatchReceived) -> Line:
    text = f"lot {event.lot}: {counted(event.rows, 'row')} from {counted(event.requests, 'request')}"
    return Line(_short(event.source), text, Severity.GOOD)


@line_of.register
def _(event: PushStarted) -> Line:
    return Line(_short(event.source), f"receives rows at {event.url}", Severity.GOOD)


@line_of.register
def _(event: BatchFetched) -> Line:
    bad = f", {counted(event.bad, 'record')} quarantined" if event.bad else ""
    text = f"lot {event.lot}: {counted(event.rows, 'row')}{bad}"
    return Line(_short(event.source), text, Severity.WARNING if bad else Severity.GOOD)


@line_of.register
def _(event: PartitionStuck) -> Line:
    return Line(_short(event.source), event.message, Severity.ERROR)


@line_of.register
def _(event: CheckpointSkipped) -> Line:
    text = f"{event.checkpoint}: the data at {event.before} no longer exists; continuing at {event.after}"
    return Line(_short(event.source), text, Severity.WARNING)


@line_of.register
def _(event: RecordsQuarantined) -> Line:
    text = f"{counted(event.records, 'bad record')} quarantined in {event.dataset}, lot {event.lot}"
    return Line(_short(event.source), text, Severity.WARNING)


@line_of.register
def _(event: WindowFailed) -> Line:
    text = f"cannot read files: {event.kind}: {event.message}; retrying in {event.wait_s:.0f} s"
    return Line(_short(event.source), text, Severity.ERROR)


@line_of.register
def _(event: IntervalClosed) -> Line:
    name = event.dataset.partition("@")[0]
    text = f"lot {event.lot} closed: {counted(event.appends, 'append')}, {counted(event.rows, 'row')}"
    return Line(name, text, Severity.GOOD)


@line_of.register
def _(event: WallClockJumped) -> Line:
    if event.shift_s < 0:  # used at once, and recorded only later
        return Line("clock", f"{event.message}; intervals wait until the clock has caught up", Severity.ERROR)
    text = (
        f"{event.message}; intervals, schedules and now() will use the new time in"
        f" {event.accepted_in_s / 60:.0f} minutes, unless the clock is corrected; if the clock is right, run"
        " `tidemill clock --accept`"
    )
    return Line("clock", text, Severity.ERROR)


@line_of.register
def _(event: ArcLotBegan) -> Line:
    attempt = f" (attempt {event.tries})" if event.tries > 1 else ""
    parts = f" in {counted(event.parts, 'part')}" if event.parts > 1 else ""
    return Line(_short(event.arc), f"lot {event.lot} begins{parts}{attempt}", Severity.DETAIL)


@line_of.register
def _(event: PartEnded) -> Line | None:
    if event.error:
        return Line(
            _short(event.author), f"lot {event.lot}, part {event.part}: {event.error}", Severity.ERROR
        )
    reused = ", reused" if event.reused else ""
    text = f"lot {event.lot}, part {event.part}: {counted(event.rows, 'row')}{reused}"
    return Line(_short(event.author), text, Severity.DETAIL)


@line_of.register
def _(event: ArcLotComplete) -> Line:
    rows = ", ".join(f"{n:,} in {name.partition('@')[0]}" for name, n in event.rows.items())
    return Line(_short(event.arc), f"lot {event.lot} complete: {rows}", Severity.GOOD)


@line_of.register
def _(event: ArcLotPartial) -> Line:
    failed = f"{counted(len(event.failed), 'part')} failed: " if event.failed else ""
    return Line(_short(event.arc), f"lot {event.lot} is incomplete: {failed}{event.error}", Severity.ERROR)


@line_of.register
def _(event: ArcLotMissing) -> Line:
    return Line(_short(event.arc), f"lot {event.lot} failed: {event.error}", Severity.ERROR)


@line_of.register
def _(event: StepCommitted) -> Line | None:
    if not event.views:
        return None
    text = f"step {event.step}: {counted(event.rows, 'change')} in {', '.join(event.views)}"
    return Line(f"views {event.group}", text, Severity.GOOD)


@line_of.register
def _(event: StepTimed) -> Line:
    load = f", {event.load_s:.2f} s to build state" if event.load_s else ""
    times = f"planned in {event.plan_s:.2f} s, ran in {event.job_s:.2f} s ({event.place}){load}"
    return Line(f"views {event.group}", f"step {event.step}: {times}", Severity.DETAIL)


@line_of.register
def _(event: StepAbandoned) -> Line:
    return Line(f"views {event.group}", f"step {event.step} failed: {event.why}", Severity.ERROR)


@line_of.register
def _(event: ViewSetAside) -> Line:
    return Line(f"views {event.group}", f"view {event.view}: {event.why}", Severity.ERROR)


@line_of.register
def _(event: ViewChecked) -> Line:
    about = f"views {event.group}"
    if not event.rows:
        return Line(about, f"view {event.view} passes all its checks", Severity.GOOD)
    failing = ", ".join(f"{name} ({counted(count, 'row')})" for name, count in event.rows.items())
    severity = Severity.ERROR if event.refused else Severity.WARNING
    return Line(about, f"view {event.view} fails {failing}; {event.failures} has the rows", severity)


@line_of.register
def _(event: ViewsResumed) -> Line:
    text = f"step {event.step}: {', '.join(event.views)} computed again"
    return Line(f"views {event.group}", text, Severity.GOOD)


@line_of.register
def _(event: LineageUnsent) -> Line:
    text = f"{counted(event.waiting, 'lineage event')} could not be sent yet: {event.error}"
    return Line("lineage", text, Severity.WARNING)


@line_of.register
def _(event: TracesUnsent) -> Line:
    return Line("traces", f"no traces are sent: {event.error}", Severity.WARNING)


@line_of.register
def _(event: TemplateMatchless) -> Line:
    text = f"{event.reads} matches no table yet ({event.where})"
    return Line(_short(event.name), text, Severity.WARNING)


@line_of.register
def _(event: CronMissed) -> Line:
    text = (
        f"skipped {counted(event.left_out, 'scheduled time')} at which no runner was active (see catch_up=)"
    )
    return Line(_short(event.name), text, Severity.WARNING)


@line_of.register
def _(event: StrangeKey) -> Line:
    return Line("heap", f"ignored the key {event.key}: it is not an item of the heap", Severity.WARNING)


@line_of.register
def _(event: RunFailed) -> Line:
    text = f"failed: {event.message}; retrying in {event.backoff_s:.1f} s"
    return Line(_short(event.name), text, Severity.ERROR)


@line_of.register
def _(event: RunLapsed) -> Line:
    if event.dead:
        text = f"dead: its node died in {event.deaths} runs in a row; it runs again after `tidemill retry`"
        return Line(_short(event.name), text, Severity.ERROR)
    return Line(_short(event.name), "its node died; the run starts again", Severity.WARNING)


@line_of.register
def _(event: AttemptAdopted) -> Line:
    return Line(
        _short(event.author), f"lot {event.lot}: resumes where an earlier process stopped", Severity.WARNING
    )


@line_of.register
def _(event: AttemptAbandoned) -> Line:
    return Line(_short(event.author), f"lot {event.lot}: attempt abandoned: {event.why}", Severity.DETAIL)


@line_of.register
def _(event: AttemptCleaned) -> Line:
    return Line("clean", f"removed {counted(event.objects, 'unused object')}", Severity.DETAIL)


@line_of.register
def _(event: FilesCollected) -> Line:
    freed = f"freed {event.size:,} bytes: {counted(event.files, 'unused file')}"
    return Line(event.of, freed, Severity.DETAIL)


@line_of.register
def _(event: NodeJoined) -> Line:
    return Line(event.node, "joined the cluster", Severity.DETAIL)


@line_of.register
def _(event: NodeLost) -> Line:
    return Line(event.node, "lost its lease", Severity.WARNING)


@line_of.register
def _(event: LeaderElected) -> Line:
    return Line(event.node, "is now the leader", Severity.DETAIL)


@line_of.register
def _(event: TaskFailed) -> Line:
    return Line(event.name, f"{event.kind}: {event.message}", Severity.WARNING)


@line_of.register
def _(event: ClaimsGivenBack) -> Line:
    text = f"released {counted(event.claims, 'claim')} from an earlier start or a lost lease"
    return Line(event.node, text, Severity.DETAIL)


@line_of.register
def _(event: ChildEnded) -> Line:
    return Line(event.node, f"{CHILD_ENDS.get(event.kind, 'ended')}: {event.message}", Severity.WARNING)


@line_of.register
def _(event: StoreAway) -> Line:
    return Line(event.node, f"the store does not answer: {event.error}", Severity.WARNING)
