"""The one node that receives what is pushed to a source: a lease, a server, and its address (CLU-19).

`tick` is called again and again. A node without the lease tries to get it; the one that has it listens, and
stops when the lease is lost. Where it listens is in the store, for senders to find; a node that takes over
writes its own.
"""

from collections.abc import Callable

import msgspec

from tidemill.cluster import leases
from tidemill.cluster.keeper import Held, Keeper
from tidemill.events import Emit, ignore
from tidemill.sources import leasing
from tidemill.sources.events import PushBegan, PushEnded
from tidemill.sources.http_push import PushServer
from tidemill.sources.keys import SourceKeys
from tidemill.store import Store, Tx


class PushHost:
    """One node's part in receiving.

    Args:
        source: what is received.
        keeper: keeps the lease.
        make: a server whose publications are fenced by the lease; not started.
    """

    def __init__(
        self,
        source: str,
        *,
        store: Store,
        keys: SourceKeys,
        keeper: Keeper,
        make: Callable[[Held], PushServer],
        emit: Emit = ignore,
    ) -> None:
        self._source = source
        self._store = store
        self._keys = keys
        self._keeper = keeper
        self._make = make
        self._emit = emit
        self._held: Held | None = None
        self._server: PushServer | None = None

    @property
    def url(self) -> str | None:
        """Where we listen; None while another node does."""
        return self._server.url if self._server is not None else None

    def tick(self) -> bool:
        """Become or stay the one that receives, if that can be; True when we are."""
        if self._held is not None and not self._held.alive():
            self._stop("its lease was lost")
        if self._held is not None and self._server is not None and not self._server.receives:
            self._let_go("it received no more")
        if self._held is None:
            held = leasing.acquire(self._keeper, self._keys.receiving(self._source))
            if held is None:
                return False
            self._begin(held)
        return self._held is not None

    def close(self) -> None:
        """Let another node receive; what waits here is published and answered first."""
        self._let_go("it was asked to")

    def _let_go(self, why: str) -> None:
        held = self._held
        self._stop(why)
        if held is not None:
            self._keeper.release(held)

    def _begin(self, held: Held) -> None:
        try:
            server = self._make(held)
        except BaseException:
            self._keeper.release(held)  # another node may have what this one lacks: the port, for example
            raise

        def tell(tx: Tx) -> None:
            held.fence(tx)
            tx.set(self._keys.address[self._source], msgspec.msgpack.encode((held.epoch, server.url)))

        self._store.run(tell)
        server.start()
        self._held, self._server = held, server
        self._emit(PushBegan(source=self._source, url=server.url, epoch=held.epoch))

    def _stop(self, why: str) -> None:
        server, self._server, self._held = self._server, None, None
        if server is not None:
            server.close()
            self._emit(PushEnded(source=self._source, url=server.url, why=why))


def address(tx: Tx, keys: SourceKeys, source: str) -> str | None:
    """Where the last node that received listens; None before the first."""
    raw = tx.get(keys.address[source])
    return None if raw is None else msgspec.msgpack.decode(raw, type=tuple[int, str])[1]


def receiver(tx: Tx, keys: SourceKeys, source: str) -> tuple[str, str] | None:
    """The node that receives now, and where; None while nobody does, or has not said where yet."""
    lease, raw = leases.read(tx, keys.receiving(source)), tx.get(keys.address[source])
    if lease is None or raw is None or lease.expires_at <= tx.now():
        return None
    epoch, url = msgspec.msgpack.decode(raw, type=tuple[int, str])
    return (lease.holder, url) if epoch == lease.epoch else None
