"""The publish room's layout in the store, beside that of the rooms it joins.

(C, "attempt", id)                             its row
(C, "attempt-part", id, ordinal)               its parts, in their order
(C, "attempt-of", author, lot, generation, id) the attempts at one thing
(C, "attempt-open", id)                        the open ones
(C, "attempt-sweep", at, id)                   the ended ones, by when the cleaner is to look after them
"""

from tidemill.cluster.keys import ClusterKeys
from tidemill.lots.keys import LotKeys
from tidemill.store import Space
from tidemill.triggers.keys import TriggerKeys


class PublishKeys:
    """The spaces of one cluster's attempts, and the keys of the rooms that one publication writes to."""

    def __init__(self, cluster: str) -> None:
        self.cluster = ClusterKeys(cluster)
        self.lots = LotKeys(cluster)
        self.triggers = TriggerKeys(cluster)
        self.attempt = Space(cluster, "attempt")
        self.part = Space(cluster, "attempt-part")
        self.of = Space(cluster, "attempt-of")
        self.open = Space(cluster, "attempt-open")
        self.sweep = Space(cluster, "attempt-sweep")
