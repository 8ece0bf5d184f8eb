"""Futures in any number: as they are given, and gathered without naming their client."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.errors import UsageError
from tidemill.futures.client.future import Future

if TYPE_CHECKING:
    from tidemill.futures.client.client import Client


def listed(futures: Sequence[Any]) -> list[Future[Any]]:
    """Futures as they are given: one after the other, or one iterable of them."""
    if len(futures) == 1 and not isinstance(futures[0], Future) and isinstance(futures[0], Iterable):
        futures = list(futures[0])
    for one in futures:
        if not isinstance(one, Future):
            raise UsageError(f"a {type(one).__name__} is no future", hint="give futures, or a list of them")
    return list(futures)


def gather(*futures: Any, timeout: float | None = None, return_exceptions: bool = False) -> list[Any]:
    """The results of futures in their order; see `Client.gather`.

    >>> import tidemill as tm
    >>> with tm.connect(home="tidemill-home") as client:
    ...     tm.gather(client.put("a"), client.put("b"))
    ['a', 'b']
    """
    wanted = listed(futures)
    if not wanted:
        return []
    return _one_client(wanted).gather(wanted, timeout=timeout, return_exceptions=return_exceptions)


def as_completed(*futures: Any, timeout: float | None = None) -> Iterator[Future[Any]]:
    """The futures one by one, as they end; see `Client.as_completed`.

    >>> import tidemill as tm
    >>> with tm.connect(home="tidemill-home") as client:
    ...     futures = [client.put("a"), client.put("b")]
    ...     sorted(future.result() for future in tm.as_completed(futures))
    ['a', 'b']
    """
    wanted = listed(futures)
    return _one_client(wanted).as_completed(wanted, timeout=timeout) if wanted else iter(())


def _one_client(futures: Sequence[Future[Any]]) -> "Client":
    clients = {future.client.place: future.client for future in futures}
    if len(clients) > 1:
        raise UsageError("these futures are of several clusters", hint="gather those of each cluster")
    return futures[0].client
