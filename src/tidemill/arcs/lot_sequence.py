"""Lot sequence: compute the lots of one run in parallel, but publish them in order.

Making a lot takes time, and lots can be made in any order. The last transaction of a lot publishes it, or
records why it was not published. These transactions must run in order, so each waits until all earlier lots
have ended. The last lot also ends the run, unless an earlier lot could not begin or was interrupted.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tidemill.errors import LeaseLost
from tidemill.lots.events import LotEvent
from tidemill.lots.keys import DatasetId
from tidemill.publish.transaction import Ending
from tidemill.triggers.runs import Ticket


class LotTurn:
    """Decides when a lot may end, and which run ends with it. This class is for a lot without a sequence."""

    def __init__(self, ending: Ending | None = None) -> None:
        self._ending = ending

    def wait(self) -> Ending | None:
        """Wait until the lot may end. If this lot is the last of the run, return how to end the run."""
        return self._ending


class LotSequence:
    """The lots of one run, in the order of their events."""

    def __init__(self, ticket: Ticket, page: Sequence[tuple[DatasetId, LotEvent]]) -> None:
        self._ticket = ticket
        self._page = page
        self._ended = 0  # how many lots from the front have ended
        self._ended_early: set[int] = set()  # lots that ended before an earlier one
        self._changed = threading.Condition()
        self.stopped_at: int | None = None
        self.broken: BaseException | None = None
        """The first error that interrupted a lot. After such an error, no other lot begins or ends."""

    def lot(self, number: int) -> str:
        return self._page[number][1].lot

    def progress_before(self, number: int) -> dict[DatasetId, int]:
        """Return the run's progress when all lots before this one have ended."""
        progress = dict(self._ticket.progress)
        for source, event in self._page[:number]:
            progress[source] = event.position
        return progress

    def stop(self, number: int) -> None:
        """End the run before this lot, because this lot did not begin."""
        with self._changed:
            self.stopped_at = number if self.stopped_at is None else min(number, self.stopped_at)

    @contextmanager
    def turn(self, number: int) -> Iterator[LotTurn]:
        """Yield the turn of a lot. The lot has ended when the context exits, with or without an error."""
        try:
            yield _SequenceTurn(self, number)
        except BaseException as error:
            with self._changed:
                self.broken = self.broken or error
            raise
        finally:
            with self._changed:
                self._ended_early.add(number)
                while self._ended in self._ended_early:
                    self._ended_early.discard(self._ended)
                    self._ended += 1
                self._changed.notify_all()

    def wait(self, number: int) -> Ending | None:
        """Wait until all lots before this one have ended; see `LotTurn.wait`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended >= number or self.broken is not None)
            if self.broken is not None:
                raise LeaseLost(
                    "another lot of this run was interrupted; the next run processes the remaining lots"
                ) from self.broken
            if number < len(self._page) - 1 or self.stopped_at is not None:
                return None
        return Ending(self._ticket, self.progress_before(len(self._page)))


class _SequenceTurn(LotTurn):
    def __init__(self, sequence: LotSequence, number: int) -> None:
        super().__init__()
        self._sequence = sequence
        self._number = number

    def wait(self) -> Ending | None:
        return self._sequence.wait(self._number)
