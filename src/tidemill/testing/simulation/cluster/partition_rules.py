"""Check how the row of a partition changes from one commit to the next, and its index (CLU-14)."""

import msgspec

from tidemill.cluster import leases, partitions
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.partitions import Partition, PartitionMap, PartitionSummary
from tidemill.cluster.states import PartitionState
from tidemill.store.port import read_counter
from tidemill.testing.simulation.rules import Act, Rule, Violation
from tidemill.testing.simulation.store import Change, RecordedCommit


class PartitionRules(Rule):
    """Every change of hands raises the epoch, also from one life of a partition to the next."""

    def __init__(self, keys: ClusterKeys) -> None:
        self.keys = keys
        self.prefixes = (keys.part.prefix, keys.part_expiry.prefix, keys.map.prefix)
        self.alive = 0  # partitions that are not removed
        self._epochs: dict[bytes, int] = {}
        self._index: dict[bytes, bytes] = {}  # as it should be

    def commit(self, commit: RecordedCommit) -> None:
        touched: list[bytes] = []
        for change in commit.changes:
            if change.key.startswith(self.keys.part.prefix):
                touched += self._judge(commit, change)
            elif change.key.startswith(self.keys.part_expiry.prefix):
                touched.append(change.key)
            elif change.key.startswith(self.keys.map.prefix) and change.new is not None:
                self._judge_map(commit, msgspec.msgpack.decode(change.new, type=PartitionMap))
        for key in touched:
            if commit.rows.get(key) != self._index.get(key):
                raise Violation(
                    f"the index {self.keys.part_expiry.unpack(key)} does not say what the rows say"
                )

    # --- one row

    def _judge(self, commit: RecordedCommit, change: Change) -> list[bytes]:
        old = partitions.decode(change.old) if change.old is not None else None
        new = partitions.decode(change.new) if change.new is not None else None
        self.alive += (new is not None) - (old is not None)
        if new is None:
            assert old is not None
            if old.state is not PartitionState.DONE:
                raise Violation(f"partition {old.id} was removed while it was {old.state}")
        elif old is None:
            self._judge_new(change.key, new)
        elif old.state is PartitionState.DONE:
            self._judge_new(change.key, new)  # removed and made again in one transaction
        elif new.epoch == old.epoch:
            self._judge_same_hands(commit, old, new)
        elif new.epoch == old.epoch + 1:
            self._judge_change_of_hands(commit, old, new)
        else:
            raise Violation(f"partition {new.id} went from epoch {old.epoch} to {new.epoch}")
        if new is not None:
            self._epochs[change.key] = new.epoch
        return self._reindex(old, new)

    def _judge_new(self, key: bytes, new: Partition) -> None:
        last = self._epochs.get(key)
        if new.state is not PartitionState.OUTSTANDING:
            raise Violation(f"partition {new.id} began {new.state}")
        if last is not None and new.epoch < last:
            raise Violation(f"partition {new.id} was at epoch {last} and was made again at {new.epoch}")

    def _judge_same_hands(self, commit: RecordedCommit, old: Partition, new: Partition) -> None:
        if (new.holder, new.state) != (old.holder, old.state):
            raise Violation(f"partition {new.id} changed hands within epoch {new.epoch}")
        if new.expires_at != old.expires_at:
            self._judge_holder(commit, old, "renewed")
            if new.expires_at < old.expires_at:
                raise Violation(f"partition {new.id} epoch {new.epoch} was shortened")

    def _judge_change_of_hands(self, commit: RecordedCommit, old: Partition, new: Partition) -> None:
        if new.state is PartitionState.IN_PROGRESS:
            if old.expires_at > commit.now_us:
                left_ms = (old.expires_at - commit.now_us) / 1000
                raise Violation(
                    f"partition {new.id} epoch {old.epoch} was taken {left_ms:.1f} ms before its expiry"
                )
            if commit.node is None or new.holder not in commit.node.tokens:
                raise Violation(f"partition {new.id} epoch {new.epoch} was taken in another's name")
        else:
            self._judge_holder(commit, old, f"made {new.state}")

    def _judge_holder(self, commit: RecordedCommit, old: Partition, what: str) -> None:
        if commit.node is None or old.holder not in commit.node.tokens:
            raise Violation(f"partition {old.id} epoch {old.epoch} was {what} by one who does not hold it")
        if old.expires_at <= commit.now_us:
            raise Violation(f"partition {old.id} epoch {old.epoch} was {what} after its expiry")

    def _reindex(self, old: Partition | None, new: Partition | None) -> list[bytes]:
        touched = []
        if old is not None and old.state is not PartitionState.DONE:
            key = self.keys.part_expiry[old.group, old.expires_at, old.id]
            self._index.pop(key, None)
            touched.append(key)
        if new is not None and new.state is not PartitionState.DONE:
            key = self.keys.part_expiry[new.group, new.expires_at, new.id]
            says = PartitionSummary(
                new.id, new.holder, new.expires_at, new.free_since, new.wanted_by, new.wanted_at
            )
            self._index[key] = msgspec.msgpack.encode(says)
            touched.append(key)
        return touched

    def _judge_map(self, commit: RecordedCommit, made_from: PartitionMap) -> None:
        """The map names the node list and the leader of the moment it was committed (CLU-16)."""
        version = read_counter(commit.before(self.keys.node_version))
        if made_from.node_version != version:
            raise Violation(f"a map of node list {made_from.node_version} was committed at {version}")
        raw = commit.before(self.keys.leader)
        epoch = leases.decode(raw).epoch if raw is not None else None
        if made_from.leader_epoch != epoch:
            raise Violation(f"leader {made_from.leader_epoch} committed a map in the time of leader {epoch}")

    def act(self, act: Act) -> None:
        """`History` judges acts."""

    def end(self, rows: dict[bytes, bytes]) -> None:
        """The whole index once more, from the rows that are there."""
        stored = {key: value for key, value in rows.items() if key.startswith(self.keys.part_expiry.prefix)}
        if stored != self._index:
            raise Violation("the index of expiries has rows that no partition has")
