"""Check how the node list changes from one commit to the next (CLU-10, CLU-11, CLU-25)."""

from tidemill.cluster import leases, nodes, partitions
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.cluster.states import PartitionState
from tidemill.testing.simulation.rules import Act, Rule, Violation
from tidemill.testing.simulation.store import Change, RecordedCommit


class NodeRules(Rule):
    """A node writes its own entry; the leader alone drops another's, long after it ran out."""

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
                raise Violation(
                    f"the index {self.keys.node_expiry.unpack(key)} does not say what the list says"
                )

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
            raise Violation(f"node {old.id} was taken off the list by one who does not lead")
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
        """Who has told that it drains takes nothing new (CLU-25)."""
        if change.new is None or commit.node is None:
            return
        part = partitions.decode(change.new)
        old = partitions.decode(change.old) if change.old is not None else None
        taken = part.state is PartitionState.IN_PROGRESS and (old is None or old.epoch != part.epoch)
        since = self._draining_since.get(part.holder)
        if taken and since is not None and commit.now_us > since:
            raise Violation(f"{commit.node.name} took partition {part.id} while it drains")

    def act(self, act: Act) -> None:
        """`History` judges acts."""

    def end(self, rows: dict[bytes, bytes]) -> None:
        """The whole index once more."""
        stored = {key for key in rows if key.startswith(self.keys.node_expiry.prefix)}
        if stored != self._index:
            raise Violation("the index of nodes by expiry has rows that no node has")
