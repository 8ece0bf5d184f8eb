"""The events of the cluster: nodes, leaders and partitions."""

from tidemill.events import Event


class NodeJoined(Event, frozen=True):
    """A node joined the node list, for the first time or again."""

    node: str
    epoch: int


class NodeLost(Event, frozen=True):
    """A node found that its entry had expired or was removed."""

    node: str
    epoch: int


class NodeLeft(Event, frozen=True):
    """A node left the node list."""

    node: str


class NodesCleaned(Event, frozen=True):
    """The leader removed the entries of nodes that did not return."""

    nodes: list[str]
    leader_epoch: int


class LeaderElected(Event, frozen=True):
    """A node became the leader."""

    node: str
    epoch: int


class LeaderLost(Event, frozen=True):
    """A node is no longer the leader."""

    node: str
    epoch: int


class PartitionTaken(Event, frozen=True):
    """A node took a partition."""

    node: str
    group: str
    partition: str
    epoch: int


class PartitionLost(Event, frozen=True):
    """The lease on a partition ended before the work was done."""

    node: str
    group: str
    partition: str
    epoch: int


class PartitionHandedBack(Event, frozen=True):
    """A node handed a partition back unfinished."""

    node: str
    group: str
    partition: str
    epoch: int


class PartitionDone(Event, frozen=True):
    """A partition's work is complete."""

    node: str
    group: str
    partition: str
    epoch: int


class DutyFailed(Event, frozen=True):
    """A leader's duty failed; the next round retries it."""

    node: str
    duty: str
    error: str
