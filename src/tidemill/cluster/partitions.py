"""Partitions: pieces of standing work, each a lease with an opaque payload.

The leader creates and removes them; nodes help themselves (`tidemill.cluster.shares` decides to which).
Every step is a function of `tx`; every write of a holder is fenced by the partition's epoch. This room
never looks into a payload.
"""

import msgspec

from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.states import PARTITION, PartitionEdge, PartitionState, step
from tidemill.errors import LeaseLost
from tidemill.store import Tx


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's row. `epoch` grows with every change of hands and never falls (CLU-7)."""

    group: str
    id: str
    payload: bytes = b""
    state: PartitionState = PartitionState.OUTSTANDING
    epoch: int = 0
    holder: str = ""  # the node that works on it
    expires_at: int = 0  # of the holder's lease; 0 while nobody holds it
    free_since: int = 0
    wanted_by: str = ""  # a node that asks the holder to let go, for balance
    wanted_at: int = 0
    handed_on: int = 0  # how often a holder ended without completing it


class PartitionMap(msgspec.Struct, frozen=True):
    """From which node list, and by which leader, a group's partitions were computed (CLU-16)."""

    node_version: int
    leader_epoch: int
    count: int


_decoder = msgspec.msgpack.Decoder(Partition)


def decode(raw: bytes) -> Partition:
    """A partition from its stored bytes."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: ClusterKeys, group: str, part_id: str) -> Partition | None:
    """One partition."""
    raw = tx.get(keys.part[group, part_id])
    return None if raw is None else decode(raw)


def read_all(tx: Tx, keys: ClusterKeys, group: str) -> list[Partition]:
    """A group's partitions by id, payloads included: for looking at, not for deciding."""
    return [decode(row.value) for row in tx.range(*keys.part.under(group), snapshot=True)]


def is_expired(part: Partition, now_us: int) -> bool:
    """Held by somebody whose time is over."""
    return part.state is PartitionState.IN_PROGRESS and part.expires_at <= now_us


class PartitionSummary(msgspec.Struct, frozen=True, array_like=True):
    """What the index of expiries says of a partition: enough to choose by, in one read (CLU-14)."""

    id: str
    holder: str
    expires_at: int
    free_since: int
    wanted_by: str
    wanted_at: int


def standings(tx: Tx, keys: ClusterKeys, group: str) -> list[PartitionSummary]:
    """Every partition of a group that is not done, by expiry: one range read, no payloads."""
    rows = tx.range(*keys.part_expiry.under(group), snapshot=True)
    return [msgspec.msgpack.decode(row.value, type=PartitionSummary) for row in rows]


def create(
    tx: Tx, keys: ClusterKeys, group: str, payloads: dict[str, bytes], made_from: PartitionMap
) -> list[str]:
    """Make the partitions that are not there yet, and name the node list they stand for.

    Called by the leader in its transaction, in pages of a hundred or fewer. Returns the new ids.
    """
    made = []
    floor = _floor(tx, keys, group)
    for part_id, payload in payloads.items():
        if read(tx, keys, group, part_id) is None:
            part = Partition(group=group, id=part_id, payload=payload, epoch=floor, free_since=tx.now())
            _write(tx, keys, None, part)
            made.append(part_id)
    tx.set(keys.map[group], msgspec.msgpack.encode(made_from))
    return made


def map_of(tx: Tx, keys: ClusterKeys, group: str) -> PartitionMap | None:
    """The group's map row."""
    raw = tx.get(keys.map[group])
    return None if raw is None else msgspec.msgpack.decode(raw, type=PartitionMap)


