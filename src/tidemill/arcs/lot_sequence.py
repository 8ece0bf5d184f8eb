"""A line of lots: made beside each other, ended one after the other.

What takes time of a lot is making it. What must keep the order is its end, the transaction that publishes it
or says why it is not published: so each waits for those before it there, and nowhere else. The last one ends
the run, unless one before it could not be begun, or broke off.
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
    """When a lot may end, and what ends with it. This one is of a lot that stands in no line."""

    def __init__(self, ending: Ending | None = None) -> None:
        self._ending = ending

    def ending(self) -> Ending | None:
        """Wait until it may; the run that it is the last of."""
        return self._ending


class LotSequence:
    """The lots of one run, in the order of their events."""

    def __init__(self, ticket: Ticket, page: Sequence[tuple[DatasetId, LotEvent]]) -> None:
        self._ticket = ticket
        self._page = page
        self._gone = 0  # so many have left at the front
        self._left: set[int] = set()
        self._changed = threading.Condition()
        self.stopped_at: int | None = None
        self.broken: BaseException | None = None
        """What the first of them broke off with: then none of the others begins, or ends."""

    def lot(self, number: int) -> str:
        return self._page[number][1].lot

    def progress_before(self, number: int) -> dict[DatasetId, int]:
        """How far the run has come when the lots before this one have ended."""
        progress = dict(self._ticket.progress)
        for source, event in self._page[:number]:
            progress[source] = event.position
        return progress

    def stop(self, number: int) -> None:
        """This one could not be begun: the run comes to its end before it."""
        with self._changed:
            self.stopped_at = number if self.stopped_at is None else min(number, self.stopped_at)

    @contextmanager
    def place(self, number: int) -> Iterator[LotTurn]:
        """A lot's place, until it has ended in any way."""
        try:
            yield _Place(self, number)
        except BaseException as error:
            with self._changed:
                self.broken = self.broken or error
            raise
        finally:
            with self._changed:
                self._left.add(number)
                while self._gone in self._left:
                    self._left.discard(self._gone)
                    self._gone += 1
                self._changed.notify_all()

    def wait(self, number: int) -> Ending | None:
        """Wait until all before it have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone >= number or self.broken is not None)
            if self.broken is not None:
                raise LeaseLost("another lot of this run broke off") from self.broken
            if number < len(self._page) - 1 or self.stopped_at is not None:
                return None
        return Ending(self._ticket, self.progress_before(len(self._page)))


class _Place(LotTurn):
    def __init__(self, line: LotSequence, number: int) -> None:
        super().__init__()
        self._line = line
        self._number = number

    def ending(self) -> Ending | None:
        return self._line.wait(self._number)
