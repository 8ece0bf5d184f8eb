"""Check how the rows of leases, nodes and partitions change from one commit to the next (CLU-3 to CLU-25)."""

import msgspec

from tests.simulation.store import Change, RecordedCommit
from tests.simulation.world import Act, Rule, Violation
from tidemill.cluster import leases, nodes, partitions
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import Lease
from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import Partition, PartitionMap, PartitionSummary
from tidemill.cluster.states import PartitionState
from tidemill.store.port import read_counter


class LeaseRules(Rule):
    """Check leases: one holder per epoch, epochs grow by one, only the holder renews and releases in time."""

    def __init__(self, keys: ClusterKeys) -> None:
        self.keys = keys
        self.prefixes = (keys.lease.prefix,)

    def commit(self, commit: RecordedCommit) -> None:
        for change in commit.changes:
            if change.key.startswith(self.prefixes):
                self._judge(commit, change)

    def _judge(self, commit: RecordedCommit, change: Change) -> None:
        name = "/".join(str(part) for part in self.keys.lease.unpack(change.key))
        if change.new is None:
            raise Violation(f"lease {name} was removed, and its epoch with it")
        old = leases.decode(change.old) if change.old is not None else Lease("", 0, 0)
        new = leases.decode(change.new)
        tokens = commit.node.tokens if commit.node is not None else set()
        running = old.expires_at > commit.now_us
        if new.epoch == old.epoch:
            if new.holder != old.holder:
                raise Violation(f"lease {name} has two holders under epoch {new.epoch}")
            if old.holder not in tokens:
                raise Violation(f"lease {name} epoch {old.epoch} was changed by a node that does not hold it")
            if not running:
                raise Violation(f"lease {name} epoch {old.epoch} was changed after its expiry")
            if new.expires_at != 0 and new.expires_at < old.expires_at:
                raise Violation(f"lease {name} epoch {old.epoch} was shortened")
        elif new.epoch != old.epoch + 1:
            raise Violation(f"lease {name} went from epoch {old.epoch} to {new.epoch}")
        elif running:
            left_ms = (old.expires_at - commit.now_us) / 1000
            raise Violation(f"lease {name} epoch {old.epoch} was taken {left_ms:.1f} ms before its expiry")
        elif new.holder not in tokens:
            raise Violation(f"lease {name} epoch {new.epoch} was acquired in the name of another node")

    def act(self, act: Act) -> None:
        """Do nothing: `History` checks acts."""

    def end(self, rows: dict[bytes, bytes]) -> None:
        """Do nothing."""


class NodeRules(Rule):
    """Check nodes: a node writes its own entry; only the leader removes others, long after their expiry."""

    def __init__(self, keys: ClusterKeys, grace_us: int) -> None:
        self.keys = keys
        self.prefixes = (keys.node.prefix, keys.node_expiry.prefix, keys.part.prefix)
        self.listed: dict[str, Node] = {}
        self._grace_us = grace_us
        self._epochs: dict[str, int] = {}
        self._index: set[bytes] = set()
        self._draining_since: dict[str, int] = {}

    def commit(self, commit: RecordedCommit) -> None:
        touched: list[bytes] = []
        counted = any(change.key == self.keys.node_version for change in commit.changes)
        for change in commit.changes:
            if change.key.startswith(self.keys.node.prefix):
                touched += self._judge(commit, change, counted)
            elif change.key.startswith(self.keys.node_expiry.prefix):
                touched.append(change.key)
            elif change.key.startswith(self.keys.part.prefix):
                self._judge_take(commit, change)
        for key in touched:
            if (key in commit.rows) != (key in self._index):
                raise Violation(f"the index {self.keys.node_expiry.unpack(key)} does not match the list")

    def _judge(self, commit: RecordedCommit, change: Change, counted: bool) -> list[bytes]:
        old = nodes.decode(change.old) if change.old is not None else None
        new = nodes.decode(change.new) if change.new is not None else None
        node_id = new.id if new is not None else str(self.keys.node.unpack(change.key)[0])
        own = commit.node is not None and node_id in commit.node.tokens
        if new is not None:
            self._judge_entry(commit, old, new, own)
        elif not own:
            assert old is not None
            self._judge_cleaning(commit, old)
        if not counted and (old is None or new is None or old.epoch != new.epoch):
            raise Violation(f"{node_id} came or went, and the version of the node list did not change")
        return self._relist(node_id, old, new)

    def _judge_entry(self, commit: RecordedCommit, old: Node | None, new: Node, own: bool) -> None:
        if not own:
            raise Violation(f"the entry of {new.id} was written by another")
        last = self._epochs.get(new.id, 0)
        if new.epoch < last or (new.epoch == last and old is None):
            raise Violation(f"node {new.id} was at epoch {last} and is now at {new.epoch}")
        if old is not None and new.epoch == old.epoch and old.expires_at <= commit.now_us:
            raise Violation(f"node {new.id} epoch {new.epoch} beat after its expiry")
        self._epochs[new.id] = new.epoch
        if new.draining:
            self._draining_since.setdefault(new.id, commit.now_us)

    def _judge_cleaning(self, commit: RecordedCommit, old: Node) -> None:
        raw = commit.before(self.keys.leader)
        leader = leases.decode(raw).holder if raw is not None else ""
        if commit.node is None or leader not in commit.node.tokens:
            raise Violation(f"node {old.id} was taken off the list by a node that does not lead")
        if old.expires_at + self._grace_us > commit.now_us:
            raise Violation(f"node {old.id} was taken off the list before its grace was over")

    def _relist(self, node_id: str, old: Node | None, new: Node | None) -> list[bytes]:
        touched = []
        self.listed.pop(node_id, None)
        if old is not None:
            key = self.keys.node_expiry[old.expires_at, node_id]
            self._index.discard(key)
            touched.append(key)
        if new is not None:
            self.listed[node_id] = new
            key = self.keys.node_expiry[new.expires_at, node_id]
            self._index.add(key)
            touched.append(key)
        return touched

    def _judge_take(self, commit: RecordedCommit, change: Change) -> None:
        """Check that a node that drains takes nothing new (CLU-25)."""
        if change.new is None or commit.node is None:
            return
        part = partitions.decode(change.new)
        old = partitions.decode(change.old) if change.old is not None else None
        is_take = part.state is PartitionState.IN_PROGRESS and (old is None or old.epoch != part.epoch)
        since = self._draining_since.get(part.holder)
        if is_take and since is not None and commit.now_us > since:
            raise Violation(f"{commit.node.name} took partition {part.id} while it drains")

    def act(self, act: Act) -> None:
        """Do nothing: `History` checks acts."""

    def end(self, rows: dict[bytes, bytes]) -> None:
        """Check the whole index."""
        stored = {key for key in rows if key.startswith(self.keys.node_expiry.prefix)}
        if stored != self._index:
            raise Violation("the index of nodes by expiry has rows that no node has")