def take(tx: Tx, keys: ClusterKeys, group: str, part_id: str, holder: str, ttl_us: int) -> Partition | None:
    """Become the holder of a free or expired partition, under the next epoch; None when it is not to be had.

    It is never taken from a holder whose time runs: fencing would refuse what that one writes here, but not
    what it does elsewhere until its next renewal (CLU-4).
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
    """The fence: `LeaseLost` unless we hold the partition under this epoch and our time runs."""
    current = read(tx, keys, part.group, part.id)
    if (
        current is None
        or current.epoch != part.epoch
        or current.state is not PartitionState.IN_PROGRESS
        or current.expires_at <= tx.now()
    ):
        raise LeaseLost(f"partition {part.group}/{part.id} epoch {part.epoch} is over")
    return current


def renew(tx: Tx, keys: ClusterKeys, part: Partition, ttl_us: int) -> Partition:
    """Extend our hold; the answer says whether somebody asks for it (`wanted_by`).

    A holder that was asked a ttl ago and did not let go gets no more time: the answer has the old expiry,
    and when that has come the partition is anybody's.
    """
    current = check(tx, keys, part)
    if current.wanted_by and current.wanted_at + ttl_us <= tx.now():
        return current
    renewed = msgspec.structs.replace(current, expires_at=max(current.expires_at, tx.now() + ttl_us))
    _write(tx, keys, current, renewed)
    return renewed


def hand_back(tx: Tx, keys: ClusterKeys, part: Partition) -> Partition:
    """Give it back unfinished. Who asked for it stays on record, or we would be the first to see it free."""
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
    """The work is done for good."""
    current = check(tx, keys, part)
    new = msgspec.structs.replace(
        current,
        state=step(PARTITION, current.state, PartitionEdge.COMPLETE),
        epoch=current.epoch + 1,
        expires_at=0,
    )
    _write(tx, keys, current, new)
    return new


def ask(
    tx: Tx, keys: ClusterKeys, group: str, part_id: str, thief: str, *, stale_us: int | None = None
) -> bool:
    """Ask the holder to let go (one steal at a time per node); False when there is nothing to ask for.

    `stale_us`: a request that is that old is replaced; whoever made it is gone or has enough.
    """
    part = read(tx, keys, group, part_id)
    if part is None or part.state is not PartitionState.IN_PROGRESS:
        return False
    if part.wanted_by and (stale_us is None or part.wanted_at + stale_us > tx.now()):
        return False
    asked = msgspec.structs.replace(part, wanted_by=thief, wanted_at=tx.now())
    _write(tx, keys, part, asked)
    return True


def remove_done(tx: Tx, keys: ClusterKeys, group: str, limit: int) -> list[str]:
    """Drop completed partitions, a page at a time. Called by the leader in its transaction.

    The group is looked at without protecting it, so that no holder's renewal is in the way; what is removed
    is read again. Nothing changes a partition that is done.
    """
    done = []
    floor = highest = _floor(tx, keys, group)
    for row in tx.range(*keys.part.under(group), snapshot=True):
        part = decode(row.value)
        if part.state is PartitionState.DONE and tx.get(row.key) == row.value:
            tx.clear(row.key)
            highest = max(highest, part.epoch)
            done.append(part.id)
            if len(done) == limit:
                break
    if highest > floor:
        tx.set(keys.part_floor[group], msgspec.msgpack.encode(highest))
    return done


def _floor(tx: Tx, keys: ClusterKeys, group: str) -> int:
    """The highest epoch of any partition that was removed.

    A partition that is made again begins there: a holder of its former life, paused until now, would
    otherwise find its own epoch in the row and be let through (CLU-7).
    """
    raw = tx.get(keys.part_floor[group])
    return 0 if raw is None else msgspec.msgpack.decode(raw, type=int)


def _write(tx: Tx, keys: ClusterKeys, old: Partition | None, new: Partition) -> None:
    if old is not None and old.state is not PartitionState.DONE:
        tx.clear(keys.part_expiry[old.group, old.expires_at, old.id])
    tx.set(keys.part[new.group, new.id], msgspec.msgpack.encode(new))
    if new.state is not PartitionState.DONE:
        standing = PartitionSummary(
            new.id, new.holder, new.expires_at, new.free_since, new.wanted_by, new.wanted_at
        )
        tx.set(keys.part_expiry[new.group, new.expires_at, new.id], msgspec.msgpack.encode(standing))
