"""`Future`: what a user has of a future. It knows the id and the client, and asks the store for the rest.

A handle is small, because there may be a hundred thousand of them. It is counted by its client while it
exists, and so is what it stands for (FUT-34). It can be pickled: unpickled in another process it is a handle
of that process's client, and counted there. Among the arguments of a submission it stands for its result.
"""

import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidemill.errors import UsageError
from tidemill.futures.protocol.rows import AnyRow, Realized
from tidemill.futures.protocol.states import ENDED, FutureState
from tidemill.futures.values.pickling import Handle

if TYPE_CHECKING:
    from tidemill.futures.client.client import Client
    from tidemill.futures.client.lineage import Lineage
    from tidemill.futures.home import ClusterAddress

T = TypeVar("T")


class Future(Handle, Generic[T]):
    """A durable call's handle. Made by `Client.submit`, `map`, `put` and an actor's methods.

    >>> import tidemill as tm
    >>> with tm.connect(home="tidemill-home") as client:
    ...     future = client.put([1, 2])
    ...     future.done(), future.result()
    (True, [1, 2])
    """

    __slots__ = ("__weakref__", "_client", "_row", "id")

    def __init__(self, client: "Client", future_id: bytes) -> None:
        self.id = future_id
        self._client = client
        self._row: AnyRow | None = None

    @property
    def client(self) -> "Client":
        """The client whose handle this is."""
        return self._client

    @property
    def remembered(self) -> AnyRow | None:
        """The row with its result, if it was seen."""
        return self._row

    def remember(self, row: AnyRow | None) -> None:
        """Keep a row with a result, which is not read again; others may still change."""
        self._row = row if isinstance(row, Realized) else None

    # --- what it came to

    def result(self, timeout: float | None = None) -> T:
        """The value; waits for it. A future that has none raises why (`tidemill.errors`).

        An exception of the function is raised as itself, with the remote traceback as a note. When the time
        is over, `FutureTimeout`: the future goes on.
        """
        value: T = self._client.result_of(self, timeout)
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that `result` would raise, or None for a future with a value; waits for its end."""
        return self._client.exception_of(self, timeout)

    def done(self) -> bool:
        """Has it ended, one way or another? Does not wait."""
        return self.state in ENDED

    @property
    def state(self) -> FutureState:
        """Its state now; a text such as "claimed" as well."""
        return self._client.row_of(self).state

    @property
    def size_in_bytes(self) -> int:
        """How large its result is; `UsageError` while it has none."""
        row = self._client.row_of(self)
        if not isinstance(row, Realized):
            raise UsageError(
                f"future {self.id.hex()} is {row.state.value} and has no size yet", hint="await it"
            )
        return row.result.size

    # --- what can be done with it

    def cancel(self) -> bool:
        """Ask for its end: at once if it waits; a running one is told, then killed. False if it is over."""
        return self._client.cancel(self)

    def add_done_callback(self, call: "Callable[[Future[T]], object]") -> None:
        """Call this with the future when it has ended, from a thread of the client; at once if it has."""
        self._client.call_when_done(self, call)

    def lineage(self) -> "Lineage":
        """The tree of what it was computed from, with states; print it, or look at `.children`."""
        return self._client.lineage(self)

    # --- being a handle

    def __del__(self) -> None:
        client = getattr(self, "_client", None)  # absent when the interpreter ends or __init__ did not
        if client is not None:
            client.handles.drop(self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        self._client.handles.sent(self.id)
        return _arrived, (self._client.place, self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Future) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        name, state = self._client.described(self)
        return f"<Future {name} {self.id.hex()} {state}>"

    def _repr_html_(self) -> str:
        name, state = self._client.described(self)
        colour = COLOURS.get(state, "#777")
        return (
            f'<span style="font-family:monospace"><b>{html.escape(name)}</b> '
            f'<span style="color:{colour}">●</span> {html.escape(state)} '
            f'<span style="color:#999">{self.id.hex()}</span></span>'
        )


COLOURS = {
    "realized": "#2a2",
    "claimed": "#26c",
    "failed": "#c22",
    "quarantined": "#c22",
    "unsatisfiable": "#c80",
}


def _arrived(place: "ClusterAddress", future_id: bytes) -> "Future[Any]":
    """A handle from another process: of the client that this process has for its cluster."""
    from tidemill.futures.client.client import client_of

    return client_of(place).future(future_id)
