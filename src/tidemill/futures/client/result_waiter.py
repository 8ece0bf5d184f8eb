"""Awaiting futures: their results in order, one by one as they end, or just one.

Values are loaded by whoever waits, as they come. A task that waits gives its slot back meanwhile (FUT-41),
and asks for it again when it has something to go on with.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidemill.errors import FutureTimeout
from tidemill.futures.client.completions import EndedFuture
from tidemill.futures.client.connection import Connection
from tidemill.futures.client.future import Future
from tidemill.futures.client.options import timeout as checked
from tidemill.futures.protocol.rows import Realized
from tidemill.futures.protocol.states import ENDED
from tidemill.futures.worker import task_context

NAMED = 300
"""How many of the futures that a task awaits are named to its supervisor."""


class ResultWaiter:
    """Waits and loads for one client.

    Args:
        link: the client's connection.
        actor: makes the handle of an actor, which is what its creation comes to.
    """

    def __init__(self, link: Connection, actor: Callable[[bytes], object]) -> None:
        self._link = link
        self._actor = actor

    def results(
        self, futures: Sequence[Future[Any]], timeout: float | None, *, return_exceptions: bool
    ) -> list[Any]:
        """The results in the order of the futures; see `Client.gather`."""
        until = _Until(self._link, timeout)
        values: dict[bytes, Any] = {}
        for one, row in self._ended([future.id for future in futures], until, together=True):
            if isinstance(row, Realized):
                there, value = self._value(one, row)
                if there:
                    values[one] = value
            elif return_exceptions:
                values[one] = self._link.outcomes.error(one, row)
            else:
                raise self._link.outcomes.error(one, row)
        for future in futures:
            if future.id not in values:  # lost meanwhile, and computed again
                try:
                    values[future.id] = self.result(future, until.left_s)
                except Exception as error:
                    if not return_exceptions or isinstance(error, FutureTimeout):
                        raise
                    values[future.id] = error
        return [values[future.id] for future in futures]

    def completed(self, futures: Sequence[Future[Any]], timeout: float | None) -> Iterator[Future[Any]]:
        """The futures as they end; see `Client.as_completed`."""
        wanted = {future.id: future for future in futures}
        for one, row in self._ended(list(wanted), _Until(self._link, timeout)):
            future = wanted.pop(one)
            future.remember(row)
            yield future

    def result(self, future: Future[Any], timeout: float | None) -> Any:
        """The value of one; see `Future.result`."""
        until = _Until(self._link, timeout)
        row = future.remembered
        while True:
            if row is None:
                ((_, row),) = self._ended([future.id], until)
            if not isinstance(row, Realized):
                raise self._link.outcomes.error(future.id, row)
            there, value = self._value(future.id, row)
            if there:
                future.remember(row)
                return value
            row = None

    def exception(self, future: Future[Any], timeout: float | None) -> BaseException | None:
        """Why one has no value, or None; see `Future.exception`."""
        ((_, row),) = self._ended([future.id], _Until(self._link, timeout))
        return None if isinstance(row, Realized) else self._link.outcomes.error(future.id, row)

    def _value(self, future_id: bytes, row: Realized) -> tuple[bool, Any]:
        if row.result.location.kind == "actor":
            return True, self._actor(future_id)
        return self._link.outcomes.value(future_id, row)

    def _ended(
        self, ids: Sequence[bytes], until: "_Until", *, together: bool = False
    ) -> Iterator[EndedFuture]:
        """Those that ended, one by one. A task gives its slot back only if it has to wait at all.

        `together`: nobody looks at the first before the last has ended, unless one has failed; so a task asks
        for its slot once.
        """
        waiting = self._link.waiting
        task = task_context.current()
        if task is None:
            for page in waiting.ended(ids, until.left_s):
                yield from page
            return
        left = dict.fromkeys(ids)
        first = list(left)[:NAMED]
        found = [EndedFuture(one, row) for one, row in zip(first, waiting.read(first), strict=True)]
        found = [one for one in found if one.row is None or one.row.state in ENDED]
        while True:
            for one in found:
                del left[one.id]
            yield from found
            if not left:
                return
            found = []
            with task.waiting(list(left)[:NAMED]):
                for page in waiting.ended(left, until.left_s):
                    found += page
                    if not together or any(not isinstance(one.row, Realized) for one in page):
                        break


class _Until:
    """A timeout that counts from now."""

    def __init__(self, link: Connection, timeout: float | None) -> None:
        self._clock = link.clock
        self._seconds = checked(timeout)
        self._end_at = None if self._seconds is None else self._clock.monotonic() + self._seconds

    @property
    def left_s(self) -> float | None:
        """What is left of it; None for ever."""
        return None if self._end_at is None else max(0.0, self._end_at - self._clock.monotonic())
