"""Submitting calls: one, many in batches, an actor and the calls of its methods; and the handles of what was
entered.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tidemill.errors import UsageError
from tidemill.futures.client.connection import Connection
from tidemill.futures.client.future import Future
from tidemill.futures.client.options import Options
from tidemill.futures.client.submission import NOTHING, StoredFunction, Submission
from tidemill.futures.protocol import bulk


class CallSubmitter:
    """Submits for one client.

    Args:
        link: the client's connection.
        future: makes the handle of a future, which was counted before.
    """

    def __init__(self, link: Connection, future: Callable[[bytes], Future[Any]]) -> None:
        self._link = link
        self._future = future

    def one(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], options: Options
    ) -> Future[Any]:
        """One call; see `Client.submit`."""
        submissions = self._link.submissions
        code = submissions.code(function)
        submissions.check_call(function, args, kwargs)
        return self._entered(submissions.make(code, args, kwargs, options))

    def many(
        self, function: Callable[..., Any], iterables: Sequence[Iterable[Any]], options: Options
    ) -> list[Future[Any]]:
        """A call for each group of items; see `Client.map`."""
        if not iterables:
            raise UsageError("map needs something to go over", hint="map(function, items)")
        for one in iterables:
            if not isinstance(one, Iterable):
                raise UsageError(f"map goes over iterables, not {type(one).__name__}", hint="map(f, [a, b])")
        code = self._link.submissions.code(function)
        futures: list[Future[Any]] = []
        for page in self._link.submitter.enter_many(self._mapped(function, code, iterables, options)):
            futures += self.handles_of(*page)
        return futures

    def _mapped(
        self,
        function: Callable[..., Any],
        code: StoredFunction,
        iterables: Sequence[Iterable[Any]],
        options: Options,
    ) -> Iterator[Submission]:
        submissions = self._link.submissions
        ids: list[bytes] = []
        for nth, args in enumerate(zip(*iterables)):  # noqa: B905 - as `map` does
            if not nth:
                submissions.check_call(function, args, NOTHING)
            if not ids:
                ids = submissions.new_ids(bulk.PAGE)[::-1]
            yield submissions.make(
                code, args, NOTHING, options.numbered(nth) if options.key else options, future_id=ids.pop()
            )

    def actor(
        self, kind: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], options: Options
    ) -> Future[Any]:
        """The creation of an actor, which is called by the actor's own id; see `Client.actor`."""
        submissions = self._link.submissions
        code = submissions.code(kind)
        submissions.check_call(kind, args, kwargs)
        actor_id = submissions.new_ids(1)[0]
        return self._entered(
            submissions.make(code, args, kwargs, options, future_id=actor_id, actor=actor_id)
        )

    def method(
        self,
        actor_id: bytes,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        options: Options,
    ) -> Future[Any]:
        """A call of an actor's method; see `Client.call`."""
        submissions = self._link.submissions
        code = submissions.code(function)
        return self._entered(submissions.make(code, args, kwargs, options, actor=actor_id))

    def _entered(self, submission: Submission) -> Future[Any]:
        return self.handles_of([self._link.submitter.enter(submission)], [submission.spec.id])[0]

    def handles_of(self, ids: Sequence[bytes], ours: Sequence[bytes] | None = None) -> list[Future[Any]]:
        """Handles of what was entered; an id that is not the one we drew is of an earlier submission."""
        known = {one for one, own in zip(ids, ours, strict=True) if one != own} if ours else set()
        handles = self._link.handles
        handles.count([one for one in ids if one not in known], ours=True)
        handles.count([one for one in ids if one in known], ours=False)
        return [self._future(one) for one in ids]
