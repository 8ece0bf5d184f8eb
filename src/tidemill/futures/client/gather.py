"""`gather` and `as_completed`: wait for futures of any client."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.errors import UsageError
from tidemill.futures.client.future import Future

if TYPE_CHECKING:
    from tidemill.futures.client.client import Client


def as_list(futures: Sequence[Any]) -> list[Future[Any]]:
    """Return the futures in a list of arguments: futures, or a single iterable of futures."""
    if len(futures) == 1 and not isinstance(futures[0], Future) and isinstance(futures[0], Iterable):
        futures = list(futures[0])
    for value in futures:
        if not isinstance(value, Future):
            raise UsageError(
                f"expected a future, got {type(value).__name__}", hint="pass futures, or one list of futures"
            )
    return list(futures)


def gather(*futures: Any, timeout: float | None = None, return_exceptions: bool = False) -> list[Any]:
    """Wait for futures and return their results in order; see `Client.gather`.

    >>> import tidemill as tm
    >>> with tm.connect(home="tidemill-home") as client:
    ...     tm.gather(client.put("a"), client.put("b"))
    ['a', 'b']
    """
    handles = as_list(futures)
    if not handles:
        return []
    return _common_client(handles).gather(handles, timeout=timeout, return_exceptions=return_exceptions)


def as_completed(*futures: Any, timeout: float | None = None) -> Iterator[Future[Any]]:
    """Yield futures as they end; see `Client.as_completed`.

    >>> import tidemill as tm
    >>> with tm.connect(home="tidemill-home") as client:
    ...     futures = [client.put("a"), client.put("b")]
    ...     sorted(future.result() for future in tm.as_completed(futures))
    ['a', 'b']
    """
    handles = as_list(futures)
    return _common_client(handles).as_completed(handles, timeout=timeout) if handles else iter(())


def _common_client(futures: Sequence[Future[Any]]) -> "Client":
    clients = {future.client.place: future.client for future in futures}
    if len(clients) > 1:
        raise UsageError("the futures belong to several clusters", hint="call gather once for each cluster")
    return futures[0].client
