"""Telling what happened to a lot, and to the attempt at it, in the words of both rooms."""

from collections.abc import Mapping

from tidemill.arcs.events import ArcLotBegan, ArcLotComplete
from tidemill.arcs.lots import Began
from tidemill.events import Emit
from tidemill.lots.keys import DatasetId
from tidemill.publish.attempts import Draft
from tidemill.publish.cleaner import told
from tidemill.publish.events import AttemptAdopted, AttemptOpened, AttemptPublished


def begun(emit: Emit, began: Began, parts: int) -> None:
    """A lot is begun, with an attempt that is opened or adopted; others may have been given up for it."""
    draft, hold = began.hold.draft, began.hold
    for gone in began.opened.abandoned:
        emit(told(gone))
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


def published(
    emit: Emit, draft: Draft, positions: Mapping[DatasetId, int], rows: Mapping[DatasetId, int]
) -> None:
    """An attempt is the lot of its sinks, and the arc is done with it."""
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
