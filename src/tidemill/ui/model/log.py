"""The event log: what happened, newest first."""

import msgspec

from tidemill.obs import event_log
from tidemill.obs.event_log import EventFilter, LogRow
from tidemill.obs.lines import Severity
from tidemill.ui.model.answers import EventLine, EventPage
from tidemill.ui.model.reader import StoreReader
from tidemill.views.steps.events import StepTimed

MOST_READ = 3_000
"""How many events one request reads at most. A page that is short for this reason still has a `next`."""


def page(
    reader: StoreReader,
    wanted: EventFilter,
    before: str = "",
    limit: int = 100,
) -> EventPage:
    """Return a page of events, newest first. `before` is the `next` of the page before."""
    rows, cursor = event_log.search(
        reader.store,
        reader.observations,
        wanted,
        before=bytes.fromhex(before),
        limit=limit,
        most_read=MOST_READ,
    )
    return EventPage(items=tuple(map(_line, rows)), next=cursor.hex())


def last_timed(reader: StoreReader, pipeline: str, group: str) -> StepTimed | None:
    """Return the times of a group's last step; None if the log has none."""
    wanted = EventFilter(kind=StepTimed.__name__, pipeline=pipeline, about=f"views {group}")
    rows, _ = event_log.search(reader.store, reader.observations, wanted, limit=1, most_read=MOST_READ)
    if not rows or not rows[0].event.details:
        return None
    return msgspec.convert(
        {"type": StepTimed.__name__, **msgspec.json.decode(rows[0].event.details)}, StepTimed
    )


def severities() -> list[str]:
    """Return the severities, from least to most important."""
    return [severity.value for severity in Severity]


def _line(row: LogRow) -> EventLine:
    event = row.event
    return EventLine(
        at=event.at,
        severity=event.severity.value,
        kind=event.kind,
        about=event.about,
        text=event.text,
        lot=event.lot,
        pipeline=event.pipeline,
        node=event.node,
        details=event.details,
    )
