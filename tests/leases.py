"""Leases that outlast any pause of the machine, and their end when a test wants it.

With leases of some seconds a test fails when a busy machine does not let a node run for so long. After
`lengthen`, a lease on the machine's clock lasts ten minutes; how often nodes renew it, and look after each
other, stays as it was. A test that kills or stops a node ends the lease itself: `end_lease`.

Leases that run out by the clock are tested where the clock is a fake one: units and simulations.
"""

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.clock import SystemClock
from tidemill.cluster import leases, nodes
from tidemill.cluster.keeper import Keeper
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import TTL_S
from tidemill.cluster.membership import Membership
from tidemill.store import Store, Tx

LEASE_S = 600.0


def lengthen() -> None:
    """Let every lease that this process takes on the machine's clock last for `LEASE_S`."""
    for kind in (Membership, Keeper):
        kind.__init__ = _lengthened(kind.__init__)  # type: ignore[method-assign]


def _lengthened(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def with_long_lease(self: Any, *args: Any, clock: Any, ttl_s: float = TTL_S, **named: Any) -> None:
        lasts_s = max(ttl_s, LEASE_S) if isinstance(clock, SystemClock) else ttl_s
        init(self, *args, clock=clock, ttl_s=lasts_s, **named)

    return with_long_lease


def end_lease(store: Store, keys: ClusterKeys, node_id: str) -> None:
    """Let the lease of a node run out now, and its office if it leads."""

    def end(tx: Tx) -> None:
        node = nodes.read(tx, keys, node_id)
        assert node is not None, f"there is no node {node_id}"
        nodes._write(tx, keys, node, msgspec.structs.replace(node, expires_at=tx.now()))
        leader = leases.read(tx, keys.leader)
        if leader is not None and leader.holder == node_id and leases.release(tx, keys.leader, leader):
            tx.add(keys.vacancies, 1)  # the others look at this number and not at the clock

    store.run(end)
