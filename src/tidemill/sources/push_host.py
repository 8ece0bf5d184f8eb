"""The host of pushed rows: the one node that receives them, with a lease, a server and its address (CLU-19).

The runner calls `tick` at intervals. A node without the lease tries to acquire it. The node that holds it
listens, and stops when the lease is lost. The store holds its address, for senders to find. A node that takes
over writes its own.
"""

from collections.abc import Callable

import msgspec

from tidemill.cluster import leases
from tidemill.cluster.keeper import Held, Keeper
from tidemill.scope import Scope
from tidemill.sources import source_lease
from tidemill.sources.events import PushStarted, PushStopped
from tidemill.sources.keys import SourceKeys
from tidemill.sources.push_server import PushServer
from tidemill.store import Tx


class PushHost:
    """One node's part in receiving.

    Args:
        source: the id of the source.
        scope: the node.
        keeper: renews the lease.
        make: makes a server whose publications are fenced by the lease; not started.
    """

    def __init__(
        self, source: str, scope: Scope, keeper: Keeper, *, make: Callable[[Held], PushServer]
    ) -> None:
        self._source = source
        self._scope = scope
        self._keys = SourceKeys(scope.cluster)
        self._keeper = keeper
        self._make = make
        self._held: Held | None = None
        self._server: PushServer | None = None

    @property
    def url(self) -> str | None:
        """Where this node listens; None while it does not."""
        return self._server.url if self._server is not None else None

    def tick(self) -> bool:
        """Receive, if no other node does; return whether this node receives."""
        if self._held is not None and not self._held.alive():
            self._stop("its lease was lost")
        if self._held is not None and self._server is not None and not self._server.receives:
            self._release("the receiver stopped")
        if self._held is None:
            held = source_lease.acquire(self._keeper, self._keys.push_lease(self._source))
            if held is None:
                return False
            self._start(held)
        return self._held is not None

    def close(self) -> None:
        """Publish and answer what waits, and let another node receive."""
        self._release("it was closed")

    def _release(self, why: str) -> None:
        held = self._held
        self._stop(why)
        if held is not None:
            self._keeper.release(held)

    def _start(self, held: Held) -> None:
        try:
            server = self._make(held)
        except BaseException:
            self._keeper.release(held)  # another node may be able to: the port may be taken here
            raise

        def write(tx: Tx) -> None:
            held.fence(tx)
            tx.set(self._keys.address[self._source], msgspec.msgpack.encode((held.epoch, server.url)))

        self._scope.store.run(write)
        server.start()
        self._held, self._server = held, server
        self._scope.emit(PushStarted(source=self._source, url=server.url, epoch=held.epoch))

    def _stop(self, why: str) -> None:
        server, self._server, self._held = self._server, None, None
        if server is not None:
            server.close()
            self._scope.emit(PushStopped(source=self._source, url=server.url, why=why))


def receiver(tx: Tx, keys: SourceKeys, source: str) -> tuple[str, str] | None:
    """Read which node receives now, and where; None if none does, or it has not stored its address yet."""
    lease, raw = leases.read(tx, keys.push_lease(source)), tx.get(keys.address[source])
    if lease is None or raw is None or lease.expires_at <= tx.now():
        return None
    epoch, url = msgspec.msgpack.decode(raw, type=tuple[int, str])
    return (lease.holder, url) if epoch == lease.epoch else None
