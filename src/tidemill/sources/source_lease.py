"""The lease of a source: only the node that holds it receives or fetches rows, or lists the source's files.

Nodes that share a topic, or a listing that is cut into shards, do not use this lease.
"""

from tidemill import crash
from tidemill.cluster import leases
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.store import Tx


def acquire(keeper: Keeper, key: bytes) -> HeldLease | None:
    """Acquire the lease; return None if another node holds it.

    If an earlier process of this node still holds the lease, this function releases it first. That is safe:
    no other node has our name, and the caller does not hold the lease yet. If the earlier process is still
    running, its next write is refused.
    """
    lease = keeper.acquire(key)
    if isinstance(lease, HeldLease):
        return lease
    crash.point("sources.lapse.before")
    lapsed = keeper.store.run(lambda tx: _lapse(tx, key, keeper.holder))
    crash.point("sources.lapse.after")
    again = keeper.acquire(key) if lapsed else None
    return again if isinstance(again, HeldLease) else None


def _lapse(tx: Tx, key: bytes, node: str) -> bool:
    lease = leases.read(tx, key)
    return lease is not None and lease.holder == node and leases.release(tx, key, lease)
