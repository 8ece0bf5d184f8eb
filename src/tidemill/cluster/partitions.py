"""Partitions: pieces of work that are divided among nodes. Each is a lease with a payload.

The leader creates and removes partitions, and nodes take them. `tidemill.cluster.shares` decides which
partition a node takes. Every operation is a function of `tx`, and the partition's epoch fences every write of
a holder. This package never decodes a payload.
"""

import msgspec

from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.states import PARTITION, PartitionEdge, PartitionState, step
from tidemill.errors import LeaseLost
from tidemill.store import Tx


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a partition. `epoch` grows with every change of holder and never falls (CLU-7)."""

    group: str
    id: str
    payload: bytes = b""
    state: PartitionState = PartitionState.OUTSTANDING
    epoch: int = 0
    holder: str = ""  # the node that works on it
    expires_at: int = 0  # when the holder's lease expires; 0 while the partition is free
    free_since: int = 0
    wanted_by: str = ""  # the node that has requested the partition, to balance the load
    wanted_at: int = 0
    handed_on: int = 0  # how often a holder handed it back or lost its lease before it was done


class PartitionMap(msgspec.Struct, frozen=True):
    """Which leader created a group's partitions, and from which version of the node list (CLU-16)."""

    node_version: int
    leader_epoch: int
    count: int


_decoder = msgspec.msgpack.Decoder(Partition)


def decode(raw: bytes) -> Partition:
    """Decode a stored partition."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: ClusterKeys, group: str, part_id: str) -> Partition | None:
    """Read one partition."""
    raw = tx.get(keys.part[group, part_id])
    return None if raw is None else decode(raw)


def read_all(tx: Tx, keys: ClusterKeys, group: str) -> list[Partition]:
    """Read a group's partitions by id, with payloads. Use this for display, not for decisions."""
    return [decode(row.value) for row in tx.range(*keys.part.under(group), snapshot=True)]


def is_expired(part: Partition, now_us: int) -> bool:
    """Return whether the lease of the partition's holder has expired; False if it has no holder."""
    return part.state is PartitionState.IN_PROGRESS and part.expires_at <= now_us


class PartitionSummary(msgspec.Struct, frozen=True, array_like=True):
    """A partition in the index by expiry. A node reads this index once to choose a partition (CLU-14)."""

    id: str
    holder: str
    expires_at: int
    free_since: int
    wanted_by: str
    wanted_at: int


def summaries(tx: Tx, keys: ClusterKeys, group: str) -> list[PartitionSummary]:
    """Read the partitions of a group that are not done, in the order of expiry, without payloads."""
    rows = tx.range(*keys.part_expiry.under(group), snapshot=True)
    return [msgspec.msgpack.decode(row.value, type=PartitionSummary) for row in rows]


def create(
    tx: Tx, keys: ClusterKeys, group: str, payloads: dict[str, bytes], made_from: PartitionMap
) -> list[str]:
    """Create the partitions that do not exist, and store the map; return the new ids.

    The leader calls it in its transaction, with at most a hundred partitions.
    """
    created = []
    epoch = _last_epoch(tx, keys, group)
    for part_id, payload in payloads.items():
        if read(tx, keys, group, part_id) is None:
            part = Partition(group=group, id=part_id, payload=payload, epoch=epoch, free_since=tx.now())
            _write(tx, keys, None, part)
            created.append(part_id)
    tx.set(keys.map[group], msgspec.msgpack.encode(made_from))
    return created


def map_of(tx: Tx, keys: ClusterKeys, group: str) -> PartitionMap | None:
    """Read the map of a group."""
    raw = tx.get(keys.map[group])
    return None if raw is None else msgspec.msgpack.decode(raw, type=PartitionMap)


def take(tx: Tx, keys: ClusterKeys, group: str, part_id: str, holder: str, ttl_us: int) -> Partition | None:
    """Take a free or expired partition under the next epoch; return None if that is not possible.

    A partition is never taken from a holder whose lease has not expired. The fence would refuse that holder's
    writes to the store, but could not stop its other actions until its next renewal (CLU-4).
    """
    old = read(tx, keys, group, part_id)
    now = tx.now()
    if old is None or old.state is PartitionState.DONE:
        return None
    handed_on = old.handed_on
    state: PartitionState = old.state
    if state is PartitionState.IN_PROGRESS:
        if not is_expired(old, now):
            return None
        state = step(PARTITION, PartitionState(state), PartitionEdge.EXPIRE)
        handed_on += 1
    new = msgspec.structs.replace(
        old,
        state=step(PARTITION, PartitionState(state), PartitionEdge.TAKE),
        epoch=old.epoch + 1,
        holder=holder,
        expires_at=now + ttl_us,
        free_since=0,
        wanted_by="",
        wanted_at=0,
        handed_on=handed_on,
    )
    _write(tx, keys, old, new)
    return new


