"""A source's lease, taken by the node that is to look, to receive or to fetch."""

from tidemill import crash
from tidemill.cluster import leases
from tidemill.cluster.keeper import Held, Keeper
from tidemill.store import Tx


def acquire(keeper: Keeper, key: bytes) -> Held | None:
    """The lease, unless another node has it.

    What an earlier life of this node was killed with ends here: nobody else goes by our name, and the caller
    has not the lease yet. Should the earlier one still be at it, its next write is refused.
    """
    held = keeper.acquire(key)
    if isinstance(held, Held):
        return held
    crash.point("sources.lapse.before")
    lapsed = keeper.store.run(lambda tx: _lapse(tx, key, keeper.holder))
    crash.point("sources.lapse.after")
    again = keeper.acquire(key) if lapsed else None
    return again if isinstance(again, Held) else None


def _lapse(tx: Tx, key: bytes, node: str) -> bool:
    held = leases.read(tx, key)
    return held is not None and held.holder == node and leases.release(tx, key, held)
