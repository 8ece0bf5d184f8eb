"""Typed events of arcs."""

from collections.abc import Mapping

from tidemill.arcs.lots import BegunLot
from tidemill.events import Emit, Event
from tidemill.lots.keys import DatasetId
from tidemill.publish.attempts import Draft
from tidemill.publish.cleaner import abandoned_event
from tidemill.publish.events import AttemptAdopted, AttemptOpened, AttemptPublished


class ArcLotBegan(Event, frozen=True):
    """An arc began to work on a lot, for the first time or again."""

    arc: str
    lot: str
    generation: int
    attempt: str
    parts: int
    tries: int


class ArcLotComplete(Event, frozen=True):
    """An arc completed a lot."""

    arc: str
    lot: str
    generation: int
    attempt: str
    rows: dict[str, int]  # by sink, as `dataset@version`


class ArcLotPartial(Event, frozen=True):
    """Parts of a lot failed; the others are kept for a retry."""

    arc: str
    lot: str
    generation: int
    failed: list[str]
    error: str


class ArcLotMissing(Event, frozen=True):
    """An arc could not make any part of a lot, or the results of its parts were deleted."""

    arc: str
    lot: str
    generation: int
    error: str


def report_begun(emit: Emit, began: BegunLot, parts: int) -> None:
    """Report that a lot began, which attempt was opened or taken over, and which others were abandoned."""
    draft, hold = began.hold.draft, began.hold
    for abandoned in began.opened.abandoned:
        emit(abandoned_event(abandoned))
    if began.opened.adopted:
        emit(
            AttemptAdopted(
                attempt=draft.id,
                author=draft.author,
                lot=draft.lot,
                generation=draft.generation,
                node=hold.node.id,
                epoch=hold.epoch,
            )
        )
    else:
        emit(
            AttemptOpened(
                attempt=draft.id,
                author=draft.author,
                lot=draft.lot,
                generation=draft.generation,
                node=hold.node.id,
            )
        )
    emit(
        ArcLotBegan(
            arc=draft.author,
            lot=draft.lot,
            generation=draft.generation,
            attempt=draft.id,
            parts=parts,
            tries=began.tries,
        )
    )


def report_published(
    emit: Emit, draft: Draft, positions: Mapping[DatasetId, int], rows: Mapping[DatasetId, int]
) -> None:
    """Report that an attempt was published, and that the arc's lot is complete."""
    counts = {str(dataset): count for dataset, count in rows.items()}
    emit(
        AttemptPublished(
            attempt=draft.id,
            author=draft.author,
            lot=draft.lot,
            generation=draft.generation,
            positions={str(dataset): position for dataset, position in positions.items()},
            rows=counts,
        )
    )
    emit(
        ArcLotComplete(
            arc=draft.author, lot=draft.lot, generation=draft.generation, attempt=draft.id, rows=counts
        )
    )
