"""Keys of attempts in the store. All of them begin with the cluster's name, C.

(C, "attempt", id)                             the row of an attempt
(C, "attempt-part", id, ordinal)               the names of its parts, in order
(C, "attempt-of", author, lot, generation, id) the attempts at one generation of an author's lot
(C, "attempt-open", id)                        open attempts
(C, "attempt-sweep", at, id)                   ended attempts, by the time of their next sweep
(C, "more", key, n)                            part n of the value of another key (`store.long_values`)
"""

from tidemill.cluster.keys import ClusterKeys
from tidemill.lots.keys import LotKeys
from tidemill.store import Space
from tidemill.triggers.keys import TriggerKeys


class PublishKeys:
    """The spaces of one cluster's attempts, and the keys of the other packages that a publication writes
    to.
    """

    def __init__(self, cluster: str) -> None:
        self.cluster = ClusterKeys(cluster)
        self.lots = LotKeys(cluster)
        self.triggers = TriggerKeys(cluster)
        self.attempt = Space(cluster, "attempt")
        self.part = Space(cluster, "attempt-part")
        self.of = Space(cluster, "attempt-of")
        self.open = Space(cluster, "attempt-open")
        self.sweep = Space(cluster, "attempt-sweep")
        self.more = Space(cluster, "more")
