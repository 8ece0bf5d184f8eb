"""The node list: who is there, with what, and until when.

A node's identity is a random id per boot; its address is only an attribute. Its entry is its lease: one
write per beat renews the node and, with it, everything the node claims under its (id, epoch). Work that a
dead node left behind is found by the index of expiries. Nothing here is needed for correctness: a node
that is listed wrongly can only cost time (CLU-11).
"""

import msgspec

from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import LeaseLost, ProtocolMismatch
from tidemill.store import Tx

PROTOCOL = (
    1  # of everything nodes say to each other through the store; raised when old nodes would misread it
)


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
    """A node's entry from its stored bytes."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: ClusterKeys, node_id: str, *, lock: bool = False) -> Node | None:
    """One node's entry."""
    raw = tx.get(keys.node[node_id], lock=lock)
    return None if raw is None else decode(raw)


def read_all(tx: Tx, keys: ClusterKeys) -> list[Node]:
    """The whole node list, by id; nodes are machines' processes, so it is short."""
    return [decode(row.value) for row in tx.range(*keys.node.all(), snapshot=True)]


def version(tx: Tx, keys: ClusterKeys) -> int:
    """The number of changes the node list has seen (CLU-16)."""
    return tx.counter(keys.node_version)


def alive(nodes: list[Node], now_us: int) -> list[Node]:
    """Those whose lease runs."""
    return [node for node in nodes if node.expires_at > now_us]


def join(tx: Tx, keys: ClusterKeys, node: Node, ttl_us: int) -> Node:
    """Enter the list, or enter it again after our entry was lost or ran out, under a higher epoch."""
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
    """Refuse to work in a cluster whose nodes speak another protocol; the first node sets it."""
    key = keys.config["protocol"]
    raw = tx.get(key)
    if raw is None:
        tx.set(key, msgspec.msgpack.encode(PROTOCOL))
    elif (stored := msgspec.msgpack.decode(raw, type=int)) != PROTOCOL:
        raise ProtocolMismatch(f"cluster {keys.cluster!r} speaks protocol {stored}, this release {PROTOCOL}")


def check(tx: Tx, keys: ClusterKeys, node: Node, *, lock: bool = False) -> Node:
    """The fence of a node: `LeaseLost` unless its entry is there under this epoch and has not expired."""
    current = read(tx, keys, node.id, lock=lock)
    if current is None or current.epoch != node.epoch or current.expires_at <= tx.now():
        raise LeaseLost(f"node {node.id} is no longer in the list under epoch {node.epoch}")
    return current


def beat(tx: Tx, keys: ClusterKeys, node: Node, ttl_us: int) -> Node:
    """Renew our entry with what `node` says of itself now; `LeaseLost` when it is over."""
    old = check(tx, keys, node)
    now = tx.now()
    renewed = msgspec.structs.replace(node, seen_at=now, expires_at=max(old.expires_at, now + ttl_us))
    _write(tx, keys, old, renewed)
    return renewed


def leave(tx: Tx, keys: ClusterKeys, node: Node) -> bool:
    """Take our own entry off the list; False when it is not ours any more."""
    old = read(tx, keys, node.id)
    if old is None or old.epoch != node.epoch:
        return False
    _remove(tx, keys, old)
    return True


def expired(tx: Tx, keys: ClusterKeys, limit: int) -> list[str]:
    """Ids of nodes whose lease has run out, longest ago first: one short range of the index."""
    lo = keys.node_expiry.prefix + b"\x00"
    rows = tx.range(lo, keys.node_expiry[tx.now()], limit=limit)
    return [str(keys.node_expiry.unpack(row.key)[1]) for row in rows]


def clean(tx: Tx, keys: ClusterKeys, grace_us: int, limit: int) -> list[Node]:
    """Drop entries that ran out at least a grace ago (CLU-11). Called by the leader, in its transaction."""
    gone = []
    for node_id in expired(tx, keys, limit):
        node = read(tx, keys, node_id)
        if node is not None and node.expires_at + grace_us <= tx.now():
            _remove(tx, keys, node)
            gone.append(node)
    return gone


def _write(tx: Tx, keys: ClusterKeys, old: Node | None, new: Node) -> None:
    if old is not None:
        tx.clear(keys.node_expiry[old.expires_at, old.id])
    tx.set(keys.node[new.id], msgspec.msgpack.encode(new))
    tx.set(keys.node_expiry[new.expires_at, new.id], b"")


def _remove(tx: Tx, keys: ClusterKeys, node: Node) -> None:
    tx.clear(keys.node[node.id])
    tx.clear(keys.node_expiry[node.expires_at, node.id])
    tx.add(keys.node_version, 1)
