"""The node list: which nodes are alive, which resources they offer, and when their leases expire.

A node gets a new random id at every start; its address is only an attribute. The entry of a node is its
lease: one write renews the node and everything that it claims under its (id, epoch). An index by expiry finds
dead nodes. Correctness does not depend on the list: a wrong entry can only cost time (CLU-11).
"""

import msgspec

from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import LeaseLost, ProtocolMismatch
from tidemill.store import Tx
from tidemill.store.copy import check_complete

PROTOCOL = 1
"""The version of the rows that all nodes read. It must be increased if older nodes would misread new rows."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node's entry (CLU-10). Times are store time in microseconds."""

    id: str
    epoch: int
    kind: str = "worker"
    address: str = ""
    slots: int = 1
    total: dict[str, float] = {}
    free: dict[str, float] = {}
    started_at: int = 0
    seen_at: int = 0
    expires_at: int = 0
    draining: bool = False
    protocol: int = PROTOCOL
    release: str = ""


_decoder = msgspec.msgpack.Decoder(Node)


def decode(raw: bytes) -> Node:
    """Decode the entry of a node."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: ClusterKeys, node_id: str, *, lock: bool = False) -> Node | None:
    """Read the entry of one node."""
    raw = tx.get(keys.node[node_id], lock=lock)
    return None if raw is None else decode(raw)


def read_all(tx: Tx, keys: ClusterKeys) -> list[Node]:
    """Read the whole node list, ordered by id. The list is short, because a node is a process."""
    return [decode(row.value) for row in tx.range(*keys.node.all(), snapshot=True)]


def version(tx: Tx, keys: ClusterKeys) -> int:
    """Return how often the node list has changed (CLU-16)."""
    return tx.counter(keys.node_version)


def alive(nodes: list[Node], now_us: int) -> list[Node]:
    """Return the nodes whose lease has not expired."""
    return [node for node in nodes if node.expires_at > now_us]


def join(tx: Tx, keys: ClusterKeys, node: Node, ttl_us: int) -> Node:
    """Join the list under a higher epoch, for the first time or after our entry was lost."""
    check_complete(tx)
    check_protocol(tx, keys)
    old = read(tx, keys, node.id)
    now = tx.now()
    epoch = max(node.epoch, old.epoch if old else 0) + 1
    joined = msgspec.structs.replace(
        node, epoch=epoch, started_at=node.started_at or now, seen_at=now, expires_at=now + ttl_us
    )
    _write(tx, keys, old, joined)
    tx.add(keys.node_version, 1)
    return joined


def check_protocol(tx: Tx, keys: ClusterKeys) -> None:
    """Raise `ProtocolMismatch` if the cluster uses another protocol. The first node records its protocol."""
    key = keys.config["protocol"]
    raw = tx.get(key)
    if raw is None:
        tx.set(key, msgspec.msgpack.encode(PROTOCOL))
    elif (stored := msgspec.msgpack.decode(raw, type=int)) != PROTOCOL:
        raise ProtocolMismatch(
            f"cluster {keys.cluster!r} uses protocol {stored}, but this release uses {PROTOCOL}"
        )


def check(tx: Tx, keys: ClusterKeys, node: Node, *, lock: bool = False) -> Node:
    """Fence a node: raise `LeaseLost` unless its entry has this epoch and has not expired."""
    current = read(tx, keys, node.id, lock=lock)
    if current is None or current.epoch != node.epoch or current.expires_at <= tx.now():
        raise LeaseLost(
            f"node {node.id} is no longer in the cluster: its lease (epoch {node.epoch}) has ended"
        )
    return current


def is_alive(tx: Tx, keys: ClusterKeys, node_id: str, epoch: int) -> bool:
    """Return whether a node is in the list under this epoch, and its lease has not expired."""
    node = read(tx, keys, node_id)
    return node is not None and node.epoch == epoch and node.expires_at > tx.now()


def beat(tx: Tx, keys: ClusterKeys, node: Node, ttl_us: int) -> Node:
    """Renew our entry and write `node` into it; raise `LeaseLost` if the entry has expired."""
    old = check(tx, keys, node)
    now = tx.now()
    renewed = msgspec.structs.replace(node, seen_at=now, expires_at=max(old.expires_at, now + ttl_us))
    _write(tx, keys, old, renewed)
    return renewed


def leave(tx: Tx, keys: ClusterKeys, node: Node) -> bool:
    """Remove our own entry; return False if it is no longer ours."""
    old = read(tx, keys, node.id)
    if old is None or old.epoch != node.epoch:
        return False
    _remove(tx, keys, old)
    return True


def expired(tx: Tx, keys: ClusterKeys, limit: int) -> list[str]:
    """Return the ids of nodes whose lease has expired, oldest first. Reads one short range of the index."""
    lo = keys.node_expiry.prefix + b"\x00"
    rows = tx.range(lo, keys.node_expiry[tx.now()], limit=limit)
    return [str(keys.node_expiry.unpack(row.key)[1]) for row in rows]


def clean(tx: Tx, keys: ClusterKeys, grace_us: int, limit: int) -> list[Node]:
    """Remove entries that expired at least `grace_us` ago (CLU-11), in a transaction of the leader."""
    removed = []
    for node_id in expired(tx, keys, limit):
        node = read(tx, keys, node_id)
        if node is not None and node.expires_at + grace_us <= tx.now():
            _remove(tx, keys, node)
            removed.append(node)
    return removed


def _write(tx: Tx, keys: ClusterKeys, old: Node | None, new: Node) -> None:
    if old is not None:
        tx.clear(keys.node_expiry[old.expires_at, old.id])
    tx.set(keys.node[new.id], msgspec.msgpack.encode(new))
    tx.set(keys.node_expiry[new.expires_at, new.id], b"")


def _remove(tx: Tx, keys: ClusterKeys, node: Node) -> None:
    tx.clear(keys.node[node.id])
    tx.clear(keys.node_expiry[node.expires_at, node.id])
    tx.add(keys.node_version, 1)
