"""`ActorHandle`: calls the methods of an actor. The actor runs these calls in order (FUT-47).

    counter = client.actor(Counter, start=5)
    counter.add(2)                      # returns a future
    counter.add.submit(3, deadline=10)  # the same, with options
    counter.value().result()

A handle can be pickled and passed to tasks. If you pass a handle to a task, the task receives the handle
itself. (If you pass a future, the task receives the future's result.) An actor lives as long as its worker.
After the actor has died, every call fails with `ActorDied`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.errors import UsageError

if TYPE_CHECKING:
    from tidemill.futures.client.future import Future
    from tidemill.futures.home import ClusterAddress


class Method:
    """The code of a call: it calls the actor's method with this name. Stored futures refer to this class."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__qualname__ = name

    def __call__(self, actor: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(actor, self.name)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Method, (self.name,)


class ActorMethod:
    """A method of an actor. Calling it, or its `submit`, returns a future."""

    def __init__(self, actor: "ActorHandle", name: str) -> None:
        self._actor = actor
        self._name = name

    def submit(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Call the method after all earlier calls. The options are those of `Client.submit`."""
        creation = self._actor.creation
        return creation.client.call(creation, Method(self._name), (creation, *args), kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        return self.submit(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<ActorMethod {self._name} of {self._actor!r}>"


class ActorHandle:
    """The handle of an actor. If the class of the actor (`kind`) is known, unknown methods fail at once."""

    __slots__ = ("__weakref__", "creation", "kind")

    creation: "Future[Any]"
    kind: Callable[..., Any] | None

    def __init__(self, creation: "Future[Any]", kind: Callable[..., Any] | None = None) -> None:
        self.creation = creation
        self.kind = kind

    @property
    def id(self) -> bytes:
        return self.creation.id

    def __getattr__(self, name: str) -> ActorMethod:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # Python checks for its special methods
        if isinstance(self.kind, type) and not callable(getattr(self.kind, name, None)):
            raise UsageError(
                f"{self.kind.__name__} has no method {name!r}",
                hint="call an existing method; to read an attribute, add a method that returns it",
            )
        return ActorMethod(self, name)

    def ready(self, timeout: float | None = None) -> "ActorHandle":
        """Wait until the actor is created. Raise the error of its constructor, if any."""
        self.creation.result(timeout)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        self.creation.client.handles.sent(self.id)
        return _arrived, (self.creation.client.place, self.id)

    def __repr__(self) -> str:
        name, state = self.creation.client.described(self.creation)
        return f"<Actor {name} {self.id.hex()} {'alive' if state == 'realized' else state}>"


def _arrived(place: "ClusterAddress", actor_id: bytes) -> ActorHandle:
    """Rebuild a pickled handle with this process's client. Stored pickles refer to this function by name."""
    from tidemill.futures.client.client import client_of

    return ActorHandle(client_of(place).future(actor_id))