class PartitionRules(Rule):
    """Check partitions: each change of holder increases the epoch, also if a partition is created again."""

    def __init__(self, keys: ClusterKeys) -> None:
        self.keys = keys
        self.prefixes = (keys.part.prefix, keys.part_expiry.prefix, keys.map.prefix)
        self.alive = 0  # partitions that are not removed
        self._epochs: dict[bytes, int] = {}
        self._index: dict[bytes, bytes] = {}  # the expected rows

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
                raise Violation(f"the index {self.keys.part_expiry.unpack(key)} does not match the rows")

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
            self._judge_new(change.key, new)  # removed and created again in one transaction
        elif new.epoch == old.epoch:
            self._judge_same_holder(commit, old, new)
        elif new.epoch == old.epoch + 1:
            self._judge_change_of_holder(commit, old, new)
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

    def _judge_same_holder(self, commit: RecordedCommit, old: Partition, new: Partition) -> None:
        if (new.holder, new.state) != (old.holder, old.state):
            raise Violation(f"partition {new.id} changed its holder within epoch {new.epoch}")
        if new.expires_at != old.expires_at:
            self._judge_holder(commit, old, "renewed")
            if new.expires_at < old.expires_at:
                raise Violation(f"partition {new.id} epoch {new.epoch} was shortened")

    def _judge_change_of_holder(self, commit: RecordedCommit, old: Partition, new: Partition) -> None:
        if new.state is PartitionState.IN_PROGRESS:
            if old.expires_at > commit.now_us:
                left_ms = (old.expires_at - commit.now_us) / 1000
                raise Violation(
                    f"partition {new.id} epoch {old.epoch} was taken {left_ms:.1f} ms before its expiry"
                )
            if commit.node is None or new.holder not in commit.node.tokens:
                raise Violation(f"partition {new.id} epoch {new.epoch} was taken in the name of another node")
        else:
            self._judge_holder(commit, old, f"made {new.state}")

    def _judge_holder(self, commit: RecordedCommit, old: Partition, change: str) -> None:
        if commit.node is None or old.holder not in commit.node.tokens:
            raise Violation(
                f"partition {old.id} epoch {old.epoch} was {change} by a node that does not hold it"
            )
        if old.expires_at <= commit.now_us:
            raise Violation(f"partition {old.id} epoch {old.epoch} was {change} after its expiry")

    def _reindex(self, old: Partition | None, new: Partition | None) -> list[bytes]:
        touched = []
        if old is not None and old.state is not PartitionState.DONE:
            key = self.keys.part_expiry[old.group, old.expires_at, old.id]
            self._index.pop(key, None)
            touched.append(key)
        if new is not None and new.state is not PartitionState.DONE:
            key = self.keys.part_expiry[new.group, new.expires_at, new.id]
            summary = PartitionSummary(
                new.id, new.holder, new.expires_at, new.free_since, new.wanted_by, new.wanted_at
            )
            self._index[key] = msgspec.msgpack.encode(summary)
            touched.append(key)
        return touched

    def _judge_map(self, commit: RecordedCommit, made_from: PartitionMap) -> None:
        """Check that the map names the node list and the leader at its commit (CLU-16)."""
        version = read_counter(commit.before(self.keys.node_version))
        if made_from.node_version != version:
            raise Violation(f"a map of node list {made_from.node_version} was committed at {version}")
        raw = commit.before(self.keys.leader)
        epoch = leases.decode(raw).epoch if raw is not None else None
        if made_from.leader_epoch != epoch:
            raise Violation(f"leader {made_from.leader_epoch} committed a map in the time of leader {epoch}")

    def act(self, act: Act) -> None:
        """Do nothing: `History` checks acts."""

    def end(self, rows: dict[bytes, bytes]) -> None:
        """Check the whole index."""
        stored = {key: value for key, value in rows.items() if key.startswith(self.keys.part_expiry.prefix)}
        if stored != self._index:
            raise Violation("the index of expiries has rows that no partition has")
