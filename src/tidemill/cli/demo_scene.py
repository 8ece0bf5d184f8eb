"""What the demo sees, tells and sums up: values that its screen draws."""

from typing import Literal, NamedTuple

import msgspec

from tidemill.cluster.leases import Lease
from tidemill.cluster.nodes import Node
from tidemill.testing.work import Plan

Tone = Literal["", "good", "bad"]


class Line(NamedTuple):
    """Something that happened, for the log."""

    seconds: float
    node: str
    text: str
    tone: Tone


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment, from one transaction; `dead` is the node that was killed."""

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
        return next((name for name, its_id in self.ids.items() if its_id and its_id == node_id), "")

    def leader_id(self) -> str:
        """Who leads at this moment; empty when nobody does."""
        held = self.leader is not None and self.leader.expires_at > self.now_us
        return self.leader.holder if held and self.leader is not None else ""

    def held_by(self, node_id: str) -> list[str]:
        """The partitions a node has in hand."""
        return [part for part, holder in self.holders.items() if holder == node_id and part not in self.done]

    def done_by(self, node_id: str) -> int:
        return sum(self.holders[part] == node_id for part in self.done)

    def in_hand(self) -> int:
        return sum(bool(holder) for holder in self.holders.values())

    def done_share(self, plan: Plan) -> float:
        """How much of all the work is done."""
        return sum(self.progress.values()) / (plan.partitions * plan.units)

    def lease_s(self, name: str) -> float:
        """The seconds a node's entry lasts without another beat."""
        node = self.nodes.get(self.ids.get(name, ""))
        return max(0.0, (node.expires_at - self.now_us) / 1_000_000) if node is not None else 0.0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What was shown, with what was measured."""

    ok: bool
    checks: dict[str, bool]
    nodes: int
    partitions: int
    units: int
    ttl_s: float
    failover_s: float  # from the kill until another node led
    moved: int  # partitions that the killed leader had in hand
    moved_s: float  # from the kill until other nodes had taken all of them
    seconds: float
    wrong: list[str]
    home: str | None