def check(tx: Tx, keys: ClusterKeys, part: Partition) -> Partition:
    """Fence the transaction: raise `LeaseLost` unless we hold the partition under this epoch."""
    current = read(tx, keys, part.group, part.id)
    if (
        current is None
        or current.epoch != part.epoch
        or current.state is not PartitionState.IN_PROGRESS
        or current.expires_at <= tx.now()
    ):
        raise LeaseLost(f"this process no longer holds partition {part.group}/{part.id} (epoch {part.epoch})")
    return current


def renew(tx: Tx, keys: ClusterKeys, part: Partition, ttl_us: int) -> Partition:
    """Extend our lease; the result shows whether another node requests the partition (`wanted_by`).

    If another node requested the partition more than a ttl ago, the lease is not extended. The result then
    has the old expiry, and any node can take the partition after that time.
    """
    current = check(tx, keys, part)
    if current.wanted_by and current.wanted_at + ttl_us <= tx.now():
        return current
    renewed = msgspec.structs.replace(current, expires_at=max(current.expires_at, tx.now() + ttl_us))
    _write(tx, keys, current, renewed)
    return renewed


def hand_back(tx: Tx, keys: ClusterKeys, part: Partition) -> Partition:
    """Hand back an unfinished partition.

    If another node has requested it, the request stays in the row and gives that node priority.
    """
    current = check(tx, keys, part)
    new = msgspec.structs.replace(
        current,
        state=step(PARTITION, current.state, PartitionEdge.HAND_BACK),
        epoch=current.epoch + 1,
        holder="",
        expires_at=0,
        free_since=tx.now(),
        handed_on=current.handed_on + 1,
    )
    _write(tx, keys, current, new)
    return new


def complete(tx: Tx, keys: ClusterKeys, part: Partition) -> Partition:
    """Mark the work as done."""
    current = check(tx, keys, part)
    new = msgspec.structs.replace(
        current,
        state=step(PARTITION, current.state, PartitionEdge.COMPLETE),
        epoch=current.epoch + 1,
        expires_at=0,
    )
    _write(tx, keys, current, new)
    return new


def request(
    tx: Tx, keys: ClusterKeys, group: str, part_id: str, node_id: str, *, stale_us: int | None = None
) -> bool:
    """Request a partition from its holder; return False if it is free or already requested.

    A request older than `stale_us` is replaced, because its node is dead or has enough partitions.
    """
    part = read(tx, keys, group, part_id)
    if part is None or part.state is not PartitionState.IN_PROGRESS:
        return False
    if part.wanted_by and (stale_us is None or part.wanted_at + stale_us > tx.now()):
        return False
    requested = msgspec.structs.replace(part, wanted_by=node_id, wanted_at=tx.now())
    _write(tx, keys, part, requested)
    return True


def remove_done(tx: Tx, keys: ClusterKeys, group: str, limit: int) -> list[str]:
    """Remove at most `limit` completed partitions. The leader calls it in its transaction.

    The group is read as a snapshot, so that renewals of holders do not conflict. Each row is read again
    before it is removed. A partition that is done never changes.
    """
    removed = []
    last = highest = _last_epoch(tx, keys, group)
    for row in tx.range(*keys.part.under(group), snapshot=True):
        part = decode(row.value)
        if part.state is PartitionState.DONE and tx.get(row.key) == row.value:
            tx.clear(row.key)
            highest = max(highest, part.epoch)
            removed.append(part.id)
            if len(removed) == limit:
                break
    if highest > last:
        tx.set(keys.part_floor[group], msgspec.msgpack.encode(highest))
    return removed


def _last_epoch(tx: Tx, keys: ClusterKeys, group: str) -> int:
    """Return the highest epoch of all removed partitions.

    A partition that is created again starts from this epoch. Otherwise a paused holder of the removed
    partition could find its own epoch in the row, and its write would be accepted (CLU-7).
    """
    raw = tx.get(keys.part_floor[group])
    return 0 if raw is None else msgspec.msgpack.decode(raw, type=int)


def _write(tx: Tx, keys: ClusterKeys, old: Partition | None, new: Partition) -> None:
    if old is not None and old.state is not PartitionState.DONE:
        tx.clear(keys.part_expiry[old.group, old.expires_at, old.id])
    tx.set(keys.part[new.group, new.id], msgspec.msgpack.encode(new))
    if new.state is not PartitionState.DONE:
        summary = PartitionSummary(
            new.id, new.holder, new.expires_at, new.free_since, new.wanted_by, new.wanted_at
        )
        tx.set(keys.part_expiry[new.group, new.expires_at, new.id], msgspec.msgpack.encode(summary))
