"""Keys of arcs in the store, in addition to the keys of `publish`. All begin with the cluster's name, C.

(C, "arc", id)                                 the declaration of an arc
(C, "arc-lot", id, lot, generation)            the state of one generation of a lot
(C, "arc-running", id, lot, generation)        running generations, with their node
(C, "arc-trouble", id, lot, generation)        partial and missing generations
(C, "arc-ask", id, lot, generation)            requested generations: retry, replay, backfill
(C, "arc-barrier", id, lot)                    lots that wait for an input, with the start of the wait
(C, "arc-grace", id, since, lot)               the same lots, longest wait first
(C, "arc-bell")                                no row; watchers of this key are notified of requests
"""

from tidemill.publish.keys import PublishKeys
from tidemill.store import Space


class ArcKeys:
    """The key spaces of one cluster's arcs."""

    def __init__(self, cluster: str) -> None:
        self.publish = PublishKeys(cluster)
        self.arc = Space(cluster, "arc")
        self.lot = Space(cluster, "arc-lot")
        self.running = Space(cluster, "arc-running")
        self.trouble = Space(cluster, "arc-trouble")
        self.request = Space(cluster, "arc-ask")
        self.barrier = Space(cluster, "arc-barrier")
        self.grace = Space(cluster, "arc-grace")
        self.wakeup = Space(cluster)["arc-bell"]
