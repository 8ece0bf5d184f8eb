"""The arcs room's layout in the store, beside that of the publish room.

(C, "arc", id)                                 its declaration
(C, "arc-lot", id, lot, generation)            how it stands with a lot
(C, "arc-running", id, lot, generation)        those that run, with who runs them
(C, "arc-trouble", id, lot, generation)        those that are partial or missing
(C, "arc-ask", id, lot, generation)            those that somebody asked for: retry, replay, backfill
(C, "arc-barrier", id, lot)                    those that wait for a source, with since when
(C, "arc-grace", id, since, lot)               the same, longest first
(C, "arc-bell")                                no row: hinted at when something was asked for
"""

from tidemill.publish.keys import PublishKeys
from tidemill.store import Space


class ArcKeys:
    """The spaces of one cluster's arcs."""

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
