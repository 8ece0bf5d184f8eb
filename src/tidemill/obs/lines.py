"""Events as lines for people: what happened, in words, and how much it matters.

An event that has no line here is of no interest to people; programs get every event as it is.
"""

from enum import StrEnum
from functools import singledispatch

import msgspec

from tidemill.arcs.events import ArcLotBegan, ArcLotComplete, ArcLotMissing, ArcLotPartial
from tidemill.cluster.events import LeaderElected, NodeJoined, NodeLost
from tidemill.events import Event
from tidemill.futures.worker.events import ChildEnded, ClaimsGivenBack, StoreAway, TaskFailed
from tidemill.publish.events import (
    AttemptAbandoned,
    AttemptAdopted,
    AttemptCleaned,
    IntervalClosed,
    PartEnded,
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
from tidemill.views.steps.events import FilesCollected, StepAbandoned, StepCommitted


class Weight(StrEnum):
    """How much a line matters."""

    DETAIL = "detail"
    NORMAL = "normal"
    GOOD = "good"
    WARNING = "warning"
    ERROR = "error"


class Line(msgspec.Struct, frozen=True):
    """What happened."""

    about: str
    text: str
    weight: Weight = Weight.NORMAL


def _short(author: str) -> str:
    """`arc:shop/clean` -> `clean`."""
    return author.partition("/")[2] or author


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@singledispatch
def line_of(event: Event) -> Line | None:  # noqa: ARG001 - the kinds below read theirs
    """An event for people; None for one that they need not know."""
    return None


@line_of.register
def _(event: FilesDiscovered) -> Line:
    return Line(_short(event.source), f"{_count(event.files, 'new file')} ({event.size:,} bytes)")


@line_of.register
def _(event: FileSkipped) -> Line:
    return Line(_short(event.source), f"skipped {event.path}: {event.why}", Weight.WARNING)


@line_of.register
def _(event: FileChanged) -> Line:
    what = "taken again" if event.taken else "not taken again"
    return Line(_short(event.source), f"{event.path} changed after it was taken: {what}", Weight.WARNING)


@line_of.register
def _(event: FilesLeftOut) -> Line:
    text = f"{_count(len(event.paths), 'file')} changed or disappeared before they were read"
    return Line(_short(event.source), text, Weight.WARNING)


@line_of.register
def _(event: WindowTaken) -> Line | None:
    if not event.over:
        return None
    return Line(_short(event.source), "takes over files of a dead node", Weight.WARNING)


@line_of.register
def _(event: WindowPublished) -> Line:
    text = f"lot {event.lot}: {_count(event.rows, 'row')} of {_count(event.files, 'file')}"
    return Line(_short(event.source), text, Weight.GOOD)


@line_of.register
def _(event: BatchReceived) -> Line:
    text = f"lot {event.lot}: {_count(event.rows, 'row')} of {_count(event.requests, 'request')}"
    return Line(_short(event.source), text, Weight.GOOD)


@line_of.register
def _(event: PushStarted) -> Line:
    return Line(_short(event.source), f"receives rows at {event.url}", Weight.GOOD)


@line_of.register
def _(event: BatchFetched) -> Line:
    bad = f", {_count(event.bad, 'record')} quarantined" if event.bad else ""
    text = f"lot {event.lot}: {_count(event.rows, 'row')}{bad}"
    return Line(_short(event.source), text, Weight.WARNING if bad else Weight.GOOD)


@line_of.register
def _(event: PartitionStuck) -> Line:
    return Line(_short(event.source), event.message, Weight.ERROR)


@line_of.register
def _(event: CheckpointSkipped) -> Line:
    text = f"{event.checkpoint}: {event.before} no longer exists; continues at {event.after}"
    return Line(_short(event.source), text, Weight.WARNING)


@line_of.register
def _(event: RecordsQuarantined) -> Line:
    text = f"{_count(event.records, 'record')} that do not fit are in {event.dataset}, lot {event.lot}"
    return Line(_short(event.source), text, Weight.WARNING)


@line_of.register
def _(event: WindowFailed) -> Line:
    text = f"files could not be read: {event.kind}: {event.message}; again in {event.wait_s:.0f} s"
    return Line(_short(event.source), text, Weight.ERROR)


@line_of.register
def _(event: IntervalClosed) -> Line:
    name = event.dataset.partition("@")[0]
    text = f"lot {event.lot} closed: {_count(event.appends, 'append')}, {_count(event.rows, 'row')}"
    return Line(name, text, Weight.GOOD)


@line_of.register
def _(event: ArcLotBegan) -> Line:
    again = f", for the {event.tries}. time" if event.tries > 1 else ""
    parts = f" in {_count(event.parts, 'part')}" if event.parts > 1 else ""
    return Line(_short(event.arc), f"lot {event.lot} begins{parts}{again}", Weight.DETAIL)


@line_of.register
def _(event: PartEnded) -> Line | None:
    if event.error:
        return Line(_short(event.author), f"lot {event.lot}, part {event.part}: {event.error}", Weight.ERROR)
    reused = ", made before" if event.reused else ""
    text = f"lot {event.lot}, part {event.part}: {_count(event.rows, 'row')}{reused}"
    return Line(_short(event.author), text, Weight.DETAIL)


@line_of.register
def _(event: ArcLotComplete) -> Line:
    rows = ", ".join(f"{n:,} in {name.partition('@')[0]}" for name, n in event.rows.items())
    return Line(_short(event.arc), f"lot {event.lot} complete: {rows}", Weight.GOOD)


@line_of.register
def _(event: ArcLotPartial) -> Line:
    failed = f"{_count(len(event.failed), 'part')} failed: " if event.failed else ""
    return Line(_short(event.arc), f"lot {event.lot} partial: {failed}{event.error}", Weight.ERROR)


@line_of.register
def _(event: ArcLotMissing) -> Line:
    return Line(_short(event.arc), f"lot {event.lot} missing: {event.error}", Weight.ERROR)


@line_of.register
def _(event: StepCommitted) -> Line | None:
    if not event.views:
        return None
    text = f"step {event.step}: {_count(event.rows, 'change')} in {', '.join(event.views)}"
    return Line(f"views {event.group}", text, Weight.GOOD)


@line_of.register
def _(event: StepAbandoned) -> Line:
    return Line(f"views {event.group}", f"step {event.step} failed: {event.why}", Weight.ERROR)


@line_of.register
def _(event: TemplateMatchless) -> Line:
    text = f"{event.reads} matches no table yet ({event.where})"
    return Line(_short(event.name), text, Weight.WARNING)


@line_of.register
def _(event: CronMissed) -> Line:
    text = f"nobody ran at {_count(event.left_out, 'time')} of its schedule, and by its policy they are over"
    return Line(_short(event.name), text, Weight.WARNING)


@line_of.register
def _(event: StrangeKey) -> Line:
    return Line("heap", f"{event.key} is no item of it, and is left alone", Weight.WARNING)


@line_of.register
def _(event: RunFailed) -> Line:
    text = f"failed: {event.message}; again in {event.backoff_s:.1f} s"
    return Line(_short(event.name), text, Weight.ERROR)


@line_of.register
def _(event: RunLapsed) -> Line:
    return Line(_short(event.name), "was run by a node that is gone; it is run again", Weight.WARNING)


@line_of.register
def _(event: AttemptAdopted) -> Line:
    return Line(_short(event.author), f"lot {event.lot}: goes on where another life stopped", Weight.WARNING)


@line_of.register
def _(event: AttemptAbandoned) -> Line:
    return Line(_short(event.author), f"lot {event.lot}: an attempt was given up: {event.why}", Weight.DETAIL)


@line_of.register
def _(event: AttemptCleaned) -> Line:
    return Line("clean", f"removed {_count(event.objects, 'object')} that nobody lists", Weight.DETAIL)


@line_of.register
def _(event: FilesCollected) -> Line:
    freed = f"freed {event.size:,} bytes: {_count(event.files, 'file')} that nothing lists any more"
    return Line(event.of, freed, Weight.DETAIL)


@line_of.register
def _(event: NodeJoined) -> Line:
    return Line(event.node, "is here", Weight.DETAIL)


@line_of.register
def _(event: NodeLost) -> Line:
    return Line(event.node, "has lost its lease", Weight.WARNING)


@line_of.register
def _(event: LeaderElected) -> Line:
    return Line(event.node, "leads", Weight.DETAIL)


@line_of.register
def _(event: TaskFailed) -> Line:
    return Line(event.name, f"{event.kind}: {event.message}", Weight.WARNING)


@line_of.register
def _(event: ClaimsGivenBack) -> Line:
    return Line(event.node, f"{_count(event.claims, 'claim')} of an earlier life given back", Weight.DETAIL)


@line_of.register
def _(event: ChildEnded) -> Line:
    return Line(event.node, f"its child has ended: {event.kind} {event.message}", Weight.WARNING)


@line_of.register
def _(event: StoreAway) -> Line:
    return Line(event.node, f"the store does not answer: {event.error}", Weight.WARNING)
