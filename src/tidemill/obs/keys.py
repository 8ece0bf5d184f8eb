"""Keys of the event log and of alerts in the store. All of them begin with the cluster's name, C.

(C, "event-log", versionstamp)         an event, in commit order
(C, "event-log-count")                 how many events the log has
(C, "alert-seen", P)                   the key of the last event that the alerts of a pipeline have handled
(C, "alert-fresh", P, table)           how old a table may become, and since when
(C, "check-text", P, table)            the checks of a table, for people
(C, "alert-firing", P, kind, name)     an alert that was sent and is not over
(C, "alert-outbox", P, id, hook)       an alert that must be sent to a hook
(C, "alert-lease", P)                  which process sends the alerts of a pipeline
"""

from tidemill.store import Space
from tidemill.store.keys import pack


class ObservationKeys:
    """The keys of the event log and of alerts in one cluster."""

    def __init__(self, cluster: str) -> None:
        self.log = Space(cluster, "event-log")
        self.log_count = pack((cluster, "event-log-count"))
        self.seen = Space(cluster, "alert-seen")
        self.fresh = Space(cluster, "alert-fresh")
        self.checks = Space(cluster, "check-text")
        self.firing = Space(cluster, "alert-firing")
        self.outbox = Space(cluster, "alert-outbox")
        self.lease = Space(cluster, "alert-lease")
