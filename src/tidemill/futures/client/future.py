"""`Future`: the handle to a durable call. It has an id and a client, and reads the rest from the store.

A handle is small, because a client may have 100,000 of them. The client counts its handles. The cluster keeps
a result as long as a client has a handle to the future, and a small result for at least 24 hours (FUT-34). A
handle can be pickled. In another process it becomes a handle of that process's client, which counts it too.
If a handle is an argument of a call, the task receives the result in its place.
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
    """The handle to a durable call. `Client.submit`, `map`, `put` and the methods of actors return it.

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
        """The client of this handle."""
        return self._client

    @property
    def remembered(self) -> AnyRow | None:
        """The row with the result, if this handle has already read it."""
        return self._row

    def remember(self, row: AnyRow | None) -> None:
        """Keep a row with a result, to avoid reading it again. Other rows are not kept: they may change."""
        self._row = row if isinstance(row, Realized) else None

    # --- result and state

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result and return it. If the call failed, raise its error (see `tidemill.errors`).

        An exception of the function is raised unchanged, with the remote traceback as a note. After `timeout`
        seconds `FutureTimeout` is raised; the future keeps running.
        """
        value: T = self._client.result_of(self, timeout)
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the future has ended. Return the error that `result` would raise; None for a result."""
        return self._client.exception_of(self, timeout)

    def done(self) -> bool:
        """Return whether the future has ended, with or without a result. Does not wait."""
        return self.state in ENDED

    @property
    def state(self) -> FutureState:
        """The current state. It is also a string, such as "claimed"."""
        return self._client.row_of(self).state

    @property
    def size_in_bytes(self) -> int:
        """The size of the result. Raises `UsageError` while there is none."""
        row = self._client.row_of(self)
        if not isinstance(row, Realized):
            raise UsageError(
                f"future {self.id.hex()} is {row.state.value} and has no result yet",
                hint="wait for it with result() first",
            )
        return row.result.size

    # --- actions

    def cancel(self) -> bool:
        """Cancel the future. Return False if it has already ended.

        A running task is notified, and killed after a grace period.
        """
        return self._client.cancel(self)

    def add_done_callback(self, call: "Callable[[Future[T]], object]") -> None:
        """When this future has ended, call a function with the future, from a thread of the client."""
        self._client.call_when_done(self, call)

    def lineage(self) -> "Lineage":
        """Return the tree of futures that this one was computed from. Print it, or use `.children`."""
        return self._client.lineage(self)

    # --- the handle as a Python object

    def __del__(self) -> None:
        client = getattr(self, "_client", None)  # absent at interpreter exit, or if __init__ failed
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
    """Rebuild a pickled handle with this process's client. Stored pickles refer to this function by name."""
    from tidemill.futures.client.client import client_of

    return client_of(place).future(future_id)
