"""Describe the nodes of a cluster for users: their state, their lease, and which one is the leader."""

import msgspec

from tidemill.cluster import leases, nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.store import Tx


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One node in the list; `state` is live, draining or gone (its lease has ended)."""

    id: str
    kind: str
    state: str
    leader: bool
    address: str
    slots: int
    lease_s: float
    total: dict[str, float]
    free: dict[str, float]


def read(tx: Tx, keys: ClusterKeys) -> list[NodeLine]:
    """Read the node list and find out which node is the leader."""
    lease = leases.read(tx, keys.leader)
    now = tx.now()
    leader = lease.holder if lease is not None and lease.expires_at > now else ""
    return [_line(node, now, leader) for node in nodes.read_all(tx, keys)]


def _line(node: Node, now_us: int, leader: str) -> NodeLine:
    state = "gone" if node.expires_at <= now_us else "draining" if node.draining else "live"
    return NodeLine(
        id=node.id,
        kind=node.kind,
        state=state,
        leader=node.id == leader,
        address=node.address,
        slots=node.slots,
        lease_s=round((node.expires_at - now_us) / 1_000_000, 1),
        total=node.total,
        free=node.free,
    )
