"""What the cluster room tells."""

from tidemill.events import Event


class NodeJoined(Event, frozen=True):
    """A node entered the list, or entered it again."""

    node: str
    epoch: int


class NodeLost(Event, frozen=True):
    """A node found that its entry had run out or was gone."""

    node: str
    epoch: int


class NodeLeft(Event, frozen=True):
    """A node left by itself."""

    node: str


class NodesCleaned(Event, frozen=True):
    """The leader dropped entries of nodes that did not come back."""

    nodes: list[str]
    leader_epoch: int


class LeaderElected(Event, frozen=True):
    """A node became the leader."""

    node: str
    epoch: int


class LeaderLost(Event, frozen=True):
    """A leader's time ended."""

    node: str
    epoch: int


class PartitionTaken(Event, frozen=True):
    """A node took a partition."""

    node: str
    group: str
    partition: str
    epoch: int


class PartitionLost(Event, frozen=True):
    """A holder's time ended before it was done."""

    node: str
    group: str
    partition: str
    epoch: int


class PartitionHandedBack(Event, frozen=True):
    """A holder gave a partition back unfinished."""

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
    """A leader's duty raised; it is tried again on its next round."""

    node: str
    duty: str
    error: str
