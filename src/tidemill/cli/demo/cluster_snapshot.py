"""The data of the cluster demo: a snapshot of the cluster, log lines, and the summary."""

from typing import Literal, NamedTuple

import msgspec

from tidemill.cluster.leases import Lease
from tidemill.cluster.nodes import Node
from tidemill.testing.work import WorkPlan

Tone = Literal["", "good", "bad"]


class LogLine(NamedTuple):
    """One event of the demo, for the log."""

    seconds: float
    node: str
    text: str
    tone: Tone


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment, read in one transaction. `dead` is the name of the killed node."""

    seconds: float
    now_us: int
    pids: dict[str, int]
    ids: dict[str, str]
    dead: str
    leader: Lease | None
    nodes: dict[str, Node]
    holders: dict[str, str]
    done: set[str]
    expired: set[str]
    progress: dict[str, int]
    finished: bool

    def name_of(self, node_id: str) -> str:
        return next((name for name, id_ in self.ids.items() if id_ and id_ == node_id), "")

    def leader_id(self) -> str:
        """Return the id of the current leader, or an empty string."""
        leader = self.leader
        return leader.holder if leader is not None and leader.expires_at > self.now_us else ""

    def held_by(self, node_id: str) -> list[str]:
        """Return the unfinished partitions that a node holds."""
        return [part for part, holder in self.holders.items() if holder == node_id and part not in self.done]

    def done_by(self, node_id: str) -> int:
        return sum(self.holders[part] == node_id for part in self.done)

    def held(self) -> int:
        return sum(bool(holder) for holder in self.holders.values())

    def done_share(self, plan: WorkPlan) -> float:
        """Return the share of all work that is done, from 0 to 1."""
        return sum(self.progress.values()) / (plan.partitions * plan.units)

    def lease_s(self, name: str) -> float:
        """Return the seconds until a node's lease expires."""
        node = self.nodes.get(self.ids.get(name, ""))
        return max(0.0, (node.expires_at - self.now_us) / 1_000_000) if node is not None else 0.0


class ClusterSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The checks and measurements of one run of the demo."""

    ok: bool
    checks: dict[str, bool]
    nodes: int
    partitions: int
    units: int
    ttl_s: float
    failover_s: float  # from the kill until another node was the leader
    moved: int  # partitions that the killed leader held
    moved_s: float  # from the kill until other nodes held all of them
    seconds: float
    violations: list[str]
    home: str | None
