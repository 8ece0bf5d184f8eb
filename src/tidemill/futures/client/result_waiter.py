"""The result waiter: waits for one or more futures and loads their results.

The waiting thread loads the values. A task frees its slot while it waits (FUT-41), and requests a slot again
when a future has ended.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidemill.errors import FutureTimeout
from tidemill.futures.client.completions import EndedFuture
from tidemill.futures.client.connection import Connection
from tidemill.futures.client.future import Future
from tidemill.futures.client.options import timeout as checked_timeout
from tidemill.futures.protocol.rows import Realized
from tidemill.futures.protocol.states import ENDED
from tidemill.futures.worker import task_context

NAMED = 300
"""A waiting task tells its supervisor about at most this many of the futures that it waits for."""


class ResultWaiter:
    """Waits for futures and loads results for one client.

    Args:
        link: the client's connection.
        actor: returns the handle of an actor, for a future whose result is an actor.
    """

    def __init__(self, link: Connection, actor: Callable[[bytes], object]) -> None:
        self._link = link
        self._actor = actor

    def results(
        self, futures: Sequence[Future[Any]], timeout: float | None, *, return_exceptions: bool
    ) -> list[Any]:
        """Return the results in the order of the futures; see `Client.gather`."""
        deadline = _Deadline(self._link, timeout)
        values: dict[bytes, Any] = {}
        for future_id, row in self._ended([future.id for future in futures], deadline, together=True):
            if isinstance(row, Realized):
                loaded, value = self._load(future_id, row)
                if loaded:
                    values[future_id] = value
            elif return_exceptions:
                values[future_id] = self._link.outcomes.error(future_id, row)
            else:
                raise self._link.outcomes.error(future_id, row)
        for future in futures:
            if future.id not in values:  # its result was lost, and is computed again
                try:
                    values[future.id] = self.result(future, deadline.left_s)
                except Exception as error:
                    if not return_exceptions or isinstance(error, FutureTimeout):
                        raise
                    values[future.id] = error
        return [values[future.id] for future in futures]

    def completed(self, futures: Sequence[Future[Any]], timeout: float | None) -> Iterator[Future[Any]]:
        """Yield the futures as they end; see `Client.as_completed`."""
        outstanding = {future.id: future for future in futures}
        for future_id, row in self._ended(list(outstanding), _Deadline(self._link, timeout)):
            future = outstanding.pop(future_id)
            future.remember(row)
            yield future

    def result(self, future: Future[Any], timeout: float | None) -> Any:
        """Return the result of one future; see `Future.result`."""
        deadline = _Deadline(self._link, timeout)
        row = future.remembered
        while True:
            if row is None:
                ((_, row),) = self._ended([future.id], deadline)
            if not isinstance(row, Realized):
                raise self._link.outcomes.error(future.id, row)
            loaded, value = self._load(future.id, row)
            if loaded:
                future.remember(row)
                return value
            row = None

    def exception(self, future: Future[Any], timeout: float | None) -> BaseException | None:
        """Return the error of one future, or None if it has a result; see `Future.exception`."""
        ((_, row),) = self._ended([future.id], _Deadline(self._link, timeout))
        return None if isinstance(row, Realized) else self._link.outcomes.error(future.id, row)

    def _load(self, future_id: bytes, row: Realized) -> tuple[bool, Any]:
        if row.result.location.kind == "actor":
            return True, self._actor(future_id)
        return self._link.outcomes.value(future_id, row)

    def _ended(
        self, ids: Sequence[bytes], deadline: "_Deadline", *, together: bool = False
    ) -> Iterator[EndedFuture]:
        """Yield the futures that have ended. A task frees its slot only if it has to wait.

        If `together` is set, the caller needs all of the futures, unless one fails. So a task requests a slot
        only once, when all futures have ended or one has failed.
        """
        completions = self._link.completions
        task = task_context.current_task()
        if task is None:
            for page in completions.ended(ids, deadline.left_s):
                yield from page
            return
        outstanding = dict.fromkeys(ids)
        first = list(outstanding)[:NAMED]
        current = zip(first, completions.read(first), strict=True)
        ended = [
            EndedFuture(future_id, row) for future_id, row in current if row is None or row.state in ENDED
        ]
        while True:
            for future in ended:
                del outstanding[future.id]
            yield from ended
            if not outstanding:
                return
            ended = []
            with task.waiting(list(outstanding)[:NAMED]):
                for page in completions.ended(outstanding, deadline.left_s):
                    ended += page
                    if not together or any(not isinstance(future.row, Realized) for future in page):
                        break


class _Deadline:
    """Counts down a timeout. It starts when this object is created."""

    def __init__(self, link: Connection, timeout: float | None) -> None:
        self._clock = link.clock
        timeout_s = checked_timeout(timeout)
        self._end_at = None if timeout_s is None else self._clock.monotonic() + timeout_s

    @property
    def left_s(self) -> float | None:
        """How many seconds are left; None for no limit."""
        return None if self._end_at is None else max(0.0, self._end_at - self._clock.monotonic())
