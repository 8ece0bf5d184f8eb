"""Suspects: futures that have seen the deaths of two runners. One of them may be the reason.

While there are any there is one turn at a time, until each was tried, so that the next death counts against
one alone.
"""

from collections.abc import Container
from functools import partial

from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import edges, reap
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import Unclaimed
from tidemill.store import Store

SUSPECT, SUSPECTS = 2, 200


class Suspects:
    """Those of one node; true while there are any."""

    def __init__(self, store: Store, keys: FutureKeys, cluster: ClusterKeys) -> None:
        self._store = store
        self._keys = keys
        self._cluster = cluster
        self._ids: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._ids)

    def clear(self, future_id: bytes) -> None:
        """It was tried, and nobody died."""
        self._ids.discard(future_id)

    def reap(self, node: Node) -> int:
        """End the claims that an earlier life of the node died with; how many.

        Its death is counted, so that a future that kills its runners is found out.
        """
        after, total, more = b"", 0, True
        take = partial(reap.reap_page, keys=self._keys, cluster=self._cluster, node_id=node.id)
        while more:
            page, after = self._store.run(partial(take, after=after))
            total += len(page.moved)
            more = page.more
            self._ids |= {one for one, row in page.moved if row.tally.reaps >= SUSPECT}
        return total

    def look(self, ours: Container[bytes]) -> None:
        """Forget those that ended elsewhere, or that others work on; not those that we do."""
        ids = list(self._ids)[:SUSPECTS]
        found = self._store.run(lambda tx: edges.read_many(tx, self._keys, ids))
        for one, row in zip(ids, found, strict=True):
            if not isinstance(row, Unclaimed) and one not in ours:
                self._ids.discard(one)
